"""ETags and conditional requests (RFC 9110, section 13)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from app.domain.errors import InvalidRequest

Shown = TypeVar("Shown")

CONDITIONS: Final[list[dict[str, Any]]] = [
    {
        "name": name,
        "in": "header",
        "required": False,
        "description": description,
        "schema": {"type": "string"},
    }
    for name, description in {
        "If-Match": "The ETag that was read; required if the resource exists.",
        "If-None-Match": "`*`: only create a resource that does not exist.",
    }.items()
]
"""The headers of a conditional write, as OpenAPI parameters."""

_TAG = re.compile(r'(?:W/)?"([\x21\x23-\x7e]*)"')


def etag(*parts: object) -> str:
    """A strong tag made of ``parts``."""
    return f'"{"-".join(map(str, parts))}"'


def not_modified(request: Request, tag: str) -> bool:
    """Whether If-None-Match says that the caller has the state ``tag`` already."""
    value = request.headers.get("if-none-match")
    if value is None:
        return False
    return value.strip() == "*" or tag.strip('"') in _TAG.findall(value)


def unless_known(
    request: Request, response: Response, tag: str, view: Callable[[], Shown], **headers: str
) -> Shown | Response:
    """What ``view`` returns, with the ETag and further headers; 304 if the caller has this state already.

    headers: by name, with underscores for hyphens.
    """
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    named |= {"etag": tag, "cache-control": "no-cache"}
    if not_modified(request, tag):
        return Response(status_code=304, headers=named)
    response.headers.update(named)
    return view()


def expected_revision(request: Request) -> int | None:
    """The revision that a write expects: that of If-Match, 0 for ``If-None-Match: *``, None without either.

    Any other tag gives -1, which no resource has. Raises InvalidRequest.
    """
    match = request.headers.get("if-match")
    if match is None:
        none_match = request.headers.get("if-none-match")
        if none_match is not None and none_match.strip() != "*":
            raise InvalidRequest("If-None-Match of a write must be *.", code="bad_condition")
        return None if none_match is None else 0
    # Weak tags never satisfy If-Match, and a list of tags would expect several revisions.
    tag = re.fullmatch(r'"(\d{1,9})"', match.strip())
    return int(tag[1]) if tag is not None and int(tag[1]) > 0 else -1
