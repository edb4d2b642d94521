"""Rows whose labels a job found suspect: read them, and send them back corrected or confirmed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from app.domain.entities import Dataset, Job
from app.domain.errors import InputFault, InvalidRequest, NotFound
from app.domain.installation import require_training
from app.domain.near_names import known_names
from app.domain.training_spec import TrainingSpec
from app.ingest.dataset_rows import StoredRow
from app.services.datasets import row_codes, rows_at
from app.services.labels import check_corrections, dataset_with_labels, load_labels
from app.services.training_plan import trained_classes
from app.settings import Settings
from app.store.blob_cache import BlobCache, open_blob
from app.store.unit_of_work import Store

if TYPE_CHECKING:
    from core.monitoring.suspects import Suspects


@dataclass(frozen=True, slots=True)
class SuspectPage:
    """Some suspect rows of a job, the most suspect first.

    rows: facts of each as from `Suspects.as_dicts`, with the row of the data set. total: number of all
    suspect rows, or of those of the requested class. classes: of the job.
    """

    rows: Sequence[tuple[dict[str, Any], StoredRow]]
    total: int
    has_more: bool
    dataset: Dataset
    classes: tuple[str, ...]


def job_suspects(
    store: Store,
    files: BlobCache,
    job_id: str,
    *,
    label: str | None = None,
    skip: int = 0,
    limit: int = 100,
) -> SuspectPage:
    """At most ``limit`` suspect rows after the first ``skip``; fewer if the rows are long.

    label: only rows with this label. Raises NotFound for a job that has not looked for suspect rows, for an
    unknown class, and if the data set was deleted; Unavailable.
    """
    _, found, dataset, classes = _load(store, files, job_id)
    if label is not None:
        if label not in classes:
            message = f"Job {job_id} has no class {label!r:.100}; {known_names(label, classes, 'classes')}"
            raise NotFound(message, code="class_not_found")
        found = found.where(found.labels == classes.index(label))
    places = np.arange(len(found))
    page = found.where((places >= skip) & (places < skip + limit))
    rows = rows_at(store, files, dataset, page.rows.tolist())
    facts = page.as_dicts(classes)[: len(rows)]
    has_more = skip + len(rows) < len(found)
    return SuspectPage(list(zip(facts, rows, strict=True)), len(found), has_more, dataset, classes)


def corrected_suspects(
    store: Store,
    files: BlobCache,
    job_id: str,
    *,
    corrections: Mapping[int, str],
    confirmed: Collection[int],
    name: str | None,
    created_by: str,
    limits: Settings,
) -> tuple[Dataset, bool]:
    """The rows of a job's data set with the labels that it trained with, corrected, as a data set; and
    whether that is new.

    corrections: labels by row. confirmed: rows whose labels are right, which jobs on the new data set do not
    name again. Raises as `app.services.labels.corrected_dataset`.
    """
    require_training()
    job, _, source, classes = _load(store, files, job_id)
    check_corrections(source, [*corrections, *confirmed])
    both = sorted(set(corrections).intersection(confirmed))
    if both:
        message = f"Row {both[0]} has a new label, and is to keep the one it has."
        raise InvalidRequest(
            message, code="given_twice", faults=[InputFault("corrections", "given_twice", message)]
        )
    return dataset_with_labels(
        store,
        files,
        job_id,
        source,
        _trained_labels(store, files, job, source, classes),
        corrections,
        confirmed=confirmed,
        name=name,
        created_by=created_by,
        limits=limits,
    )


def _load(store: Store, files: BlobCache, job_id: str) -> tuple[Job, Suspects, Dataset, tuple[str, ...]]:
    """A job with its suspect rows, its data set and its classes."""
    from core.monitoring.suspects import Suspects

    with store.read() as uow:
        job = uow.jobs.get(job_id)
        if job.suspects_digest is None:
            raise NotFound(_why_none(job), code="suspects_not_found")
        dataset, digest = uow.datasets.get(job.dataset_id), job.suspects_digest
        classes = trained_classes(uow, TrainingSpec.model_validate(job.spec), dataset)
    found = files.with_refetch(lambda: Suspects.from_bytes(open_blob(store, files, digest).whole()), digest)
    return job, found, dataset, classes


def _why_none(job: Job) -> str:
    if job.spec.get("suspects", {}).get("limit") == 0:
        return f"Job {job.id} has not looked for wrong labels: its suspects.limit is 0."
    if job.preparation_digest is None and not job.state.ended:
        return f"Job {job.id} has not looked for wrong labels yet: it does so when it has its teacher."
    return (
        f"Job {job.id} has not looked for wrong labels: it has no scores of rows by a teacher that has not"
        " seen them (threshold.rule, tuning and guard make such scores, and forests have them), its teacher"
        " was imported, or its scores are more than 128 MiB."
    )


def _trained_labels(
    store: Store, files: BlobCache, job: Job, source: Dataset, classes: tuple[str, ...]
) -> NDArray[np.object_]:
    """The label with which the job trained each row of the data set, None without one, (n,)."""
    if job.labels_digest is not None:
        codes = load_labels(store, files, job.id)[0].codes
    else:
        codes = row_codes(store, files, source)
    # The last entry is for the code −1.
    return np.array([*classes, None], dtype=object)[codes]
