"""Lists in pages: ``limit`` and ``after`` in, ``has_more`` and a Link to the next page out."""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar
from urllib.parse import quote

from fastapi import Query
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

Item = TypeVar("Item")

Limit = Annotated[int, Query(ge=1, le=1000, description="Most items in one page.")]
After = Annotated[
    str | None,
    Query(
        max_length=200,
        pattern=r"^[A-Za-z0-9._-]+$",
        description="The id of the last item of the page before.",
    ),
]
AfterNumber = Annotated[
    int | None, Query(ge=-1, le=2**31 - 1, description="The id of the last item of the page before.")
]


class Page(BaseModel, Generic[Item]):
    """One page of a list. has_more: whether there is another, linked in the header Link, rel=next."""

    data: list[Item]
    has_more: bool


def link_next(request: Request, response: Response, last_id: object) -> None:
    """Tell where the next page is: the same list after ``last_id``."""
    url = request.url.include_query_params(after=quote(str(last_id)))
    response.headers["link"] = f'<{url.path}?{url.query}>; rel="next"'
