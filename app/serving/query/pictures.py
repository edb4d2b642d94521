"""Queries with pictures: the pictures become vectors, and the query goes on as one of records.

    Content-Type: image/jpeg, image/png, image/webp       one picture, where the only column is one of them
    Content-Type: multipart/form-data                     one file, likewise
    {"image": "<base64>"}, {"images": ["…", …]}           likewise, in JSON; data URLs, too
    {"embedding": [0.1, …]}, {"x": [0.1, …]}              a vector of the encoder, likewise
    {"record": {"photo": {"b64": "…"}, "price": 12}}      beside other columns; a text is base64 or a data URL

The same picture gives the same vector however it came, and a query that names many classes encodes it once.
Nothing here decodes a picture: the children of the pool do.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn

import msgspec

from app.domain.errors import (
    InputFault,
    InvalidRequest,
    NotFound,
    TooLarge,
    Unavailable,
)
from app.encoders.faults import PictureFault
from app.encoders.pool import EncoderPool
from app.encoders.specification import EncoderSpecification
from app.http.types import Body
from app.serving.columns.base import Columns
from app.serving.columns.faults import refusal
from app.serving.json_keys import NO_JSON, check_once
from app.serving.query.bodies import MAX_PICTURES
from app.serving.query.negotiation import MediaType, RequestFormat
from app.serving.query.requests import decompressed
from app.serving.work import RequestLimits
from app.store.unit_of_work import Store
from core.packed.embedded_column import EmbeddedColumn

_FORMS: Final = ("image", "images", "embedding", "embeddings")
_MARKS: Final = (b'"image', b'"b64"', b"data:", b'"embedding', b"\\")
"""What stands in every body of JSON with a picture, or may stand for it."""
_DATA_URL: Final = re.compile(r"data:[\w.+-]+/[\w.+-]+(?:;[\w=.+-]+)*?;base64,", re.IGNORECASE)
_ADDRESS: Final = re.compile(r"\s*(?:https?|ftp|s3|gs|file)://", re.IGNORECASE)
_FIRST_BYTES: Final = 64
"""Bytes of a body in which its first field stands."""
_FIRST_FIELD: Final = re.compile(rb'\s*\{\s*"(?:images?|embeddings?)"\s*:')
_MOST_ENCODERS: Final = 1000
"""Encoders of all tenants whose specifications are kept."""
_BOUNDARY: Final = re.compile(rb"""boundary=(?:"([^"]{1,200})"|([^;\s]{1,200}))""", re.IGNORECASE)
_FILE: Final = re.compile(rb"^content-disposition:[^\r\n]*filename", re.IGNORECASE | re.MULTILINE)


@dataclass(slots=True)
class _Slot:
    """One picture or vector of a body. put: writes the vector in its place. field, row: for messages."""

    value: Any
    column: EmbeddedColumn
    put: Callable[[list[float]], None]
    field: str
    row: int | None


