"""Reads an uploaded file of any format, and writes its stored form: the work of a reader process.

The readers of the formats are imported when they are needed: a server process, which gives the orders,
imports none of them.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from app.domain.errors import TooLarge
from app.ingest.orders import (
    BundleContent,
    BundleOrder,
    Content,
    DatasetContent,
    DatasetOrder,
    HeadContent,
    HeadOrder,
    Order,
    RevisionContent,
    RevisionOrder,
)
from app.ingest.raw import DatasetLimits, alike_labels, disk_full_as_unavailable

MAX_NAMES_BYTES: Final = 256 * 1024**2
"""Largest total number of characters of the names of classes, or of columns, of a data set or head."""


@contextmanager
def temporary_paths(folder: Path, *names: str) -> Iterator[list[Path]]:
    """Paths of new files for the results of an order, which are removed after the block."""
    token = secrets.token_hex(8)
    paths = [folder / f"{name}-{token}.tmp" for name in names]
    try:
        yield paths
    finally:
        for path in paths:
            path.unlink(missing_ok=True)


def read_dataset(order: DatasetOrder) -> DatasetContent:
    """Carry out an order. Raises InvalidRequest, TooLarge, UnsupportedFormat, Unavailable and MemoryError."""
    from app.ingest import dataset_format
    from app.ingest.formats import detect, read
    from app.ingest.left_out import MIN_PER_CLASS, left_out_rows
    from app.ingest.subjects import count_subjects, with_subjects
    from app.ingest.validate import summarise, validate

    source = Path(order.source)
    limits = DatasetLimits(order.max_rows, order.max_columns, order.max_bytes, Path(order.temp_folder))
    kind = detect(source, declared=order.declared, filename=order.filename)
    raw = read(source, kind, limits, order.options)
    if order.options.subject_column is not None:
        raw = with_subjects(raw, order.options.subject_column, bytes.fromhex(order.subject_key))
    train, test = validate(raw, unlabelled=order.options.unlabelled, rare_classes=order.options.rare_classes)
    _check_names(train.classes)
    _check_names(raw.feature_names or ())
    summary = summarise(raw, train, test)
    if order.options.subject_column is not None:
        summary["subject_column"] = order.options.subject_column
        summary["subjects"] = count_subjects(train, test)
    rare = sum(count < MIN_PER_CLASS for count in train.class_counts.tolist())
    if rare:
        summary["single_row_classes"] = rare
    if not order.is_dry:
        with disk_full_as_unavailable(), Path(order.rows).open("wb") as output:
            for piece in dataset_format.encode(train, test):
                output.write(piece)
    unlabelled, single = left_out_rows(raw.train.labels, train)
    other = {"unlabelled=drop": unlabelled, "rare_classes=drop": single, "rare_classes=keep": rare}
    return DatasetContent(
        source_format=kind.value,
        variant=(*raw.variant, *(name for name, rows in other.items() if rows)),
        rows=train.n,
        test_rows=0 if test is None else test.n,
        columns=train.d,
        classes=train.classes,
        summary=summary,
    )


def read_head(order: HeadOrder) -> HeadContent:
    """Carry out an order. Raises InvalidRequest, TooLarge, UnsupportedFormat and MemoryError."""
    from app.ingest.linear_head import HeadLimits, as_invalid_request, head_file
    from app.ingest.packed_head import write_head
    from core.errors import InvalidProblem
    from core.packed import PackedLabels

    limits = HeadLimits(order.max_classes, order.max_columns, order.max_bytes)
    with head_file(Path(order.source), limits) as head:
        _check_names(head.labels)
        try:
            table = PackedLabels.of(head.labels).to_bytes()
        except InvalidProblem as error:
            raise as_invalid_request(error) from error
        with disk_full_as_unavailable():
            Path(order.labels).write_bytes(table)
            write_head(Path(order.weights), head, order.kind, order.rivals, order.row_norm)
        count = len(head.labels)
        classes = tuple(head.labels) if count <= order.listed else ()
        return HeadContent(count, head.columns, classes, tuple(alike_labels(head.labels)))


def revise_dataset(order: RevisionOrder) -> RevisionContent:
    """Carry out an order. Raises InvalidRequest, TooLarge, Unprocessable, Unavailable and MemoryError."""
    from app.ingest.revising import revise

    return revise(order)


def check_bundle(order: BundleOrder) -> BundleContent:
    """Carry out an order. Raises InvalidRequest, TooLarge, Unprocessable and MemoryError."""
    from app.ingest.bundle import read_bundle

    return read_bundle(order)


def carry_out(order: Order) -> Content:
    """Carry out an order of any kind."""
    if isinstance(order, BundleOrder):
        return check_bundle(order)
    if isinstance(order, RevisionOrder):
        return revise_dataset(order)
    return read_dataset(order) if isinstance(order, DatasetOrder) else read_head(order)


def _check_names(names: Any) -> None:
    size = sum(map(len, names))
    if size > MAX_NAMES_BYTES:
        text = f"The names have {size} characters together; the limit is {MAX_NAMES_BYTES}."
        raise TooLarge(text, code="class_names_too_long")
