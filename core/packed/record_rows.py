"""Single records as rows of an encoder, and their scores, without tables and mostly without arrays.

The values of a record are in the order of ``RecordRows.columns``: numbers and truth values, categories, then
all others. They are JSON values of the columns' types, whose content is checked here; a gap is None. A record
has the same score, to the last bit, in whatever form it arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import cached_property, partial
from itertools import repeat
from math import hypot, isfinite, isinf
from operator import call
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from core.data.cell_values import NULLS
from core.data.schema import Kind
from core.data.validation import MAX_MAGNITUDE, NO_VALUE, out_of_range
from core.errors import Fault, InvalidProblem
from core.packed.encoded_columns import CategoryColumn, ColumnEncoder, DateColumn, NumberColumn
from core.packed.encoder import Encoder
from core.packed.maps import BesideTerms, Floats, LinearBasis
from core.packed.single_text import SingleTexts
from core.packed.sparse import StoredBasis
from core.packed.student import PackedStudent, row_scorer

Values: TypeAlias = Sequence[Any]
"""Values of a record, in the order of `RecordRows.columns`."""

Decision: TypeAlias = tuple[float, float | None, int | None]
"""Score, gate and number of the deciding rejection."""

LONGER_THAN_NULLS: Final = 10
_MOST_VALUES: Final = 256
"""Largest number of known values of a category for which a student has weights."""
_MAX_KEPT: Final = 1024
"""Number of category values per column whose terms are cached."""


class EncodedRecord(NamedTuple):
    """dense: (dense columns,). columns, values: of the terms, numbered from 0, (m,). filled: the share of
    the gap-filling columns in which the record has a gap, in [0, 1].
    """

    dense: list[float]
    columns: NDArray[np.int64]
    values: Floats
    filled: float = 0.0


class _Gap(InvalidProblem):
    """A record has a gap that the values of its other columns fill."""


_NO_COLUMNS: Final = np.empty(0, dtype=np.int64)
_NO_VALUES: Final = np.empty(0)


class _Terms:
    """The terms of a column. place: position of its value in records. first: number of its first term."""

    def __init__(self, place: int, column: ColumnEncoder, texts: SingleTexts, first: int) -> None:
        self.place, self.column, self._texts, self._first = place, column, texts, first
        self._kept: dict[str, tuple[NDArray[np.int64], Floats]] = {}

    def of(self, value: Any) -> tuple[NDArray[np.int64], Floats]:
        """Columns and values of the terms of a value, (m,). Raises InvalidProblem."""
        text = self.column.checked(value)
        found = self._kept.get(text)
        if found is None:
            columns, weights = self._texts.find(text)
            found = columns + self._first if self._first else columns, weights
            if isinstance(self.column, CategoryColumn) and len(self._kept) < _MAX_KEPT:
                self._kept[text] = found
        return found


class RecordRows:
    """Makes rows of an encoder from the values of single records.

    columns: encoder of each value. numbers, categories: how many of the first columns are numbers, and how
    many of those after them are categories.
    """

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        groups: tuple[list[ColumnEncoder], list[ColumnEncoder], list[ColumnEncoder]] = ([], [], [])
        places: dict[str, tuple[int, int]] = {}
        dense = terms = 0
        for column in encoder.columns:
            groups[_group(column)].append(column)
            places[column.name] = dense, terms
            dense += column.width
            terms += sum(map(len, column.tables))
        self.columns = (*groups[0], *groups[1], *groups[2])
        self.numbers, self.categories = len(groups[0]), len(groups[1])
        self.starts = [places[column.name][0] for column in self.columns]
        self.has_terms = encoder.layout.terms > 0
        self._others = self.numbers + self.categories
        self._with_terms = [
            _Terms(place, column, SingleTexts(column.tables), places[column.name][1])
            for place, column in enumerate(self.columns)
            if column.tables
        ]
        self._blank = [0.0] * dense
        self._number_starts = self.starts[: self.numbers]
        self._places = [
            _places(column, start)
            for column, start in zip(self.columns, self.starts, strict=True)
            if isinstance(column, CategoryColumn)
        ]

    @cached_property
    def have_few_values(self) -> bool:
        """Whether a student can have a weight for each value: there are no terms, and few categories."""
        return not self.has_terms and all(len(places) <= _MOST_VALUES for places in self._places)

    @property
    def are_numbers(self) -> bool:
        """Whether the values themselves are the row."""
        return self.encoder.takes_numbers

    def read(
        self, cells: Mapping[str, Any], *, without: Container[str] = ()
    ) -> tuple[list[Any], list[Fault]]:
        """The values of a record by names of columns, and their faults; with faults, the values are useless.

        The field of a fault is the name of its column; it is empty if no column has a value. without: columns
        to skip.
        """
        values: list[Any] = []
        faults: list[Fault] = []
        for column in self.columns:
            if column.name in without:
                continue
            given = cells.get(column.name)
            try:
                value = canonical(column, given)
            except InvalidProblem as error:
                faults += error.faults
                continue
            if value is None and column.required and not (column.kind is Kind.TEXT and given is not None):
                faults.append(Fault(column.name, "missing_value", NO_VALUE))
            values.append(value)
        if not faults and self.encoder.filling and all(value is None for value in values):
            faults += no_values().faults
        return values, faults

    def encode(self, values: Values) -> EncodedRecord:
        """The row of a record. Raises InvalidProblem for the first value that no row can have."""
        dense, filled = self.dense(values)
        columns, weights = self.terms(values) if self.has_terms else (_NO_COLUMNS, _NO_VALUES)
        return EncodedRecord(dense, columns, weights, filled)

    def dense(self, values: Values) -> tuple[list[float], float]:
        """The dense columns of a record, and `EncodedRecord.filled`. Raises InvalidProblem."""
        try:
            return self._dense(values), 0.0
        except _Gap:
            return self._filled(values)

    def gaps(self, values: Values) -> list[int]:
        """Positions in ``columns`` of the missing values that are filled from other columns."""
        return [
            place
            for place, column in enumerate(self.columns)
            if column.fills and is_missing(column, values[place])
        ]

    def _filled(self, values: Values) -> tuple[list[float], float]:
        row, gaps = self._dense(values, fills=True), self.gaps(values)
        if all(map(is_missing, self.columns, values)):
            raise no_values()
        if self.encoder.gaps is not None:
            widths = ((self.starts[place], self.columns[place].width) for place in gaps)
            self.encoder.gaps.fill(
                row, sorted(at for start, width in widths for at in range(start, start + width))
            )
        return row, len(gaps) / self.encoder.filling

    def _dense(self, values: Values, *, fills: bool = False) -> list[float]:
        """The dense columns of a record. fills: whether the record may have gaps that are filled."""
        row = self._blank.copy()
        n = self.numbers
        for start, value in zip(self._number_starts, values, strict=False):
            row[start] = value
        try:
            usable = hypot(*values[:n]) < MAX_MAGNITUDE
        except TypeError:
            usable = False
        if not usable:
            for column, start, value in zip(self.columns[:n], self.starts, values, strict=False):
                row[start : start + column.width] = _row_of(column, value, fills=fills)
        for places, value, at in zip(
            self._places, values[n : self._others], range(n, self._others), strict=True
        ):
            place = places.get(value)
            if place is None:
                place = self._place_of_other(at, places, value, fills=fills)
            if place >= 0:
                row[place] = 1.0
        for at in range(self._others, len(self.columns)):
            column, start, value = self.columns[at], self.starts[at], values[at]
            if column.width or column.fills:
                row[start : start + column.width] = _row_of(column, value, fills=fills)
        return row

    def terms(self, values: Values) -> tuple[NDArray[np.int64], Floats]:
        """Columns and values of the terms of a record, each (m,). Raises InvalidProblem."""
        found = []
        for known in self._with_terms:
            value = values[known.place]
            if value is not None and not (isinstance(value, str) and is_gap(known.column, value)):
                found.append(known.of(value))
        if len(found) == 1:
            return found[0]
        if not found:
            return _NO_COLUMNS, _NO_VALUES
        return np.concatenate([one[0] for one in found]), np.concatenate([one[1] for one in found])

    def _place_of_other(self, at: int, places: dict[Any, int], value: Any, *, fills: bool) -> int:
        """The column of a category's value that is not written as its key or was not in training."""
        column = self.columns[at]
        assert isinstance(column, CategoryColumn)  # noqa: S101 - `columns` are in groups
        if fills and column.fills and is_missing(column, value):
            return -1
        known = places.get(_known_key(column, value))
        if known is not None:
            return known
        return self.starts[at] + column.unseen if column.unseen >= 0 else -1


