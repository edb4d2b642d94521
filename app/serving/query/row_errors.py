"""Precise errors for query bodies that could not be decoded.

JSON has neither NaN nor infinities, but clients write them (Python's ``json.dumps`` does). They are quoted
first, so that the rest of the body can still be decoded and the error can name row and column.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final, TypeAlias

import msgspec

from app.domain.errors import InputFault, InvalidRequest
from app.domain.near_names import near_name
from app.serving.record_faults import check_once, may_repeat
from core.data.validation import MAX_FAULTS, MAX_MAGNITUDE

FindFaults: TypeAlias = Callable[[bytes, str, int], list[InputFault]]
"""(JSON of a row, field, row number) → its faults."""


class _Fields(msgspec.Struct):
    """The parts of a body that are inspected; all others are skipped."""

    x: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    rows: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_OBJECT: Final = msgspec.json.Decoder(_Fields)
_LIST: Final = msgspec.json.Decoder(list[msgspec.Raw])
_NOT_FINITE: Final = {
    "NaN": "NaN",
    "Infinity": "an infinite value",
    "-Infinity": "a negative infinite value",
}
_WANTED: Final = (
    "one row, or a list of rows; each is a list of numbers in the order of the columns, or an object of"
    ' numbers by the names of the columns: {"x": [5.1, 3.5]}, {"rows": [[5.1, 3.5]]},'
    ' {"rows": [{"length": 5.1}]}.'
)
_ONE_LIST: Final = re.compile(rb'\s*\{\s*"\w+"\s*:\s*\[')
CHECKED_BYTES: Final = 256 * 1024
"""Larger bodies are first looked at for far too many parts, as decoded objects take much more memory."""
EXTRA_PARTS: Final = 200_000
"""Brackets and commas allowed for the names of classes."""
_ELSEWHERE: Final = {
    "instances": 'the list of rows is called "rows" here',
    "dataframe_records": 'the list of rows is called "rows" here',
    "dataframe_split": '"columns" and "data" in it are called "columns" and "rows" here',
    "data": 'the list of rows is called "rows" here, and one row "x"',
    "record": 'one row is called "x" here',
    "records": 'the list of rows is called "rows" here',
    "inputs": "tensors are asked about by POST /v2/models/MODEL:CLASS/infer",
    "signature_name": "a class or version is named in the path",
}
"""Fields of the bodies of other servers."""
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(?P<name>[^`]*)`")
_PATH: Final = re.compile(r" - at `\$\.?(?P<field>[^`\[]*)(?:\[(?P<column>\d+)\])?[^`]*`$")


def invalid(faults: Sequence[InputFault]) -> InvalidRequest:
    """The error of a query with invalid values."""
    return InvalidRequest(faults[0].message, code=faults[0].code, faults=faults)


def check_fields_once(text: bytes, decoder: msgspec.json.Decoder[Any]) -> None:
    """Raise InvalidRequest for a field of a body that is there twice.

    Bodies of very many parts are not looked at if a part of a row may have the name of a field.
    """
    if text.endswith(b"]}") and text.count(b"[") == 1 and _ONE_LIST.match(text):
        # The only list of the body begins behind its first key and ends with it.
        return
    is_large = len(text) > CHECKED_BYTES and text.count(b",") > EXTRA_PARTS
    if may_repeat(text, decoder.type.__struct_fields__) and not is_large:
        check_once(text)


def explain_body(data: bytes, message: str, row_faults: FindFaults, known: Sequence[str]) -> InvalidRequest:
    """The error of a body that could not be decoded. message: of the decoder. known: fields of the body."""
    if not data.strip():
        return InvalidRequest("The body is empty.", code="empty")
    data = constants_as_text(data)
    try:
        fields = _OBJECT.decode(data)
    except msgspec.ValidationError:
        return InvalidRequest(
            f'The body must be a JSON object with "x" or "rows": {_WANTED}', code="wrong_body"
        )
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return InvalidRequest(f"The body cannot be read as JSON: {error}.", code="malformed_json")
    faults: list[InputFault] = []
    if fields.x is not msgspec.UNSET:
        faults += row_faults(bytes(fields.x), "x", 0)
    if fields.rows is not msgspec.UNSET:
        faults += _explain_rows(bytes(fields.rows), row_faults)
    return invalid(
        faults[:MAX_FAULTS] or [_unknown_field(message, known) or _decoder_fault(message, "", None)]
    )


def explain_row(raw: bytes, field: str, i: int, message: str) -> list[InputFault]:
    """The first faults of one row in JSON. message: of the decoder."""
    try:
        # Integers as floats, too: Python refuses to parse integers of thousands of digits.
        row = json.loads(constants_as_text(raw), parse_int=float)
    except (ValueError, RecursionError):
        return [_decoder_fault(message, field, i)]
    if not isinstance(row, list):
        if isinstance(row, dict):
            if any(isinstance(row.get(name), list) for name in ("indices", "values")):
                return _index_faults(row.get("indices"), field, i) or [_decoder_fault(message, field, i)]
            named = ((name, _why_invalid(value)) for name, value in row.items())
            return [
                _named_fault(field, reason, i, None, name) for name, reason in named if reason is not None
            ][:MAX_FAULTS]
        return [_fault(field, "wrong_shape", "must be a list of numbers", i, None)]
    reasons = ((j, _why_invalid(value)) for j, value in enumerate(row))
    faults = [_fault(field, reason[0], reason[1], i, j) for j, reason in reasons if reason is not None]
    return faults[:MAX_FAULTS] or [_decoder_fault(message, field, i)]


def value_fault_of(value: Any, field: str, i: int, column: int, name: str) -> InputFault:
    """The fault of a value that is no usable number, of the column ``name``."""
    reason = _why_invalid(value) or ("too_large", f"has a number beyond ±{MAX_MAGNITUDE:g}")
    return _named_fault(field, reason, i, column, name)


def _named_fault(field: str, reason: tuple[str, str], i: int, column: int | None, name: str) -> InputFault:
    code, what = reason
    return InputFault(
        field, code, f"{field} {what} at row {i} (counted from 0), column {name!r:.100}.", i, column
    )


def _unknown_field(message: str, known: Sequence[str]) -> InputFault | None:
    """The fault that the decoder reports of a field of the body that does not exist."""
    found = _UNKNOWN.fullmatch(message)
    if found is None:
        return None
    name = found["name"]
    near = near_name(name, known)
    hint = _ELSEWHERE.get(name) or (f"is {near!r} meant?" if near else "")
    text = (
        f"There is no field {name!r:.100}{f' ({hint})' if hint else ''}, only {', '.join(known)}. A query has"
        f' "x" or "rows": {_WANTED}'
    )
    return InputFault("body", "wrong_body", text)


def _index_faults(indices: Any, field: str, i: int) -> list[InputFault]:
    """The faults of column indices that are not integers."""
    broken = (
        j
        for j, value in enumerate(indices if isinstance(indices, list) else ())
        if isinstance(value, float) and not value.is_integer()
    )
    return [
        _fault(f"{field}.indices", "wrong_type", "has a number that is not whole", i, j)
        for j in islice(broken, MAX_FAULTS)
    ]


def _explain_rows(raw: bytes, row_faults: FindFaults) -> list[InputFault]:
    try:
        rows = _LIST.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return [InputFault("rows", "wrong_shape", "rows must be a list of rows.")]
    faults: list[InputFault] = []
    for i, row in enumerate(rows):
        faults += row_faults(bytes(row), "rows", i)
        if len(faults) >= MAX_FAULTS:
            break
    return faults


def constants_as_text(data: bytes) -> bytes:
    """``data`` with NaN and infinities in quotes; unchanged if it contains quoted ones already."""
    if (b"NaN" not in data and b"Infinity" not in data) or b'"NaN"' in data or b'Infinity"' in data:
        return data
    data = data.replace(b"NaN", b'"NaN"').replace(b"Infinity", b'"Infinity"')
    return data.replace(b'-"Infinity"', b'"-Infinity"')


def _why_invalid(value: Any) -> tuple[str, str] | None:
    """(code, description) of a value that is not a finite number; None for a number."""
    if isinstance(value, float):
        return (
            ("too_large", "has a number beyond the range of float64") if abs(value) == float("inf") else None
        )
    if isinstance(value, str):
        if value in _NOT_FINITE:
            return "not_finite", f"has {_NOT_FINITE[value]}"
        return "not_numeric", "has text instead of a number"
    if isinstance(value, bool):
        return "not_numeric", "has a boolean instead of a number"
    if isinstance(value, int):
        return (
            None if abs(value) <= MAX_MAGNITUDE else ("too_large", f"has a number beyond ±{MAX_MAGNITUDE:g}")
        )
    if value is None:
        return "not_numeric", "has null instead of a number"
    return "wrong_shape", f"has {'a list' if isinstance(value, list) else 'an object'} instead of a number"


def _fault(field: str, code: str, what: str, i: int, column: int | None) -> InputFault:
    position = f"row {i}" if column is None else f"row {i}, column {column}"
    return InputFault(field, code, f"{field} {what} at {position} (counted from 0).", i, column)


def _decoder_fault(message: str, field: str, i: int | None) -> InputFault:
    """The fault that the decoder reports, with the position in its message."""
    position = _PATH.search(message)
    if position is None:
        return InputFault(field or "body", "wrong_body", f"{message}.", i)
    name = ".".join(part for part in (field, position["field"]) if part) or "body"
    column = None if position["column"] is None else int(position["column"])
    what = message[: position.start()]
    where = name if i is None else f"{name}, row {i}"
    return InputFault(name, "wrong_type", f"{where}: {what}.", i, column)
