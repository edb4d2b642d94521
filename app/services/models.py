"""Use cases of the registry: published versions, their aliases, and the packed students behind them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from app.domain.entities import Alias, AliasMove, Job, Json, ModelSummary, ModelVersion, StudentRow
from app.domain.errors import (
    Conflict,
    InputFault,
    InvalidRequest,
    NotAuthorised,
    NotFound,
    PreconditionRequired,
    Unavailable,
)
from app.domain.evaluation import MAX_REASON
from app.domain.event_text import describe_event
from app.domain.figures import HOUR, InputRow
from app.domain.names import check_alias, is_display_name, split_qualified
from app.domain.near_names import known_names, spellings
from app.services import gates
from app.services.quotas import require_bytes
from app.services.retention import BLOBS_OF_A_REQUEST, delete_unused
from app.services.schema_changes import SCHEMA_CHANGE, changes_between, noted, require_same_schema
from app.settings import Settings
from app.store.blob_cache import BlobCache, open_blob
from app.store.repositories.models import Models
from app.store.unit_of_work import Store, UnitOfWork
from core.errors import InvalidPackage
from core.packed import PackedHead, PackedLabels, PackedStudent
from core.packed.map_packages import map_from_bytes
from core.packed.maps import PackedMap

DEFAULT_ALIAS = "latest"

LISTED_CLASSES = 1000
"""Versions with at most this many labels list them; other versions have a table, which is read on demand."""

_COMPARED_CLASSES: Final = 200
"""The first classes of a table, among which a near name is looked for."""

LISTED_VERSIONS = 100_000
"""Most versions of a model whose numbers are read at once."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ModelPage:
    """A model with one page of its versions, newest first.

    has_more: whether older versions follow. state: numbers that change with every version and alias.
    """

    versions: Sequence[ModelVersion]
    aliases: Sequence[Alias]
    has_more: bool
    state: tuple[int, int, int, int]


def list_models(
    store: Store, *, limit: int, after: tuple[str, str] | None = None, among: Collection[str] = ()
) -> tuple[Sequence[ModelSummary], bool]:
    """Models after (tenant, name), in this order; and whether more follow.

    among: the names of the models to list; empty for all.
    """
    with store.read() as uow:
        return uow.models.summaries(limit=limit, after=after, among=among)


def get_model(store: Store, model: str, *, limit: int, before: int | None = None) -> ModelPage:
    """A model with its versions below number ``before``. Raises NotFound."""
    with store.read() as uow:
        versions, has_more = uow.models.versions(model, limit=limit, before=before)
        aliases = uow.models.aliases_of(model)
        return ModelPage(versions, aliases, has_more, uow.models.counts(model))


def get_version(store: Store, model: str, version: int | str) -> ModelVersion:
    """One version by its number or an alias. Raises NotFound."""
    with store.read() as uow:
        return _named(uow.models, model, str(version))


