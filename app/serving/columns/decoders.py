"""Records: the values of one row by the names of its columns.

A typed decoder made for the columns decodes a valid record in one call. A record that it refuses is read
again, value by value (``app.serving.columns.faults``), to name all faulty columns, or to find that none is
faulty.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import chain, filterfalse
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Raw, UnsetType
from msgspec.structs import astuple

from app.domain.errors import InputFault
from app.http.types import Body
from app.serving.columns.faults import RecordReader
from app.serving.columns.tally import SURELY_WHOLE, InputTally, range_of, unusual, usual_test
from app.serving.json_keys import NO_JSON, count_keys
from core.data.schema import Kind
from core.errors import InvalidProblem
from core.packed.encoded_columns import (
    CategoryColumn,
    ColumnEncoder,
    DateColumn,
    NumberColumn,
    TextColumn,
)
from core.packed.encoder import Encoder
from core.packed.maps import Floats
from core.packed.record_rows import LONGER_THAN_NULLS, RecordRows, Values

Lists: TypeAlias = Sequence[Sequence[Any]]
"""Values of records by columns."""
Unsure: TypeAlias = Collection[int] | None
"""Places of the columns in which something may be unusual; None for all."""

_MANY: Final = b'{"records"'
_FEWEST: Final = 2
_MOST_AT_ONCE: Final = 200_000
"""Number of values decoded in one call, because in memory they take many times the size of their text."""
_MANY_COLONS: Final = 100_000
_MOST_OF_COLUMN: Final = 256
_MOST_LISTED: Final = 4096
"""Largest number of known values, per category and in total, that types list; making such types is slow."""
_WHOLE: Final = re.compile(r"0|-?[1-9][0-9]{0,14}")
MOST_TYPED: Final = 500
"""Columns up to which records have a typed decoder: it looks for a key among the fields one by one."""

_TYPES: Final[dict[Kind, Any]] = {
    Kind.NUMBER: float,
    Kind.BOOLEAN: bool,
    Kind.CATEGORY: str | int | float | bool,
    Kind.DATE: str,
    Kind.TEXT: str,
    Kind.VECTOR: list[float],
    Kind.IMAGE: list[float],
}
REFUSED: Final = (*NO_JSON, OverflowError, InvalidProblem)
"""Errors raised by reading and scoring a record that is not valid."""


class Decoders:
    """Typed decoders of the records of a version.

    clean: whether they accept only records without unusual values, so that these need no check. sure:
    names of the columns for which this also holds in a list of values.
    """

    def __init__(self, rows: RecordRows, *, clean: bool) -> None:
        self.rows, self._is_clean = rows, clean
        # Types cannot express that a date is in its range, or that a value is one of very many.
        listed = _listed(rows.columns) if clean else set()
        self._unsure = [
            (place, column, usual_test(column))
            for place, column in enumerate(rows.columns)
            if clean and isinstance(column, DateColumn | CategoryColumn) and column.name not in listed
        ]
        self.sure = {column.name for column in rows.columns} - {column.name for _, column, _ in self._unsure}

    @cached_property
    def decode_one(self) -> Callable[[Body], Values]:
        """Decodes the one record or text in the body of a query. Raises the errors in `REFUSED`."""
        return self.decode_body if self.rows.encoder.text_column is None else self.decode_text

    @cached_property
    def struct(self) -> type[msgspec.Struct] | None:
        """The type of a record; None for more columns than it is made for."""
        encoder = self.rows.encoder
        if len(encoder.columns) + len(encoder.ignored) > MOST_TYPED:
            return None
        fields: list[tuple[str, Any, Any] | tuple[str, Any]] = []
        names: dict[str, str] = {}
        for place, column in enumerate(self.rows.columns):
            names[f"f{place}"] = column.name
            fields.append(self._field(f"f{place}", column))
        for place, name in enumerate(encoder.ignored):
            names[f"g{place}"] = name
            fields.append((f"g{place}", Raw | UnsetType, UNSET))
        with suppress(ValueError):
            return msgspec.defstruct("Record", fields, rename=names, forbid_unknown_fields=True, kw_only=True)
        # A field cannot have a name with a quotation mark.
        return None

    @cached_property
    def decode_row(self) -> Callable[[Raw], Values]:
        """Decodes the values of a record in JSON. Raises the errors in `REFUSED`."""
        return _refuse if self.struct is None else self._reader(self.struct, is_query=False)

    @cached_property
    def decode_rows(self) -> Callable[[bytes], Lists]:
        """Decodes the values of a list of records in JSON, by columns. Raises the errors in `REFUSED`."""
        kind: Any = self.struct
        if kind is None:
            return _refuse
        rows: Any = list[kind]
        decode = msgspec.json.Decoder(rows).decode
        return lambda data: self._columns(decode(data), data, 0)

    @cached_property
    def decode_many(self) -> Callable[[Body], Lists]:
        """The same for the body of a query with only a few records; it refuses larger bodies."""
        kind: Any = self.struct
        if kind is None:
            return _refuse
        body: Any = msgspec.defstruct("Query", [("records", list[kind])], forbid_unknown_fields=True)
        decode = msgspec.json.Decoder(body).decode
        most = _MOST_AT_ONCE // len(kind.__struct_fields__)

        def columns(data: Body) -> Lists:
            text = bytes(data)
            if not text.startswith(_MANY) or text.count(b"{") > most:
                raise InvalidProblem
            records = decode(text).records
            if len(records) < _FEWEST:
                raise InvalidProblem
            return self._columns(records, text, 1)

        return columns

    def _columns(self, records: Sequence[Any], text: bytes, more: int) -> Lists:
        """The values of decoded records by columns, given their JSON and how many keys that has besides."""
        n = len(self.rows.columns)
        found = [*zip(*map(astuple, records), strict=True)]
        absent = [
            values.count(UNSET) if may_lack else 0
            for values, may_lack in zip(found, self._may_lack, strict=True)
        ]
        keys = len(found) * len(records) - sum(absent) + more
        if text.count(b":") != keys and _may_repeat_keys(text, keys, chain.from_iterable(found)):
            raise InvalidProblem
        columns = [
            values if not gaps else [None if value is UNSET else value for value in values]
            for values, gaps in zip(found[:n], absent, strict=False)
        ]
        for place, column, is_usual in self._unsure:
            for value in filterfalse(is_usual, columns[place]):
                _refuse_unusual(column, value)
        return columns

    @cached_property
    def _may_lack(self) -> list[bool]:
        """Whether the key of each field of `struct` may be absent."""
        of_columns = (not column.required and not self._is_clean for column in self.rows.columns)
        return [*of_columns, *(True for _ in self.rows.encoder.ignored)]

    @cached_property
    def decode_body(self) -> Callable[[Body], Values]:
        """Decodes the record in the body of a query with only a record. Raises the errors in `REFUSED`."""
        if self.struct is None:
            return _refuse
        body: Any = msgspec.defstruct("Query", [("record", self.struct)], forbid_unknown_fields=True)
        return self._reader(body, is_query=True)

    @cached_property
    def decode_text(self) -> Callable[[Body], Values]:
        """The same of the body of a query that has nothing but a text."""
        if self.rows.encoder.text_column is None:
            return _refuse
        kind: Any = self._type(self.rows.columns[0])
        body: Any = msgspec.defstruct("Query", [("text", kind)], forbid_unknown_fields=True)
        decode = msgspec.json.Decoder(body).decode

        def values(data: Body) -> Values:
            text: str = decode(data).text
            given = bytes(data)
            if given.count(b":") != 1 and _may_repeat_keys(given, 1, [text]):
                raise InvalidProblem
            return (text,)

        return values

    @cached_property
    def list_decoders(self) -> Mapping[str, Callable[[bytes], list[Any]]]:
        """For each column, a decoder of a list of its values in JSON. Decoders raise DecodeError."""
        decoders: dict[str, Callable[[bytes], list[Any]]] = {}
        for column in self.rows.columns:
            kind: Any = self._type(column)
            cells: Any = list[kind] if column.required or self._is_clean else list[kind | None]
            decoders[column.name] = msgspec.json.Decoder(cells).decode
        return decoders

    def _reader(self, kind: Any, *, is_query: bool) -> Callable[[Body], Values]:
        """A function that reads the values of a record from JSON. is_query: whether JSON is a whole query."""
        n = len(self.rows.columns)
        may_lack, unsure = any(self._may_lack[:n]), self._unsure
        decode = msgspec.json.Decoder(kind).decode

        def read(data: Body) -> Values:
            record = decode(data).record if is_query else decode(data)
            found = astuple(record)[:n]
            for place, column, is_usual in unsure:
                if not is_usual(found[place]):
                    _refuse_unusual(column, found[place])
            text = bytes(data)
            if text.count(b":") == n + is_query and not (may_lack and UNSET in found):
                # Each key is present exactly once.
                return found
            found = astuple(record)
            keys = len(found) - found.count(UNSET)
            # Of a key that is there twice the decoder keeps the last value.
            if text.count(b":") != keys + is_query and _may_repeat_keys(text, keys + is_query, found):
                raise InvalidProblem
            if keys < len(found):
                found = tuple([None if value is UNSET else value for value in found])
            return found if len(found) == n else found[:n]

        return read

    def _field(self, field: str, column: ColumnEncoder) -> tuple[str, Any] | tuple[str, Any, Any]:
        kind = self._type(column)
        return (field, kind) if column.required or self._is_clean else (field, kind | None | UnsetType, UNSET)

    def _type(self, column: ColumnEncoder) -> Any:
        """The type of the values of a column, without gaps."""
        if self._is_clean and isinstance(column, NumberColumn) and not column.is_truth:
            low, high = range_of(column)
            return Annotated[float, Meta(ge=low, le=high)]
        if self._is_clean and isinstance(column, CategoryColumn) and column.name in self.sure:
            of_values: Any = Literal
            return of_values[(*column.places, *_whole_numbers(column.places))]
        if self._is_clean and isinstance(column, TextColumn):
            return Annotated[str, Meta(min_length=LONGER_THAN_NULLS, max_length=SURELY_WHOLE)]
        if isinstance(column, NumberColumn) and column.takes_texts:
            return float | str
        # A text without words is also answered if each training row had some.
        return _TYPES[column.kind]


class Named(Decoders):
    """Reads rows by the names of their columns. tally: counts their properties, or None."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__(RecordRows(encoder), clean=False)
        self.encoder = encoder
        self.reader = RecordReader(self.rows)
        self.tally: InputTally | None = None

    def values_of(
        self, raw: Raw, field: str, i: int | None, *, quoted: bool
    ) -> tuple[Values, list[InputFault]]:
        """The values of a record in JSON, and its faults; raises as `RecordReader.read`."""
        with suppress(*REFUSED):
            if not quoted:
                return self.decode_row(raw), []
        return self.reader.read(bytes(raw), field, i, quoted=quoted)

    def read_columns(self, read: Callable[[Decoders], Lists]) -> tuple[Lists, Unsure]:
        """The result of ``read`` with decoders, and the columns that may have unusual values.

        Raises as ``read``.
        """
        return read(self), None

    def read_list(self, name: str, text: bytes) -> tuple[list[Any], bool]:
        """The values of a column in JSON, and whether surely none is unusual.

        Raises the errors in `REFUSED`.
        """
        return self.list_decoders[name](text), False

    def full_row(self, values: Values) -> Floats:
        """The row (d,) of a record, with the terms of its texts. Raises InvalidProblem."""
        dense, columns, weights, _ = self.rows.encode(values)
        row = np.zeros(self.encoder.layout.columns)
        row[: len(dense)] = dense
        row[columns + len(dense)] = weights
        return row


