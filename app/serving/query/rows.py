"""Decoding of query bodies in JSON: one row or many, dense or sparse.

    {"x": [0.1, 2, ...]}                        one row
    {"x": {"indices": [3, 7], "values": [1, 2]}}    one sparse row: columns and values that are not 0
    {"rows": [[...], {"indices": ..., "values": ...}, ...]}   many rows, dense or sparse

Valid bodies pass typed decoding only. An invalid one is inspected a second time, value by value, to name row
and column. Many rows are decoded one by one into tables of bounded size, so that neither a long list nor wide
sparse rows take much more memory than the body, and no single call holds the interpreter lock for long.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from app.domain.errors import InputFault, InvalidRequest, TooLarge
from app.http.types import Body
from app.serving.query.row_errors import explain_body, explain_row, invalid
from core.data.validation import MAX_FAULTS, MAX_MAGNITUDE, row_blocks, value_fault, value_faults
from core.errors import Fault, InvalidProblem

Number = Annotated[float, Meta(extra_json_schema={"minimum": -MAX_MAGNITUDE, "maximum": MAX_MAGNITUDE})]
Index = Annotated[int | float, Meta(extra_json_schema={"minimum": 0, "multipleOf": 1})]
"""The bounds are documented here, and checked later, so that an error names row and column."""


class SparseRow(msgspec.Struct, forbid_unknown_fields=True):
    """A row by the columns and values of its stored entries; all others are 0."""

    indices: list[Index]
    values: list[Number]

    def __post_init__(self) -> None:
        if float in set(map(type, self.indices)):
            # In JSON 1.0 is an integer, too, and some programs write it like that.
            # An integer may be too large for a float; the bounds are checked later.
            if not all(isinstance(index, int) or index.is_integer() for index in self.indices):
                raise ValueError("indices must be whole numbers")
            self.indices = list(map(int, self.indices))


class QueryBody(msgspec.Struct, forbid_unknown_fields=True):
    """A decoded body; rows are still undecoded JSON."""

    x: list[float] | SparseRow | None = None
    rows: list[msgspec.Raw] | None = None


Row: TypeAlias = list[float] | SparseRow
Block: TypeAlias = tuple[slice, NDArray[Any]]

_CHECKED_BYTES: Final = 256 * 1024
_EXTRA_PARTS: Final = 200_000
"""Brackets and commas allowed for the names of classes."""
_MANY_COMMAS: Final = 1_000_000
_LONG: Final = re.compile(rb"\[[^\[\]{}]{2000000,}+\]")
_FLAT: Final = re.compile(rb"\[[^\[\]{}]*\]")
_ROW: Final = msgspec.json.Decoder(list[float] | SparseRow)


Decoded = TypeVar("Decoded", bound=QueryBody)


def decode(decoder: msgspec.json.Decoder[Decoded], data: Body, max_rows: int) -> Decoded:
    """Decode a body, which must have exactly one of ``x`` and ``rows``.

    Raises InvalidRequest naming field, row and column, and TooLarge beyond ``max_rows`` rows.
    """
    if len(data) > _CHECKED_BYTES and _has_many_parts(data, max_rows):
        message = f"The body has far more parts than a query of {max_rows} rows."
        raise TooLarge(message, code="too_many_parts")
    try:
        body = decoder.decode(data)
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            "The body cannot be read as JSON: it is not UTF-8.", code="malformed_json"
        ) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise explain_body(bytes(data), str(error), _row_faults) from error
    rows = body.rows
    if (body.x is None) == (rows is None):
        message = 'Give either "x", one row, or "rows", a list of rows.'
        raise InvalidRequest(message, code="wrong_body", faults=[InputFault("x", "missing", message)])
    if rows is not None:
        if not rows:
            message = "rows is empty; at least one row is needed."
            raise InvalidRequest(message, code="empty", faults=[InputFault("rows", "empty", message)])
        if len(rows) > max_rows:
            raise TooLarge(
                f"The query has {len(rows)} rows; at most {max_rows} are allowed.", code="too_many_rows"
            )
    return body


def _has_many_parts(data: Body, max_rows: int) -> bool:
    """Whether decoding would create far more objects than ``max_rows`` rows have.

    Each object takes many times the memory of its text. A row is a flat list, or an object with two flat
    lists; the remaining commas separate rows.
    """
    text = bytes(data)
    if text.count(b"[") + text.count(b"{") > 3 * max_rows + _EXTRA_PARTS:
        return True
    # Removing the lists costs as much as decoding them, so only the largest bodies are checked like this.
    most = 2 * max_rows + _EXTRA_PARTS
    if text.count(b",") <= max(most, _MANY_COMMAS):
        return False
    # Such a list is either a list of numbers in place of rows, or a row longer than any model has.
    if any(match[0].count(b",") > _MANY_COMMAS for match in _LONG.finditer(text)):
        return True
    return _FLAT.sub(b"", text).count(b",") > most


def dense_row(row: Row | NDArray[Any], n_columns: int) -> list[float] | NDArray[Any]:
    """One row (n_columns,), with zeros added to a sparse one. Raises InvalidRequest."""
    if not isinstance(row, SparseRow):
        return row
    full = np.zeros(n_columns)
    faults = _scatter(full, row, "x", 0)
    if faults:
        raise invalid(faults)
    return full


def dense_blocks(rows: Sequence[msgspec.Raw], n_columns: int, width: int = 1) -> Iterator[Block]:
    """All rows in order as tables (block, n_columns). Raises InvalidRequest.

    width: numbers per row that the caller computes; the size of a block is bounded for these as well.
    """
    for part in row_blocks(len(rows), max(n_columns, width)):
        yield part, _table(rows[part], n_columns, part.start)


def row_error(error: InvalidProblem) -> InvalidRequest:
    """The request error for an error of the core in the single row ``x``."""
    return invalid([_named(fault, "x", 0) for fault in error.faults])


def block_error(error: InvalidProblem, first: int) -> InvalidRequest:
    """The request error for an error of the core in a block of ``rows`` that begins at row ``first``."""
    return invalid(
        [_named(fault, "rows", None if fault.row is None else first + fault.row) for fault in error.faults]
    )


def _named(fault: Fault, field: str, row: int | None) -> InputFault:
    """A fault with the field names of the request; the core names a row x and a table X."""
    if fault.field not in {"x", "X"}:
        return InputFault(f"{field}.{fault.field}", fault.code, fault.message, row, fault.column)
    if fault.code == "out_of_range" and field == "rows":
        message = f"rows has values so large that no finite score exists, in row {row} (counted from 0)."
    else:
        message = f"{field}{fault.message[1:]}" if fault.message[:2] in {"x ", "X "} else fault.message
    return InputFault(field, fault.code, message, row, fault.column)


def _table(rows: Sequence[msgspec.Raw], n_columns: int, first: int) -> NDArray[np.float64]:
    table = np.zeros((len(rows), n_columns))
    faults: list[InputFault] = []
    for i, raw in enumerate(rows):
        faults += _fill(table[i], raw, first + i)
        if len(faults) >= MAX_FAULTS:
            break
    # JSON has no NaN, so the remaining invalid numbers are those beyond the largest magnitude.
    for fault in value_faults(table, "rows"):
        i, column = fault.row or 0, fault.column or 0
        match = value_fault(float(table[i, column]), "rows", first + i, column)
        faults.append(InputFault("rows", match.code, match.message, match.row, match.column))
    if faults:
        raise invalid(faults[:MAX_FAULTS])
    return table


def _fill(target: NDArray[np.float64], raw: msgspec.Raw, i: int) -> list[InputFault]:
    """Decode row ``i`` into ``target``, which holds zeros; returns its faults."""
    try:
        row = _ROW.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return explain_row(bytes(raw), "rows", i, str(error))
    if isinstance(row, SparseRow):
        return _scatter(target, row, "rows", i)
    if len(row) != len(target):
        columns = "1 column" if len(row) == 1 else f"{len(row)} columns"
        message = f"rows has {columns} in row {i} (counted from 0); {len(target)} expected."
        return [InputFault("rows", "wrong_columns", message, i)]
    target[:] = row
    return []


def _row_faults(raw: bytes, field: str, i: int) -> list[InputFault]:
    """The faults of one row in JSON, except a wrong number of columns."""
    try:
        _ROW.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return explain_row(raw, field, i, str(error))
    return []


def _scatter(target: NDArray[np.float64], row: SparseRow, field: str, i: int) -> list[InputFault]:
    """Add the stored entries to a row of zeros; entries of the same column add up."""
    if len(row.indices) != len(row.values):
        message = f"{field}, row {i}: {len(row.indices)} indices but {len(row.values)} values."
        return [InputFault(f"{field}.values", "wrong_length", message, i)]
    outside = next((j for j in row.indices if not 0 <= j < len(target)), None)
    if outside is not None:
        message = f"{field}, row {i}: column index {outside} is outside 0 to {len(target) - 1}."
        return [InputFault(f"{field}.indices", "wrong_columns", message, i)]
    np.add.at(target, np.asarray(row.indices, dtype=np.int64), row.values)
    return []
