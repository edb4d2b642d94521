"""Warnings about data that make results too good: columns that reveal the label, and repeated rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod
from typing import Final, TypeAlias

import numpy as np

from app.domain.entities import Json
from app.ingest.columns import counting_columns
from app.ingest.raw import RawData
from core.data.dataset import LabelledData
from core.data.labels import class_names
from core.data.leaks import How, Leak, matrix_leaks, table_leaks
from core.data.reading_hints import reading_hint
from core.data.repeated_rows import repeated_rows, shared_rows
from core.data.schema import Kind
from core.encoding.labelled_table import LabelledTable

_REPEATED: Final = 0.02
"""Share of the rows that may equal an earlier one without a warning; a single one may in any case."""
_LISTED: Final = 10
_TELLS: Final[dict[How, str]] = {
    "copy": "is the label once more: its cells are the names of the classes",
    "values": "tells the class by itself: each of its values stands for one",
    "order": (
        "tells the class by itself: sorted by it, the rows of each class stand together, as where the classes"
        " were made from it, or where it counts the rows of a file that is sorted by class"
    ),
    "words": "tells the class by itself: its texts have the name of the class in them",
    "one_class": "tells a class by itself: one of its two values stands in all rows of {}, and in no others",
    "gaps": "{} nearly only in rows of the class {}, as where it is filled in after the class is known",
}

Data: TypeAlias = LabelledData | LabelledTable


def leak_warnings(train: Data) -> list[tuple[str, str]]:
    """Warnings about columns that alone determine nearly every label."""
    names: Sequence[str] | None
    counting: Collection[int] = ()
    if isinstance(train, LabelledTable):
        leaks, names = table_leaks(train.schema, train.table.cells, train.y, train.classes), train.table.names
    else:
        leaks, names = matrix_leaks(train.X, train.y, train.classes), train.feature_names
        # These have a warning of their own.
        counting = counting_columns(train.X) if leaks and isinstance(train.X, np.ndarray) else ()
    alike: dict[tuple[How, bool, int | None], list[Leak]] = {}
    for leak in leaks:
        if leak.column not in counting:
            key = (leak.how, leak.has_value, leak.label if leak.how == "gaps" else None)
            alike.setdefault(key, []).append(leak)
    return [("tells_label", _told(group, names, train.classes)) for group in alike.values()]


def repetitions(train: LabelledTable) -> Json:
    """The figures of `core.data.description.describe` about repeated rows, for a table's used columns."""
    used = [k for k, column in enumerate(train.schema) if column.kind is not Kind.IGNORE]
    # A column without two equal cells has no two equal rows.
    if not used or any(train.schema[k].distinct == train.n for k in used):
        return {}
    return repeated_rows(train.row_digests(), train.y).described()


def row_warnings(raw: RawData, summary: Json, train: Data) -> list[tuple[str, str]]:
    """Warnings about rows that occur several times; the summary has their numbers."""
    warnings = []
    repeated = summary.get("repeated_rows", 0)
    if repeated > max(1.0, _REPEATED * train.n) and not _is_coarse(train):
        text = (
            f"{repeated} rows ({repeated / train.n:.0%}) equal an earlier row of their class, such as"
            f" {_two_rows(raw, train, *summary['first_repetition'])}: where one of them is held out to test"
            " on, results are too good. If they are copies, leave them out of the file."
        )
        warnings.append(("repeated_rows", text))
    if "contradictory_rows" in summary:
        text = (
            f"{summary['contradictory_rows']} rows equal a row of another class, such as"
            f" {_two_rows(raw, train, *summary['first_contradiction'])}: an answer is wrong for one of them."
        )
        warnings.append(("contradictory_rows", text))
    return warnings


def shared_warnings(train: LabelledData, test: LabelledData) -> list[tuple[str, str]]:
    """Rows of the test part that the training part has, too."""
    shared = shared_rows(train.X, test.X)
    if not shared.are_many:
        return []
    text = (
        f"{shared.rows} of {shared.of} rows of the test part ({shared.rows / shared.of:.0%}) stand in the"
        f" training part, too, such as its row {shared.first[0]}, which is row {shared.first[1]} there"
        " (counted from 0): results on them are too good. Leave them out of one part."
    )
    return [("rows_in_both_parts", text)]


def _is_coarse(train: Data) -> bool:
    """Whether there are so few different values that most rows must repeat others."""
    if isinstance(train, LabelledTable):
        used = [column for column in train.schema if column.kind is not Kind.IGNORE]
        if any(column.kind in (Kind.TEXT, Kind.VECTOR, Kind.IMAGE) for column in used):
            return False
        return prod(column.distinct + (column.gaps > 0) for column in used) <= train.n / 2
    if not isinstance(train.X, np.ndarray):
        return False
    possible = 1
    for column in train.X.T:
        possible *= len(np.unique(column))
        if possible > train.n / 2:
            return False
    return True


def _told(leaks: Sequence[Leak], names: Sequence[str] | None, classes: Sequence[str]) -> str:
    """The text about leaks of one kind."""
    columns = [leak.column for leak in leaks]
    shown = [str(k) if names is None else f"{names[k]!r:.80}" for k in columns[:_LISTED]]
    listed = ", ".join(shown) + (", …" if len(columns) > _LISTED else "")
    subject = f"Column {listed}" if len(leaks) == 1 else f"Each of the columns {listed}"
    worst = max(leaks, key=lambda leak: leak.wrong / leak.rows)
    label = "one class" if worst.label is None else f"{classes[worst.label]!r:.80}"
    if worst.how == "gaps":
        clause = _TELLS["gaps"].format("has a value" if worst.has_value else "lacks a value", label)
    else:
        clause = _TELLS[worst.how].format(label if len(leaks) == 1 else "one class")
    but = f"{worst.wrong} of {worst.rows} are others" if worst.wrong else f"all of {worst.rows} are so"
    out = "leave it out of the file"
    if names is not None:
        name = names[columns[0]]
        out = f"leave it out: {reading_hint('columns', f'{name:.60}:ignore')}"
    return (
        f"{subject} {clause} (of the rows that were looked at, {but}). If its value is not known when the"
        f" model is asked, what is measured is too good: {out}."
    )


def _two_rows(raw: RawData, train: Data, first: int, other: int) -> str:
    """Two rows of the training part, by the lines of the file if it has lines."""
    rows = _rows_of_file(raw, train, (first, other))
    lines = {} if raw.lines_of is None else raw.lines_of(rows)
    if len(lines) < 2:
        return f"rows {first} and {other} (counted from 0)"
    return " and ".join([f"lines {lines[rows[0]]}", str(lines[rows[1]])])


def _rows_of_file(raw: RawData, train: Data, rows: Sequence[int]) -> list[int]:
    """Numbers in the file of rows of the training part; some rows of the file are left out."""
    labels = raw.train.labels
    if len(labels) == train.n:
        return [*rows]
    texts = ["" if label is None else str(label) for label in labels]
    wanted = {*train.classes, *([""] if train.unlabelled else [])}
    kept = [row for row, name in enumerate(class_names(texts)) if name in wanted]
    return [kept[row] for row in rows]
