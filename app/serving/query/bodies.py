"""Query bodies in JSON: their fields, and their undecoded rows, before their version is known.

    {"x": [0.1, 2, ...]}                        one row of numbers, in the order of the columns
    {"x": {"indices": [3, 7], "values": [1, 2]}}    one sparse row: columns and values that are not 0
    {"rows": [[...], {"indices": ..., "values": ...}, {"age": ...}, ...]}     many rows, each of any kind
    {"columns": ["hours", "age"], "rows": [[40, 39], ...]}    the order of the numbers in lists
    {"record": {"age": 39, "job": "clerk"}}     one row by the names of its columns; so may "x" be
    {"records": [{...}, ...]}                   many
    {"columns": {"age": [39, null], "job": [...]}}      many, by columns
    {"text": "..."}, {"texts": ["...", ...]}    if the only column is one of texts

A body of numbers in order passes one typed decoder. Any other body is decoded without its rows, which are
read once the columns of the version are known, because these find the faults (``app.serving.columns``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET, Raw

from app.domain.errors import InputFault, InvalidRequest, TooLarge
from app.domain.near_names import listed, near_name
from app.http.types import Body
from app.serving.columns.base import Columns, Rows
from app.serving.columns.decoders import REFUSED, Named
from app.serving.columns.faults import check_count, invalid, refusal, whole
from app.serving.columns.table_rows import SparseRow, TableRows, is_record
from app.serving.json_keys import NO_JSON, check_once, constants_as_text, malformed, may_repeat, pairs_of
from core.packed.encoded_columns import MAX_COLUMNS


class QueryBody(msgspec.Struct, forbid_unknown_fields=True):
    """The fields of a body of numbers in order. rows: undecoded. columns: names of the numbers in lists."""

    x: list[float] | SparseRow | None = None
    rows: list[Raw] | None = None
    columns: list[str] | None = None


Decoded = TypeVar("Decoded", bound=QueryBody)

MAX_PICTURES: Final = 16
"""Pictures of one query, see `app.serving.query.pictures`."""
FORMS: Final = ("x", "rows", "record", "records", "columns", "text", "texts")
_OF_LISTS: Final = ("x", "rows")
_MANY: Final = ("rows", "records", "texts")
_NULL: Final = b"null"
_QUOTES_OF_ONE_KEY: Final = 2
_QUOTES_OF_SPARSE_ROW: Final = 4
"""Quotation marks of a body with one field, and of a row with no other keys than it must have."""
_CHECKED_BYTES: Final = 256 * 1024
"""Larger bodies are first looked at for far too many parts, as decoded objects take much more memory."""
_EXTRA_PARTS: Final = 200_000
"""Brackets and commas allowed for the names of classes."""
_MANY_COMMAS: Final = 1_000_000
_LONG: Final = re.compile(rb"\[[^\[\]{}]{2000000,}+\]")
_FLAT: Final = re.compile(rb"\[[^\[\]{}]*\]")
_FLAT_OBJECT: Final = re.compile(rb"\{[^\[\]{}]*\}")
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"')
_ONE_LIST: Final = re.compile(rb'\s*\{\s*"\w+"\s*:\s*\[')
_MOST_LISTS: Final = 2 * MAX_COLUMNS
_ELSEWHERE: Final = {
    "instances": 'the list of rows is called "rows" here',
    "dataframe_records": 'the list of rows is called "records" here',
    "dataframe_split": '"columns" and "data" in it are called "columns" and "rows" here',
    "data": 'the list of rows is called "rows" here, and one row "x"',
    "inputs": "tensors are asked about by POST /v2/models/MODEL:CLASS/infer",
    "signature_name": "a class or version is named in the path",
}
"""Fields of the bodies of other servers."""
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(?P<name>[^`]*)`")
_PATH: Final = re.compile(r" - at `\$\.?(?P<field>[^`\[]*)[^`]*`$")
_NAMES: Final = msgspec.json.Decoder(list[str])


class Given(NamedTuple):
    """The undecoded rows of a request.

    form: the field that they are in. content: one row for ``x``, ``record`` and ``text``, many for all
    others; for ``x`` and ``rows`` also numbers. names: of the numbers in lists. quoted: whether texts like
    NaN were put into quotes.
    """

    form: str
    content: Any
    names: list[str] | None = None
    quoted: bool = False

    @property
    def least(self) -> int:
        """Least number of rows, because the rows of lists of values by columns are not counted yet."""
        return len(self.content) if self.form in _MANY else 1

    def of(self, columns: Columns, max_rows: int) -> Rows:
        """The rows for a version with these columns. Raises InvalidRequest, and TooLarge for too many."""
        form, content, quoted = self.form, self.content, self.quoted
        if form == "columns":
            return _of_columns(content, columns, max_rows, quoted)
        single = form not in _MANY
        if isinstance(content, np.ndarray):
            single = content.ndim == 1
            table = content[np.newaxis] if single else content
            return TableRows(columns, table, form, single=single)
        raws = [content] if single else content
        if form in ("text", "texts"):
            return columns.of_texts(raws, form, single=single, quoted=quoted)
        if form not in _OF_LISTS:
            return columns.of_records(raws, form, single=single, quoted=quoted)
        if self.names is None and all(isinstance(raw, Raw) and is_record(bytes(raw)) for raw in raws):
            return columns.of_records(raws, form, single=single, quoted=quoted)
        return TableRows(columns, raws, form, single=single, names=self.names, quoted=quoted)


def decode(decoder: msgspec.json.Decoder[Decoded], data: Body, max_rows: int) -> tuple[Given, Decoded]:
    """The rows of a body, which must have them in one form, and its fields.

    Raises InvalidRequest naming the field, and TooLarge beyond ``max_rows`` rows.
    """
    text = bytes(data)
    if len(text) > _CHECKED_BYTES:
        _check_parts(text, max_rows)
    body: Any
    try:
        body, quoted = decoder.decode(text), False
        _check_keys(text, decoder, body)
    except NO_JSON:
        body, quoted = _decode_loosely(decoder, text)
        check_fields_once(constants_as_text(text) if quoted else text, decoder.type)
    if isinstance(body, decoder.type) and (body.x is None) != (body.rows is None):
        given = Given("rows", body.rows, body.columns) if body.x is None else Given("x", body.x, body.columns)
    else:
        given = _given(body, quoted)
    if given.form in _MANY:
        check_count(len(given.content), given.form, max_rows)
    return given, body


def _given(body: Any, quoted: bool) -> Given:
    """The rows of a decoded body. Raises InvalidRequest unless they are in one form."""
    forms: dict[str, Any] = {
        name: value for name in FORMS if not _is_absent(name, value := getattr(body, name, UNSET))
    }
    names: list[str] | None = None
    if "columns" in forms and len(forms) == 2 and not forms.keys().isdisjoint(_OF_LISTS):
        names = _names_of(forms.pop("columns"))
    if len(forms) != 1:
        what = f"This one has {listed([*forms])}." if forms else "This one has none of them."
        raise refusal("wrong_body", f"A query has its rows in one of {', '.join(FORMS)}. {what}", "body")
    [(form, content)] = forms.items()
    return Given(form, content, names, quoted)


def _is_absent(name: str, value: Any) -> bool:
    """Whether a form is not there. Of numbers in order, null is the same as nothing."""
    if value is UNSET or value is None:
        return True
    return name in ("x", "rows", "columns") and isinstance(value, Raw) and bytes(value) == _NULL


def _names_of(columns: Raw | list[str]) -> list[str]:
    if isinstance(columns, list):
        return columns
    try:
        return _NAMES.decode(columns)
    except NO_JSON as error:
        text = 'columns must be a list of names where the numbers are in "x" or "rows".'
        raise refusal("wrong_type", text, "columns") from error


def _decode_loosely(decoder: msgspec.json.Decoder[Decoded], text: bytes) -> tuple[Any, bool]:
    """The body with its rows as they are, and whether texts like NaN were put into quotes for that.

    Raises InvalidRequest.
    """
    if not text.strip():
        raise InvalidRequest("The body is empty.", code="empty")
    loose = _loose(decoder.type)
    try:
        return loose.decode(text), False
    except msgspec.ValidationError as error:
        raise _refused(str(error), decoder) from error
    except NO_JSON as error:
        first = error
    quoted = constants_as_text(text)
    # If that is not JSON either, the error is about the text as it was sent.
    with suppress(*NO_JSON):
        if quoted is not text:
            return loose.decode(quoted), True
    raise malformed(first) from first


@cache
def _loose(kind: type[QueryBody]) -> msgspec.json.Decoder[Any]:
    """The decoder of bodies of a kind whose rows stay undecoded, in any form."""
    own = [
        (field.name, field.type, field.default)
        for field in msgspec.structs.fields(kind)
        if field.name not in FORMS
    ]
    forms: list[Any] = [
        (form, (list[Raw] | None if form in _MANY else Raw) | msgspec.UnsetType, UNSET) for form in FORMS
    ]
    return msgspec.json.Decoder(msgspec.defstruct(kind.__name__, [*forms, *own], forbid_unknown_fields=True))


def _refused(message: str, decoder: msgspec.json.Decoder[Any]) -> InvalidRequest:
    """The error of a body with invalid fields. message: of the decoder."""
    unknown = _UNKNOWN.fullmatch(message)
    if unknown is None:
        place = _PATH.search(message)
        field = "body" if place is None else place["field"] or "body"
        what = message if place is None else message[: place.start()]
        code = "wrong_body" if field == "body" else "wrong_type"
        return refusal(code, f"{'The body' if field == 'body' else field}: {what}.", field)
    name = unknown["name"]
    known = [*FORMS, *(field for field in decoder.type.__struct_fields__ if field not in FORMS)]
    near = near_name(name, known)
    hint = _ELSEWHERE.get(name) or (f"is {near!r} meant?" if near else "")
    text = f"There is no field {name!r:.100}{f' ({hint})' if hint else ''}, only {', '.join(known)}."
    return refusal("wrong_body", text, "body")


def check_fields_once(text: bytes, kind: type[msgspec.Struct]) -> None:
    """Raise InvalidRequest for a field of a body that is there twice.

    Bodies of very many parts are not looked at if a part of a row may have the name of a field.
    """
    if text.endswith(b"]}") and text.count(b"[") == 1 and _ONE_LIST.match(text):
        # The only list of the body begins behind its first key and ends with it.
        return
    is_large = len(text) > _CHECKED_BYTES and text.count(b",") > _EXTRA_PARTS
    names = tuple(dict.fromkeys((*FORMS, *kind.__struct_fields__)))
    if may_repeat(text, names) and not is_large:
        check_once(text)


def _check_keys(text: bytes, decoder: msgspec.json.Decoder[Any], body: QueryBody) -> None:
    """Raise InvalidRequest for a field, or a key of a sparse row in ``x``, that is there twice."""
    if text.count(b'"') == _QUOTES_OF_ONE_KEY:
        return
    check_fields_once(text, decoder.type)
    # The key "x", and the two keys of such a row.
    is_short = text.count(b'"') == _QUOTES_OF_ONE_KEY + _QUOTES_OF_SPARSE_ROW
    if isinstance(body.x, SparseRow) and not is_short and may_repeat(text, SparseRow.__struct_fields__):
        check_once(bytes(dict(pairs_of(text))["x"]), "x")


def _check_parts(text: bytes, max_rows: int) -> None:
    """Raise TooLarge for a body from which decoding would make far more objects than ``max_rows`` rows have.

    Each object takes many times the memory of its text. A row is a flat list, or an object with flat lists;
    the remaining commas separate rows.
    """
    most = 2 * max_rows + _EXTRA_PARTS
    parts = text.count(b"[") + text.count(b"{")
    if parts <= most + max_rows and text.count(b",") <= max(most, _MANY_COMMAS):
        return
    # Texts are replaced first. This takes as long as decoding, so only few bodies are checked in this way.
    bare = _STRING.sub(b"0", text)
    is_long = bare.count(b"[") + bare.count(b"{") > most + max_rows
    if not is_long and bare.count(b",") > max(most, _MANY_COMMAS):
        # Such a list is either a list of numbers in place of rows, or a row longer than any model has.
        is_long = any(match[0].count(b",") > _MANY_COMMAS for match in _LONG.finditer(bare))
        # Rows by names are objects, which remain after removing the lists.
        is_long = is_long or _FLAT_OBJECT.sub(b"", _FLAT.sub(b"", bare)).count(b",") > most
    if is_long:
        message = f"The body has far more parts than a query of {max_rows} rows."
        raise TooLarge(message, code="too_many_parts")


def _of_columns(content: Any, columns: Columns, max_rows: int, quoted: bool) -> Rows:
    """The rows of lists of values by the names of columns. Raises InvalidRequest and TooLarge."""
    text = b"" if isinstance(content, list) else bytes(content)
    if text[:1] != b"{":
        what = "columns must be an object of lists by the names of columns; as names of numbers it needs"
        raise refusal("wrong_body", f'{what} "x" or "rows". For example: {columns.example}', "columns")
    named = columns.by_names("columns")
    if text.count(b":") > _MOST_LISTS and _STRING.sub(b"", text).count(b":") > _MOST_LISTS:
        raise TooLarge("columns has far too many lists.", code="too_many_parts")
    try:
        pairs = pairs_of(text)
    except NO_JSON as error:
        raise malformed(error) from error
    given, lists = [name for name, _ in pairs], dict(pairs)
    reader = named.reader
    faults = [*reader.name_faults(given, "columns"), *reader.missing_faults(given, "columns")]
    if faults:
        raise invalid(faults)
    cells: dict[str, Sequence[Any]] = {}
    typed, clean = not quoted, []
    for name in named.encoder.names:
        if name in lists:
            cells[name], is_typed, is_clean = _list(name, bytes(lists[name]), named, max_rows)
            typed = typed and is_typed
            clean += [name] if is_clean else []
    n = len(next(iter(cells.values()), ()))
    for name, values in cells.items():
        if len(values) != n:
            first = next(iter(cells))
            message = f"columns: {name!r:.100} has {len(values)} values, but {first!r:.100} has {n}."
            raise invalid([_column_fault(name, "wrong_length", message)])
    check_count(n, "columns", max_rows)
    return columns.of_cells(cells, n, "columns", typed=typed, quoted=quoted, clean=clean)


def _list(name: str, text: bytes, named: Named, max_rows: int) -> tuple[Sequence[Any], bool, bool]:
    """The values of one column, whether all have its type, and whether surely none is unusual.

    Raises InvalidRequest and TooLarge.
    """
    if text.count(b",") >= max_rows and _STRING.sub(b"", text).count(b",") >= max_rows:
        raise TooLarge(f"The query has more than {max_rows} rows in 'columns'.", code="too_many_rows")
    with suppress(*REFUSED):
        values, is_clean = named.read_list(name, text)
        return values, True, is_clean
    try:
        found = json.loads(text, parse_int=whole)
    except (ValueError, RecursionError) as error:
        raise malformed(error) from error
    if not isinstance(found, list):
        raise invalid(
            [_column_fault(name, "wrong_type", f"columns: {name!r:.100} must be a list of values.")]
        )
    return found, False, False


def _column_fault(name: str, code: str, message: str) -> InputFault:
    return InputFault(f"columns.{name}"[:200], code, message, None, None, name)
