"""Writes the rows of a revision of a stored data set: the work of a reader process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from mmap import ACCESS_READ, mmap
from pathlib import Path

import numpy as np

from app.domain.errors import InputFault, InvalidRequest, Unprocessable
from app.ingest.dataset_format import Parts, decode, encode
from app.ingest.left_out import MIN_PER_CLASS
from app.ingest.orders import DatasetContent, RevisionContent, RevisionOrder
from app.ingest.raw import (
    DatasetLimits,
    RawData,
    RawPart,
    RawTable,
    disk_full_as_unavailable,
    input_faults,
)
from app.ingest.subjects import count_subjects
from app.ingest.validate import Data, summarise
from core.data.repeated_rows import Digests
from core.data.row_marks import SUBJECT_BYTES
from core.data.schema import KindSpec
from core.data.test_part import Split
from core.encoding.labelled_table import LabelledTable
from core.encoding.revised_rows import revised_rows
from core.errors import InvalidProblem
from core.types import IntArray, Matrix


def revise(order: RevisionOrder) -> RevisionContent:
    """Carry out an order. Raises InvalidRequest, TooLarge, Unprocessable, Unavailable and MemoryError."""
    train, test = _parts(order.source)
    other = None if order.added is None else _parts(order.added)[0]
    limits = DatasetLimits(order.max_rows, order.max_columns, order.max_bytes)
    deleted, deleted_test = _deleted(order, train), _of_subjects(order, test)
    limits.check_shape(train.n - len(deleted) + (0 if other is None else other.n), train.d)
    if order.added is not None:
        limits.check_bytes(Path(order.source).stat().st_size + Path(order.added).stat().st_size)
    labels = _labels(order, train)
    with _as_service_error():
        revised = revised_rows(
            train,
            test,
            deleted=deleted,
            other=other,
            min_per_class=order.min_per_class,
            relabelled=labels,
            deleted_test=deleted_test,
            split=None if order.split is None else Split(*order.split),
            digests=_digests_by(order.kinds, train) if order.kinds else None,
            next_id=order.next_id,
            renamed=order.renamed,
        )
    gone = len(deleted) + len(deleted_test)
    if not (gone or revised.added or revised.relabelled or set(order.renamed).intersection(train.classes)):
        text = (
            "The data set has no rows of this subject."
            if order.subjects
            else "The rows have these labels already."
            if labels and other is None
            else f"The data set has all {revised.equal} rows to append already."
        )
        raise Unprocessable(text, code="empty_change")
    with disk_full_as_unavailable(), Path(order.rows).open("wb") as output:
        for piece in encode(revised.train, revised.test):
            output.write(piece)
    return RevisionContent(
        _content(order, revised.train, revised.test),
        revised.added,
        revised.equal,
        revised.changed,
        revised.relabelled,
        gone,
        tuple(deleted.tolist()),
        len(revised.train.marks.test_rows),
        revised.next_id,
    )


def _deleted(order: RevisionOrder, train: Data) -> IntArray:
    """Ascending numbers of the training rows to delete."""
    given = np.array(order.deleted, dtype=np.intp)
    return np.union1d(given, _of_subjects(order, train)) if order.subjects else given


def _of_subjects(order: RevisionOrder, part: Data | None) -> IntArray:
    """Ascending numbers of the rows of a part that are about the subjects of the order."""
    if part is None or not order.subjects or part.marks.subjects is None:
        return np.empty(0, dtype=np.intp)
    wanted = np.frombuffer(bytes.fromhex("".join(order.subjects)), dtype=np.uint8)
    return np.flatnonzero(part.marks.of_subjects(wanted.reshape(-1, SUBJECT_BYTES)))


def _labels(order: RevisionOrder, train: Data) -> dict[int, str | None]:
    """The new labels by the numbers of the rows. Raises InvalidRequest for ids that there are not."""
    ids = np.arange(train.n) if train.marks.ids is None else train.marks.ids
    wanted = [one.row for one in order.relabelled if one.is_id]
    # Ids ascend, since rows keep their order and those that are added come last.
    places = np.searchsorted(ids, wanted)
    is_there = ids[np.minimum(places, len(ids) - 1)] == wanted
    if not is_there.all():
        text = f"The data set has no row with the id {wanted[int(np.argmin(is_there))]}."
        fault = InputFault("relabel", "unknown_row", text)
        raise InvalidRequest(text, code="unknown_row", faults=[fault])
    number_of = dict(zip(wanted, places.tolist(), strict=True))
    return {number_of[one.row] if one.is_id else one.row: one.label for one in order.relabelled}


def _digests_by(kinds: dict[str, str], train: Data) -> Digests:
    """As `row_digests`, where columns are of these kinds."""
    table = train if isinstance(train, LabelledTable) else LabelledTable.of_numbers(train)
    return table.with_kinds({name: KindSpec.parse(kind) for name, kind in kinds.items()}).row_digests()


def _parts(path: str) -> Parts:
    with Path(path).open("rb") as file:
        return decode(memoryview(mmap(file.fileno(), 0, access=ACCESS_READ)))


def _content(order: RevisionOrder, train: Data, test: Data | None) -> DatasetContent:
    labels = np.array([*train.classes, None], dtype=object)[train.y]
    raw = RawData(
        train=RawPart(_raw(train), labels),
        feature_names=None if isinstance(train, LabelledTable) else train.feature_names,
        class_names=train.classes,
        label_column=order.label_column,
        decisions=order.reading,
    )
    summary = summarise(raw, train, test)
    if train.marks.subjects is not None:
        summary["subjects"] = count_subjects(train, test)
    rare = int((train.class_counts < MIN_PER_CLASS).sum())
    if rare:
        summary["single_row_classes"] = rare
    return DatasetContent(
        source_format=order.kind,
        variant=(),
        rows=train.n,
        test_rows=0 if test is None else test.n,
        columns=train.d,
        classes=train.classes,
        summary=summary,
    )


def _raw(train: Data) -> RawTable | Matrix:
    """The cells or numbers, as readers of files give them to `summarise`."""
    if isinstance(train, LabelledTable):
        return RawTable(train.table, known=train.known, views=train.views)
    return train.X


@contextmanager
def _as_service_error() -> Iterator[None]:
    try:
        yield
    except InvalidProblem as error:
        faults = input_faults(error)
        if faults[0].code == "test_part_without_class":
            raise Unprocessable(faults[0].message, code="test_part_without_class") from error
        if faults[0].code == "wrong_columns":
            # Both data sets are well formed, and do not suit each other.
            raise Unprocessable(faults[0].message, code="wrong_columns", faults=faults) from error
        raise InvalidRequest(faults[0].message, code=faults[0].code, faults=faults) from error
