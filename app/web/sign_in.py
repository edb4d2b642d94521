"""Signing in and out, the first page, and the choice of colours."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from app.api.border import BorderRoute
from app.api.dependencies import Context, Reader
from app.auth.sessions import check_same_origin
from app.domain.audit_context import current_context
from app.domain.errors import NotAuthenticated
from app.http.path_prefix import prefix_of
from app.services.keys import digest_of
from app.services.sessions import begin_session
from app.web.forms import page_of, read_form, see
from app.web.rendering import SECTIONS, THEME_COOKIE, THEMES, may, page

router = APIRouter(route_class=BorderRoute)

PATH: Final = "/ui/sign-in"
_YEAR: Final = 365 * 86400

Next = Annotated[str, Query(alias="next", max_length=2000)]


@router.get("/", include_in_schema=False)
async def root() -> Response:
    """The way to the dashboard."""
    return see("/ui/")


@router.get("/ui/", include_in_schema=False)
async def first_page(caller: Reader) -> Response:
    """The first page that the caller may see."""
    return see(next(section.path for section in SECTIONS if may(caller, section.scope)))


@router.get(PATH, include_in_schema=False)
async def sign_in_page(request: Request, context: Context, next_: Next = "/ui/") -> Response:
    """The form for an API key."""
    target = page_of(next_)
    is_known = context.sessions.users.caller_of(request.scope) is not None
    if is_known or not context.authenticator.requires_keys:
        return see(target)
    # A browser does not send the cookie when a link of another site is followed. It does once this page has
    # led it on, so a person who has signed in already sees the page behind the link.
    comes_from_elsewhere = request.headers.get("sec-fetch-site") == "cross-site"
    return page(request, "sign_in.html", target=target, forwards=comes_from_elsewhere, error="")


@router.post(PATH, include_in_schema=False)
async def sign_in(request: Request, context: Context) -> Response:
    """Trade an API key for a session."""
    check_same_origin(request.scope)
    form = await read_form(request)
    target = page_of(form.text("next") or "/ui/")
    entered = form.text("key").strip()
    headers = {b"authorization": b"Bearer " + entered.encode("utf-8")}
    try:
        key = context.authenticator.authenticate(request.scope, headers)
        if key.expires_at is not None and not key.digest:
            raise NotAuthenticated("A token begins no session: enter an API key.", code="invalid_key")
    except NotAuthenticated as error:
        context.audit_writer.record_denial(request.scope, error.reason, request.state.request_id)
        # Without this each attempt would have a row besides the one that counts them.
        current_context().recorded += 1
        return page(request, "sign_in.html", 401, target=target, forwards=False, error=error.message)
    context.authenticator.rate_limiter.record_sign_in(key)
    _, digest = digest_of(entered) or ("", None)
    store = context.store.of_tenant(key.tenant)
    _, text = await run_in_threadpool(begin_session, store, key, digest)
    if not current_context().recorded:
        context.audit_writer.record_repeated_session(current_context(), request.scope)
    response = see(target)
    response.raw_headers.append(context.sessions.cookie(request.scope, text))
    return response


@router.post("/ui/sign-out", include_in_schema=False)
async def sign_out(request: Request, context: Context, _caller: Reader) -> Response:
    """End the session, for all processes."""
    await context.sessions.end(request.scope)
    response = see(PATH)
    response.raw_headers.append(context.sessions.cookie(request.scope, ""))
    return response


@router.post("/ui/theme", include_in_schema=False)
async def choose_theme(request: Request, _caller: Reader) -> Response:
    """Choose light or dark colours, or those of the system."""
    form = await read_form(request)
    theme = form.text("theme")
    response = see(page_of(form.text("next")))
    if theme in THEMES:
        response.set_cookie(
            THEME_COOKIE,
            theme,
            max_age=_YEAR,
            path=f"{prefix_of(request.scope)}/ui",
            samesite="strict",
            httponly=True,
        )
    return response
