"""What an explained answer says of a record besides its decision."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from app.serving.outside import MAX_OUTSIDE, Outside
from core.data.cell_values import microseconds_of
from core.packed.encoded_columns import CategoryColumn, ColumnEncoder, DateColumn, NumberColumn, TextColumn
from core.packed.record_rows import RecordRows, Values, is_gap
from core.packed.terms import TextBatch, cut_text

_ROUNDING: Final = 2.0**-23
"""Numbers that went through float32 differ from their range by at most this part of its larger end."""


class RecordNote(NamedTuple):
    """outside: numbers and dates outside their range in training. unseen: names of categories whose value no
    row of training had; None if there are no categories. cut: names of texts that were too long. known_terms:
    words of each text that training had, by name. Both are None if there are no texts.
    """

    outside: Outside
    unseen: list[str] | None
    cut: list[str] | None
    known_terms: dict[str, int] | None


def note_of(rows: RecordRows, values: Values) -> RecordNote:
    """The note of a record whose values are usable."""
    outside: list[str | int] = []
    unseen: list[str] = []
    cut: list[str] = []
    known: dict[str, int] = {}
    by_name = {column.name: (column, value) for column, value in zip(rows.columns, values, strict=True)}
    columns = [by_name[name] for name in rows.encoder.names]
    for column, value in columns:
        if isinstance(column, TextColumn):
            text = "" if value is None or is_gap(column, value) else value
            known[column.name] = _known_words(column, text)
            if cut_text(text) is not text:
                cut.append(column.name)
        elif value is None:
            continue
        elif isinstance(column, CategoryColumn):
            if _is_unseen(column, value):
                unseen.append(column.name)
        elif _is_outside(column, value):
            outside.append(column.name)
    return RecordNote(
        Outside(outside[:MAX_OUTSIDE], len(outside)),
        unseen if any(isinstance(column, CategoryColumn) for column, _ in columns) else None,
        cut if known else None,
        known or None,
    )


def is_known(column: ColumnEncoder, value: Any) -> bool:
    """Whether training had such a value: the category, a number or date in the range, any of the words."""
    if isinstance(column, TextColumn):
        return isinstance(value, str) and not is_gap(column, value) and _known_words(column, value) > 0
    if value is None:
        return not column.required
    if isinstance(column, CategoryColumn):
        return not _is_unseen(column, value)
    return not _is_outside(column, value)


def _is_outside(column: ColumnEncoder, value: Any) -> bool:
    if isinstance(column, NumberColumn):
        slack = _ROUNDING * max(abs(column.low), abs(column.high))
        return not column.is_truth and not column.low - slack <= value <= column.high + slack
    if isinstance(column, DateColumn):
        moment = microseconds_of(value.strip(), column.pattern)
        return moment is not None and not column.low <= moment <= column.high
    return False


def _is_unseen(column: CategoryColumn, value: Any) -> bool:
    if isinstance(value, str) and is_gap(column, value):
        return False
    return column.checked(value) not in column.places


def _known_words(column: TextColumn, text: str) -> int:
    """How many different terms of the first family of a column a text has."""
    table = column.tables[0]
    return len(table.entries(TextBatch([text]), 1).columns) if len(table) else 0
