"""What an explained answer says of a record besides its decision."""

from __future__ import annotations

from typing import Any, NamedTuple

from app.serving.input_tally import CUT, GAP, OUTSIDE, UNSEEN, unusual
from app.serving.outside import MAX_OUTSIDE, Outside
from core.packed.encoded_columns import CategoryColumn, ColumnEncoder, TextColumn
from core.packed.input_profile import count_words
from core.packed.record_rows import RecordRows, Values


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
        kind = unusual(column, value)
        if isinstance(column, TextColumn):
            known[column.name] = count_words(column, "" if kind == GAP else value)[1]
        if kind == CUT:
            cut.append(column.name)
        elif kind == UNSEEN:
            unseen.append(column.name)
        elif kind == OUTSIDE:
            outside.append(column.name)
    return RecordNote(
        Outside(outside[:MAX_OUTSIDE], len(outside)),
        unseen if any(isinstance(column, CategoryColumn) for column, _ in columns) else None,
        cut if known else None,
        known or None,
    )


def is_known(column: ColumnEncoder, value: Any) -> bool:
    """Whether training had such a value: the category, a number or date in the range, any of the words."""
    kind = unusual(column, value)
    if kind == GAP:
        return not column.required
    if isinstance(column, TextColumn):
        return count_words(column, value)[1] > 0
    return kind not in (UNSEEN, OUTSIDE)
