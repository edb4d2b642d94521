"""Use cases of the registry: published versions, their aliases, and the packed students behind them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pydantic import TypeAdapter, ValidationError

from app.domain.entities import Alias, Job, Json, ModelSummary, ModelVersion, StudentRow
from app.domain.errors import InputFault, InvalidRequest, NotFound, PreconditionRequired
from app.domain.spec import AliasName
from app.store.unit_of_work import Store, UnitOfWork

DEFAULT_ALIAS = "latest"

_ALIAS_NAME: TypeAdapter[str] = TypeAdapter(AliasName)


def list_models(store: Store, *, limit: int, after: str | None = None) -> tuple[Sequence[ModelSummary], bool]:
    """Models in order of name, those behind ``after``; and whether there are more."""
    with store.read() as uow:
        return uow.models.summaries(limit=limit, after=after)


def get_model(store: Store, model: str) -> tuple[Sequence[ModelVersion], Sequence[Alias]]:
    """All versions of a model, newest first, and its aliases. Raises NotFound."""
    with store.read() as uow:
        return uow.models.versions(model), uow.models.aliases_of(model)


def get_version(store: Store, model: str, version: int | str) -> ModelVersion:
    """One version by its number or an alias. Raises NotFound."""
    with store.read() as uow:
        return _named(uow, model, str(version))


def get_alias(store: Store, model: str, alias: str) -> Alias:
    """One alias. Raises NotFound."""
    with store.read() as uow:
        return uow.models.alias(model, alias)


def resolve(uow: UnitOfWork, reference: str) -> ModelVersion:
    """The version that ``name``, ``name@alias`` or ``name@3`` stands for.

    A bare name is its alias "latest", or its newest version when it has no such alias. Raises NotFound.
    """
    model, at, suffix = reference.partition("@")
    if at:
        return _named(uow, model, suffix)
    try:
        return _named(uow, model, DEFAULT_ALIAS)
    except NotFound:
        newest = uow.models.next_number(model) - 1
        if newest == 0:
            raise NotFound(f"There is no model {model!r}.", code="model_not_found") from None
        return uow.models.version(model, newest)


def _named(uow: UnitOfWork, model: str, name: str) -> ModelVersion:
    if name.isascii() and name.isdigit() and len(name) < 10:
        return uow.models.version(model, int(name))
    return uow.models.version(model, uow.models.alias(model, name).version)


def point_alias(
    store: Store, model: str, alias: str, version: int, expected_revision: int | None = None
) -> Alias:
    """Make an alias, or move one to another version of its model, at once for all readers.

    expected_revision: the revision the caller read; 0 to make a new one; None only if there is none yet.
    Raises InvalidRequest (bad name), NotFound, PreconditionFailed, and PreconditionRequired when the alias
    exists and the caller does not say which state of it was read.
    """
    _check_alias(alias)
    with store.begin() as uow:
        uow.models.version(model, version)
        if expected_revision is None and any(known.alias == alias for known in uow.models.aliases_of(model)):
            raise PreconditionRequired(
                f"Alias {alias!r} exists: say which revision you read.", code="if_match_required"
            )
        return uow.models.point(model, alias, version, expected_revision=expected_revision or 0)


def publish(
    uow: UnitOfWork,
    job: Job,
    *,
    dataset_digest: str,
    method: str,
    classes: Sequence[str],
    columns: int,
    teacher_digest: str,
    metrics: Json,
    alias: str | None = DEFAULT_ALIAS,
) -> ModelVersion:
    """Publish what a job trained as the next version of its model, and move the alias there.

    A job has at most one version: called again, e.g. after a crash or a retry, the one there is returned, and
    no alias is moved. Writes the version's number into the job.
    """
    number = uow.models.next_version(job.model)
    known = uow.models.of_job(job.id)
    if known is not None:
        return known
    version = ModelVersion(
        model=job.model,
        version=number,
        job_id=job.id,
        dataset_digest=dataset_digest,
        method=method,
        classes=tuple(classes),
        columns=columns,
        teacher_digest=teacher_digest,
        metrics=metrics,
        created_at=time.time(),
    )
    uow.models.publish(version)
    if alias is not None:
        uow.models.point(job.model, alias, version.version)
    uow.jobs.change(job.id, version=version.version)
    return version


def read_student(store: Store, version: ModelVersion, label: str) -> tuple[StudentRow, bytes]:
    """The student that answers for a class, and its packed bytes, whose digest was checked.

    Raises NotFound, with code ``class_not_found`` when the version has no such class, ``student_not_found``
    when it has, but its student was not trained.
    """
    with store.read() as uow:
        row = uow.students.served(version.job_id, label, version.method)
        if row is not None and row.digest is not None:
            return row, uow.blobs.read(row.digest)
    where = f"Version {version.version} of model {version.model!r}"
    if label in version.classes:
        raise NotFound(f"{where} has no trained student for class {label!r}.", code="student_not_found")
    raise NotFound(f"{where} has no class {label!r}.", code="class_not_found")


def read_teacher(store: Store, version: ModelVersion) -> bytes:
    """The packed teacher of a version, its digest checked."""
    with store.read() as uow:
        return uow.blobs.read(version.teacher_digest)


def _check_alias(alias: str) -> None:
    try:
        _ALIAS_NAME.validate_python(alias)
    except ValidationError as error:
        text = "An alias begins with a letter, then letters, digits, '.', '_' or '-', at most 100 in all."
        raise InvalidRequest(text, faults=[InputFault("alias", "bad_name", text)]) from error
