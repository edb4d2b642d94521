"""Writes the rows of a revision of a stored data set: the work of a reader process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from mmap import ACCESS_READ, mmap
from pathlib import Path

import numpy as np

from app.domain.errors import InvalidRequest, Unprocessable
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
from app.ingest.validate import Data, summarise
from core.encoding.labelled_table import LabelledTable
from core.encoding.revised_rows import revised_rows
from core.errors import InvalidProblem
from core.types import Matrix


def revise(order: RevisionOrder) -> RevisionContent:
    """Carry out an order. Raises InvalidRequest, TooLarge, Unprocessable, Unavailable and MemoryError."""
    train, test = _parts(order.source)
    other = None if order.added is None else _parts(order.added)[0]
    limits = DatasetLimits(order.max_rows, order.max_columns, order.max_bytes)
    limits.check_shape(train.n - len(order.deleted) + (0 if other is None else other.n), train.d)
    if order.added is not None:
        limits.check_bytes(Path(order.source).stat().st_size + Path(order.added).stat().st_size)
    deleted = np.array(order.deleted, dtype=np.intp)
    with _as_service_error():
        revised = revised_rows(train, test, deleted=deleted, other=other, min_per_class=order.min_per_class)
    if not order.deleted and not revised.added:
        text = f"The data set has all {revised.equal} rows to append already."
        raise Unprocessable(text, code="empty_change")
    with disk_full_as_unavailable(), Path(order.rows).open("wb") as output:
        for piece in encode(revised.train, revised.test):
            output.write(piece)
    return RevisionContent(
        _content(order, revised.train, revised.test), revised.added, revised.equal, revised.changed
    )


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
