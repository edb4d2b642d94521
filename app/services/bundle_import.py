"""Use case: publish the version in a bundle as the next version of a model.

A reader process has checked the file before anything is stored. The students of a trained version belong to a
job, its record. While they are stored, the job counts as failed, so that readers see nothing, quotas count
what is stored, and the remains of an interruption are deleted like those of any failed job.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from pydantic import ValidationError

from app.domain import bundle
from app.domain.bundle import Manifest, StudentLine
from app.domain.entities import Job, JobState, Json, ModelVersion, StudentRow, StudentState, new_id
from app.domain.errors import Conflict, InputFault, InvalidRequest, ServiceError, Unavailable
from app.domain.names import check_alias, check_model_name
from app.domain.training_spec import TrainingSpec
from app.ingest.orders import BundleContent, BundleOrder, Place
from app.ingest.reading import check_bundle
from app.services import models
from app.services.bundle_export import IMPORTED
from app.services.models import DEFAULT_ALIAS, LISTED_CLASSES
from app.services.quotas import require_room, room_for
from app.services.retention import BLOBS_OF_A_REQUEST, discarding_if_refused
from app.settings import Settings
from app.store.large_blobs import LARGE_CHUNK_BYTES, put_large
from app.store.unit_of_work import Store, UnitOfWork
from core.errors import InvalidProblem

_BATCH: Final = 64
"""Students in one transaction, if they are small."""
_BATCH_BYTES: Final = 8 * 1024**2
_MAX_KEYS_BYTES: Final = 64 * 1024
_UNFINISHED: Final = "import_unfinished"


class ImportedBundle(NamedTuple):
    """The version of a bundle, whether it is new, and the alias that was moved to it, if any."""

    version: ModelVersion
    is_new: bool
    alias: str | None


class SeenBundle(NamedTuple):
    """The contents of a checked file. version: as it would be published, without number and job. known: the
    version that was published from the same bundle, if any.
    """

    manifest: Manifest
    content: BundleContent
    version: ModelVersion
    known: ModelVersion | None


def inspect_bundle(
    store: Store,
    source: Path,
    *,
    model: str | None = None,
    allow_older: bool = False,
    limits: Settings,
    read: Callable[[BundleOrder], BundleContent] = check_bundle,
) -> SeenBundle:
    """Check the bundle in a file as `import_bundle`, and raise as it does; nothing is stored."""
    content = read(
        BundleOrder(
            source=str(source),
            listed=LISTED_CLASSES,
            max_classes=limits.max_classes,
            max_columns=limits.max_columns,
            keys=trusted_keys(limits),
        )
    )
    manifest = msgspec.json.decode(content.manifest.encode(), type=Manifest)
    name = manifest.model if model is None else model
    check_model_name(name)
    _check_spec(manifest)
    version = _version(store.tenant, name, manifest, content)
    with store.read() as uow:
        return SeenBundle(manifest, content, version, _known(uow, version, manifest, allow_older=allow_older))


def import_bundle(
    store: Store,
    source: Path,
    *,
    model: str | None = None,
    alias: str | None = DEFAULT_ALIAS,
    alias_revision: int | None = None,
    allow_older: bool = False,
    allow_schema_change: bool = False,
    created_by: str,
    limits: Settings,
    read: Callable[[BundleOrder], BundleContent] = check_bundle,
) -> ImportedBundle:
    """Check the bundle in a file, and publish its version as the next one of a model.

    model: by default that of the manifest. alias_revision: of the alias when the import was requested, by
    default now; an alias that an operator has moved since then is not moved. allow_older: also accept a
    version that is older than the newest one of the same origin in the model. allow_schema_change: move the
    alias even if the bundle's version refuses what its present one answers. created_by: id of the API key.
    A bundle that was already published gives the existing version, and moves no alias.

    Raises InvalidRequest naming the member at fault, TooLarge, Unprocessable for a newer format, or without a
    signature that the settings ask for, Conflict for an older version, beyond the quota of versions and as
    `app.services.models.point_alias`, and Unavailable.
    """
    if alias is not None:
        check_alias(alias)
    seen = inspect_bundle(store, source, model=model, allow_older=allow_older, limits=limits, read=read)
    if seen.known is not None:
        return ImportedBundle(seen.known, False, None)
    manifest, content, version = seen.manifest, seen.content, seen.version
    if alias_revision is None:
        alias_revision = models.alias_revision(store, version.model, alias)
    size = sum(place.size for place in content.blobs.values()) + _students_bytes(source, content)
    room_for(store, limits, "versions", size)
    with source.open("rb") as file:
        stored = _Import(store, file.fileno(), manifest, content)
        job = None
        if manifest.spec is not None:
            job = _record(store, version, manifest, manifest.spec, created_by, stored.bytes)
        unused = set(manifest.blobs)
        with discarding_if_refused(store, unused), _deleted_if_it_fails(store, job, unused):
            stored.put_blobs()
            if job is not None:
                stored.put_students(job)
            return _publish(
                store,
                version,
                job,
                manifest,
                alias,
                alias_revision,
                size,
                limits,
                allow_older=allow_older,
                allow_schema_change=allow_schema_change,
            )


@contextmanager
def _deleted_if_it_fails(store: Store, job: Job | None, unused: set[str]) -> Iterator[None]:
    """Delete the record of an import that fails, and add to `unused` the blobs that only it referred to."""
    try:
        yield
    except BaseException:
        if job is not None:
            with suppress(ServiceError), store.begin() as uow:
                unused |= uow.retention.blobs_of_job(job.id, BLOBS_OF_A_REQUEST)
                uow.retention.delete_job(job.id)
        raise


def trusted_keys(settings: Settings) -> str | None:
    """PEM text of the public keys, one of which must have signed an import; None if none must.

    It is read for each import, so that keys can be changed. Raises Unavailable.
    """
    if settings.bundle_keys is None:
        return None
    try:
        with settings.bundle_keys.open("rb") as file:
            return file.read(_MAX_KEYS_BYTES).decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        text = "The server cannot read the public keys that it trusts."
        raise Unavailable(text, code="bundle_keys_unreadable") from error


def _check_spec(manifest: Manifest) -> None:
    """Raise InvalidRequest for hyper-parameters of a trained version that are unknown here."""
    if manifest.spec is None:
        return
    try:
        spec = TrainingSpec.model_validate(manifest.spec)
    except (ValidationError, InvalidProblem, ValueError) as error:
        text = "The bundle has hyper-parameters that this release, or its plug-ins, do not know."
        raise _invalid("spec", text) from error
    if spec.served_method != manifest.method:
        raise _invalid("method", f"The hyper-parameters are not those of students {manifest.method!r}.")


def _invalid(field: str, text: str) -> InvalidRequest:
    return InvalidRequest(text, code="invalid_bundle", faults=[InputFault(field, "invalid_bundle", text)])


def _version(tenant: str, model: str, manifest: Manifest, content: BundleContent) -> ModelVersion:
    """The version that is to be published, still without number and job."""
    origin: Json = {
        "manifest": content.digest,
        "program": manifest.program,
        "model": manifest.model,
        "version": manifest.version,
        "created_at": manifest.created_at,
    }
    origin |= {} if content.signer is None else {"signer": content.signer}
    return ModelVersion(
        model=model,
        version=0,
        job_id=None,
        dataset_digest=manifest.dataset_digest,
        method=manifest.method,
        classes=tuple(manifest.classes),
        columns=manifest.columns,
        teacher_digest=manifest.teacher,
        metrics={**manifest.metrics, IMPORTED: origin},
        created_at=time.time(),
        class_count=manifest.class_count,
        class_table=manifest.class_table,
        tenant=tenant,
        encoder_digest=manifest.encoder,
        profile_digest=manifest.profile,
    )


def _known(
    uow: UnitOfWork, version: ModelVersion, manifest: Manifest, *, allow_older: bool
) -> ModelVersion | None:
    """The version that the same bundle has been published as. Raises Conflict for an older one."""
    known = uow.models.of_bundle(version.model, version.metrics[IMPORTED]["manifest"])
    if known is not None:
        return known
    newest = uow.models.newest_of_origin(version.model, manifest.model)
    if newest is not None and newest > manifest.version and not allow_older:
        text = (
            f"Model {version.model!r} has version {newest} of {manifest.model!r} from another bundle "
            f"already; this one is its version {manifest.version}. Allow older versions to import it."
        )
        raise Conflict(text, code="older_version")
    return None


def _students_bytes(source: Path, content: BundleContent) -> int:
    """Total bytes of the members of students, with their headers: from the first one to the end."""
    return 0 if content.students is None else max(0, source.stat().st_size - content.first)


def _record(
    store: Store,
    version: ModelVersion,
    manifest: Manifest,
    spec: Json,
    created_by: str,
    student_bytes: int,
) -> Job:
    """Store the job that will have the students."""
    now = time.time()
    provenance = {**manifest.provenance, IMPORTED: version.metrics[IMPORTED]}
    job = Job(
        id=new_id("job"),
        dataset_id="none",
        model=version.model,
        spec=spec,
        state=JobState.FAILED,
        attempt=0,
        stage="finished",
        progress_done=0 if manifest.students is None else manifest.students.count,
        progress_total=0 if manifest.students is None else manifest.students.count,
        created_at=now,
        created_by=created_by,
        started_at=now,
        finished_at=now,
        error_code=_UNFINISHED,
        error_message="The import of a bundle was interrupted.",
        provenance=provenance,
        tenant=version.tenant,
        student_bytes=student_bytes,
    )
    with store.begin() as uow:
        uow.jobs.add(job)
        uow.events.append(job.id, "bundle_imported", version.metrics[IMPORTED])
    return job


class _Import:
    """Stores the contents of a checked file. bytes: of all students with their maps."""

    def __init__(self, store: Store, file: int, manifest: Manifest, content: BundleContent) -> None:
        self._store = store
        self._file = file
        self._manifest = manifest
        self._content = content
        self.bytes = sum(line.size for line, _ in self._students())
        self.bytes += sum(manifest.files[digest] for digest in manifest.maps)

    def put_blobs(self) -> None:
        """Store the blobs that the manifest names, in transactions of some MiB each."""
        for digest, place in self._content.blobs.items():
            sha = hashlib.sha256()
            for piece in self._pieces(place):
                sha.update(piece)
            _require(sha.hexdigest() == digest)
            put_large(self._store, digest, place.size, self._pieces(place))

    def put_students(self, job: Job) -> None:
        """Store the students with their rows, some of them in each transaction."""
        for batch in _batches(self._students()):
            rows = []
            with self._store.begin() as uow:
                uow.jobs.lock(job.id)
                # In the order of the digests, as workers do, so that two transactions cannot deadlock.
                for line, place in sorted(batch, key=lambda student: student[0].digest):
                    digest, _ = uow.blobs.put(self._pieces(place))
                    _require(digest == line.digest)
                    rows.append(_row(job.id, self._manifest.method, line))
                uow.students.save_all(sorted(rows, key=lambda row: row.class_index))

    def _students(self) -> Iterator[tuple[StudentLine, Place]]:
        if self._content.students is None:
            return
        at = self._content.first
        for content in bundle.lines_of(self._pieces(self._content.students)):
            line = bundle.read_line(content)
            yield line, Place(at + bundle.BLOCK, line.size)
            at += bundle.member_bytes(line.size)

    def _pieces(self, place: Place) -> Iterator[bytes]:
        for start in range(0, place.size, LARGE_CHUNK_BYTES):
            length = min(LARGE_CHUNK_BYTES, place.size - start)
            yield os.pread(self._file, length, place.start + start)


def _batches(
    students: Iterator[tuple[StudentLine, Place]],
) -> Iterator[list[tuple[StudentLine, Place]]]:
    """The students of each transaction: at most `_BATCH`, and only one if it has more than `_BATCH_BYTES`."""
    batch: list[tuple[StudentLine, Place]] = []
    size = 0
    for student in students:
        if batch and (len(batch) == _BATCH or size + student[0].size > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(student)
        size += student[0].size
    if batch:
        yield batch


def _row(job_id: str, method: str, line: StudentLine) -> StudentRow:
    return StudentRow(
        job_id=job_id,
        class_index=line.class_index,
        label=line.label,
        method=method,
        state=StudentState.SUCCEEDED,
        objective=line.objective,
        gap=line.gap,
        iterations=line.iterations,
        seconds=line.seconds,
        status=line.status,
        threshold=line.threshold,
        metrics=line.metrics,
        digest=line.digest,
        chosen=line.chosen,
        map_digest=line.map,
    )


def _publish(
    store: Store,
    wanted: ModelVersion,
    job: Job | None,
    manifest: Manifest,
    alias: str | None,
    alias_revision: int,
    size: int,
    limits: Settings,
    *,
    allow_older: bool,
    allow_schema_change: bool,
) -> ImportedBundle:
    with store.begin() as uow:
        uow.quotas.lock(store.tenant)
        number = uow.models.next_version(wanted.model)
        known = _known(uow, wanted, manifest, allow_older=allow_older)
        if known is not None:
            if job is not None:
                uow.retention.delete_job(job.id)
            return ImportedBundle(known, False, None)
        # The students already count as those of the record.
        require_room(uow, limits, store.tenant, "versions", 0 if job is not None else size)
        for digest in manifest.blobs:
            uow.blobs.finish_large(digest)
        version = dataclasses.replace(wanted, version=number, job_id=None if job is None else job.id)
        if job is not None:
            uow.jobs.change(
                job.id,
                state=JobState.SUCCEEDED.value,
                error_code=None,
                error_message=None,
                teacher_digest=manifest.teacher,
                encoder_digest=manifest.encoder,
                profile_digest=manifest.profile,
                version=number,
            )
        alias, forced = models.release_import(uow, version, alias, alias_revision, allow_schema_change)
        details = {"bundle": version.metrics[IMPORTED], "alias": alias, **forced}
        uow.audit.append("model.import", f"{version.model}@{number}", details=details)
    return ImportedBundle(version, True, alias)


def _require(is_same: bool) -> None:
    if not is_same:
        raise Unavailable("The file has changed since it was checked.", code="bundle_changed")
