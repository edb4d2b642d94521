"""What the middleware and the error handlers need to know of the pages for people, which `app.web` makes."""

from __future__ import annotations

from typing import Protocol

from app.http.path_prefix import path_as_sent
from app.http.problem import Problem
from app.http.responses import Response, problem_response
from app.http.types import Application, Scope


class Pages(Protocol):
    """The pages of the dashboard. Programs never ask for them."""

    def has(self, path: str) -> bool:
        """Whether a path is that of a page."""
        ...

    def needs_session(self, path: str) -> bool:
        """Whether a page is only for those who have signed in."""
        ...

    def repeat(self, scope: Scope) -> Application | None:
        """What sends the newest answer to this request of a known caller again, if it still holds."""
        ...

    def problem(self, problem: Problem, scope: Scope) -> Response:
        """An error as a page; without a session the way to the page for signing in."""
        ...


def needs_session(scope: Scope) -> bool:
    """Whether the caller of a request is known by a session instead of an API key."""
    pages = _pages_of(scope)
    return pages is not None and pages.needs_session(scope["path"])


def repeated_answer(scope: Scope) -> Application | None:
    """`Pages.repeat`; None if an endpoint has to make the answer."""
    pages = _pages_of(scope)
    return None if pages is None else pages.repeat(scope)


def error_response(problem: Problem, scope: Scope, request_id: bytes) -> Response:
    """An error as the caller can read it: a page for people, a problem document for programs."""
    pages = _pages_of(scope)
    if pages is not None and pages.has(scope["path"]):
        return pages.problem(problem, scope)
    return problem_response(problem, request_id, path_as_sent(scope))


def _pages_of(scope: Scope) -> Pages | None:
    app = scope.get("app")
    return None if app is None else getattr(app.state, "pages", None)
