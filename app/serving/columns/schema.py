"""The JSON Schema of the records of a version, draft 2020-12."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Final, NamedTuple

import anyio.to_thread
import msgspec

from app.domain.entities import Json, ModelVersion
from app.domain.errors import NotFound
from app.domain.file_formats import KIND_KEY, NULLS_KEY
from app.domain.near_names import listed
from app.serving.columns.base import Columns
from app.serving.lru import LruCache
from core.data.validation import MAX_MAGNITUDE
from core.packed.embedded_column import EmbeddedColumn
from core.packed.encoded_columns import (
    CategoryColumn,
    ColumnEncoder,
    DateColumn,
    NumberColumn,
    TextColumn,
    VectorColumn,
)

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
MOST_EXAMPLES: Final = 20
"""Values of a category that are shown."""
_LONGEST_EXAMPLE: Final = 200
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_KEPT_BYTES: Final = 16 * 1024 * 1024
"""Total bytes of encoded schemas that are kept; the schema of 10,000 columns has 1 to 3 MB."""
_BOUNDS: Final = {"minimum": -MAX_MAGNITUDE, "maximum": MAX_MAGNITUDE}


class EncodedSchema(NamedTuple):
    """A schema as JSON. digest: SHA-256 of its bytes."""

    body: bytes
    digest: str


class EncodedSchemas:
    """The schemas of versions as JSON; each is made once, in a thread, and the last used ones are kept.

    Only the event loop's thread may use it.
    """

    def __init__(self) -> None:
        self._kept: LruCache[tuple[str, int], EncodedSchema] = LruCache(_KEPT_BYTES)

    async def of(self, version: ModelVersion, columns: Columns) -> EncodedSchema:
        """The schema of the records of a version, which has these columns. Raises NotFound."""
        name = version.qualified_model, version.version
        encoded = self._kept.get(name)
        if encoded is None:
            encoded = await anyio.to_thread.run_sync(_encoded, columns)
            self._kept.put(version.tenant, name, encoded, len(encoded.body))
        return encoded


def _encoded(columns: Columns) -> EncodedSchema:
    body = msgspec.json.encode(record_schema(columns))
    return EncodedSchema(body, hashlib.sha256(body).hexdigest())


def record_schema(columns: Columns) -> Json:
    """The schema of a record of a version. Raises NotFound if its columns have no names."""
    named = columns.named
    if named is None:
        text = (
            f"The columns of {columns.where} have no names: a row is a list of {columns.n_columns} numbers."
        )
        raise NotFound(text, code="no_column_names")
    encoder = named.encoder
    schema: Json = {
        "$schema": DIALECT,
        "title": f"A record of {columns.where}",
        "type": "object",
        "properties": {column.name: _property(column) for column in encoder.columns},
        "required": [column.name for column in encoder.columns if column.required],
        "additionalProperties": False,
    }
    if encoder.ignored:
        schema["description"] = (
            f"Further columns of the training file are taken and not used: {listed(encoder.ignored)}."
        )
    return schema


def _property(column: ColumnEncoder) -> Json:
    described = _described(column) | _written(column)
    if not column.required:
        kinds = described["type"]
        described["type"] = [*([kinds] if isinstance(kinds, str) else kinds), "null"]
    return described


def _written(column: ColumnEncoder) -> Json:
    """How the texts of numbers and dates are read, for programs that read files as training did."""
    spec = column.spec
    return {
        **({} if spec.pattern is None else {KIND_KEY: str(spec)}),
        **({NULLS_KEY: list(spec.nulls)} if spec.nulls else {}),
    }


def _described(column: ColumnEncoder) -> Json:
    if isinstance(column, NumberColumn):
        if column.is_truth:
            return {"type": "boolean"}
        if not isfinite(column.low):
            return {"type": "number", **_BOUNDS}
        text = f"In training from {column.low:.6g} to {column.high:.6g}."
        if column.takes_texts:
            form = f"such as {column.pattern}" if column.pattern else "with its digits"
            return {
                "type": ["number", "string"],
                **_BOUNDS,
                "description": f"A number, or a text {form}. {text}",
            }
        return {"type": "number", **_BOUNDS, "description": text}
    if isinstance(column, CategoryColumn):
        known = [value for value in (*column.values, *column.rare) if len(value) <= _LONGEST_EXAMPLE]
        more = " Others are refused." if column.refuses_unseen else " Others are taken, too."
        count = len(column.values) + len(column.rare)
        return {
            "type": ["string", "number", "boolean"],
            "description": f"Training had {count} different values.{more}",
            "examples": known[:MOST_EXAMPLES],
        }
    if isinstance(column, DateColumn):
        low, high = (str((_EPOCH + timedelta(microseconds=at)).date()) for at in (column.low, column.high))
        form = "ISO 8601" if column.pattern is None else column.pattern
        return {"type": "string", "description": f"A date, {form}. In training from {low} to {high}."}
    if isinstance(column, VectorColumn):
        width = len(column.fallback)
        return {
            "type": "array",
            "items": {"type": "number", **_BOUNDS},
            "minItems": width,
            "maxItems": width,
        }
    if isinstance(column, EmbeddedColumn):
        text = (
            "A picture: base64 of a JPEG, PNG or WebP, a data URL, or an object with b64; or the"
            f" {column.vector_width} numbers of the encoder {column.encoder_name}."
        )
        return {"type": ["string", "object", "array"], "description": text}
    assert isinstance(column, TextColumn)  # noqa: S101 - there are no other kinds
    return {"type": "string", "description": "A text, of which the first 64 KiB are read."}
