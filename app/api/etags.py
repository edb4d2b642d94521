"""ETags and the conditions that callers put on them (RFC 9110, section 13)."""

from __future__ import annotations

import re
from typing import Any, Final

from starlette.requests import Request

from app.domain.errors import InvalidRequest

CONDITIONS: Final[list[dict[str, Any]]] = [
    {
        "name": name,
        "in": "header",
        "required": False,
        "description": description,
        "schema": {"type": "string"},
    }
    for name, description in {
        "If-Match": "The ETag of the state that was read; needed where there is one.",
        "If-None-Match": "`*`: only make what is not there yet.",
    }.items()
]
"""The headers of a conditional write, as OpenAPI parameters."""

_TAG = re.compile(r'(?:W/)?"([\x21\x23-\x7e]*)"')


def etag(*parts: object) -> str:
    """A strong tag of a state named by ``parts``."""
    return f'"{"-".join(map(str, parts))}"'


def not_modified(request: Request, tag: str) -> bool:
    """Whether the caller already has the state ``tag`` (If-None-Match)."""
    value = request.headers.get("if-none-match")
    if value is None:
        return False
    return value.strip() == "*" or tag.strip('"') in _TAG.findall(value)


def expected_revision(request: Request) -> int | None:
    """The revision a write is meant for: that of If-Match, 0 for ``If-None-Match: *``, None without either.

    A tag that was never given out expects revision -1, which no resource has. Raises InvalidRequest.
    """
    match = request.headers.get("if-match")
    if match is None:
        none_match = request.headers.get("if-none-match")
        if none_match is not None and none_match.strip() != "*":
            raise InvalidRequest("If-None-Match of a write can only be *.", code="bad_condition")
        return None if none_match is None else 0
    # A weak tag never satisfies If-Match; several tags would be several expected states.
    tag = re.fullmatch(r'"(\d{1,9})"', match.strip())
    return int(tag[1]) if tag is not None and int(tag[1]) > 0 else -1
