"""Renders templates to responses, with the headers of every page and what every page shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from importlib import metadata
from time import monotonic
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool

from app.api.dependencies import AppContext
from app.api.etags import etag, not_modified
from app.auth.authenticator import authorise
from app.domain.entities import ApiKey
from app.domain.errors import NotAuthorised, ServiceError
from app.http.path_prefix import prefix_of
from app.http.problem import problem_of, short
from app.http.types import Scope
from app.web import advice, static_files
from app.web.formats import FILTERS

if TYPE_CHECKING:
    from jinja2 import Environment

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
"""Headers of every page."""
_SHARED_SECONDS: Final = 1.0
_STALE_SECONDS: Final = 5.0
_MOST_SHARE: Final = 0.01
_MAX_SHARED: Final = 128
THEMES: Final = ("auto", "light", "dark")
THEME_COOKIE: Final = "stms_theme"


@dataclass(frozen=True, slots=True)
class Section:
    """An entry of the navigation. scope: which a key needs to see it. shortcut: pressed after g."""

    path: str
    name: str
    scope: str
    shortcut: str


SECTIONS: Final = (
    Section("/ui/jobs", "Jobs", "train", "j"),
    Section("/ui/models", "Models", "query", "m"),
    Section("/ui/datasets", "Data sets", "train", "d"),
    Section("/ui/evaluations", "Evaluations", "train", "e"),
    Section("/ui/keys", "Keys", "admin", "k"),
    Section("/ui/audit", "Audit log", "admin", "a"),
    Section("/ui/traffic", "Traffic", "operator", "t"),
    Section("/ui/workers", "Workers", "operator", "w"),
    Section("/ui/health", "Health", "query", "h"),
)


NOTICES: Final = {
    "submit": "The job is accepted. Its classes appear below as they are finished.",
    "upload": "Uploaded and checked. Look at its classes, columns and warnings, then train on it.",
    "corrected": "The corrected labels are stored: this is their data set. Train on it.",
    "known": "The same file was uploaded before: this is its data set.",
    "cancel-several": "The marked jobs are being cancelled. Their finished students are kept.",
    "delete-several": "The marked jobs were deleted.",
    "cancel": "The job is being cancelled. Its finished students are kept.",
    "retry": "The job is queued again; only what is missing is trained.",
    "delete": "Deleted.",
    "move": "The alias was moved. This server answers with the new version already.",
    "alias-delete": "The alias was deleted.",
    "classes": "This version has other classes. Aliases point to those they pointed to.",
    "acknowledge": "The alarms are acknowledged: the evidence begins again with the next hour.",
    "reviewed": "The reviewed rows are stored: this is their data set. Train on it.",
    "shadow": "The shadow of the alias was changed.",
    "publish": "Published as a new version. Point an alias here to serve it.",
    "revoke": "The key was revoked.",
    "import": "Imported. Ask it, or point an alias here to serve it.",
    "import-known": "The same bundle was imported before: this is its version. No alias was moved.",
}
"""What a page says after a form has done its work, by the query parameter ``done``."""


@cache
def environment() -> Environment:
    """The templates. Undefined names are errors, and all text is escaped."""
    # Loaded with the first page: a process that only answers queries does not need it.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    templates = Environment(
        loader=PackageLoader("app.web"),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.do"],
    )
    templates.filters |= FILTERS
    templates.globals |= {"static": static_files.address_of, "segment": segment, "link": link}
    return templates


def page(request: Request, template: str, status: int = 200, **values: Any) -> Response:
    """A complete page. values: what the template shows."""
    text = environment().get_template(template).render(common(request) | values)
    return Response(text, status, headers=HEADERS, media_type="text/html")


def refused_form(request: Request, template: str, error: ServiceError, **values: Any) -> Response:
    """A page with a form that is shown again beside what is wrong with what was sent."""
    problem = problem_of(error)
    return page(
        request,
        template,
        problem.status,
        detail=short(problem.detail),
        faults=problem.faults,
        advice=advice.for_error(problem.status, problem.code),
        **values,
    )


def fragment(request: Request, template: str, **values: Any) -> Response:
    """Part of a page, which a script asks for again; 304 if it has not changed."""
    return _fragment_response(request, *_rendered(request, template, values))


@dataclass(frozen=True, slots=True)
class KeptFragment:
    """The answer of a route, which holds until a time of the monotonic clock, in seconds."""

    until: float
    body: bytes
    tag: str
    route: object


async def shared_fragment(
    request: Request, template: str, values: Callable[[], Mapping[str, Any]]
) -> Response:
    """As `fragment`, made at most once a second for all who see the same, however many tabs are open.

    Until it is made again, `repeated_fragment` answers. One that takes long is made more rarely, every
    `_STALE_SECONDS` at least, so that it takes `_MOST_SHARE` of a core.
    values: what the template shows, which depends on the address and on what the caller may see alone. It is
    called in a thread.
    """
    started = monotonic()
    body, tag = await run_in_threadpool(lambda: _rendered(request, template, values()))
    kept = _kept_fragments(request.scope)
    if len(kept) >= _MAX_SHARED:
        kept.clear()
    pause = (monotonic() - started) / _MOST_SHARE
    until = started + min(max(_SHARED_SECONDS, pause), _STALE_SECONDS)
    kept[_seen(request.scope)] = KeptFragment(until, body, tag, request.scope["route"])
    return _fragment_response(request, body, tag)


def repeated_fragment(scope: Scope) -> Response | None:
    """The newest answer of `shared_fragment` to this request; None if it no longer holds."""
    kept = _kept_fragments(scope).get(_seen(scope)) if scope["method"] == "GET" else None
    if kept is None or monotonic() > kept.until:
        return None
    # The metrics of requests are counted by route.
    scope["route"] = kept.route
    return _fragment_response(Request(scope), kept.body, kept.tag)


def _rendered(request: Request, template: str, values: Mapping[str, Any]) -> tuple[bytes, str]:
    """A fragment and its tag."""
    text = environment().get_template(template).render(common(request), **values).encode("utf-8", "replace")
    return text, etag(blake2b(text, digest_size=8).hexdigest())


def _fragment_response(request: Request, body: bytes, tag: str) -> Response:
    headers = HEADERS | {"etag": tag, "cache-control": "private, no-cache"}
    if not_modified(request, tag):
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type="text/html")


def _kept_fragments(scope: Scope) -> dict[tuple[object, ...], KeptFragment]:
    """The shared fragments of this server."""
    state = scope["app"].state
    if not hasattr(state, "fragments"):
        state.fragments = {}
    fragments: dict[tuple[object, ...], KeptFragment] = state.fragments
    return fragments


def _seen(scope: Scope) -> tuple[object, ...]:
    """Requests with equal values see the same."""
    caller: ApiKey = scope["state"]["caller"]
    return prefix_of(scope), scope["path"], scope["query_string"], caller.tenant, caller.scopes, caller.models


def common(request: Request) -> dict[str, Any]:
    """What every page shows: the caller, the sections that it may see, and the theme."""
    caller: ApiKey | None = getattr(request.state, "caller", None)
    theme = request.cookies.get(THEME_COOKIE, "auto")
    tenant, root = request.query_params.get("tenant"), prefix_of(request.scope)
    return {
        "caller": caller,
        "sections": [] if caller is None else [part for part in SECTIONS if may(caller, part.scope)],
        "current_path": request.url.path,
        "theme": theme if theme in THEMES else "auto",
        "tenant": tenant,
        "root": root,
        "url": lambda path, **parameters: root + link(path, {"tenant": tenant} | parameters),
        "done": request.query_params.get("done", ""),
        "notices": NOTICES,
        "release": _release(),
        "here": request.url.path + (f"?{request.url.query}" if request.url.query else ""),
        "request_id": getattr(request.state, "request_id", ""),
        "can": lambda scope: caller is not None and may(caller, scope),
    }


@cache
def _release() -> str:
    return metadata.version("stms")


def base_address(request: Request, context: AppContext) -> str:
    """The address of the server as the browser knows it, for commands that do the same."""
    scheme = "https" if context.sessions.is_secure(request.scope) else "http"
    return f"{scheme}://{request.headers.get('host', 'localhost')}{prefix_of(request.scope)}"


def may(caller: ApiKey, scope: str) -> bool:
    """Whether a key has a scope."""
    try:
        authorise(caller, scope)
    except NotAuthorised:
        return False
    return True


def link(path: str, parameters: Mapping[str, Any] | None = None, **more: Any) -> str:
    """A path with query parameters; those that are None or empty are left out."""
    given = dict(parameters or {}) | more
    values = {name: value for name, value in given.items() if value is not None and value != ""}
    return f"{path}?{urlencode(values, doseq=True)}" if values else path


def segment(text: object) -> str:
    """Text as one segment of a path."""
    return quote(str(text), safe="")