class Pictures:
    """Replaces the pictures of queries by their vectors.

    open_pool: makes the pool that encodes them, when it is needed first. store: has the own encoders.
    """

    def __init__(self, open_pool: Callable[[], EncoderPool], store: Store, limits: RequestLimits) -> None:
        self._open_pool, self._store, self._limits = open_pool, store, limits
        self._pool: EncoderPool | None = None
        self._encoders: dict[tuple[str, str], EncoderSpecification] = {}

    @property
    def pool(self) -> EncoderPool:
        """The pool of this process."""
        if self._pool is None:
            self._pool = self._open_pool()
        return self._pool

    async def close(self) -> None:
        """End all children, if there are any."""
        if self._pool is not None:
            await self._pool.close()

    @staticmethod
    def may_be_in(data: Body, format_: RequestFormat) -> bool:
        """Whether a body may have a picture, before the columns of its version are known."""
        if format_.body in (MediaType.PICTURE, MediaType.FORM) or format_.encoding is not None:
            return True
        if format_.body is not MediaType.JSON:
            return False
        text = bytes(data)
        return any(mark in text for mark in _MARKS)

    def classes_of(self, data: Body, format_: RequestFormat) -> tuple[str, ...]:
        """The classes that a query with pictures names, unchecked; none if it is no JSON with such a list."""
        if format_.body is not MediaType.JSON:
            return format_.classes
        named = (self._decoded(decompressed(data, format_, self._limits)) or {}).get("classes")
        is_list = isinstance(named, list) and all(isinstance(name, str) for name in named)
        return tuple(named) if is_list and named is not None else format_.classes

    async def without(
        self,
        columns: Columns,
        data: Body,
        format_: RequestFormat,
        tenant: str,
        content_type: bytes = b"",
    ) -> tuple[Body, RequestFormat]:
        """The query with vectors in place of its pictures, in JSON; as it is where it has none.

        Raises InvalidRequest, TooLarge and UnsupportedFormat that name the picture and what is wrong with it,
        Overloaded while the pool is busy, and Unavailable where the encoder cannot be used.
        """
        in_json = replace(format_, body=MediaType.JSON, encoding=None)
        if format_.body in (MediaType.PICTURE, MediaType.FORM):
            only = _only(columns, "body")
            picture = bytes(decompressed(data, format_, self._limits))
            if format_.body is MediaType.FORM:
                picture = _file_of(picture, content_type)
            vector = await self._vector(only, picture, tenant, "body", None)
            return msgspec.json.encode({"record": {only.name: vector}}), in_json
        if format_.body is not MediaType.JSON:
            return data, format_
        plain = decompressed(data, format_, self._limits)
        body = self._decoded(plain)
        if body is None:
            return data, format_
        found = [form for form in _FORMS if body.get(form) is not None]
        if not columns.pictures and not found:
            return data, format_
        check_once(bytes(plain))
        slots: list[_Slot] = []
        if found:
            self._from_forms(body, found, columns, slots)
        elif columns.pictures:
            _from_rows(body, columns, slots)
        if not slots and not found:
            return data, format_
        pictures = sum(not isinstance(slot.value, list) for slot in slots)
        if pictures > MAX_PICTURES:
            text = f"The query has {pictures} pictures; at most {MAX_PICTURES} are taken."
            raise TooLarge(text, code="too_many_images")
        for slot in slots:
            vector = slot.value
            if not isinstance(vector, list):
                data = _bytes_of(slot)
                vector = await self._vector(slot.column, data, tenant, slot.field, slot.row)
            slot.put(vector)
        return msgspec.json.encode(body), in_json

    @staticmethod
    def _decoded(data: Body) -> dict[str, Any] | None:
        """The fields of a body; None where it is no object, which other code reports."""
        try:
            body = msgspec.json.decode(bytes(data))
        except NO_JSON:
            return None
        return body if isinstance(body, dict) else None

    def _from_forms(
        self, body: dict[str, Any], found: list[str], columns: Columns, slots: list[_Slot]
    ) -> None:
        form = found[0]
        others = [name for name in ("x", "rows", "record", "records", "columns", "text") if name in body]
        if len(found) > 1 or others:
            text = f"A query has its rows in one form. This one has {', '.join([*found, *others])}."
            raise refusal("wrong_body", text, "body")
        only = _only(columns, form)
        values = body.pop(form)
        for name in _FORMS:
            body.pop(name, None)
        if form in ("image", "embedding"):
            record = body["record"] = {}
            slots.append(_slot(values, only, record, form, None))
            return
        if not isinstance(values, list) or not values:
            raise refusal("wrong_type", f"{form} must be a list with one or more.", form)
        records: list[dict[str, Any]] = [{} for _ in values]
        body["records"] = records
        slots += [_slot(one, only, records[i], form, i) for i, one in enumerate(values)]

    async def _vector(
        self, column: EmbeddedColumn, picture: bytes, tenant: str, field: str, row: int | None
    ) -> list[float]:
        encoder = await self._encoder(column, tenant)
        try:
            vector = await self.pool.vector(encoder, picture, tenant=tenant)
        except PictureFault as fault:
            _refuse(fault, field, row)
        return vector.astype("f8").tolist()  # type: ignore[no-any-return]

    async def _encoder(self, column: EmbeddedColumn, tenant: str) -> EncoderSpecification:
        """The encoder of a column. Raises Unavailable where this server does not have it."""
        key = (tenant, f"{column.encoder_name}@{column.encoder}")
        encoder = self._encoders.get(key)
        if encoder is not None:
            return encoder
        try:
            encoder = await asyncio.to_thread(self._read, *key)
        except NotFound as error:
            text = (
                f"The pictures of column {column.name!r:.100} were encoded by {column.encoder_name}"
                f" ({column.encoder[:12]}), which this server does not have, or has in another version: send"
                " vectors, add that encoder, or train again."
            )
            raise Unavailable(text, code="encoder_differs", retry_after=None) from error
        if len(self._encoders) >= _MOST_ENCODERS:
            self._encoders.clear()
        # A specification never changes, so that the next query reads nothing.
        self._encoders[key] = encoder
        return encoder

    def _read(self, tenant: str, reference: str) -> EncoderSpecification:
        with self._store.of_tenant(tenant).read() as uow:
            return uow.own_encoders.specification(reference)


def is_about_pictures(data: Body, format_: RequestFormat) -> bool:
    """Whether a body is a picture, or begins with a field of one, which versions without pictures refuse."""
    if format_.body in (MediaType.PICTURE, MediaType.FORM):
        return True
    if format_.body is not MediaType.JSON or format_.encoding is not None:
        return False
    return _FIRST_FIELD.match(bytes(data[:_FIRST_BYTES])) is not None


