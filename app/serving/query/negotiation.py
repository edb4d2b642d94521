"""How a query is written and how it wants to be answered, by its headers and its query string.

Content-Type    application/json, application/octet-stream (X-Tensor-Shape, X-Tensor-Dtype),
                application/x-npy
Accept          the same three; JSON where it says nothing
Content-Encoding  gzip or deflate
?explain=true   the gate and the rejection, too
?class=a&class=b  the classes, where neither path nor body names them
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final
from urllib.parse import parse_qsl

import numpy as np

from app.domain.errors import InputFault, InvalidRequest, UnsupportedFormat

SHAPE_HEADER: Final = b"x-tensor-shape"
DTYPE_HEADER: Final = b"x-tensor-dtype"

DTYPES: Final[dict[bytes, np.dtype[Any]]] = {
    b"float32": np.dtype("<f4"),
    b"float64": np.dtype("<f8"),
}
"""Raw tensors, by the header X-Tensor-Dtype."""

_MAX_PARAMETERS: Final = 1000
_SHAPE: Final = re.compile(rb" *([0-9]{1,12}) *(?:, *([0-9]{1,12}) *)?")


class MediaType(Enum):
    """A way to write rows or scores."""

    JSON = b"application/json"
    TENSOR = b"application/octet-stream"
    NPY = b"application/x-npy"


@dataclass(frozen=True, slots=True)
class RequestFormat:
    """How one query is written. shape, dtype: of a raw tensor. encoding: what packed the body."""

    body: MediaType = MediaType.JSON
    answer: MediaType = MediaType.JSON
    encoding: bytes | None = None
    explain: bool = False
    classes: tuple[str, ...] = ()
    shape: tuple[int, ...] | None = None
    dtype: np.dtype[Any] | None = None


DEFAULT_FORMAT: Final = RequestFormat()
"""JSON both ways, nothing special: what nearly every query is."""

_MEDIA_TYPES: Final = {media_type.value: media_type for media_type in MediaType}
_JSON_TYPES: Final = frozenset(
    {
        None,
        MediaType.JSON.value,
        b"application/json; charset=utf-8",
        b"application/x-www-form-urlencoded",
    }
)
_JSON_ACCEPTS: Final = frozenset({None, MediaType.JSON.value, b"*/*", b"application/json, */*"})
_RANGES: Final = {**_MEDIA_TYPES, b"*/*": MediaType.JSON, b"application/*": MediaType.JSON}
_ENCODINGS: Final = {b"gzip": b"gzip", b"x-gzip": b"gzip", b"deflate": b"deflate", b"identity": None}


def negotiate(headers: Mapping[bytes, bytes], query_string: bytes) -> RequestFormat:
    """The format of a query. Raises InvalidRequest and UnsupportedFormat.

    A body of another type is taken for JSON, and an Accept that nothing fits gets JSON: clients send all
    sorts of both without meaning it.
    """
    get = headers.get
    kind, accept = get(b"content-type"), get(b"accept")
    if (
        kind in _JSON_TYPES
        and accept in _JSON_ACCEPTS
        and not query_string
        and b"content-encoding" not in headers
        and SHAPE_HEADER not in headers
        and DTYPE_HEADER not in headers
    ):
        return DEFAULT_FORMAT
    explain, classes = _parameters(query_string)
    return RequestFormat(
        body=_MEDIA_TYPES.get(_media_type(kind or b""), MediaType.JSON),
        answer=_answer_type(accept or b""),
        encoding=_encoding(get(b"content-encoding")),
        explain=explain,
        classes=classes,
        shape=_shape(get(SHAPE_HEADER)),
        dtype=_dtype(get(DTYPE_HEADER)),
    )


def _parameters(query_string: bytes) -> tuple[bool, tuple[str, ...]]:
    try:
        pairs = parse_qsl(
            query_string.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_MAX_PARAMETERS,
        )
    except ValueError as error:
        raise InvalidRequest("The query string cannot be read.", code="bad_parameter") from error
    explain = False
    for name, value in pairs:
        if name == "explain":
            if value not in {"true", "false"}:
                message = "explain is true or false."
                raise InvalidRequest(
                    message, code="bad_parameter", faults=[InputFault("explain", "bad_parameter", message)]
                )
            explain = value == "true"
    return explain, tuple(value for name, value in pairs if name == "class")


def _shape(value: bytes | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    found = _SHAPE.fullmatch(value)
    if found is None:
        message = "X-Tensor-Shape must be the number of columns, or of rows and columns: 64, or 10000,64."
        raise bad_header("X-Tensor-Shape", message)
    return tuple(int(size) for size in found.groups() if size is not None)


def _dtype(value: bytes | None) -> np.dtype[Any] | None:
    if value is None:
        return None
    dtype = DTYPES.get(value.strip().lower())
    if dtype is None:
        raise bad_header(
            "X-Tensor-Dtype", f"X-Tensor-Dtype must be {' or '.join(map(bytes.decode, DTYPES))}."
        )
    return dtype


def bad_header(name: str, message: str) -> InvalidRequest:
    """The error of a header of a raw tensor."""
    return InvalidRequest(message, code="bad_header", faults=[InputFault(name, "bad_header", message)])


def _media_type(value: bytes) -> bytes:
    return value.partition(b";")[0].strip().lower()


def _encoding(value: bytes | None) -> bytes | None:
    name = b"identity" if value is None else value.strip().lower()
    if name not in _ENCODINGS:
        raise UnsupportedFormat("Content-Encoding must be gzip, deflate or identity.", code="bad_encoding")
    return _ENCODINGS[name]


def _answer_type(accept: bytes) -> MediaType:
    """The media_type that an Accept likes best, the first of equals (RFC 9110, 12.5.1)."""
    best, wanted = 0.0, MediaType.JSON
    for part in accept.split(b","):
        media_type, quality = _RANGES.get(_media_type(part)), _quality(part)
        if media_type is not None and quality > best:
            best, wanted = quality, media_type
    return wanted


def _quality(part: bytes) -> float:
    for parameter in part.split(b";")[1:]:
        name, _, value = parameter.partition(b"=")
        if name.strip().lower() == b"q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0
