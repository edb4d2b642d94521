"""The body of a query: one row or many, as JSON, and what exactly is wrong with it if something is.

    {"x": [0.1, 2, ...]}                        one row
    {"x": {"indices": [3, 7], "values": [1, 2]}}    one sparse row: the columns that are not 0
    {"rows": [[...], {"indices": ..., "values": ...}, ...]}   many rows, dense or sparse

Good bodies go through typed decoding only. A bad one is looked at a second time, value by value, to name the
row and the column. Many rows are decoded one by one into tables of bounded size, so that neither a long list
nor wide sparse rows take much more memory than the body, and no single call keeps other threads waiting.
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
from core.data.checks import MAX_FAULTS, MAX_MAGNITUDE, row_blocks, value_fault, value_faults
from core.errors import Fault, InvalidProblem

Number = Annotated[float, Meta(extra_json_schema={"minimum": -MAX_MAGNITUDE, "maximum": MAX_MAGNITUDE})]
Index = Annotated[int | float, Meta(extra_json_schema={"minimum": 0, "multipleOf": 1})]
"""The bounds are documented here, and checked later, so that an error names row and column."""


class SparseRow(msgspec.Struct, forbid_unknown_fields=True):
    """Columns and values of the entries that are stored; all others are 0."""

    indices: list[Index]
    values: list[Number]

    def __post_init__(self) -> None:
        if float in set(map(type, self.indices)):
            # In JSON 1.0 is a whole number, too, and some programs write it so.
            if not all(float(index).is_integer() for index in self.indices):
                raise ValueError("indices must be whole numbers")
            self.indices = list(map(int, self.indices))


class QueryBody(msgspec.Struct, forbid_unknown_fields=True):
    """A decoded body; rows are still undecoded JSON."""

    x: list[float] | SparseRow | None = None
    rows: list[msgspec.Raw] | None = None


Row: TypeAlias = list[float] | SparseRow
Block: TypeAlias = tuple[slice, NDArray[Any]]

_LOOKED_AT: Final = 256 * 1024
_PARTS_BESIDE: Final = 200_000
"""Brackets and commas that names of classes may have."""
_MANY_COMMAS: Final = 1_000_000
_LONG: Final = re.compile(rb"\[[^\[\]{}]{2000000,}+\]")
_FLAT: Final = re.compile(rb"\[[^\[\]{}]*\]")
_ROW: Final = msgspec.json.Decoder(list[float] | SparseRow)


Decoded = TypeVar("Decoded", bound=QueryBody)


def decode(decoder: msgspec.json.Decoder[Decoded], data: Body, max_rows: int) -> Decoded:
    """The body in ``data``, with exactly one of ``x`` and ``rows``.

    Raises InvalidRequest naming field, row and column, and TooLarge beyond ``max_rows`` rows.
    """
    if len(data) > _LOOKED_AT and _has_many_parts(data, max_rows):
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
                f"The query has {len(rows)} rows; at most {max_rows} are taken.", code="too_many_rows"
            )
    return body


def _has_many_parts(data: Body, max_rows: int) -> bool:
    """Whether a body would become far more objects than its rows may be: each takes many times its text.

    A row is a flat list, or an object with two of them: without these, a comma stands between any two rows.
    """
    text = bytes(data)
    if text.count(b"[") + text.count(b"{") > 3 * max_rows + _PARTS_BESIDE:
        return True
    # To take the lists out costs as much as to decode them, so only the largest bodies pay for it.
    most = 2 * max_rows + _PARTS_BESIDE
    if text.count(b",") <= max(most, _MANY_COMMAS):
        return False
    # Rows that are numbers themselves would be one of these lists, and so would a row that no model has.
    if any(found[0].count(b",") > _MANY_COMMAS for found in _LONG.finditer(text)):
        return True
    return _FLAT.sub(b"", text).count(b",") > most


def dense_row(row: Row | NDArray[Any], n_columns: int) -> list[float] | NDArray[Any]:
    """One row, a sparse one filled up with zeros to ``n_columns``. Raises InvalidRequest."""
    if not isinstance(row, SparseRow):
        return row
    full = np.zeros(n_columns)
    faults = _scatter(full, row, "x", 0)
    if faults:
        raise invalid(faults)
    return full


def dense_blocks(rows: Sequence[msgspec.Raw], n_columns: int, width: int = 1) -> Iterator[Block]:
    """Tables (block, n_columns) of all rows in order. Raises InvalidRequest.

    width: numbers a row that the caller will make of each; a block is small enough for these too.
    """
    for part in row_blocks(len(rows), max(n_columns, width)):
        yield part, _table(rows[part], n_columns, part.start)


def row_error(error: InvalidProblem) -> InvalidRequest:
    """What the numerical core found wrong with the one row of ``x``."""
    return invalid([_named(fault, "x", 0) for fault in error.faults])


def block_error(error: InvalidProblem, first: int) -> InvalidRequest:
    """What the numerical core found wrong with a block of ``rows`` that begins at row ``first``."""
    return invalid(
        [_named(fault, "rows", None if fault.row is None else first + fault.row) for fault in error.faults]
    )


def _named(fault: Fault, field: str, row: int | None) -> InputFault:
    """A fault by the caller's names: the core knows a row as x and a table as X."""
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
    # JSON has no NaN: what is left to refuse are numbers whose squares are not finite.
    for fault in value_faults(table, "rows"):
        i, column = fault.row or 0, fault.column or 0
        found = value_fault(float(table[i, column]), "rows", first + i, column)
        faults.append(InputFault("rows", found.code, found.message, found.row, found.column))
    if faults:
        raise invalid(faults[:MAX_FAULTS])
    return table


def _fill(target: NDArray[np.float64], raw: msgspec.Raw, i: int) -> list[InputFault]:
    """Decode row ``i`` into ``target``, zeros so far; returns what is wrong with it."""
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
    """What is wrong with the JSON of one row, whatever its length."""
    try:
        _ROW.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return explain_row(raw, field, i, str(error))
    return []


def _scatter(target: NDArray[np.float64], row: SparseRow, field: str, i: int) -> list[InputFault]:
    """Add the stored entries to a row of zeros; entries of the same place add up."""
    if len(row.indices) != len(row.values):
        message = f"{field}, row {i}: {len(row.indices)} indices but {len(row.values)} values."
        return [InputFault(f"{field}.values", "wrong_length", message, i)]
    outside = next((j for j in row.indices if not 0 <= j < len(target)), None)
    if outside is not None:
        message = f"{field}, row {i}: column index {outside} is outside 0 to {len(target) - 1}."
        return [InputFault(f"{field}.indices", "wrong_columns", message, i)]
    np.add.at(target, np.asarray(row.indices, dtype=np.int64), row.values)
    return []
