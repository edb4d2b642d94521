"""Use case of a subject whose data are to be deleted: its rows in data sets, its samples and its feedback."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from app.domain.document import Document
from app.domain.entities import Dataset, Job, ModelVersion, StudentRow
from app.domain.errors import Conflict, InvalidRequest, NotFound, Unprocessable
from app.ingest.orders import RevisionContent, RevisionOrder
from app.ingest.reading import revise_dataset
from app.services.datasets import delete_dataset, find_subjects
from app.services.models import maps_of
from app.services.revisions import Changes, revised_dataset
from app.services.subject_keys import pseudonyms_of
from app.settings import Settings
from app.store.blob_cache import BlobCache, open_blob
from app.store.unit_of_work import Store
from core.data.row_marks import SUBJECT_BYTES, pseudonyms
from core.data.schema import Kind
from core.packed import PackedStudent
from core.packed.maps import BesideTerms, FourierBasis, LinearBasis, PackedMap

_PAGE: Final = 50
_OF_WORDS: Final = frozenset({Kind.TEXT, Kind.CATEGORY})
_NOTE: Final = "The rows of a subject were deleted."


@dataclass(frozen=True, slots=True)
class ErasedDataset(Document):
    """A series of data sets without the rows of a subject.

    series: id of its first data set. rows: of the subject, in the newest revision that had any. deleted: ids
    of the data sets that had rows of it, and are deleted. in_use: ids of those that an unfinished job or
    evaluation reads: they are deleted when this is asked for again. revision: id of the new one without the
    rows; null where nothing could be trained on without them, which ``reason`` says, or where the newest had
    none.
    """

    series: str
    rows: int
    deleted: list[str]
    in_use: list[str]
    revision: str | None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class TaughtVersion(Document):
    """A version that was trained, or measured, on rows of a subject.

    trained_with: how many rows its data set had of the subject. contains: what of its packages may hold
    values of these rows: ``landmarks`` of a kernel map, ``words`` and categories of an encoder, ``examples``
    of a class that was added. contains_rows: whether there is any such. Until the version and its job are
    deleted, these packages stay.
    """

    model: str
    version: int
    trained_with: int
    contains_rows: bool
    contains: list[str]


@dataclass(frozen=True, slots=True)
class ErasedSubject(Document):
    """What was deleted of a subject, and where rows of it may be still."""

    samples: int
    feedback: int
    datasets: list[ErasedDataset]
    versions: list[TaughtVersion]


def erase_subject(
    store: Store,
    files: BlobCache,
    subject: str,
    *,
    created_by: str,
    limits: Settings,
    read: Callable[[RevisionOrder], RevisionContent] = revise_dataset,
) -> ErasedSubject:
    """Delete the samples and feedback of a subject, and its rows in the data sets of all series.

    Each series whose newest revision has rows of it gets a revision without them; then all data sets that
    have any are deleted. Interrupted, it goes on where it stopped when it is called again. read: as of
    `revised_dataset`. Raises Conflict and TooLarge beyond the tenant's quotas, OnlyServes, Unavailable.
    """
    [name] = pseudonyms_of(store, [subject])
    with store.begin() as uow:
        samples, feedback = uow.subjects.delete_samples([name])
        details = {"samples": samples, "feedback": feedback}
        uow.audit.append("subject.erase", f"subject {name[:12]}", details=details)
    counts = _counts(store, files, name)
    versions = _versions(store, files, counts)
    erased = [
        _erase_series(store, files, subject, series, found, created_by, limits, read)
        for series, found in _by_series(counts).items()
    ]
    return ErasedSubject(samples, feedback, erased, versions)


def _counts(store: Store, files: BlobCache, name: str) -> list[tuple[Dataset, int]]:
    """The data sets with rows about a subject, and how many these are."""
    wanted = pseudonyms(np.frombuffer(bytes.fromhex(name), dtype=np.uint8).reshape(1, SUBJECT_BYTES))
    counts: list[tuple[Dataset, int]] = []
    after = ""
    while True:
        with store.read() as uow:
            page = uow.datasets.marked(after=after, limit=_PAGE)
        for dataset in page:
            # Another request may delete it in the meantime.
            with suppress(NotFound):
                parts = find_subjects(store, files, dataset)
                if rows := sum(int((pseudonyms(one) == wanted[0]).sum()) for one in parts if len(one)):
                    counts.append((dataset, rows))
        if len(page) < _PAGE:
            return counts
        after = page[-1].id


def _by_series(counts: Sequence[tuple[Dataset, int]]) -> dict[str, list[tuple[Dataset, int]]]:
    series: dict[str, list[tuple[Dataset, int]]] = {}
    for dataset, rows in sorted(counts, key=lambda one: one[0].revision):
        series.setdefault(dataset.first, []).append((dataset, rows))
    return series


def _erase_series(
    store: Store,
    files: BlobCache,
    subject: str,
    series: str,
    found: Sequence[tuple[Dataset, int]],
    created_by: str,
    limits: Settings,
    read: Callable[[RevisionOrder], RevisionContent],
) -> ErasedDataset:
    """found: its data sets with rows of the subject, the newest last, and how many these are."""
    newest, rows = found[-1]
    revision = reason = None
    with store.read() as uow:
        latest = uow.datasets.latest(series)
    if latest is not None and latest[0] == newest.id:
        changes = Changes(subjects=[subject], note=_NOTE, keeps_small_classes=True)
        try:
            made, _ = revised_dataset(
                store, files, newest.id, changes, created_by=created_by, limits=limits, read=read
            )
            revision = made.id
        except (InvalidRequest, Unprocessable) as error:
            reason = error.message
    deleted, in_use = [], []
    for dataset, _ in found:
        try:
            delete_dataset(store, dataset.id)
            files.discard(dataset.blob_digest)
            deleted.append(dataset.id)
        except Conflict:
            in_use.append(dataset.id)
        except NotFound:
            deleted.append(dataset.id)
    return ErasedDataset(series, rows, deleted, in_use, revision, reason)


def _versions(store: Store, files: BlobCache, counts: Sequence[tuple[Dataset, int]]) -> list[TaughtVersion]:
    datasets = {dataset.id: (dataset, rows) for dataset, rows in counts}
    with store.read() as uow:
        found = uow.subjects.versions_of(list(datasets))
    versions = []
    for version, job, dataset_id in found:
        dataset, rows = datasets[dataset_id]
        contains = _contains(store, files, version, job, dataset)
        versions.append(TaughtVersion(version.model, version.version, rows, bool(contains), contains))
    return versions


def _contains(store: Store, files: BlobCache, version: ModelVersion, job: Job, dataset: Dataset) -> list[str]:
    """What of the packages of a version may hold values of rows."""
    with store.read() as uow:
        students = uow.students.of_job(job.id, after=-1, limit=1)
    contains = set()
    if any(_has_rows(basis) for row in students if (basis := _map_of(store, files, row)) is not None):
        contains.add("landmarks")
    if job.addition_digest is not None:
        contains.add("landmarks")
    if job.examples_digest is not None:
        contains.add("examples")
    kinds = {column["kind"] for column in dataset.summary.get("schema", ())}
    if version.encoder_digest is not None and kinds & _OF_WORDS:
        contains.add("words")
    return sorted(contains)


def _map_of(store: Store, files: BlobCache, row: StudentRow) -> PackedMap | None:
    """The map of a student; None for one that has not been trained."""
    if row.digest is None:
        return None
    digest, maps = row.digest, maps_of(store, files, row.map_digest)
    read = partial(open_blob, store, files, digest)
    return files.with_refetch(lambda: PackedStudent.from_bytes(read().whole(), maps=maps), digest).map


def _has_rows(basis: PackedMap) -> bool:
    """Whether a map holds rows, or points near them."""
    if isinstance(basis, BesideTerms):
        return _has_rows(basis.of_dense)
    return not isinstance(basis, (LinearBasis, FourierBasis))