class RecordScorers(NamedTuple):
    """one: returns a student's score for the values of a record. many: the same for records given by columns,
    with the same bits; None unless that is faster.

    Both raise InvalidProblem for values that no row can have, and for scores beyond float64.
    """

    one: Callable[[Values], float]
    many: Callable[[Sequence[Sequence[Any]]], list[float]] | None


def record_scorers(student: PackedStudent, rows: RecordRows) -> RecordScorers:
    """Functions that score records; everything constant is computed beforehand."""

    def encoded(values: Values) -> float:
        record = rows.encode(values)
        return _score_of(student, stored_basis(student, record), rows, record.filled)

    if rows.are_numbers:
        # This gives the same bits as a list of numbers.
        score = row_scorer(student)
        return RecordScorers(
            lambda values: encoded(values) if None in values else score(list(values)),
            lambda columns: [score(list(values)) for values in zip(*columns, strict=True)],
        )
    if is_weighted(student, rows):
        weighted = WeightedScorer(student, rows)
        return RecordScorers(weighted.score, weighted.scores)
    if rows.has_terms:
        return RecordScorers(encoded, None)
    of_row, dense = row_scorer(student), rows.dense

    def scored(values: Values) -> float:
        row, filled = dense(values)
        return student.with_gaps(of_row(row), filled) if filled else of_row(row)

    return RecordScorers(scored, None)


