"""Pagination: ``limit`` and ``after`` select a page, ``has_more`` and a Link header announce the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Annotated, Generic, TypeVar
from urllib.parse import quote

from fastapi import Query
from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema
from starlette.requests import Request
from starlette.responses import Response

from app.domain.moments import MAX_SECONDS, seconds_of

Item = TypeVar("Item")

Limit = Annotated[
    int, Query(ge=1, le=1000, description="Maximum number of items in the page, which ends at 4 MiB, too.")
]
After = Annotated[
    str | None,
    Query(
        max_length=200,
        pattern=r"^[A-Za-z0-9._-]+$",
        description="Id of the last item of the previous page.",
    ),
]
AfterModel = Annotated[
    str | None,
    Query(
        max_length=201,
        pattern=r"^([A-Za-z0-9._-]+/)?[A-Za-z0-9._-]+$",
        description="Name of the last model of the previous page; of another tenant: tenant/name.",
    ),
]
AfterNumber = Annotated[
    int | None, Query(ge=-1, le=2**31 - 1, description="Id of the last item of the previous page.")
]


class Page(BaseModel, Generic[Item]):
    """One page of a list. has_more: whether another page follows, linked in the header Link, rel=next."""

    data: list[Item]
    has_more: bool


def page_of(
    request: Request,
    response: Response,
    items: Sequence[Item],
    has_more: bool,
    last_id: Callable[[Item], object] = attrgetter("id"),
) -> Page[Item]:
    """A page of a list, with the header Link if more follow. last_id: the id of the last item in the list."""
    if has_more:
        response.headers["link"] = next_page(request, last_id(items[-1]))
    return Page(data=[*items], has_more=has_more)


def next_page(request: Request, last_id: object) -> str:
    """The Link header to the next page: the same list after ``last_id``."""
    url = request.url.include_query_params(after=quote(str(last_id)))
    return f'<{url.path}?{url.query}>; rel="next"'


def _seconds(value: object) -> object:
    """Seconds since the epoch of a parameter; a number stays as it is."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return seconds_of(str(value))


Moment = Annotated[
    Annotated[
        float,
        BeforeValidator(_seconds),
        WithJsonSchema(
            {
                "anyOf": [
                    {"type": "number", "minimum": 0, "maximum": MAX_SECONDS},
                    {"type": "string", "format": "date-time"},
                ]
            }
        ),
        Field(ge=0, le=MAX_SECONDS, allow_inf_nan=False),
    ]
    | None,
    Query(
        description="Seconds since the epoch, or RFC 3339 with Z or an offset, as times are in responses.",
        examples=[1767225600, "2026-01-01T00:00:00Z", "2026-01-01T09:00:00+09:00"],
    ),
]
"""A moment that bounds a list, as seconds since the epoch."""
