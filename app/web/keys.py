"""The page of API keys: make, rotate and revoke them."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from app.api.border import BorderRoute
from app.api.dependencies import Administrator, Context
from app.api.keys import KeyId
from app.auth.authenticator import authorise
from app.domain.errors import Unavailable
from app.services import keys
from app.web.forms import read_form, see
from app.web.rendering import page

router = APIRouter(route_class=BorderRoute)

_KEYS: Final = 100
_DAY: Final = 86400.0
SCOPES: Final = ("query", "download", "train", "admin", "operator")

Name = Annotated[str, Query(max_length=100)]


@router.get("/ui/keys")
def keys_page(request: Request, context: Context, caller: Administrator, after: Name = "") -> Response:
    """All keys, oldest first, and the form for a new one."""
    store = context.listed_store(request, caller)
    listed, has_more = keys.list_keys(store, limit=_KEYS, after=after or None)
    return page(
        request,
        "keys.html",
        keys=listed,
        next=listed[-1].id if has_more else None,
        scopes=[scope for scope in SCOPES if scope != "operator" or "operator" in caller.scopes],
        now=time.time(),
    )


@router.post("/ui/keys")
async def create(request: Request, context: Context, caller: Administrator) -> Response:
    """Make a key, and show its text once."""
    form = await read_form(request)
    scopes, days = form.all("scope"), form.number("days")
    if "operator" in scopes:
        authorise(caller, "operator")
    key, text = await run_in_threadpool(
        keys.create_key,
        context.store_of(caller),
        form.text("name"),
        scopes,
        form.text("models").replace(",", " ").split(),
        expires_at=None if days is None else time.time() + days * _DAY,
        rate_limit=form.number("rate_limit"),
        settings=context.settings,
        by_operator="operator" in caller.scopes,
    )
    # The text cannot be shown again, so it is shown even if this process cannot read the key yet.
    with suppress(Unavailable):
        await context.refresher.refresh()
    return page(request, "new_key.html", key=key, text=text, overlap=None)


@router.post("/ui/keys/{key_id}/rotate")
async def rotate(key_id: KeyId, request: Request, context: Context, caller: Administrator) -> Response:
    """Replace the secret of a key, and show the new text once."""
    form = await read_form(request)
    hours = form.number("hours") or 0.0
    is_operator = "operator" in caller.scopes
    key, text = await run_in_threadpool(
        keys.rotate_key, context.store_of(caller), key_id, hours * 3600.0, by_operator=is_operator
    )
    with suppress(Unavailable):
        await context.refresher.refresh()
    return page(request, "new_key.html", key=key, text=text, overlap=hours)


@router.post("/ui/keys/{key_id}/revoke")
async def revoke(key_id: KeyId, context: Context, caller: Administrator, tenant: Name = "") -> Response:
    """Revoke a key."""
    is_operator = "operator" in caller.scopes
    await run_in_threadpool(keys.revoke_key, context.store_of(caller), key_id, by_operator=is_operator)
    await context.refresher.refresh()
    return see("/ui/keys", tenant=tenant, done="revoke")
