"""Records that a typed decoder refused, read again value by value: what is wrong with which column.

Every fault names its row and column. A record that nothing is wrong with has its values here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date
from functools import cache, cached_property
from itertools import islice
from typing import Any, Final

import msgspec

from app.domain.errors import InputFault, InvalidRequest, TooLarge
from app.domain.near_names import listed, near_name
from core.data.schema import Kind
from core.data.validation import MAX_FAULTS, no_value
from core.errors import InvalidProblem
from core.packed.encoded_columns import CategoryColumn, ColumnEncoder, DateColumn, NumberColumn, VectorColumn
from core.packed.record_rows import RecordRows, Values, canonical, no_values

MOST_QUOTES: Final = 50_000
"""Quotation marks of a record besides those in its texts, which bound its keys and texts."""
NOT_FINITE: Final = {
    "NaN": "is NaN",
    "Infinity": "is an infinite value",
    "-Infinity": "is a negative infinite value",
}
"""What programs write in JSON for numbers that are not finite."""
_EXAMPLE: Final = date(2024, 5, 6)
_QUICKLY_SEARCHED: Final = 4096
_LONGEST_WHOLE: Final = 300
_SHOWN_COLUMNS: Final = 6
_SHOWN_NUMBERS: Final = 3


class _Key:
    """A key of JSON; each one that is decoded is another one."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


class _Pairs(list[Any]):
    """Keys and values of an object of JSON, in order."""


def _new_key(_kind: type, text: str) -> _Key:
    return _Key(text)


_KEYS: Final = msgspec.json.Decoder(dict[_Key, msgspec.Raw], dec_hook=_new_key)


def count_keys(text: bytes) -> int:
    """Keys of an object of JSON and of the objects in it, those that are there twice counted twice."""
    found = _KEYS.decode(text)
    return len(found) + sum(count_keys(bytes(value)) for value in found.values() if bytes(value)[:1] == b"{")


def pairs_of(text: bytes) -> list[tuple[str, msgspec.Raw]]:
    """Keys and values of an object of JSON in order, also those that are there twice. Raises DecodeError."""
    return [(key.text, value) for key, value in _KEYS.decode(text).items()]


def may_repeat(text: bytes, names: tuple[str, ...]) -> bool:
    """Whether an object of JSON with nothing but these keys may have one of them twice: a quick look.

    Long texts, through which these looks take as long as reading it, may.
    """
    if len(text) > _QUICKLY_SEARCHED or b"\\" in text:
        return True
    return any(text.count(name) > 1 for name in _quoted(names))


@cache
def _quoted(names: tuple[str, ...]) -> tuple[bytes, ...]:
    return tuple(f'"{name}"'.encode() for name in names)


def check_once(text: bytes, field: str = "body", i: int | None = None) -> None:
    """Raise InvalidRequest for a key of an object that is there twice, of which decoders keep the last value.

    field, i: of the object in the request. Decoders pass over what is no UTF-8 in fields that they do not
    know; here it is an error.
    """
    try:
        names = [name for name, _ in pairs_of(text)]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(error) from error
    double = next((name for name, times in Counter(names).items() if times > 1), None)
    if double is not None:
        raise duplicate_key(double, field, i)


def malformed(error: Exception) -> InvalidRequest:
    """The error of a body that is no JSON."""
    reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else error
    return InvalidRequest(f"The body cannot be read as JSON: {reason}.", code="malformed_json")


def duplicate_key(name: str, field: str, i: int | None) -> InvalidRequest:
    """The error of an object in a request that has a key twice."""
    where, what = ("The body", "field") if field == "body" else (_place(field, i), "key")
    message = f"{where} has the {what} {name!r:.100} twice."
    of_key = name if field == "body" else f"{field}.{name}"
    return InvalidRequest(
        message, code="duplicate_key", faults=[InputFault(of_key[:200], "duplicate_key", message, i)]
    )


