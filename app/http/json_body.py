"""Reading the JSON of a body, with a bound on everything that takes more than its bytes."""

from __future__ import annotations

from typing import Any, Final

from pydantic_core import from_json

from app.domain.errors import InvalidRequest
from app.http.types import Body

_MAX_PARTS: Final = 60_000
"""Largest number of lists and objects: each takes about a hundred times the memory of its two bytes."""


def parse_json(body: Body) -> Any:
    """The value in a body of JSON: UTF-8 without lone surrogates (RFC 8259). NaN is left to its field.

    The parser ends at a depth of 200 lists and objects. Raises InvalidRequest, also for far more lists and
    objects than any request has.
    """
    data = bytes(body)
    if data.count(b"[") + data.count(b"{") > _MAX_PARTS:
        message = f"The body is not JSON of a request: it has more than {_MAX_PARTS} lists and objects."
        raise InvalidRequest(message, code="malformed_json")
    try:
        return from_json(data, allow_inf_nan=True, cache_strings="keys")
    except ValueError as error:
        raise InvalidRequest(f"The body is not JSON: {error}.", code="malformed_json") from error
