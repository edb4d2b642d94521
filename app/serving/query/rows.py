"""Decoding of query bodies in JSON: one row or many, dense or sparse.

    {"x": [0.1, 2, ...]}                        one row
    {"x": {"indices": [3, 7], "values": [1, 2]}}    one sparse row: columns and values that are not 0
    {"x": {"age": 39, "hours": 40}}             one row by the names of its columns
    {"rows": [[...], {"indices": ..., "values": ...}, {"age": ...}, ...]}     many rows, each of any kind
    {"columns": ["hours", "age"], "rows": [[40, 39], ...]}    the order of the numbers in lists

Rows by names may be called ``record`` and ``records``, as where they have texts (``query.record_bodies``).

Valid bodies pass typed decoding only. An invalid one is inspected a second time, value by value, to name row
and column. Many rows are decoded one by one into tables of bounded size, so that neither a long list nor wide
sparse rows take much more memory than the body, and no single call holds the interpreter lock for long.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from app.domain.errors import InputFault, InvalidRequest, TooLarge
from app.http.types import Body
from app.serving.inputs import Inputs
from app.serving.query.named_rows import number_faults, read_named
from app.serving.query.row_errors import (
    CHECKED_BYTES,
    EXTRA_PARTS,
    check_fields_once,
    explain_body,
    explain_row,
    invalid,
)
from app.serving.record_faults import check_once, may_repeat, pairs_of
from app.serving.row_decoder import decode_list
from core.data.validation import MAX_FAULTS, MAX_MAGNITUDE, row_blocks, value_fault, value_faults
from core.errors import Fault, InvalidProblem

Number = Annotated[float, Meta(extra_json_schema={"minimum": -MAX_MAGNITUDE, "maximum": MAX_MAGNITUDE})]
Index = Annotated[int | float, Meta(extra_json_schema={"minimum": 0, "multipleOf": 1})]
"""The bounds are documented here, and checked later, so that an error names row and column."""


class SparseRow(msgspec.Struct, forbid_unknown_fields=True):
    """A row by the columns and values of its stored entries; all others are 0.

    index_base: where the indices begin. 0 by default, which is refused where the svmlight file that a version
    was trained on counts from 1: such a row says what it means.
    """

    indices: list[Index]
    values: list[Number]
    index_base: Literal[0, 1] | None = None

    def __post_init__(self) -> None:
        if float in set(map(type, self.indices)):
            # In JSON 1.0 is an integer, too, and some programs write it like that.
            # An integer may be too large for a float; the bounds are checked later.
            if not all(isinstance(index, int) or index.is_integer() for index in self.indices):
                raise ValueError("indices must be whole numbers")
            self.indices = list(map(int, self.indices))


class QueryBody(msgspec.Struct, forbid_unknown_fields=True):
    """A decoded body; rows are still undecoded JSON.

    columns: names of the numbers in ``x``, or in each list of ``rows``. A row by names has become such a
    list, whose values are not checked yet.
    """

    x: list[float] | SparseRow | None = None
    rows: list[msgspec.Raw] | None = None
    columns: list[str] | None = None


Row: TypeAlias = list[float] | SparseRow
Block: TypeAlias = tuple[slice, NDArray[Any]]

_QUOTES_OF_ONE_KEY: Final = 2
_QUOTES_OF_SPARSE_ROW: Final = 4
"""Quotation marks of a body with one field, and of a row with no other keys than it must have."""
_MANY_COMMAS: Final = 1_000_000
_LONG: Final = re.compile(rb"\[[^\[\]{}]{2000000,}+\]")
_FLAT: Final = re.compile(rb"\[[^\[\]{}]*\]")
_FLAT_OBJECT: Final = re.compile(rb"\{[^\[\]{}]*\}")
_NO_ROW: Final = msgspec.Raw(b"null")
_ROW: Final = msgspec.json.Decoder(list[float] | SparseRow)


Decoded = TypeVar("Decoded", bound=QueryBody)


def decode(decoder: msgspec.json.Decoder[Decoded], data: Body, max_rows: int) -> Decoded:
    """Decode a body, which must have exactly one of ``x`` and ``rows``.

    Raises InvalidRequest naming field, row and column, and TooLarge beyond ``max_rows`` rows.
    """
    if len(data) > CHECKED_BYTES and _has_many_parts(data, max_rows):
        message = f"The body has far more parts than a query of {max_rows} rows."
        raise TooLarge(message, code="too_many_parts")
    try:
        body = decoder.decode(data)
    except UnicodeDecodeError as error:
        raise _not_utf8() from error
    except (msgspec.DecodeError, RecursionError) as error:
        message, named = str(error), None
        if isinstance(error, msgspec.ValidationError):
            try:
                named = _with_names(decoder, data)
            except UnicodeDecodeError as second:
                raise _not_utf8() from second
            except (msgspec.DecodeError, RecursionError) as second:
                # It looks at the fields only, so that a row by names is no fault.
                message = str(second)
        if named is None:
            raise explain_body(bytes(data), message, _row_faults, fields_of(decoder)) from error
        body = named
    _check_keys(bytes(data), decoder, body)
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


def _check_keys(text: bytes, decoder: msgspec.json.Decoder[Any], body: QueryBody) -> None:
    """Raise InvalidRequest for a field, or a key of a sparse row in ``x``, that is there twice."""
    if text.count(b'"') == _QUOTES_OF_ONE_KEY:
        return
    check_fields_once(text, decoder)
    # The key "x", and the two that such a row must have.
    is_short = text.count(b'"') == _QUOTES_OF_ONE_KEY + _QUOTES_OF_SPARSE_ROW
    if isinstance(body.x, SparseRow) and not is_short and may_repeat(text, SparseRow.__struct_fields__):
        check_once(bytes(dict(pairs_of(text))["x"]), "x")


def _not_utf8() -> InvalidRequest:
    return InvalidRequest("The body cannot be read as JSON: it is not UTF-8.", code="malformed_json")


def fields_of(decoder: msgspec.json.Decoder[Decoded]) -> list[str]:
    """The fields that a body may have."""
    return [field.name for field in msgspec.structs.fields(decoder.type)]


def _with_names(decoder: msgspec.json.Decoder[Decoded], data: Body) -> Decoded | None:
    """The body whose ``x`` or ``record`` is a row by names, as a list with ``columns``, or with ``records``.

    None if it is no such body. Raises DecodeError for what is wrong beside its rows.
    """
    body: Any = _with_object(decoder.type).decode(data)
    fields = {name: getattr(body, name) for name in fields_of(decoder)} | {"x": None}
    given = [bytes(raw) for raw in (body.x, body.record) if raw is not _NO_ROW]
    if body.records is not None:
        is_usable = not given and body.rows is None and body.columns is None
        if not is_usable or any(bytes(raw)[:1] != b"{" for raw in body.records):
            return None
        return decoder.type(**fields | {"rows": body.records})
    if len(given) != 1:
        return None
    row = read_named(given[0], "x")
    if row is None:
        return None
    if body.columns is not None:
        raise _not_a_list("x", None)
    return decoder.type(**fields | {"x": list(row.values()), "columns": list(row)})


@cache
def _with_object(kind: type[QueryBody]) -> msgspec.json.Decoder[Any]:
    """The decoder of bodies of a kind whose ``x`` stays undecoded, and that may have records."""
    fields: list[Any] = [(field.name, field.type, field.default) for field in msgspec.structs.fields(kind)]
    loose = [("x", msgspec.Raw, _NO_ROW) if field[0] == "x" else field for field in fields]
    loose += [("record", msgspec.Raw, _NO_ROW), ("records", list[msgspec.Raw] | None, None)]
    return msgspec.json.Decoder(msgspec.defstruct(kind.__name__, loose, forbid_unknown_fields=True))


def _has_many_parts(data: Body, max_rows: int) -> bool:
    """Whether decoding would create far more objects than ``max_rows`` rows have.

    Each object takes many times the memory of its text. A row is a flat list, or an object with two flat
    lists; the remaining commas separate rows.
    """
    text = bytes(data)
    if text.count(b"[") + text.count(b"{") > 3 * max_rows + EXTRA_PARTS:
        return True
    # Removing the lists costs as much as decoding them, so only the largest bodies are checked like this.
    most = 2 * max_rows + EXTRA_PARTS
    if text.count(b",") <= max(most, _MANY_COMMAS):
        return False
    # Such a list is either a list of numbers in place of rows, or a row longer than any model has.
    if any(match[0].count(b",") > _MANY_COMMAS for match in _LONG.finditer(text)):
        return True
    # Rows by names are objects, which are left once the lists are gone.
    return _FLAT_OBJECT.sub(b"", _FLAT.sub(b"", text)).count(b",") > most


def arranged_row(
    row: Row | NDArray[Any], inputs: Inputs, columns: Sequence[str] | None
) -> Row | NDArray[Any]:
    """The one row of a request in the order of the model, a sparse row with indices from 0.

    columns: names of the numbers in a list. Raises InvalidRequest and Unprocessable.
    """
    if isinstance(row, SparseRow):
        if columns is not None:
            raise _not_a_list("x", None)
        first = inputs.first_index(row.index_base, "x")
        if not first:
            return row
        if faults := _index_faults(row, "x", 0, first, inputs.n_columns):
            raise invalid(faults)
        return SparseRow([index - first for index in row.indices], row.values)
    if columns is None:
        return row
    if len(row) != len(columns):
        message = f"x has {len(row)} numbers; columns has {len(columns)} names."
        raise invalid([InputFault("x", "wrong_columns", message)])
    order = inputs.order(columns, "x")
    values = [row[place] for place in order]
    faults = number_faults(values, [columns[place] for place in order], "x", 0)
    if faults:
        raise invalid(faults)
    return values


def dense_row(row: Row | NDArray[Any], n_columns: int) -> list[float] | NDArray[Any]:
    """One row (n_columns,), with zeros added to a sparse one. Raises InvalidRequest."""
    if not isinstance(row, SparseRow):
        return row
    full = np.zeros(n_columns)
    faults = _scatter(full, row, "x", 0, 0)
    if faults:
        raise invalid(faults)
    return full


def dense_blocks(
    rows: Sequence[msgspec.Raw],
    inputs: Inputs,
    width: int = 1,
    columns: Sequence[str] | None = None,
    first: int = 0,
) -> Iterator[Block]:
    """All rows in order as tables (block, d). Raises InvalidRequest and Unprocessable.

    width: numbers per row that the caller computes; the size of a block is bounded for these as well.
    columns: names of the numbers in lists. first: number of the first row in messages.
    """
    order = None if columns is None else inputs.order(columns, "columns")
    for part in row_blocks(len(rows), max(inputs.n_columns, width)):
        if order is None:
            yield part, _table(rows[part], inputs, inputs.n_columns, first + part.start)
        else:
            yield part, _table(rows[part], None, len(columns or ()), first + part.start)[:, order]


def row_error(error: InvalidProblem) -> InvalidRequest:
    """The request error for an error of the core in the single row ``x``."""
    return invalid([_named(fault, "x", 0) for fault in error.faults])


def block_error(error: InvalidProblem, numbers: Sequence[int]) -> InvalidRequest:
    """The request error for an error of the core in a block of ``rows``. numbers: of its rows, at least."""
    return invalid(
        [_named(fault, "rows", None if fault.row is None else numbers[fault.row]) for fault in error.faults]
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


def _table(
    rows: Sequence[msgspec.Raw], inputs: Inputs | None, n_columns: int, first: int
) -> NDArray[np.float64]:
    """Rows of n_columns numbers. inputs: None if only lists are taken, whose numbers have names."""
    table = np.zeros((len(rows), n_columns))
    faults: list[InputFault] = []
    for i, raw in enumerate(rows):
        faults += _fill(table[i], raw, first + i, inputs)
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


def _fill(target: NDArray[np.float64], raw: msgspec.Raw, i: int, inputs: Inputs | None) -> list[InputFault]:
    """Decode row ``i`` into ``target``, which holds zeros; returns its faults. Raises Unprocessable."""
    text = bytes(raw)
    numbers = decode_list(text, 0, len(target))
    if numbers is not None and numbers[1] == len(text):
        target[:] = np.frombuffer(numbers[0])
        return []
    try:
        row = _ROW.decode(raw)
    except UnicodeDecodeError as error:
        raise _not_utf8() from error
    except (msgspec.DecodeError, RecursionError) as error:
        named = _read_named(raw, i)
        if named is None:
            return explain_row(text, "rows", i, str(error))
        if inputs is None:
            raise _not_a_list("rows", i) from error
        values = inputs.in_order(named, "rows", i)
        faults = number_faults(values, inputs.names or (), "rows", i)
        if not faults:
            target[:] = values
        return faults
    if isinstance(row, SparseRow):
        if inputs is None:
            raise _not_a_list("rows", i)
        if text.count(b'"') != _QUOTES_OF_SPARSE_ROW and may_repeat(text, SparseRow.__struct_fields__):
            check_once(text, "rows", i)
        return _scatter(target, row, "rows", i, inputs.first_index(row.index_base, "rows", i))
    if len(row) != len(target):
        columns = "1 column" if len(row) == 1 else f"{len(row)} columns"
        message = f"rows has {columns} in row {i} (counted from 0); {len(target)} expected."
        return [InputFault("rows", "wrong_columns", message, i)]
    target[:] = row
    return []


def _read_named(raw: msgspec.Raw, i: int) -> dict[str, Any] | None:
    try:
        return read_named(bytes(raw), "rows", i)
    except UnicodeDecodeError as error:
        raise _not_utf8() from error
    except (msgspec.DecodeError, RecursionError):
        return None


def _not_a_list(field: str, i: int | None) -> InvalidRequest:
    where = field if i is None else f"{field}, row {i} (counted from 0)"
    message = f"{where}: columns names the numbers of lists; this row is an object."
    return invalid([InputFault(field, "wrong_body", message, i)])


def _row_faults(raw: bytes, field: str, i: int) -> list[InputFault]:
    """The faults of one row in JSON, except a wrong number of columns."""
    try:
        _ROW.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return explain_row(raw, field, i, str(error))
    return []


def _scatter(target: NDArray[np.float64], row: SparseRow, field: str, i: int, first: int) -> list[InputFault]:
    """Add the stored entries to a row of zeros; entries of the same column add up. first: of all indices."""
    if len(row.indices) != len(row.values):
        message = f"{field}, row {i}: {len(row.indices)} indices but {len(row.values)} values."
        return [InputFault(f"{field}.values", "wrong_length", message, i)]
    faults = _index_faults(row, field, i, first, len(target))
    if not faults:
        np.add.at(target, np.asarray(row.indices, dtype=np.int64) - first, row.values)
    return faults


def _index_faults(row: SparseRow, field: str, i: int, first: int, n_columns: int) -> list[InputFault]:
    """The first index that no column has. first: of all indices."""
    stop = first + n_columns
    outside = next((j for j in row.indices if not first <= j < stop), None)
    if outside is None:
        return []
    message = f"{field}, row {i}: column index {outside} is outside {first} to {stop - 1}."
    return [InputFault(f"{field}.indices", "wrong_columns", message, i)]
