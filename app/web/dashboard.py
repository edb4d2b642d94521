"""The dashboard as one part of the API process: its routes, and its errors as pages."""

from __future__ import annotations

from functools import cache
from typing import Final
from urllib.parse import quote

from fastapi import APIRouter, Request

from app.api.border import BorderRoute
from app.domain.errors import NotFound
from app.http.problem import Problem, short
from app.http.responses import Response
from app.http.types import Application, Scope
from app.web import (
    advice,
    bundles,
    classes,
    compare,
    console,
    curves,
    datasets,
    evaluations,
    jobs,
    keys,
    models,
    operation,
    review,
    sign_in,
    static_files,
    suspects,
    tables,
    traffic,
    uploads,
)
from app.web.rendering import HEADERS, common, environment, repeated_fragment
from app.web.training import pages as training

_START: Final = "/ui/"
_WITHOUT_SESSION: Final = (sign_in.PATH, "/ui/static/")
_PARTS: Final = (
    sign_in,
    static_files,
    tables,
    jobs,
    suspects,
    review,
    classes,
    curves,
    console,
    models,
    compare,
    evaluations,
    datasets,
    keys,
    operation,
    traffic,
    training,
    uploads,
    bundles,
)


class Dashboard:
    """The pages. router: their routes. streamed: those that take uploads, at the paths `STREAMED`."""

    STREAMED: Final = (uploads.PATH, bundles.PATH)

    def __init__(self) -> None:
        self.router = _router()
        self.streamed = APIRouter(include_in_schema=False, route_class=BorderRoute)
        for part in (uploads, bundles):
            self.streamed.include_router(part.streamed)

    def has(self, path: str) -> bool:
        """Whether a path is that of a page."""
        return path.startswith(_START) or path == _START[:-1]

    def needs_session(self, path: str) -> bool:
        """Whether a page is only for those who have signed in."""
        return self.has(path) and not path.startswith(_WITHOUT_SESSION)

    def repeat(self, scope: Scope) -> Application | None:
        """What sends the newest answer to this request of a known caller again, if it still holds."""
        return repeated_fragment(scope) if self.has(scope["path"]) else None

    def problem(self, problem: Problem, scope: Scope) -> Response:
        """An error as a page, with what to do about it. Without a session: to the page for signing in."""
        request = Request(scope)
        if problem.status == 401:
            return _to_sign_in(request)
        text = (
            environment()
            .get_template("problem.html")
            .render(
                common(request)
                | {
                    "problem": problem,
                    "detail": short(problem.detail),
                    "advice": advice.for_error(problem.status, problem.code),
                }
            )
        )
        headers = [(name.encode(), value.encode("ascii")) for name, value in HEADERS.items()]
        # The headers of the problem document, such as Retry-After; the page has a type of its own.
        headers += [header for header in problem.headers() if header[0] != b"content-type"]
        headers.append((b"content-type", b"text/html; charset=utf-8"))
        return Response(text.encode("utf-8", "replace"), headers, problem.status)


@cache
def _router() -> APIRouter:
    router = APIRouter(include_in_schema=False, route_class=BorderRoute)
    for part in _PARTS:
        router.include_router(part.router)
    router.add_api_route("/ui/{path:path}", _missing, methods=["GET"])
    return router


def _to_sign_in(request: Request) -> Response:
    """The way to the page for signing in, which leads back after a GET."""
    back = request.url.path
    if request.url.query:
        back += f"?{request.url.query}"
    location = f"{sign_in.PATH}?next={quote(back, safe='')}" if request.method == "GET" else sign_in.PATH
    headers = [(name.encode(), value.encode("ascii")) for name, value in HEADERS.items()]
    headers += [(b"location", location.encode("ascii")), (b"cache-control", b"no-store")]
    return Response(b"", headers, 303)


async def _missing(path: str) -> None:
    raise NotFound(f"There is no page {path!r}.", code="no_such_path")
