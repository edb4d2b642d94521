"""Notes of an answer about a record besides its decision: all on request, unusual values always."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from app.serving.columns.outside import MAX_OUTSIDE, Outside
from app.serving.columns.tally import CUT, GAP, OUTSIDE, UNSEEN, unusual, usual_test
from core.packed.encoded_columns import CategoryColumn, ColumnEncoder, TextColumn
from core.packed.input_profile import count_words
from core.packed.record_rows import RecordRows, Values


class RecordNote(NamedTuple):
    """missing: names of columns without a value, which was filled from the others; None if no column
    fills gaps. outside: numbers and dates outside their range in training. unseen: names of categories whose
    value no training row had; None if there are no categories. cut: names of texts that were too long.
    known_terms: number of words of each text that training had, by name. Both are None if there are no texts.
    """

    missing: list[str] | None
    outside: Outside
    unseen: list[str] | None
    cut: list[str] | None
    known_terms: dict[str, int] | None

    @classmethod
    def of_numbers(cls, outside: Outside) -> RecordNote:
        """The note of a row of numbers."""
        return cls(None, outside, None, None, None)


class RecordNotes:
    """Makes the notes of the records of a version."""

    def __init__(self, rows: RecordRows) -> None:
        place_of = {column.name: place for place, column in enumerate(rows.columns)}
        self._columns = [(place_of[column.name], column) for column in rows.encoder.columns]
        self._tests = [(place, _noteworthy_test(column)) for place, column in self._columns]
        self._fills = rows.encoder.filling > 0
        self._has_categories = any(isinstance(column, CategoryColumn) for column in rows.columns)

    def explained(self, values: Values) -> RecordNote:
        """The note of a record whose values are usable."""
        note = self._note(values, [place for place, _ in self._columns])
        known = {
            column.name: count_words(column, _text_of(column, values[place]))[1]
            for place, column in self._columns
            if isinstance(column, TextColumn)
        }
        return note._replace(
            missing=note.missing if self._fills else None,
            unseen=note.unseen if self._has_categories else None,
            cut=note.cut if known else None,
            known_terms=known or None,
        )

    def unusual(self, values: Values) -> RecordNote | None:
        """The note without ``known_terms``, for a record with unusual values; None for other records."""
        odd = [place for place, is_noteworthy in self._tests if is_noteworthy(values[place])]
        return self._note(values, odd) if odd else None

    def is_unusual(self, values: Values) -> bool:
        """Whether anything is unusual about a record."""
        return any(is_noteworthy(values[place]) for place, is_noteworthy in self._tests)

    def unusual_of_columns(
        self, columns: Sequence[Sequence[Any]], unsure: Collection[int] | None
    ) -> list[RecordNote | None] | None:
        """The same of each of many records by columns; None if nothing is unusual about any.

        unsure: places of the columns that must be looked at; None for all.
        """
        odd: dict[int, list[int]] = {}
        for place, is_noteworthy in self._tests:
            if unsure is None or place in unsure:
                for row, value in enumerate(columns[place]):
                    if is_noteworthy(value):
                        odd.setdefault(row, []).append(place)
        if not odd:
            return None
        notes: list[RecordNote | None] = [None] * len(columns[0])
        for row, places in odd.items():
            notes[row] = self._note([values[row] for values in columns], places)
        return notes

    def _note(self, values: Values, places: Sequence[int]) -> RecordNote:
        """The note about unusual values in some of the columns."""
        chosen = set(places)
        names: dict[int, list[str]] = {GAP: [], UNSEEN: [], OUTSIDE: [], CUT: []}
        for place, column in self._columns:
            kind = unusual(column, values[place]) if place in chosen else None
            if kind is not None and (kind != GAP or column.fills):
                names[kind].append(column.name)
        outside: list[str | int] = [*names[OUTSIDE][:MAX_OUTSIDE]]
        return RecordNote(names[GAP], Outside(outside, len(names[OUTSIDE])), names[UNSEEN], names[CUT], None)


def is_known(column: ColumnEncoder, value: Any) -> bool:
    """Whether training had such a value: the category, a number or date in the range, any of the words."""
    kind = unusual(column, value)
    if kind == GAP:
        return not (column.required or column.fills)
    if isinstance(column, TextColumn):
        return count_words(column, value)[1] > 0
    return kind not in (UNSEEN, OUTSIDE)


def _noteworthy_test(column: ColumnEncoder) -> Callable[[Any], bool]:
    """A test of values of usable records: whether an answer has a note about them."""
    is_usual, fills = usual_test(column), column.fills

    def is_noteworthy(value: Any) -> bool:
        if is_usual(value):
            return False
        kind = unusual(column, value)
        return kind is not None and (kind != GAP or fills)

    return is_noteworthy


def _text_of(column: ColumnEncoder, value: Any) -> str:
    return "" if unusual(column, value) == GAP else str(value)
