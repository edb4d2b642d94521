"""The form for a record: a field for each column of a version, and the record that is written in them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain, islice
from typing import Any, Final

from app.domain.entities import Json
from app.serving.columns.base import Columns
from app.serving.columns.schema import record_schema
from app.serving.open_inference.inputs import DATATYPES
from app.serving.open_inference.tensors import TEXTS
from core.data.cell_values import TRUTH, category_key
from core.data.schema import Kind
from core.packed.encoded_columns import CategoryColumn, ColumnEncoder, DateColumn, NumberColumn, VectorColumn

PREFIX: Final = "v."
"""Before the names of columns among the fields of the form."""
MOST_FIELDS: Final = 200
_MOST_VALUES: Final = 64
"""Values of a category that are offered, and of all categories about as many as _ALL_VALUES."""
_ALL_VALUES: Final = 2000
_LONGEST_VALUE: Final = 100
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,15}")
_DATE_FORMS: Final = {
    "date": re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}"),
    "datetime-local": re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(?::[0-9]{2})?"),
}
"""What the fields of browsers for dates hold; any other date is written in a field of texts."""


@dataclass(frozen=True, slots=True)
class RecordField:
    """One field. control: text (of one line), area, truth, or the type of an input. help: what it may hold.

    text: what it holds. offered: values of a category that training had. required: whether it must be filled.
    """

    name: str
    control: str
    help: str
    text: str
    offered: Sequence[str]
    required: bool


def record_fields(columns: Columns, texts: Mapping[str, str]) -> list[RecordField]:
    """The fields for a version with an encoder, in the order of its columns. texts: what they hold."""
    assert columns.named is not None  # noqa: S101 - others have no form
    properties = record_schema(columns)["properties"]
    fields: list[RecordField] = []
    left = _ALL_VALUES
    for column in columns.named.encoder.columns:
        offered = [*islice(_offered(column), min(left, _MOST_VALUES))]
        left -= len(offered)
        text = texts.get(column.name, "")
        about = properties[column.name].get("description", "")
        required = column.required and column.kind is not Kind.TEXT
        fields.append(RecordField(column.name, _control(column, text), about, text, offered, required))
    return fields


def record_of(columns: Iterable[ColumnEncoder], texts: Mapping[str, str]) -> Json:
    """The record that the texts of the fields mean. An empty field is a gap, where there may be one.

    What is no number stays a text, so that the query says what is wrong with it.
    """
    record: Json = {}
    for column in columns:
        text = texts.get(column.name, "")
        if text or (column.required and column.kind is Kind.TEXT):
            record[column.name] = _value(column, text)
    return record


def texts_of(record: Mapping[str, Any]) -> dict[str, str]:
    """The texts of fields that show the values of a record."""
    return {name: _text(value) for name, value in record.items() if value is not None}


def typical_texts(columns: Iterable[ColumnEncoder]) -> dict[str, str]:
    """Texts for a first record: a usual value of each column that must have one."""
    return texts_of({column.name: _typical(column) for column in columns if column.required})


def record_tensors(columns: Iterable[ColumnEncoder], record: Mapping[str, Any]) -> list[Json]:
    """A record as the inputs of the Open Inference Protocol, one for each column that has a value."""
    tensors: list[Json] = []
    for column in columns:
        value = record.get(column.name)
        if value is None:
            continue
        values = value if isinstance(value, list) else [value]
        shape = [1, len(values)] if isinstance(column, VectorColumn) else [1]
        datatype = TEXTS if isinstance(value, str) else DATATYPES[column.kind]
        tensors.append({"name": column.name, "shape": shape, "datatype": datatype, "data": values})
    return tensors


def _offered(column: ColumnEncoder) -> Iterable[str]:
    known = chain(column.values, column.rare) if isinstance(column, CategoryColumn) else ()
    return (value for value in known if len(value) <= _LONGEST_VALUE)


def _control(column: ColumnEncoder, text: str) -> str:
    if isinstance(column, NumberColumn):
        return "truth" if column.is_truth else "text" if column.takes_texts else "number"
    if isinstance(column, CategoryColumn):
        return "area" if "\n" in text else "text"
    if isinstance(column, DateColumn):
        control = "datetime-local" if "hour" in column.cycles else "date"
        fits = not text or _DATE_FORMS[control].fullmatch(text)
        return control if column.pattern is None and fits else "text"
    return "area"


def _value(column: ColumnEncoder, text: str) -> Any:
    if column.kind is Kind.NUMBER:
        return _number(text)
    if column.kind is Kind.BOOLEAN:
        return TRUTH.get(text.strip().lower(), text)
    if isinstance(column, VectorColumn):
        return [_number(part) for part in text.strip().strip("[]").replace(",", " ").split()]
    return text


def _number(text: str) -> int | float | str:
    if _WHOLE.fullmatch(text.strip()):
        return int(text)
    with suppress(ValueError):
        return float(text)
    return text


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value) if isinstance(value, list) else category_key(value)


def _typical(column: ColumnEncoder) -> Any:
    if isinstance(column, NumberColumn):
        return bool(round(column.fallback)) if column.is_truth else column.fallback
    if isinstance(column, CategoryColumn):
        return next(iter((*column.values, *column.rare)), "")
    if isinstance(column, DateColumn):
        moment = _EPOCH + timedelta(microseconds=column.fallback)
        form = "%Y-%m-%dT%H:%M:%S" if "hour" in column.cycles else "%Y-%m-%d"
        return moment.strftime(column.pattern or form)
    return column.fallback.tolist() if isinstance(column, VectorColumn) else "some words"