class RecordReader:
    """Reads the records of one version thoroughly. Values are in the order of `RecordRows.columns`."""

    def __init__(self, rows: RecordRows) -> None:
        self._rows = rows
        self._columns = rows.columns
        self._ignored = frozenset(rows.encoder.ignored)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns of a record."""
        return self._rows.encoder.names

    @cached_property
    def _place_of(self) -> Mapping[str, int]:
        return {column.name: place for place, column in enumerate(self._columns)}

    @cached_property
    def _number_of(self) -> Mapping[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    def read(self, raw: bytes, field: str, i: int | None, *, quoted: bool) -> tuple[Values, list[InputFault]]:
        """The values of a record in JSON, and what is wrong with it; faults make the values useless.

        field, i: of the record in the request. quoted: whether texts like NaN were put into quotes.
        Raises TooLarge, and InvalidRequest where it is no JSON.
        """
        if raw.count(b'"') - raw.count(b'\\"') > MOST_QUOTES:
            raise TooLarge(f"{field} has a record with far too many keys.", code="too_many_parts")
        found = self.value(raw)
        if not isinstance(found, _Pairs):
            message = f"{_place(field, i)} must be an object of values by the names of the columns."
            return (), [InputFault(field, "wrong_type", message, i or 0)]
        return self._of_pairs(found, field, i, quoted=quoted)

    @staticmethod
    def value(raw: bytes) -> Any:
        """A value of JSON, its objects as lists of a kind of their own. Raises InvalidRequest."""
        try:
            return json.loads(raw, object_pairs_hook=_Pairs, parse_int=whole)
        except (ValueError, RecursionError) as error:
            message = f"The body cannot be read as JSON: {error}."
            raise InvalidRequest(message, code="malformed_json") from error

    def _of_pairs(
        self, pairs: _Pairs, field: str, i: int | None, *, quoted: bool
    ) -> tuple[Values, list[InputFault]]:
        cells: dict[str, Any] = {}
        faults: list[InputFault] = []
        for name, value in pairs:
            if len(faults) >= MAX_FAULTS:
                break
            if name in cells:
                what = f"has the key {name!r:.100} twice"
                faults.append(self._fault(field, "duplicate_key", f"{_place(field, i)} {what}.", name, i))
            elif name not in self._place_of and name not in self._ignored:
                faults.append(self._unknown(name, field, i))
            cells[name] = value
        values, wrong = self.read_cells(cells, field, i, quoted=quoted)
        return values, [*faults, *wrong][:MAX_FAULTS]

    def read_cells(
        self, cells: Mapping[str, Any], field: str, i: int | None, *, quoted: bool = False
    ) -> tuple[Values, list[InputFault]]:
        """The values of a record by name, all of whose names are known, and what is wrong with them."""
        values: list[Any] = []
        faults: list[InputFault] = []
        for column in self._columns:
            value = cells.get(column.name)
            if quoted and isinstance(value, str) and value in NOT_FINITE:
                what = f"{NOT_FINITE[value]}, not a finite number"
                faults.append(self._of_value(column, "not_finite", what, field, i))
                continue
            try:
                known = canonical(column, {} if isinstance(value, _Pairs) else value)
            except InvalidProblem as error:
                fault = error.faults[0]
                faults.append(self._of_value(column, fault.code, fault.message, field, i))
                continue
            if known is None and column.required and not (column.kind is Kind.TEXT and value is not None):
                text = f"{_place(field, i)} {no_value(column.name)}."
                faults.append(self._fault(field, "missing_value", text, column.name, i))
            values.append(known)
        if not faults and self._rows.encoder.filling and all(value is None for value in values):
            what = no_values().faults[0].message
            return values, [InputFault(field, "missing_value", f"{_place(field, i)} {what}.", i or 0)]
        order = self._number_of
        faults.sort(key=lambda fault: order[fault.name or ""])
        return values, faults[:MAX_FAULTS]

    def problem_fault(self, error: InvalidProblem, field: str, i: int | None) -> InputFault:
        """The fault of a record whose values are usable, but have no score."""
        code = error.faults[0].code if error.faults else "out_of_range"
        message = f"{_place(field, i)} has values so large that no finite score exists."
        return InputFault(field, code, message, i or 0)

    def unknown_names(self, given: Sequence[str], field: str) -> list[InputFault]:
        """The faults of names that no column has."""
        unknown = (name for name in given if name not in self._place_of and name not in self._ignored)
        return [self._unknown(name, field, None) for name in islice(unknown, MAX_FAULTS)]

    def missing_names(self, given: Sequence[str], field: str) -> list[InputFault]:
        """The faults of columns that need values and are not among those given."""
        present = frozenset(given)
        missing = [one.name for one in self._columns if one.required and one.name not in present]
        missing.sort(key=self._number_of.__getitem__)
        return [
            self._fault(field, "missing_value", f"{field} {no_value(name)}.", name, None)
            for name in missing[:MAX_FAULTS]
        ]

    @cached_property
    def example(self) -> str:
        """A short record in JSON, whose further columns are left out."""
        columns = [column for name in self.names for column in self._columns if column.name == name]
        shown = {column.name: example_of(column) for column in columns[:_SHOWN_COLUMNS]}
        text = json.dumps(shown, ensure_ascii=False)
        return text if len(columns) <= _SHOWN_COLUMNS else f"{text[:-1]}, …}}"

    def _unknown(self, name: str, field: str, i: int | None) -> InputFault:
        near = near_name(name, self.names)
        hint = f"; did you mean {near!r:.100}?" if near else f"; its columns are {listed(self.names)}."
        return self._fault(
            field, "unknown_column", f"{_place(field, i)} has no column {name!r:.100}{hint}", name, i
        )

    def _of_value(self, column: ColumnEncoder, code: str, what: str, field: str, i: int | None) -> InputFault:
        text = f"{_place(field, i).rstrip(',')}: {column.name!r:.100} {what}."
        return self._fault(field, code, text, column.name, i)

    def _fault(self, field: str, code: str, message: str, name: str, i: int | None) -> InputFault:
        column = self._number_of.get(name)
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
    return "some words"


def whole(digits: str) -> float:
    """A whole number; Python refuses to read those of thousands of digits."""
    return int(digits) if len(digits) <= _LONGEST_WHOLE else float(digits)


def _place(field: str, i: int | None) -> str:
    return field if i is None else f"{field}, row {i} (counted from 0),"