def _refuse_unusual(column: ColumnEncoder, value: Any) -> None:
    if unusual(column, value) is not None:
        raise InvalidProblem


def _whole_numbers(keys: Iterable[str]) -> list[int]:
    """The numbers that have these keys."""
    return [int(key) for key in keys if _WHOLE.fullmatch(key)]


def _listed(columns: Iterable[ColumnEncoder]) -> set[str]:
    """Names of the categories whose known values are listed by their types."""
    listed: set[str] = set()
    left = _MOST_LISTED
    for column in columns:
        if isinstance(column, CategoryColumn) and 0 < len(column.places) <= min(left, _MOST_OF_COLUMN):
            listed.add(column.name)
            left -= len(column.places)
    return listed


def _may_repeat_keys(text: bytes, keys: int, values: Iterable[Any]) -> bool:
    """Whether JSON with this number of different keys, and these values, may repeat a key.

    Each key and each text has two quotation marks, if no quotation mark within a text is escaped.
    """
    if text.count(b":") > _MANY_COLONS:
        # Such JSON is checked where the number of keys is bounded.
        return True
    texts = sum(
        isinstance(value, str) or (type(value) is Raw and bytes(value)[:1] == b'"') for value in values
    )
    return text.count(b'"') != 2 * (keys + texts) and (text[:1] != b"{" or count_keys(text) != keys)


def _refuse(_data: object) -> Any:
    raise InvalidProblem
