"""Faults of the rows of a query, with one code for each kind of mistake, in all forms of queries.

    missing_value     a column has no value, and needs one
    unknown_column    a name that no column has
    duplicate_key     a name that is there twice
    wrong_type        a value, or a row, of another type
    wrong_columns     a list of more or fewer values than the version has columns
    not_finite        NaN or an infinite number
    too_large         a number beyond ±1e100
    no_column_names   names, where the columns of the version have none
    needs_record      numbers in order, where names are needed
    empty             no rows
    too_many_rows     more rows than the server takes (413)

Every fault names its row and column, by name and by number, as far as they are known. A single row is row 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import cached_property
from itertools import islice
from math import isinf
from typing import Any, Final

from app.domain.errors import InputFault, InvalidRequest, TooLarge
from app.domain.near_names import listed, near_name
from app.serving.json_keys import duplicate_key, place_of
from core.data.validation import MAX_FAULTS, NO_VALUE
from core.errors import InvalidProblem
from core.packed.embedded_column import EmbeddedColumn
from core.packed.encoded_columns import (
    CategoryColumn,
    ColumnEncoder,
    DateColumn,
    NumberColumn,
    VectorColumn,
)
from core.packed.record_rows import RecordRows, Values

MOST_QUOTES: Final = 50_000
"""Largest number of quotation marks of a record outside of its texts, which bounds its keys and texts."""
NOT_FINITE: Final = {
    "NaN": "is NaN",
    "Infinity": "is an infinite value",
    "-Infinity": "is a negative infinite value",
}
"""Texts that programs write in JSON for numbers that are not finite."""
_WORDS: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_EXAMPLE: Final = date(2024, 5, 6)
_LONGEST_WHOLE: Final = 300
_SHOWN_COLUMNS: Final = 6
_SHOWN_NUMBERS: Final = 3


class _Pairs(list[Any]):
    """Keys and values of an object of JSON, in order."""


def invalid(faults: Sequence[InputFault]) -> InvalidRequest:
    """The error of a request with these faults; only the first ones are kept."""
    return InvalidRequest(faults[0].message, code=faults[0].code, faults=faults[:MAX_FAULTS])


def refusal(code: str, message: str, field: str, i: int | None = None) -> InvalidRequest:
    """The error of one part of a request."""
    return InvalidRequest(message, code=code, faults=[InputFault(field, code, message, i)])


def check_count(rows: int, field: str, max_rows: int) -> None:
    """Raise InvalidRequest for no rows, and TooLarge for too many."""
    if not rows:
        raise refusal("empty", f"{field} is empty; at least one row is needed.", field)
    if rows > max_rows:
        message = f"The query has {rows} rows; at most {max_rows} are taken."
        raise TooLarge(message, code="too_many_rows")


def wrong_width(given: int, expected: int, field: str, i: int | None) -> InputFault:
    """The fault of a list of more or fewer values than there are columns."""
    values = "1 value" if given == 1 else f"{given} values"
    message = f"{place_of(field, i)} has {values}; {expected} are needed."
    return InputFault(field, "wrong_columns", message, i or 0)


def written(number: float) -> float | str:
    """A number of a tensor; one that is not finite as programs write it in JSON."""
    return _WORDS.get(str(number), number)


def json_value(raw: bytes) -> Any:
    """A value of JSON, its objects as lists of a kind of their own. Raises InvalidRequest."""
    try:
        return json.loads(raw, object_pairs_hook=_Pairs, parse_int=whole)
    except (ValueError, RecursionError) as error:
        message = f"The body cannot be read as JSON: {error}."
        raise InvalidRequest(message, code="malformed_json") from error


def list_faults(
    values: Iterable[Any], names: Sequence[str] | None, field: str, i: int | None, first: int = 0
) -> list[InputFault]:
    """The first faults of values that are not usable numbers. names: of all columns. first: their column."""
    faults: list[InputFault] = []
    for column, value in enumerate(values, first):
        reason = _why_no_number(value)
        if reason is None:
            continue
        code, what = reason
        name = None if names is None or column >= len(names) else names[column]
        shown = f"column {column}" if name is None else f"{name!r:.100}"
        message = f"{place_of(field, i).rstrip(',')}: {shown} {what}."
        of_column = field if name is None else f"{field}.{name}"[:200]
        faults.append(InputFault(of_column, code, message, i or 0, column, name))
        if len(faults) >= MAX_FAULTS:
            break
    return faults


def _why_no_number(value: Any) -> tuple[str, str] | None:
    """The code and the words of a value of JSON, or of a tensor, that is no usable number; None for one."""
    if isinstance(value, str) and value in NOT_FINITE:
        return "not_finite", f"{NOT_FINITE[value]}, not a finite number"
    if value is None:
        return "missing_value", NO_VALUE
    if isinstance(value, float) and isinf(value):
        # JSON has no such number: it has too many digits.
        return "too_large", "is a number beyond the range of float64"
    try:
        _ANY_NUMBER.checked(value)
    except InvalidProblem as error:
        return error.faults[0].code, error.faults[0].message
    return None


def number_column(name: str, low: float = 0.0, high: float = 0.0) -> NumberColumn:
    """A required column of a version of numbers. low, high: range in training."""
    return NumberColumn(name, True, 0.0, False, low, high)


_ANY_NUMBER: Final = number_column("")


class RecordReader:
    """Reads the records of one version thoroughly. Values are in the order of `RecordRows.columns`."""

    def __init__(self, rows: RecordRows) -> None:
        self._rows = rows
        self._names = frozenset([*rows.encoder.names, *rows.encoder.ignored])

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns of a record."""
        return self._rows.encoder.names

    @cached_property
    def _number_of(self) -> Mapping[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    def read(self, raw: bytes, field: str, i: int | None, *, quoted: bool) -> tuple[Values, list[InputFault]]:
        """The values of a record in JSON, and its faults; with faults, ignore the values.

        field, i: position of the record in the request. quoted: whether texts like NaN were put into quotes.
        Raises TooLarge, and InvalidRequest if it is not JSON.
        """
        if raw.count(b'"') - raw.count(b'\\"') > MOST_QUOTES:
            raise TooLarge(f"{field} has a record with far too many keys.", code="too_many_parts")
        pairs = json_value(raw)
        if not isinstance(pairs, _Pairs):
            message = f"{place_of(field, i)} must be an object of values by the names of the columns."
            return (), [InputFault(field, "wrong_type", message, i or 0)]
        cells: dict[str, Any] = {}
        names: list[str] = []
        for name, value in pairs:
            names.append(name)
            # An object is no value of any column.
            cells[name] = {} if isinstance(value, _Pairs) else value
        faults = self.name_faults(names, field, i)
        values, wrong = self.read_cells(cells, field, i, quoted=quoted)
        return values, [*faults, *wrong][:MAX_FAULTS]

    def read_cells(
        self, cells: Mapping[str, Any], field: str, i: int | None, *, quoted: bool = False
    ) -> tuple[Values, list[InputFault]]:
        """The values of a record by name, whose names are all known, and its faults."""
        written = {
            name: NOT_FINITE[value]
            for name, value in (cells.items() if quoted else ())
            if isinstance(value, str) and value in NOT_FINITE and name in self._number_of
        }
        values, faults = self._rows.read(cells, without=written)
        found = [self._of_value(fault.field, fault.code, fault.message, field, i) for fault in faults]
        found += [
            self._of_value(name, "not_finite", f"{what}, not a finite number", field, i)
            for name, what in written.items()
        ]
        found.sort(key=lambda fault: -1 if fault.column is None else fault.column)
        return values, found[:MAX_FAULTS]

    def gap_faults(self, values: Values, field: str, i: int | None) -> list[InputFault]:
        """The faults of gaps in a row within lists of numbers, which cannot have gaps."""
        gaps = (one.name for one, value in zip(self._rows.columns, values, strict=True) if value is None)
        return [
            self._of_value(name, "missing_value", NO_VALUE, field, i) for name in islice(gaps, MAX_FAULTS)
        ]

    def problem_fault(self, error: InvalidProblem, field: str, i: int | None) -> InputFault:
        """The fault of a record whose values are usable, but have no score."""
        code = error.faults[0].code if error.faults else "out_of_range"
        message = f"{place_of(field, i)} has values so large that no finite score exists."
        return InputFault(field, code, message, i or 0)

    def name_faults(self, given: Sequence[str], field: str, i: int | None = None) -> list[InputFault]:
        """The faults of names that no column has, or that are there twice."""
        if len(set(given)) == len(given) and self._names.issuperset(given):
            return []
        return [*islice(self._name_faults(given, field, i), MAX_FAULTS)]

    def _name_faults(self, given: Sequence[str], field: str, i: int | None) -> Iterator[InputFault]:
        seen: set[str] = set()
        for name in given:
            if name in seen:
                fault = duplicate_key(name, field, i)
                yield replace(fault, row=i or 0, column=self._number_of.get(name), name=name)
            elif name not in self._names:
                yield self._unknown(name, field, i)
            seen.add(name)

    def missing_faults(self, given: Sequence[str], field: str) -> list[InputFault]:
        """The faults of columns that need values but are not in ``given``."""
        present = frozenset(given)
        missing = (name for name, column in self._by_name.items() if column.required and name not in present)
        return [
            self._of_value(name, "missing_value", NO_VALUE, field, None)
            for name in islice(missing, MAX_FAULTS)
        ]

    @cached_property
    def _by_name(self) -> Mapping[str, ColumnEncoder]:
        return {column.name: column for column in self._rows.encoder.columns}

    @cached_property
    def example(self) -> str:
        """A short example of a record in JSON, without further columns."""
        columns = [*self._by_name.values()]
        shown = {column.name: example_of(column) for column in columns[:_SHOWN_COLUMNS]}
        text = json.dumps(shown, ensure_ascii=False)
        return text if len(columns) <= _SHOWN_COLUMNS else f"{text[:-1]}, …}}"

    def _unknown(self, name: str, field: str, i: int | None) -> InputFault:
        near = near_name(name, self.names)
        hint = f"; did you mean {near!r:.100}?" if near else f"; its columns are {listed(self.names)}."
        message = f"{place_of(field, i)} has no column {name!r:.100}{hint}"
        return InputFault(f"{field}.{name}"[:200], "unknown_column", message, i or 0, None, name)

    def _of_value(self, name: str, code: str, what: str, field: str, i: int | None) -> InputFault:
        """The fault of a column's value, or of all values if the column has no name."""
        column = self._number_of.get(name)
        if column is None:
            return InputFault(field, code, f"{place_of(field, i)} {what}.", i or 0)
        message = f"{place_of(field, i).rstrip(',')}: {name!r:.100} {what}."
        return InputFault(f"{field}.{name}"[:200], code, message, i or 0, column, name)


def example_of(column: ColumnEncoder) -> Any:
    """A value that a column may have."""
    if isinstance(column, NumberColumn):
        if column.is_truth:
            return True
        return int(column.fallback) if column.fallback.is_integer() else column.fallback
    if isinstance(column, CategoryColumn):
        return next(iter((*column.values, *column.rare)), "a value")[:40]
    if isinstance(column, DateColumn):
        return _EXAMPLE.strftime(column.pattern or "%Y-%m-%d")
    if isinstance(column, VectorColumn):
        return [0.0] * min(len(column.fallback), _SHOWN_NUMBERS)
    if isinstance(column, EmbeddedColumn):
        return {"b64": "..."}
    return "some words"


def whole(digits: str) -> float:
    """A whole number; Python refuses to read numbers with thousands of digits."""
    return int(digits) if len(digits) <= _LONGEST_WHOLE else float(digits)