def _only(columns: Columns, field: str) -> EmbeddedColumn:
    """The only column of a version, where it is one of pictures. Raises InvalidRequest."""
    if len(columns.pictures) == 1 and columns.n_columns == 1:
        return columns.pictures[0]
    what = (
        "has further columns: name them all in a record"
        if columns.pictures
        else "was trained on no pictures: this model takes no image"
    )
    raise refusal("no_pictures", f"{columns.where} {what}. For example: {columns.example}", field)


def _slot(value: Any, column: EmbeddedColumn, record: dict[str, Any], field: str, row: int | None) -> _Slot:
    def put(vector: list[float]) -> None:
        record[column.name] = vector

    return _Slot(value, column, put, field, row)


def _from_rows(body: dict[str, Any], columns: Columns, slots: list[_Slot]) -> None:
    """The pictures and vectors of records, lists and columns; lists of a picture model become records."""
    has_one = len(columns.pictures) == 1 and columns.n_columns == 1
    for form in ("x", "record"):
        value = body.get(form)
        if form == "x" and has_one and isinstance(value, list):
            del body["x"]
            record = body["record"] = {}
            slots.append(_slot(value, columns.pictures[0], record, "x", None))
        elif isinstance(value, dict):
            _from_record(value, columns, slots, form, None)
    for form in ("rows", "records"):
        values = body.get(form)
        if not isinstance(values, list):
            continue
        if form == "rows" and has_one and values and all(isinstance(one, list) for one in values):
            del body["rows"]
            records: list[dict[str, Any]] = [{} for _ in values]
            body["records"] = records
            slots += [_slot(one, columns.pictures[0], records[i], "rows", i) for i, one in enumerate(values)]
            continue
        for i, one in enumerate(values):
            if isinstance(one, dict):
                _from_record(one, columns, slots, form, i)
    given = body.get("columns")
    lists: dict[str, Any] = given if isinstance(given, dict) else {}
    for column in columns.pictures:
        found = lists.get(column.name)
        cells: list[Any] = found if isinstance(found, list) else []
        for i, one in enumerate(cells):
            if one is not None and not isinstance(one, list):
                slots.append(_Slot(one, column, _put_at(cells, i), f"columns.{column.name}", i))


def _put_at(values: list[Any], place: int) -> Callable[[list[float]], None]:
    def put(vector: list[float]) -> None:
        values[place] = vector

    return put


def _from_record(
    record: dict[str, Any], columns: Columns, slots: list[_Slot], form: str, row: int | None
) -> None:
    for column in columns.pictures:
        value = record.get(column.name)
        if isinstance(value, dict) or (isinstance(value, str) and value.strip()):
            slots.append(_slot(value, column, record, f"{form}.{column.name}", row))


def _bytes_of(slot: _Slot) -> bytes:
    """The bytes of a picture in JSON. Raises InvalidRequest."""
    value = slot.value
    if isinstance(value, dict):
        if value.keys() != {"b64"}:
            _wrong(slot, "wrong_type", 'must be {"b64": "<base64>"}, with nothing else')
        value = value["b64"]
    if not isinstance(value, str):
        _wrong(slot, "wrong_type", "must be a text of base64, or a data URL")
    if _ADDRESS.match(value):
        _wrong(slot, "image_is_address", "is an address; the server fetches nothing: send the picture itself")
    found = _DATA_URL.match(value)
    try:
        data = base64.b64decode(value[found.end() :] if found else value, validate=True)
    except (binascii.Error, ValueError):
        _wrong(slot, "bad_base64", "is neither base64 nor a data URL with base64")
    if not data:
        _wrong(slot, "bad_base64", "is an empty picture")
    return data


def _wrong(slot: _Slot, code: str, what: str) -> NoReturn:
    place = slot.field if slot.row is None else f"{slot.field}, row {slot.row} (counted from 0)"
    text = f"{place} {what}."
    raise InvalidRequest(text, code=code, faults=[InputFault(slot.field[:200], code, text, slot.row)])


def _refuse(fault: PictureFault, field: str, row: int | None) -> NoReturn:
    """Raise the fault of a picture as an error of the request."""
    place = "The picture" if row is None else f"Picture {row} (counted from 0)"
    text = f"{place}: {fault.message}"
    faults = [InputFault(field[:200], fault.code, text, row)]
    raise type(fault.as_error())(text, code=fault.code, faults=faults) from fault


def _file_of(body: bytes, content_type: bytes) -> bytes:
    """The one file of a form. Raises InvalidRequest."""
    found = _BOUNDARY.search(content_type)
    if found is None:
        raise refusal("bad_form", "The form has no boundary in its Content-Type.", "body")
    mark = b"--" + (found[1] or found[2])
    files = []
    for part in (b"\r\n" + body).split(b"\r\n" + mark)[1:]:
        if part.startswith(b"--"):
            break
        head, separator, content = part.partition(b"\r\n\r\n")
        if separator and _FILE.search(head.lstrip(b"\r\n")):
            files.append(content)
    if len(files) != 1:
        text = f"The form must have one file, which is the picture; it has {len(files)}."
        raise refusal("bad_form", text, "body")
    return files[0]
