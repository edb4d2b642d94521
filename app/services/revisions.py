"""Revisions of data sets: the rows of one with other labels, without some, and followed by those of another.

Each is a data set of its own, which never changes. ``change`` of it has ``added``, ``deleted``,
``relabelled``, ``equal_rows_skipped`` (numbers of rows), ``classes_changed`` (the first 1000 names),
``appended`` (the id of the other data set) and ``note``. The rows that jobs on the first data set of the
series have held out are marked in its first revision, and stay test rows in all later ones.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np

from app.domain.entities import Dataset, Json, new_id
from app.domain.errors import InputFault, InvalidRequest, Unprocessable
from app.domain.installation import require_training
from app.domain.training_spec import TrainingSpec
from app.ingest.options import Decision
from app.ingest.orders import NewLabel, RevisionContent, RevisionOrder
from app.ingest.reading import revise_dataset, temporary_paths
from app.services.datasets import add_dataset, copy_rows, find_dataset, get_dataset, store_rows
from app.services.labels import refuse_scores
from app.services.subject_keys import pseudonyms_of
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.unit_of_work import Store
from core.data.labels import listed_names

MAX_DELETED: Final = 100_000
"""Largest number of rows that are deleted in one request."""
MAX_NOTE: Final = 500
"""Characters of the note of a revision."""
_COPIED_BYTES: Final = 1024**2
MAX_RELABELLED: Final = 100_000
"""Most rows that get another label at once."""
MAX_SUBJECTS: Final = 1000
"""Most subjects whose rows are deleted at once."""
_MAX_FAULTS: Final = 10
_JOBS: Final = 20
"""The newest jobs on a data set, among which one that has held rows out is looked for."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What is to be changed of a data set.

    append: id of another data set. delete: numbers of training rows. relabel: training rows with their new
    labels. subjects: names of those all rows of which are deleted, in both parts. rename: new names of
    classes by the present ones; classes of one name become one. note: why, for people.
    keeps_small_classes: whether classes of which a single row is left stay, which is no training data.
    """

    append: str | None = None
    delete: Collection[int] = ()
    relabel: Sequence[NewLabel] = ()
    subjects: Sequence[str] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    note: str | None = None
    keeps_small_classes: bool = False


def revised_dataset(
    store: Store,
    files: BlobCache,
    dataset_id: str,
    changes: Changes,
    *,
    created_by: str,
    limits: Settings,
    read: Callable[[RevisionOrder], RevisionContent] = revise_dataset,
) -> tuple[Dataset, bool]:
    """A data set with other labels, without some rows, followed by those of another one, and whether that is
    new.

    Of the other one its training rows are taken, but for those that equal a row that was kept in all values,
    in the label and in privileged columns. The test part stays. The same changes of the same data set are the
    same data set. read: as of `register_dataset`.

    Raises NotFound, InvalidRequest, Unprocessable, TooLarge, Conflict beyond the tenant's quota, OnlyServes,
    Unavailable.
    """
    require_training()
    source = get_dataset(store, dataset_id)
    other = None if changes.append is None else get_dataset(store, changes.append)
    _check(source, other, changes)
    order = _order(store, source, changes, limits)
    identity = _identity(source, other, order)
    if (known := find_dataset(store, identity)) is not None:
        return known, False
    revised, blob, size = _stored(store, files, source, other, order, limits, read)
    content = revised.content
    dataset = Dataset(
        id=new_id("ds"),
        digest=identity,
        name=source.name,
        source_format=source.source_format,
        size_bytes=size,
        blob_digest=blob,
        rows=content.rows,
        test_rows=content.test_rows,
        columns=content.columns,
        class_count=len(content.classes),
        summary=content.summary | _carried(source, revised, order),
        created_at=time.time(),
        created_by=created_by,
        tenant=store.tenant,
        series=source.first,
        revision=source.revision,
        parent=source.id,
        change={
            "added": revised.added,
            "deleted": revised.deleted,
            "relabelled": revised.relabelled,
            "equal_rows_skipped": revised.equal,
            "classes_changed": list(listed_names(revised.changed)),
            "appended": None if other is None else other.id,
            "note": changes.note,
        },
    )
    return add_dataset(store, dataset, content.classes, size, limits)


def _order(store: Store, source: Dataset, changes: Changes, limits: Settings) -> RevisionOrder:
    """The order of a revision, without the paths of files."""
    split, kinds = _split(store, source)
    return RevisionOrder(
        source="",
        rows="",
        deleted=tuple(sorted(set(changes.delete))),
        added=None,
        kind=source.source_format,
        label_column=source.summary.get("label_column"),
        reading=tuple(msgspec.convert(source.reading, list[Decision])),
        min_per_class=1 if changes.keeps_small_classes or "single_row_classes" in source.summary else 2,
        max_rows=limits.max_rows,
        max_columns=limits.max_columns,
        max_bytes=limits.max_dataset_bytes,
        relabelled=tuple(sorted(set(changes.relabel), key=lambda one: (one.is_id, one.row))),
        subjects=pseudonyms_of(store, sorted(set(changes.subjects))),
        split=split,
        kinds=kinds,
        next_id=source.summary.get("next_row_id", 0),
        renamed=dict(changes.rename),
    )


def _split(store: Store, source: Dataset) -> tuple[tuple[float | None, int] | None, dict[str, str]]:
    """How test rows are held out of a data set, as (share, seed), and the kinds that jobs give its columns.

    That of its series if it is a revision; or else that of the newest job that has held rows out, or as a job
    does that says nothing of it. None where the data set has a test part, and no job holds others out.
    """
    if "test_split" in source.summary:
        said = source.summary["test_split"]
        return (said["share"], said["seed"]), {}
    with store.read() as uow:
        specs = [TrainingSpec.model_validate(job.spec) for job in uow.jobs.newest_on(source.id, _JOBS)]
    has_test_part = source.test_rows > 0
    for spec in specs:
        if spec.evaluation.holds_out(has_test_part=has_test_part):
            kinds = {name: str(kind) for name, kind in spec.inputs.kinds.items()} if spec.inputs else {}
            return (spec.evaluation.given_fraction, spec.seed), kinds
    return (None if has_test_part else (None, 0)), {}


def _stored(
    store: Store,
    files: BlobCache,
    source: Dataset,
    other: Dataset | None,
    order: RevisionOrder,
    limits: Settings,
    read: Callable[[RevisionOrder], RevisionContent],
) -> tuple[RevisionContent, str, int]:
    """The contents of a revision, and the digest and size of the blob with its rows."""
    with temporary_paths(files.folder, "source", "added", "rows") as (of_source, of_other, path):
        copy_rows(store, files, source, of_source)
        if other is not None:
            copy_rows(store, files, other, of_other)
        order = msgspec.structs.replace(
            order,
            source=str(of_source),
            rows=str(path),
            added=None if other is None else str(of_other),
        )
        revised = read(order)
        with path.open("rb") as file:
            pieces = iter(lambda: file.read(_COPIED_BYTES), b"")
            return revised, *store_rows(store, files, pieces, limits)


def _check(source: Dataset, other: Dataset | None, changes: Changes) -> None:
    """Raises InvalidRequest, Unprocessable."""
    numbers = [("delete.rows", row) for row in sorted(set(changes.delete))]
    numbers += [("relabel", one.row) for one in changes.relabel if not one.is_id]
    faults = [
        InputFault(field, "unknown_row", f"There is no row {row}: rows are 0 to {source.rows - 1}.", row=row)
        for field, row in numbers
        if not 0 <= row < source.rows
    ]
    if not faults:
        faults = _twice(changes)
    if faults:
        raise InvalidRequest(faults[0].message, code=faults[0].code, faults=faults[:_MAX_FAULTS])
    if other is None and not (changes.delete or changes.relabel or changes.subjects or changes.rename):
        text = "There are neither rows to append, to relabel nor to delete."
        raise Unprocessable(text, code="empty_change")
    for dataset in (source, other):
        if dataset is not None:
            refuse_scores(dataset)


def _twice(changes: Changes) -> list[InputFault]:
    """Rows of which two things are said."""
    places = Counter((one.is_id, one.row) for one in changes.relabel)
    both = {row for is_id, row in places if not is_id}.intersection(changes.delete)
    faults = [
        InputFault("relabel", "given_twice", f"Row {row} gets two labels: give one of them.", row=row)
        for (_, row), count in places.items()
        if count > 1
    ]
    faults += [
        InputFault("relabel", "given_twice", f"Row {row} gets a label, and is deleted.", row=row)
        for row in sorted(both)
    ]
    return faults


def _identity(source: Dataset, other: Dataset | None, order: RevisionOrder) -> str:
    labels = [(one.row, one.is_id, one.label) for one in order.relabelled]
    said: list[object] = [source.digest, None if other is None else other.digest, order.deleted, labels]
    said += [order.subjects, order.split, order.kinds, order.min_per_class, sorted(order.renamed.items())]
    return hashlib.sha256(json.dumps(["revision", *said]).encode()).hexdigest()


def _carried(source: Dataset, revised: RevisionContent, order: RevisionOrder) -> Json:
    """What a revision keeps of the summary of its data set, and what is said of its test rows.

    Rows that people have confirmed have the numbers of the revision.
    """
    carried: Json = {"next_row_id": revised.next_id}
    if order.split is not None:
        carried["test_split"] = {"share": order.split[0], "seed": order.split[1]}
        carried["held_out_rows"] = revised.held_out
    if "subject_column" in source.summary:
        carried["subject_column"] = source.summary["subject_column"]
    confirmed = np.array(source.confirmed_rows, dtype=np.int64)
    deleted = np.array(revised.rows_deleted, dtype=np.int64)
    kept = confirmed[~np.isin(confirmed, deleted)]
    # A row moves up by as many as were deleted before it.
    moved: list[int] = (kept - np.searchsorted(deleted, kept)).tolist()
    return carried | ({"confirmed_rows": moved} if moved else {})
