"""Decoding of query bodies of versions with an encoder, whose rows are records.

    {"record": {"age": 39, "job": "clerk"}}             one record; null or no key for a missing value
    {"records": [{...}, ...]}                           many
    {"columns": {"age": [39, null], "job": [...]}}      many, by columns
    {"text": "..."}, {"texts": ["...", ...]}            where the only column is one of texts

``x`` and ``rows`` are lists of numbers in the order of the columns, where each column needs a number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from app.domain.errors import InputFault, InvalidRequest, TooLarge
from app.domain.near_names import listed, near_name
from app.http.types import Body
from app.serving.decision import Explain
from app.serving.query.row_errors import (
    CHECKED_BYTES,
    EXTRA_PARTS,
    check_fields_once,
    constants_as_text,
    invalid,
)
from app.serving.record_faults import malformed, pairs_of, whole
from app.serving.record_sources import (
    CellSource,
    JsonSource,
    RecordSource,
    TextSource,
)
from app.serving.records import REFUSED, Records
from core.data.validation import MAX_FAULTS
from core.packed.encoded_columns import MAX_COLUMNS


class RecordBody(msgspec.Struct, forbid_unknown_fields=True):
    """The forms of a body, undecoded; exactly one must be there."""

    record: Raw | UnsetType = UNSET
    records: list[Raw] | UnsetType = UNSET
    text: Raw | UnsetType = UNSET
    texts: list[Raw] | UnsetType = UNSET
    columns: Raw | UnsetType = UNSET
    x: Raw | UnsetType = UNSET
    rows: list[Raw] | UnsetType = UNSET


class ClassRecords(RecordBody):
    """Body of a query of one class."""

    explain: Explain = False
    faulty_rows: Literal["refuse", "report"] = "refuse"


class ClassesRecords(ClassRecords):
    """Body of a query of several classes."""

    classes: list[str] | None = None


class PredictRecords(RecordBody):
    """Body of a prediction."""

    scores: bool = False
    target: str | None = None


CLASS_RECORDS: Final = msgspec.json.Decoder(ClassRecords)
CLASSES_RECORDS: Final = msgspec.json.Decoder(ClassesRecords)
PREDICT_RECORDS: Final = msgspec.json.Decoder(PredictRecords)

Decoded = TypeVar("Decoded", bound=RecordBody)
FORMS: Final = ("record", "records", "text", "texts", "columns", "x", "rows")
_NUMBERS: Final = ("x", "rows")
_TEXTS: Final = ("text", "texts")
_MOST_LISTS: Final = 2 * MAX_COLUMNS
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"')
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(?P<name>[^`]*)`")


@dataclass(frozen=True, slots=True)
class RecordForm:
    """A decoded body: its fields and its records. source: None for rows of numbers, in ``x`` or ``rows``."""

    body: Any
    source: RecordSource | None


def decode_records(
    decoder: msgspec.json.Decoder[Decoded], data: Body, records: Records, max_rows: int
) -> RecordForm:
    """The form of a body. Raises InvalidRequest, and TooLarge beyond ``max_rows`` rows."""
    text = bytes(data)
    if len(text) > CHECKED_BYTES:
        _check_parts(text, records, max_rows)
    body, quoted = _decoded(decoder, text, records)
    check_fields_once(constants_as_text(text) if quoted else text, decoder)
    given = [name for name in FORMS if getattr(body, name) is not UNSET]
    form = "rows" if given == ["columns", "rows"] else given[0] if len(given) == 1 else None
    taken = forms_of(records)
    if form is None:
        what = f"This one has {listed(given)}." if given else "This one has none of them."
        raise _wrong_body(f"A query has one of {listed(taken)}. {what}", records)
    if form not in taken:
        if form in _NUMBERS:
            raise needs_record(records, form)
        text_ = f"{form!r} is for models whose only column is one of texts; this one takes {listed(taken)}."
        raise _wrong_body(text_, records)
    if form in _NUMBERS:
        return RecordForm(body, None)
    source = _source(form, getattr(body, form), records, max_rows, quoted)
    if not len(source):
        message = f"{form} is empty; at least one row is needed."
        raise InvalidRequest(message, code="empty", faults=[InputFault(form, "empty", message)])
    if len(source) > max_rows:
        raise TooLarge(
            f"The query has {len(source)} rows; at most {max_rows} are allowed.", code="too_many_rows"
        )
    return RecordForm(body, source)


def forms_of(records: Records) -> list[str]:
    """The forms that a version takes."""
    encoder = records.encoder
    without = [*(() if encoder.takes_numbers else _NUMBERS)]
    without += () if encoder.text_column is not None else _TEXTS
    return [form for form in FORMS if form not in without]


def needs_record(records: Records, field: str) -> InvalidRequest:
    """The error of numbers in the order of columns, where names are needed."""
    message = (
        f"{field} is for models whose columns are all numbers without gaps; this one needs a record of the"
        f" columns {listed(records.encoder.names)}: {_example(records)}"
    )
    return InvalidRequest(message, code="needs_record", faults=[InputFault(field, "needs_record", message)])


def _example(records: Records) -> str:
    if records.encoder.text_column is not None:
        return '{"text": "some words"}'
    return f'{{"record": {records.reader.example}}}'


def _wrong_body(message: str, records: Records, field: str = "body") -> InvalidRequest:
    text = f"{message} For example: {_example(records)}"
    return InvalidRequest(text, code="wrong_body", faults=[InputFault(field, "wrong_body", text)])


def _decoded(decoder: msgspec.json.Decoder[Decoded], text: bytes, records: Records) -> tuple[Decoded, bool]:
    """The body, and whether texts like NaN were put into quotes for that. Raises InvalidRequest."""
    if not text.strip():
        raise InvalidRequest("The body is empty.", code="empty")
    try:
        return decoder.decode(text), False
    except msgspec.ValidationError as error:
        raise _refused(str(error), decoder, records) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        first = error
    quoted = constants_as_text(text)
    # If that is no JSON either, the error is of what was sent.
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        if quoted is not text:
            return decoder.decode(quoted), True
    raise malformed(first) from first


def _refused(message: str, decoder: msgspec.json.Decoder[Any], records: Records) -> InvalidRequest:
    """The error of a body whose fields are not as they should be."""
    found = _UNKNOWN.fullmatch(message)
    if found is None:
        return _wrong_body(f"The body must be a JSON object of a query: {message}.", records)
    known = [*forms_of(records)]
    known += [field.name for field in msgspec.structs.fields(decoder.type) if field.name not in FORMS]
    near = near_name(found["name"], known)
    hint = f" (is {near!r} meant?)" if near else ""
    return _wrong_body(f"There is no field {found['name']!r:.100}{hint}, only {', '.join(known)}.", records)


def _check_parts(text: bytes, records: Records, max_rows: int) -> None:
    """Refuse a body of far more parts than a query has. Each part takes many times the memory of its text."""
    keys = len(records.encoder.columns) + len(records.encoder.ignored)
    most = max_rows + EXTRA_PARTS
    parts = text.count(b"{") + text.count(b"[")
    if parts > most or text.count(b",") > most:
        bare = _STRING.sub(b"", text)
        parts = bare.count(b"{") + bare.count(b"[")
        if parts > most or bare.count(b",") > max_rows * keys + EXTRA_PARTS:
            message = f"The body has far more parts than a query of {max_rows} rows."
            raise TooLarge(message, code="too_many_parts")


def _source(form: str, found: Any, records: Records, max_rows: int, quoted: bool) -> RecordSource:
    if form == "record":
        return JsonSource(records, [found], "record", single=True, quoted=quoted)
    if form == "records":
        return JsonSource(records, found, "records", single=False, quoted=quoted)
    if form in _TEXTS:
        raws = [found] if form == "text" else found
        return TextSource(records, raws, form, single=form == "text", quoted=quoted)
    return _columns(found, records, max_rows, quoted)


def _columns(raw: Raw, records: Records, max_rows: int, quoted: bool) -> CellSource:
    """The records of lists of values by the names of columns. Raises InvalidRequest and TooLarge."""
    if bytes(raw)[:1] != b"{":
        raise _wrong_body('"columns" must be an object of lists by the names of columns.', records, "columns")
    text = bytes(raw)
    if text.count(b":") > _MOST_LISTS and _STRING.sub(b"", text).count(b":") > _MOST_LISTS:
        raise TooLarge("columns has far too many lists.", code="too_many_parts")
    try:
        pairs = pairs_of(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(error) from error
    lists: dict[str, Raw] = {}
    faults: list[InputFault] = []
    for name, of_column in pairs:
        if name in lists:
            message = f"columns has the key {name!r:.100} twice."
            faults.append(InputFault(f"columns.{name}"[:200], "duplicate_key", message, None, None, name))
        lists[name] = of_column
    faults += records.reader.unknown_names([*lists], "columns")
    faults += records.reader.missing_names([*lists], "columns")
    if faults:
        raise invalid(faults[:MAX_FAULTS])
    used = {name: lists[name] for name in records.encoder.names if name in lists}
    lists_read = {name: _list(name, of_column, records, max_rows) for name, of_column in used.items()}
    cells = {name: values for name, (values, _, _) in lists_read.items()}
    typed = not quoted and all(is_typed for _, is_typed, _ in lists_read.values())
    clean = {name for name, (_, _, is_clean) in lists_read.items() if is_clean}
    lengths = {name: len(values) for name, values in cells.items()}
    first = next(iter(lengths.values()), 0)
    for name, length in lengths.items():
        if length != first:
            message = (
                f"columns: {name!r:.100} has {length} values, but {next(iter(lengths))!r:.100} has {first}."
            )
            fault = InputFault(f"columns.{name}"[:200], "wrong_length", message, None, None, name)
            raise invalid([fault])
    return CellSource(records, cells, first, "columns", typed=typed, quoted=quoted, clean=clean)


def _list(name: str, raw: Raw, records: Records, max_rows: int) -> tuple[Sequence[Any], bool, bool]:
    """The values of one column, whether all are of its type, and whether none is unusual for sure.

    Raises InvalidRequest and TooLarge.
    """
    text = bytes(raw)
    if text.count(b",") >= max_rows and _STRING.sub(b"", text).count(b",") >= max_rows:
        raise TooLarge(f"The query has more than {max_rows} rows in 'columns'.", code="too_many_rows")
    with suppress(*REFUSED):
        return records.clean.list_decoders[name](text), True, name in records.clean.sure
    try:
        return records.list_decoders[name](text), True, False
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            values = json.loads(text, parse_int=whole)
        except (ValueError, RecursionError) as error:
            raise malformed(error) from error
    if not isinstance(values, list):
        message = f"columns: {name!r:.100} must be a list of values."
        fault = InputFault(f"columns.{name}"[:200], "wrong_type", message, None, None, name)
        raise invalid([fault])
    return values, False, False