def is_weighted(student: PackedStudent, rows: RecordRows) -> bool:
    """Whether a score is a sum with one weight for each value."""
    is_linear = isinstance(student.map, LinearBasis) and student.form.linear is not None
    return is_linear and student.is_tame and rows.have_few_values and not rows.are_numbers


def record_decider(
    students: Sequence[PackedStudent], rows: RecordRows, *, explain: bool
) -> Callable[[Values], list[Decision]]:
    """A function from the values of a record to the score of each student; ``explain`` adds gate and piece.

    Scores have the same bits as those of `record_scorers`. It raises the same errors.
    """
    weighted = [
        WeightedScorer(student, rows).score if is_weighted(student, rows) else None for student in students
    ]

    def decide(values: Values) -> list[Decision]:
        encoded: EncodedRecord | None = None
        bases: dict[str, StoredBasis] = {}
        decisions: list[Decision] = []
        for student, scorer in zip(students, weighted, strict=True):
            if scorer is not None and not explain:
                decisions.append((scorer(values), None, None))
                continue
            encoded = encoded or rows.encode(values)
            basis = bases.get(student.map.digest)
            if basis is None:
                basis = bases[student.map.digest] = stored_basis(student, encoded)
            score = scorer(values) if scorer is not None else _score_of(student, basis, rows, encoded.filled)
            if not explain:
                decisions.append((score, None, None))
                continue
            gate, piece = student.explain_stored(basis)
            if not isfinite(gate - score):
                raise out_of_range("x")
            decisions.append((score, gate, piece))
        return decisions

    return decide


def _score_of(student: PackedStudent, basis: StoredBasis, rows: RecordRows, filled: float) -> float:
    score = student.score_stored(basis) if rows.has_terms else student.score_at(basis.dense)
    return student.with_gaps(score, filled) if filled else score


def stored_basis(student: PackedStudent, record: EncodedRecord) -> StoredBasis:
    """The basis values of a record."""
    packed = student.map
    dense = np.array(record.dense, dtype=np.float64)
    if isinstance(packed, BesideTerms):
        return StoredBasis(packed.of_dense.row(dense), record.columns, record.values)
    if isinstance(packed, LinearBasis):
        return StoredBasis(dense, record.columns, record.values)
    full = np.zeros(packed.n_columns)
    full[: len(dense)] = dense
    full[record.columns + len(dense)] = record.values
    return StoredBasis(packed.row(full), _NO_COLUMNS, _NO_VALUES)


class WeightedScorer:
    """Σ coef·number + Σ weight of each category's value, for a student that is linear in the columns.

    No vector is built. Many records are scored by columns, with the same additions in the same order.
    """

    def __init__(self, student: PackedStudent, rows: RecordRows) -> None:
        self._student, self._rows = student, rows
        coef_of: Any = student.form.linear
        coef: list[float] = coef_of[0].tolist()
        self._intercept: float = coef_of[1]
        self._n, self._end = rows.numbers, rows.numbers + rows.categories
        parts = [
            (column, coef[start : start + column.width])
            for column, start in zip(rows.columns, rows.starts, strict=True)
        ]
        self._numbers = [own[0] for _, own in parts[: self._n]]
        self._products = [partial(_product, column, own) for column, own in parts]
        self._gets: list[Callable[[Any], float | None]] = []
        for column, own in parts[self._n : self._end]:
            assert isinstance(column, CategoryColumn)  # noqa: S101 - `columns` are in groups
            weights, other = _category_weights(column, own)
            self._gets.append(weights.get)
            self._products[self._n + len(self._gets) - 1] = partial(_weight, column, weights, other)

    @property
    def score(self) -> Callable[[Values], float]:
        """A function that returns the score for the values of a record. It raises InvalidProblem."""
        n, intercept, each = self._n, self._intercept, self._each
        weights: list[Callable[[Any], Any]] = [coef.__mul__ for coef in self._numbers]
        weights += [*self._gets, *self._products[self._end :]]

        def score(values: Values) -> float:
            try:
                if hypot(*values[:n]) < MAX_MAGNITUDE:
                    return sum((intercept, *map(call, weights, values)))
            except (TypeError, _Gap):
                # There is a gap, or a category's value that is not written as its key.
                return each(values)
            return each(values)

        return score

    def _each(self, values: Values) -> float:
        try:
            return sum((self._intercept, *map(call, self._products, values)))
        except _Gap:
            record = self._rows.encode(values)
            return _score_of(self._student, stored_basis(self._student, record), self._rows, record.filled)

    def scores(self, columns: Sequence[Sequence[Any]]) -> list[float]:
        """Scores (n,) of records by columns, each of them typed. Raises InvalidProblem."""
        addends: list[Iterable[float | None]] = [repeat(self._intercept)]
        for coef, product, values in zip(self._numbers, self._products, columns, strict=False):
            addends.append(_by_numbers(coef, product, values))
        for get, product, values in zip(
            self._gets, self._products[self._n :], columns[self._n :], strict=False
        ):
            weights = [*map(get, values)]
            addends.append([*map(product, values)] if None in weights else weights)
        addends += (
            map(product, values)
            for product, values in zip(self._products[self._end :], columns[self._end :], strict=True)
        )
        scores: list[Any] = [*map(sum, zip(*addends, strict=False))]
        return scores