def input_rows(store: Store, version: ModelVersion, hours: int) -> Sequence[InputRow]:
    """Properties of the records of queries to a version, in the last whole ``hours`` and the present one."""
    hour = int(time.time() // HOUR) - hours
    with store.read() as uow:
        return uow.inputs.since(version.tenant, version.model, version.version, hour)


def get_alias(store: Store, model: str, alias: str) -> Alias:
    """One alias. Raises NotFound."""
    with store.read() as uow:
        return uow.models.alias(model, alias)


def alias_moves(
    store: Store, model: str, alias: str, *, limit: int, after: str | None = None
) -> tuple[Sequence[AliasMove], bool]:
    """The moves of an alias, newest first, and whether more follow. Raises NotFound if there never was one.

    The last moves of all aliases of a model are kept until its last version is deleted, including those of
    deleted aliases and versions.
    """
    with store.read() as uow:
        page, has_more = uow.models.moves(model, alias, limit=limit, after=after)
        if not page and after is None:
            uow.models.alias(model, alias)
    return page, has_more


def version_numbers(store: Store, model: str) -> set[int]:
    """The numbers of the versions of a model that exist."""
    with store.read() as uow:
        return {number for _, number in uow.models.numbers(model, limit=LISTED_VERSIONS)}


def alias_revision(store: Store, model: str, alias: str | None) -> int:
    """The revision of an alias, to be passed to a later publication; 0 if it does not exist, or for None."""
    if alias is None:
        return 0
    with store.read() as uow:
        return uow.models.alias_revision(model, alias)


def resolve(registry: Models, reference: str) -> ModelVersion:
    """The version that ``name``, ``name@alias`` or ``name@3`` refers to.

    A bare name means its alias "latest" or, without that alias, its newest version. Raises NotFound.
    """
    model, at, suffix = reference.partition("@")
    if at:
        return _named(registry, model, suffix)
    try:
        return _named(registry, model, DEFAULT_ALIAS)
    except NotFound:
        newest = registry.newest(model)
        if newest is None:
            raise NotFound(f"There is no model {model!r}.", code="model_not_found") from None
        return registry.version(model, newest)


def resolve_all(registry: Models, references: Collection[str]) -> dict[str, ModelVersion]:
    """Like `resolve` for many references, each qualified by its tenant (see `qualified`), in a few queries.

    References that match no version are left out.
    """
    parts: dict[str, tuple[str, str, str | None]] = {}
    for reference in references:
        tenant, name = split_qualified(reference)
        model, at, suffix = name.partition("@")
        parts[reference] = (tenant, model, suffix if at else None)
    bare = {(tenant, model) for tenant, model, suffix in parts.values() if suffix is None}
    newest = registry.newest_of(bare)
    # Only the aliases that are asked for: a model may have a thousand.
    aliased = registry.aliased(
        {
            (tenant, model, DEFAULT_ALIAS if suffix is None else suffix)
            for tenant, model, suffix in parts.values()
            if suffix is None or _number(suffix) is None
        }
    )
    names: dict[str, tuple[str, str, int]] = {}
    for reference, (tenant, model, wanted) in parts.items():
        number = None if wanted is None else _number(wanted)
        if wanted is None:
            number = aliased.get((tenant, model, DEFAULT_ALIAS), newest.get((tenant, model)))
        elif number is None:
            number = aliased.get((tenant, model, wanted))
        if number is not None:
            names[reference] = (tenant, model, number)
    versions = registry.some_versions(set(names.values()))
    return {reference: versions[name] for reference, name in names.items() if name in versions}


def _named(registry: Models, model: str, name: str) -> ModelVersion:
    number = _number(name)
    return registry.version(model, registry.alias(model, name).version if number is None else number)


def _number(name: str) -> int | None:
    """The number of a version that is named by its number; None for the name of an alias."""
    return int(name) if name.isascii() and name.isdigit() and len(name) < 10 else None


def point_alias(
    store: Store,
    settings: Settings,
    model: str,
    alias: str,
    version: int,
    expected_revision: int | None = None,
    *,
    allow_schema_change: bool = False,
    override: str | None = None,
) -> Alias:
    """Create an alias, or move it to another version of its model.

    expected_revision: the revision that the caller read; 0 to create a new alias; None for either, which an
    existing alias does not allow. allow_schema_change: also move it to a version that refuses what the
    present one answers. override: reason for moving it although its gate refuses the version, for the audit
    log; the caller has checked the permission for this. Raises InvalidRequest (bad name), NotFound,
    PreconditionFailed, PreconditionRequired if the alias exists and no revision is expected, Conflict if the
    version refuses what the present one answers or the gate refuses the version, and for a new alias Conflict
    if the model has its full number of aliases and TooLarge beyond the tenant's quota, which does not prevent
    moves of an alias.
    """
    check_alias(alias)
    with store.begin() as uow:
        target = uow.models.version(model, version)
        present = uow.models.find_alias(model, alias)
        if present is None:
            require_bytes(uow, settings, store.tenant)
        elif expected_revision is None:
            raise PreconditionRequired(
                f"Alias {alias!r} exists: the revision you read is required.", code="if_match_required"
            )
        details: Json = {"version": version, "from": None if present is None else present.version}
        details |= schema_details(uow, answering(uow.models, model, alias), target, allow_schema_change)
        _ask_gate(uow, model, alias, version, override)
        uow.audit.append("alias.move", f"{model}@{alias}", details=details)
        return uow.models.point(model, alias, version, expected_revision=expected_revision or 0)


def _ask_gate(uow: UnitOfWork, model: str, alias: str, version: int, override: str | None) -> None:
    """Raise Conflict if the gate of an alias refuses a version, or record why that is overridden."""
    refusal = gates.refusal_of(uow, uow.models, model, alias, version)
    if refusal is None:
        return
    if override is None:
        raise refusal.as_error()
    if not is_display_name(override, MAX_REASON):
        text = f"A reason is 1 to {MAX_REASON} printable characters."
        raise InvalidRequest(text, faults=[InputFault("override", "bad_reason", text)])
    details = {"version": version, "from": refusal.present, "reason": override, "gate": refusal.noted()}
    uow.audit.append("alias.override", f"{model}@{alias}", details=details)


def answering(registry: Models, model: str, alias: str) -> ModelVersion | None:
    """The version that answers under an alias; without the alias `DEFAULT_ALIAS` the newest one, if any."""
    present = registry.find_alias(model, alias)
    number = registry.newest(model) if present is None and alias == DEFAULT_ALIAS else None
    if present is not None:
        number = present.version
    return None if number is None else registry.version(model, number)


def schema_details(
    uow: UnitOfWork, before: ModelVersion | None, after: ModelVersion | None, allow_schema_change: bool
) -> Json:
    """Audit details of a move whose new version refuses what the old one answers; otherwise empty.

    before, after: the versions that answer; None for none. Raises Conflict unless the change is allowed.
    """
    if before is None or after is None:
        return {}
    if not allow_schema_change:
        require_same_schema(uow, before, after)
        return {}
    changes = changes_between(uow, before, after)
    return {"allow_schema_change": noted(changes)} if changes else {}


def delete_alias(
    store: Store,
    model: str,
    alias: str,
    expected_revision: int | None,
    *,
    allow_schema_change: bool = False,
    may_delete_gate: bool = True,
) -> None:
    """Delete an alias with its gate.

    expected_revision: the revision that the caller read. may_delete_gate: whether the caller may delete the
    gate; otherwise one raises NotAuthorised. Raises NotFound, PreconditionFailed,
    PreconditionRequired when it is None, and, as `point_alias`, Conflict where the newest version, which
    answers without the alias `DEFAULT_ALIAS`, refuses what this one answered.
    """
    if expected_revision is None:
        raise PreconditionRequired(
            "The revision of the alias that you read is required.", code="if_match_required"
        )
    with store.begin() as uow:
        before = uow.models.version(model, uow.models.alias(model, alias).version)
        if not may_delete_gate and uow.gates.find(model, alias) is not None:
            text = f"Alias {alias!r} of model {model!r} has a gate, so deleting it needs the scope 'admin'."
            raise NotAuthorised(text, code="scope_required")
        uow.models.delete_alias(model, alias, expected_revision=expected_revision)
        after = answering(uow.models, model, alias)
        details = schema_details(uow, before, after, allow_schema_change)
        uow.audit.append("alias.delete", f"{model}@{alias}", details=details)


def delete_version(store: Store, model: str, version: int) -> None:
    """Delete a version. Its job and data set stay, and its number is not used again.

    The job of a version with other thresholds is only its record, and is deleted with it. Blobs that nothing
    else refers to are deleted, too.

    Raises NotFound, and Conflict while an alias points to it or an unfinished job uses it as its teacher.
    """
    with store.begin() as uow:
        uow.registry.lock()
        uow.models.lock(model, version)
        if uow.jobs.unfinished_with_teacher(f"{model}@{version}"):
            text = (
                f"A training job that has not ended uses version {version} of model {model!r} as its teacher."
            )
            raise Conflict(text, code="version_in_use")
        unused = uow.retention.blobs_of_version(model, version)
        deleted = uow.models.delete(model, version)
        if deleted.job_id is not None:
            job = uow.jobs.change(deleted.job_id, version=None)
            if "base" in job.provenance:
                unused |= uow.retention.blobs_of_job(job.id, BLOBS_OF_A_REQUEST)
                uow.retention.delete_job(job.id)
        uow.audit.append("version.delete", f"{model}@{version}")
    delete_unused(store, unused)


def publish(
    uow: UnitOfWork,
    job: Job,
    *,
    dataset_digest: str,
    method: str,
    classes: Sequence[str],
    columns: int,
    teacher_digest: str | None,
    metrics: Json,
    encoder_digest: str | None = None,
    profile_digest: str | None = None,
    alias: str | None = DEFAULT_ALIAS,
    packed_labels: bytes | None = None,
    facts: Json | None = None,
    allow_schema_change: bool = False,
) -> ModelVersion:
    """Publish the results of a job as the next version of its model, and move the alias to it.

    An alias that `release` does not move stays; the provenance of the job then has the entry
    ``alias_not_moved``: the alias, and the version that it points to.

    A job has at most one version. Another call, for example after a crash or a retry, returns the existing
    version and moves no alias. The number of the version is stored in the job. packed_labels: the result of
    `pack_labels`, if the caller has it already. facts: further details of its audit record.
    """
    models = uow.models.of_tenant(job.tenant)
    number = models.next_version(job.model)
    known = models.of_job(job.id)
    if known is not None:
        return known
    class_table = None
    packed_labels = packed_labels or pack_labels(classes)
    if packed_labels is not None:
        class_table, _ = uow.blobs.put([packed_labels])
    version = ModelVersion(
        model=job.model,
        version=number,
        job_id=job.id,
        dataset_digest=dataset_digest,
        method=method,
        classes=() if class_table else tuple(classes),
        columns=columns,
        teacher_digest=teacher_digest,
        metrics=metrics,
        created_at=time.time(),
        class_count=len(classes),
        class_table=class_table,
        tenant=job.tenant,
        encoder_digest=encoder_digest,
        profile_digest=profile_digest,
    )
    changed: Json = {"version": number}
    unmoved = release(
        uow, models, version, alias, seen=job.alias_revision, allow_schema_change=allow_schema_change
    )
    if unmoved is not None:
        changed["provenance"] = {**job.provenance, "alias_not_moved": unmoved}
        if unmoved.get("reason") == SCHEMA_CHANGE:
            text = f"The {describe_event('alias_not_moved', unmoved)} To move it nevertheless, say so:"
            text += " allow_schema_change=true (--allow-schema-change)."
            earlier = job.provenance.get("schema_warnings", ())
            changed["provenance"]["schema_warnings"] = [*earlier, {"code": SCHEMA_CHANGE, "message": text}]
    moved = moved_alias(alias, unmoved)
    details = {"job": job.id, "alias": moved, **(facts or {})}
    uow.audit.append("model.publish", f"{version.model}@{number}", details=details, tenant=job.tenant)
    uow.jobs.change(job.id, **changed)
    return version


def release(
    uow: UnitOfWork,
    registry: Models,
    version: ModelVersion,
    alias: str | None,
    *,
    seen: int,
    allow_schema_change: bool,
) -> Json | None:
    """Store a new version and move an alias to it; returns why the alias stays, None if it was moved.

    registry: of the version's tenant. seen: the alias's revision when the publication was requested. The
    alias stays if an operator has moved, created or deleted it since then, if the model has its full
    number of aliases, if the alias has a gate, which the new version cannot have passed, and, unless
    ``allow_schema_change``, if the new version refuses what the present one answers.
    In a model without the alias `DEFAULT_ALIAS` the newest version answers: in the last case that version
    gets the alias, so that the new one does not replace it.
    """
    model = version.model
    old = None if alias is None else answering(registry, model, alias)
    bare = answering(registry, model, DEFAULT_ALIAS)
    registry.publish(version)
    changes = [] if old is None or allow_schema_change else changes_between(uow, old, version)
    unmoved: Json | None = None
    gate = None if alias is None else gates.refusal_of(uow, registry, model, alias, version.version)
    if alias is not None and (
        changes or gate is not None or not registry.advance(model, alias, version.version, seen=seen)
    ):
        present = registry.find_alias(model, alias)
        unmoved = {"alias": alias, "version": None if present is None else present.version}
        if gate is not None:
            unmoved |= {"reason": gates.GATE, **gate.noted()}
        elif changes:
            unmoved |= {"reason": SCHEMA_CHANGE, **noted(changes)}
        elif present is None and not seen:
            unmoved["reason"] = "too_many_aliases"
    if bare is not None and not allow_schema_change and registry.find_alias(model, DEFAULT_ALIAS) is None:
        changes = changes_between(uow, bare, version)
        if changes and registry.advance(model, DEFAULT_ALIAS, bare.version, seen=0):
            kept = {"alias": DEFAULT_ALIAS, "version": bare.version, "reason": SCHEMA_CHANGE}
            unmoved = {**kept, **noted(changes)} if unmoved is None or alias == DEFAULT_ALIAS else unmoved
    return unmoved


def release_import(
    uow: UnitOfWork, version: ModelVersion, alias: str | None, seen: int, allow_schema_change: bool
) -> tuple[str | None, Json]:
    """Store an imported version like `release`; returns the alias that was moved, and what to record.

    Raises Conflict if the alias would move to a version that refuses what its present one answers, unless
    that is allowed.
    """
    old = None if alias is None else answering(uow.models, version.model, alias)
    forced = schema_details(uow, old, version, allow_schema_change)
    unmoved = release(uow, uow.models, version, alias, seen=seen, allow_schema_change=allow_schema_change)
    if unmoved is not None and unmoved.get("reason") == gates.GATE:
        forced = {**forced, "alias_not_moved": unmoved}
    return moved_alias(alias, unmoved), forced


def moved_alias(alias: str | None, unmoved: Json | None) -> str | None:
    """The alias that `release` moved; None if it stays. unmoved: the result of `release`."""
    return alias if unmoved is None or unmoved["alias"] != alias else None


def pack_labels(classes: Sequence[str]) -> bytes | None:
    """The table of the labels of a version that has too many to list; otherwise None."""
    return PackedLabels.of(classes).to_bytes() if len(classes) > LISTED_CLASSES else None


def open_student(
    store: Store, files: BlobCache, row: StudentRow, maps: dict[str, PackedMap] | None = None
) -> PackedStudent:
    """The packed student of a row, with its map; see `open_packed`."""
    return open_packed(store, files, str(row.digest), row.map_digest, maps)


def open_packed(
    store: Store,
    files: BlobCache,
    digest: str,
    map_digest: str | None,
    maps: dict[str, PackedMap] | None = None,
) -> PackedStudent:
    """A packed student. map_digest: of the map that it names. maps: maps that were read before, by digest;
    this one is added. Raises InvalidPackage, NotFound and Unavailable.
    """
    maps = {} if maps is None else maps
    if map_digest not in maps:
        maps |= maps_of(store, files, map_digest)
    return files.with_refetch(
        lambda: PackedStudent.from_bytes(open_blob(store, files, digest).whole(), maps=maps), digest
    )


def maps_of(store: Store, files: BlobCache, map_digest: str | None) -> dict[str, PackedMap]:
    """The map that a packed student names, by its digest; empty for None. Raises as `open_packed`."""
    if map_digest is None:
        return {}
    name = map_digest
    return {name: files.with_refetch(lambda: map_from_bytes(open_blob(store, files, name).whole()), name)}


def served_student(store: Store, files: BlobCache, version: ModelVersion, label: str) -> StudentRow:
    """The student that answers the queries of a class of a trained version.

    Raises NotFound: code ``class_not_found`` if the version has no such class, ``student_not_found`` if the
    class has no trained student.
    """
    with store.read() as uow:
        row = uow.students.served(str(version.job_id), label, version.method)
        if row is not None and row.digest is not None:
            return row
    unknown = find_unknown_class(store, files, version, label)
    if unknown is not None:
        raise unknown
    raise NotFound(f"{_where(version)} has no trained student for class {label!r}.", code="student_not_found")


def labels_of(store: Store, files: BlobCache, version: ModelVersion) -> PackedLabels:
    """The class table of a version that has one; labels are read on demand.

    Raises InvalidPackage and Unavailable.
    """
    file = open_blob(store, files, str(version.class_table))
    return PackedLabels.from_bytes(file.data, read=file.view)


def open_head(store: Store, files: BlobCache, version: ModelVersion) -> PackedHead:
    """The head of an imported version, read on demand. Raises InvalidPackage and Unavailable."""
    labels = labels_of(store, files, version)
    file = open_blob(store, files, str(version.teacher_digest))
    return PackedHead.from_bytes(file.data, labels, read=file.read)


def list_classes(
    store: Store, files: BlobCache, version: ModelVersion, *, limit: int, after: int = -1
) -> tuple[Sequence[tuple[int, str]], bool]:
    """(number, label) of the first ``limit`` classes after number ``after``; and whether more follow."""
    rows = range(after + 1, min(after + 1 + limit, version.class_count))

    def named(labels: Sequence[str]) -> list[tuple[int, str]]:
        return [(row, labels[row]) for row in rows]

    listed = (
        named(version.classes) if version.class_table is None else _from_table(store, files, version, named)
    )
    return listed, rows.stop < version.class_count


def find_unknown_class(store: Store, files: BlobCache, version: ModelVersion, label: str) -> NotFound | None:
    """The error for a class that a version does not have; None if it has this one."""
    if version.class_table is None:
        return None if label in version.classes else unknown_class(version, label)
    return _from_table(
        store,
        files,
        version,
        lambda labels: None if labels.find(label) is not None else unknown_class(version, label, labels),
    )


def unknown_classes(
    store: Store, files: BlobCache, version: ModelVersion, labels: Sequence[str]
) -> list[str]:
    """Those of ``labels`` that a version with a class table does not have."""

    def missing(known: PackedLabels) -> list[str]:
        return [label for label in labels if known.find(label) is None]

    return _from_table(store, files, version, missing)


def _from_table(
    store: Store, files: BlobCache, version: ModelVersion, use: Callable[[PackedLabels], Result]
) -> Result:
    """The result of ``use`` on the class table. Raises Unavailable."""
    try:
        return files.with_refetch(lambda: use(labels_of(store, files, version)), str(version.class_table))
    except InvalidPackage as error:
        text = f"The class table of {_where(version)} is damaged in the database."
        raise Unavailable(text, code="blob_damaged") from error


def unknown_class(
    version: ModelVersion, label: str, labels: Sequence[str] | PackedLabels | None = None
) -> NotFound:
    """The error for a class that a version does not have, with its classes and the most similar one.

    labels: all classes; by default those that the version lists.
    """
    near = ""
    if isinstance(labels, PackedLabels):
        # So many are not compared one by one.
        near = next((other for other in spellings(label) if labels.find(other) is not None), "")
    first = labels[:_COMPARED_CLASSES] if isinstance(labels, PackedLabels) else labels or version.classes
    names = known_names(label, first, "classes", count=version.class_count, near=near)
    return NotFound(f"{_where(version)} has no class {label!r}; {names}", code="class_not_found")


def _where(version: ModelVersion) -> str:
    return f"Version {version.version} of model {version.model!r}"
