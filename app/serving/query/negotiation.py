"""Content negotiation of queries, from the headers and the query string.

Content-Type      application/json, application/octet-stream (with X-Tensor-Shape and X-Tensor-Dtype), or
                  application/x-npy; of models of pictures also image/jpeg, image/png, image/webp and
                  multipart/form-data
Accept            the first three; JSON by default
Content-Encoding  gzip or deflate
?explain=true     adds the gate, the rejection and its piece to the answer
?explain=columns  adds the effects of columns, too
?class=a&class=b  the classes, if neither the path nor the body names them

Parameters that a path does not have are refused, as everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final
from urllib.parse import parse_qsl

import numpy as np

from app.domain.errors import InputFault, InvalidRequest
from app.http.headers import content_coding, media_type, weighted
from app.http.parameters import check_known
from app.serving.decision import COLUMNS, Explain

SHAPE_HEADER: Final = b"x-tensor-shape"
DTYPE_HEADER: Final = b"x-tensor-dtype"

DTYPES: Final[dict[bytes, np.dtype[Any]]] = {
    b"float32": np.dtype("<f4"),
    b"float64": np.dtype("<f8"),
}
"""Types of raw tensors, by the header X-Tensor-Dtype."""

OF_ONE_CLASS: Final = ("explain",)
OF_CLASSES: Final = ("class", "explain")
"""Parameters in the query string of a query."""
_EXPLAIN: Final[dict[str, Explain]] = {"true": True, "false": False, COLUMNS: COLUMNS}
_MAX_PARAMETERS: Final = 1000
_SHAPE: Final = re.compile(rb" *([0-9]{1,12}) *(?:, *([0-9]{1,12}) *)?")


class MediaType(Enum):
    """The encodings of rows and of scores."""

    JSON = b"application/json"
    TENSOR = b"application/octet-stream"
    NPY = b"application/x-npy"
    PICTURE = b"image/jpeg"
    FORM = b"multipart/form-data"


@dataclass(frozen=True, slots=True)
class RequestFormat:
    """The format of one query. shape, dtype: of a raw tensor. encoding: Content-Encoding of the body."""

    body: MediaType = MediaType.JSON
    answer: MediaType = MediaType.JSON
    encoding: bytes | None = None
    explain: Explain = False
    classes: tuple[str, ...] = ()
    shape: tuple[int, ...] | None = None
    dtype: np.dtype[Any] | None = None

    @property
    def uses_json(self) -> bool:
        """Whether the request or the answer is JSON."""
        return MediaType.JSON in (self.body, self.answer)


DEFAULT_FORMAT: Final = RequestFormat()
"""Plain JSON in both directions, the format of nearly all queries."""

_OF_ANSWERS: Final = (MediaType.JSON, MediaType.TENSOR, MediaType.NPY)
_MEDIA_TYPES: Final = {
    **{media_type.value: media_type for media_type in MediaType},
    # What a picture is follows from its bytes: those of other formats are refused by name.
    **dict.fromkeys(
        (b"image/png", b"image/webp", b"image/jpg", b"image/gif", b"image/heic", b"image/bmp", b"image/tiff"),
        MediaType.PICTURE,
    ),
}
_JSON_TYPES: Final = frozenset(
    {
        None,
        MediaType.JSON.value,
        b"application/json; charset=utf-8",
        b"application/x-www-form-urlencoded",
    }
)
_JSON_ACCEPTS: Final = frozenset({None, MediaType.JSON.value, b"*/*", b"application/json, */*"})
_RANGES: Final = {
    **{media_type.value: media_type for media_type in _OF_ANSWERS},
    b"*/*": MediaType.JSON,
    b"application/*": MediaType.JSON,
}


def negotiate(
    headers: Mapping[bytes, bytes], query_string: bytes, known: Collection[str] = OF_ONE_CLASS
) -> RequestFormat:
    """The format of a query. known: the parameters of its path. Raises InvalidRequest and UnsupportedFormat.

    An unknown Content-Type counts as JSON, and an Accept without a supported type gets JSON, because many
    clients send defaults of their libraries in both.
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
    explain, classes = _parameters(query_string, known)
    return RequestFormat(
        body=_MEDIA_TYPES.get(media_type(kind or b""), MediaType.JSON),
        answer=_answer_type(accept or b""),
        encoding=content_coding(get(b"content-encoding")),
        explain=explain,
        classes=classes,
        shape=_shape(get(SHAPE_HEADER)),
        dtype=_dtype(get(DTYPE_HEADER)),
    )


def _parameters(query_string: bytes, known: Collection[str]) -> tuple[Explain, tuple[str, ...]]:
    try:
        pairs = parse_qsl(
            query_string.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_MAX_PARAMETERS,
        )
    except ValueError as error:
        raise InvalidRequest("The query string cannot be read.", code="bad_parameter") from error
    check_known(dict.fromkeys(name for name, _ in pairs), known)
    explain: Explain = False
    for name, value in pairs:
        if name == "explain":
            if value not in _EXPLAIN:
                message = "explain is true, false or columns."
                raise InvalidRequest(
                    message, code="bad_parameter", faults=[InputFault("explain", "bad_parameter", message)]
                )
            explain = _EXPLAIN[value]
    return explain, tuple(value for name, value in pairs if name == "class")


def _shape(value: bytes | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    match = _SHAPE.fullmatch(value)
    if match is None:
        message = "X-Tensor-Shape must be the number of columns, or of rows and columns: 64, or 10000,64."
        raise bad_header("X-Tensor-Shape", message)
    return tuple(int(size) for size in match.groups() if size is not None)


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
    """The error for an invalid header of a raw tensor."""
    return InvalidRequest(message, code="bad_header", faults=[InputFault(name, "bad_header", message)])


def _answer_type(accept: bytes) -> MediaType:
    """The supported media type with the largest weight, the first of equal ones (RFC 9110, 12.5.1)."""
    best, chosen = 0.0, MediaType.JSON
    for name, weight in weighted(accept):
        supported = _RANGES.get(name)
        if supported is not None and weight > best:
            best, chosen = weight, supported
    return chosen