def _by_numbers(coef: float, product: Callable[[Any], float], values: Sequence[Any]) -> list[float]:
    """The contribution of a column of numbers to each score."""
    try:
        if hypot(*values) < MAX_MAGNITUDE:
            return [coef * value for value in values]
    except TypeError:
        # There are gaps.
        return [*map(product, values)]
    return [*map(product, values)]


def _row_of(column: ColumnEncoder, value: Any, *, fills: bool) -> list[float]:
    """The dense columns of a value, or of a gap. Raises InvalidProblem, and _Gap as `RecordRows._dense`."""
    if value is None or (column.fills and is_missing(column, value)):
        if column.fills and not fills:
            raise _Gap
        return column.row(None)
    return column.row(column.checked(value))


def _product(column: ColumnEncoder, coef: list[float], value: Any) -> float:
    total = 0.0
    for own, number in zip(coef, _row_of(column, value, fills=False), strict=True):
        total += own * number
    return total


def _category_weights(column: CategoryColumn, coef: list[float]) -> tuple[dict[Any, float], float]:
    """The weight of each known value and of a gap, and the weight of all other values."""
    weights: dict[Any, float] = {
        key: coef[place] if place >= 0 else 0.0 for key, place in column.places.items()
    }
    if not column.fills:
        weights[None] = coef[-1] if column.marks_gaps else 0.0
    return weights, coef[column.unseen] if column.unseen >= 0 else 0.0


def _weight(column: CategoryColumn, weights: dict[Any, float], other: float, value: Any) -> float:
    known = weights.get(value)
    return weights.get(_known_key(column, value), other) if known is None else known


def _known_key(column: CategoryColumn, value: Any) -> str | None:
    """The key of a value; None for a gap. Raises InvalidProblem, and _Gap for one that is to be filled."""
    if is_missing(column, value):
        if column.fills:
            raise _Gap
        if column.required:
            raise InvalidProblem(Fault(column.name, "missing_value", "has no value"))
        return None
    return str(column.checked(value))


def no_values() -> InvalidProblem:
    """The error for a record without usable values."""
    return InvalidProblem(Fault("", "missing_value", "has no value in any column"))


def is_missing(column: ColumnEncoder, value: Any) -> bool:
    """Whether the value of a usable record is a gap."""
    return value is None or (isinstance(value, str) and is_gap(column, value))


def is_gap(column: ColumnEncoder, text: str) -> bool:
    """Whether a text means a missing value, as in cells of files."""
    if len(text) >= LONGER_THAN_NULLS and not column.nulls:
        return False
    bare = text.strip()
    if bare in column.nulls:
        return True
    return bare in NULLS and not (isinstance(column, CategoryColumn) and bare in column.places)


def canonical(column: ColumnEncoder, value: Any) -> Any:
    """A JSON value in the form that `RecordRows` takes; None for a gap. Raises InvalidProblem."""
    if value is None:
        return None
    if isinstance(value, float) and isinf(value) and column.kind is not Kind.TEXT:
        raise InvalidProblem(Fault(column.name, "too_large", "is a number beyond the range of float64"))
    is_number = isinstance(column, NumberColumn) and not column.takes_texts
    if isinstance(value, str) and not is_number and is_gap(column, value):
        return None
    checked = column.checked(value)
    return value if isinstance(column, DateColumn) or column.kind is Kind.BOOLEAN else checked


def _group(column: ColumnEncoder) -> int:
    if isinstance(column, NumberColumn):
        return 0
    return 1 if isinstance(column, CategoryColumn) else 2


def _places(column: CategoryColumn, start: int) -> dict[Any, int]:
    """The column of each known value and of a gap among all dense columns; −1 if there is none."""
    places: dict[Any, int] = {
        key: start + place if place >= 0 else -1 for key, place in column.places.items()
    }
    if not column.fills:
        places[None] = start + column.width - 1 if column.marks_gaps else -1
    return places
