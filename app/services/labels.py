"""Labels that a job found for the rows of its data set: read them, and send them back corrected."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from numpy.typing import NDArray

from app.domain.document import Document
from app.domain.entities import Dataset, Json, new_id
from app.domain.errors import InputFault, InvalidRequest, NotFound, Unprocessable
from app.domain.installation import require_training
from app.domain.near_names import known_names
from app.domain.training_spec import TrainingSpec
from app.ingest.raw import unlabelled_warning
from app.ingest.relabelling import relabelled
from app.services.datasets import add_dataset, find_dataset, store_rows
from app.services.training_plan import trained_classes
from app.settings import Settings
from app.store.blob_cache import BlobCache, open_blob
from app.store.unit_of_work import Store
from core.data.labels import encode_labels, listed_names
from core.errors import InvalidPackage, InvalidProblem

if TYPE_CHECKING:
    from core.labelling.base import Labelling

MAX_CORRECTIONS = 100_000
_MAX_UNKNOWN: Final = 10


@dataclass(frozen=True, slots=True)
class Label(Document):
    """The label of one row of the training part, counted from 0.

    certainty: from 0, where another class explains the row as well, to 1; null for labels that were given.
    """

    row: int
    label: str
    certainty: float | None


def load_labels(store: Store, files: BlobCache, job_id: str) -> tuple[Labelling, Dataset]:
    """The labels that a job has stored, and the data set of their rows.

    Raises NotFound for a job without labels, or whose data set was deleted; Unavailable.
    """
    from core.labelling.base import Labelling

    with store.read() as uow:
        job = uow.jobs.get(job_id)
        if job.labels_digest is None:
            message = f"Job {job_id} has no labels: it has no labelling, or has not come to its end."
            raise NotFound(message, code="labels_not_found")
        dataset, digest = uow.datasets.get(job.dataset_id), job.labels_digest
        classes = trained_classes(uow, TrainingSpec.model_validate(job.spec), dataset)
    return files.with_refetch(
        lambda: Labelling.from_bytes(open_blob(store, files, digest).whole(), classes), digest
    ), dataset


def job_labels(
    store: Store,
    files: BlobCache,
    job_id: str,
    *,
    skip: int = 0,
    limit: int = 100,
    order: Literal["row", "certainty"] = "row",
    label: str | None = None,
) -> tuple[Sequence[Label], bool]:
    """``limit`` rows after the first ``skip``, and whether more follow.

    order: by row, or by certainty, the least certain first, without rows whose label was given. label: only
    rows that have it. Raises NotFound, Unavailable.
    """
    labels, _ = load_labels(store, files, job_id)
    found = np.ones(len(labels.codes), dtype=bool)
    if label is not None:
        found &= labels.codes == (labels.classes.index(label) if label in labels.classes else -2)
    if order == "certainty":
        found &= ~np.isnan(labels.certainty)
    rows = np.flatnonzero(found)
    if order == "certainty":
        rows = rows[np.argsort(labels.certainty[rows], kind="stable")]
    page = [_row(labels, int(row)) for row in rows[skip : skip + limit]]
    return page, skip + limit < len(rows)


def corrected_dataset(
    store: Store,
    files: BlobCache,
    job_id: str,
    *,
    corrections: Mapping[int, str | None],
    rename: Mapping[str, str],
    keep: Literal["all", "given"],
    name: str | None,
    created_by: str,
    limits: Settings,
) -> tuple[Dataset, bool]:
    """The rows of a job's data set with its labels, corrected, as a data set; and whether it is new.

    corrections: labels by row; None removes the label. rename: new names of the job's classes, before the
    corrections. keep: all labels, or only those of the data set and the corrections, from which a job can
    label the rest again. The same labels of the same rows give the same data set.

    Raises NotFound, InvalidRequest, Unprocessable, Conflict beyond the tenant's quota, OnlyServes,
    Unavailable.
    """
    require_training()
    labels, source = load_labels(store, files, job_id)
    check_corrections(source, corrections, labels.classes, rename)
    texts = np.array([rename.get(one, one) for one in labels.classes], dtype=object)
    given = texts[labels.codes]
    if keep == "given":
        given[~np.isnan(labels.certainty)] = None
    return dataset_with_labels(
        store, files, job_id, source, given, corrections, name=name, created_by=created_by, limits=limits
    )


def dataset_with_labels(
    store: Store,
    files: BlobCache,
    job_id: str,
    source: Dataset,
    given: NDArray[np.object_],
    corrections: Mapping[int, str | None],
    *,
    name: str | None,
    created_by: str,
    limits: Settings,
    confirmed: Collection[int] = (),
) -> tuple[Dataset, bool]:
    """The rows of a job's data set with other labels as a data set, and whether it is new.

    given: a label of each training row, None without one, (n,), to which the corrections are applied.
    confirmed: rows whose labels people have confirmed, besides those known from the data set; other confirmed
    rows give another data set.

    Raises InvalidRequest, Unprocessable, Conflict beyond the tenant's quota, Unavailable.
    """
    for row, label in corrections.items():
        given[row] = label
    codes, classes = _encoded(given)
    known_right = sorted({*source.confirmed_rows, *confirmed} - set(corrections))
    identity = _identity(source.digest, codes, classes, known_right)
    if (known := find_dataset(store, identity)) is not None:
        return known, False
    with store.read() as uow:
        known_classes = uow.datasets.classes(source.id)
    buffer = open_blob(store, files, source.blob_digest).whole()
    try:
        pieces = relabelled(buffer, codes, classes, known_classes)
    except InvalidPackage as error:
        raise Unprocessable(str(error), code="test_part_without_class") from error
    blob, size = store_rows(store, files, pieces, limits)
    dataset = Dataset(
        id=new_id("ds"),
        digest=identity,
        name=name or f"{source.name}, labels of {job_id}",
        source_format=source.source_format,
        size_bytes=source.size_bytes,
        blob_digest=blob,
        rows=source.rows,
        test_rows=source.test_rows,
        columns=source.columns,
        class_count=len(classes),
        summary=_summary(source, codes, classes)
        | {"labels_of": {"job_id": job_id, "corrections": len(corrections)}}
        | ({"confirmed_rows": known_right} if known_right or source.confirmed_rows else {}),
        created_at=time.time(),
        created_by=created_by,
        tenant=store.tenant,
    )
    return add_dataset(store, dataset, classes, size, limits)


def _row(labels: Labelling, row: int) -> Label:
    certainty = float(labels.certainty[row])
    return Label(row, labels.classes[labels.codes[row]], None if np.isnan(certainty) else certainty)


def check_corrections(
    source: Dataset, rows: Iterable[int], classes: Sequence[str] = (), rename: Mapping[str, str] | None = None
) -> None:
    """Refuse corrections of rows that the data set does not have, and of a data set that takes none.

    rename: new names of ``classes``. Raises InvalidRequest, Unprocessable.
    """
    renamed = rename or {}
    faults = [
        InputFault(
            "corrections", "unknown_row", f"There is no row {row}: rows are 0 to {source.rows - 1}.", row=row
        )
        for row in rows
        if not 0 <= row < source.rows
    ]
    faults += [
        InputFault(
            "rename",
            "unknown_class",
            f"The job has no class {old!r:.80}; {known_names(old, classes, 'classes')}",
        )
        for old in islice((old for old in renamed if old not in classes), _MAX_UNKNOWN)
    ]
    if faults:
        raise InvalidRequest(faults[0].message, code=faults[0].code, faults=faults[:10])
    refuse_scores(source)


def refuse_scores(dataset: Dataset) -> None:
    """Raise Unprocessable for a data set whose classes cannot change."""
    if "teacher_scores" in dataset.summary:
        message = "The data set has scores of a teacher, whose columns belong to its own classes."
        raise Unprocessable(message, code="has_scores")


def _encoded(given: NDArray[np.object_]) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Codes, −1 for None, and the classes that occur. Raises InvalidRequest."""
    known = np.flatnonzero([label is not None for label in given])
    codes = np.full(len(given), -1, dtype=np.int32)
    if not len(known):
        return codes, ()
    try:
        codes[known], classes = encode_labels(given[known])
    except InvalidProblem as error:
        faults = [InputFault("corrections", fault.code, fault.message) for fault in error.faults]
        raise InvalidRequest(faults[0].message, code=faults[0].code, faults=faults) from error
    counts = np.bincount(codes[known])
    if len(classes) < 2 or counts.min() < 2:
        few = classes[int(counts.argmin())]
        message = (
            f"All labels are {few!r:.80}; two classes are needed."
            if len(classes) < 2
            else f"The class {few!r:.80} has one example; at least 2 are needed."
        )
        raise InvalidRequest(
            message, code="class_too_small", faults=[InputFault("corrections", "class_too_small", message)]
        )
    return codes, classes


def _identity(source: str, codes: NDArray[np.int32], classes: Sequence[str], confirmed: Sequence[int]) -> str:
    # Without confirmed rows the text is the same as before confirmed rows existed.
    text = json.dumps([source, list(classes), *([list(confirmed)] if confirmed else [])]).encode()
    return hashlib.sha256(text + codes.tobytes()).hexdigest()


def _summary(source: Dataset, codes: NDArray[np.int32], classes: Sequence[str]) -> Json:
    counts = np.bincount(codes[codes >= 0], minlength=len(classes)).tolist()
    missing = int((codes < 0).sum())
    warnings = [one for one in source.summary["warnings"] if one["code"] != "unlabelled_rows"]
    if missing:
        code, message = unlabelled_warning(missing, has_classes=bool(classes))
        warnings.append({"code": code, "message": message})
    return {
        **source.summary,
        "classes": len(classes),
        "class_counts": dict(zip(listed_names(classes), counts, strict=False)),
        "unlabelled_rows": missing,
        "smallest_class": min(counts, default=0),
        "largest_class": max(counts, default=0),
        "warnings": warnings,
    }
