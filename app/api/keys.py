"""``/v1/keys``: the API keys of a tenant, for its administrators; only operators manage operators' keys."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from starlette.concurrency import run_in_threadpool

from app.api.border import BorderRoute
from app.api.dependencies import Administrator, Context
from app.api.paging import After, Limit, Page, page_of
from app.api.schemas import CreateKey, KeyView, NewKeyView, RotateKey
from app.auth.authenticator import authorise
from app.domain.entities import ApiKey
from app.domain.errors import Unavailable
from app.services import keys

router = APIRouter(prefix="/v1/keys", tags=["keys"], route_class=BorderRoute)

KeyId = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


@router.post("", status_code=201)
async def create_key(body: CreateKey, context: Context, caller: Administrator) -> NewKeyView:
    """Create a key. Its text is shown only in this response.

    A server that was started without keys (`--no-keys`) still asks for none, and does not start again so: the
    key is needed after the next start.
    """
    if "operator" in body.scopes:
        authorise(caller, "operator")
    seconds = body.expires_in_seconds
    key, text = await run_in_threadpool(
        keys.create_key,
        context.store_of(caller),
        body.name,
        body.scopes,
        body.models,
        expires_at=None if seconds is None else time.time() + seconds,
        rate_limit=body.rate_limit,
        rate_burst=body.rate_burst,
        samples=body.samples,
        settings=context.settings,
        by_operator=_is_operator(caller),
    )
    # The text cannot be shown again, so it is returned even if this process cannot read the key yet.
    with suppress(Unavailable):
        await context.refresher.refresh()
    return NewKeyView(key=text, details=KeyView.of(key))


@router.post("/{key_id}/rotate")
async def rotate_key(
    key_id: KeyId, context: Context, caller: Administrator, body: RotateKey | None = None
) -> NewKeyView:
    """Replace the secret of a key. The new text is shown only in this response.

    The previous text stays valid for the overlap, which is 0 by default; older texts are invalid.
    """
    overlap = 0.0 if body is None else body.overlap_seconds
    key, text = await run_in_threadpool(
        keys.rotate_key, context.store_of(caller), key_id, overlap, by_operator=_is_operator(caller)
    )
    # The text cannot be shown again, so it is returned even if this process cannot read the key yet.
    with suppress(Unavailable):
        await context.refresher.refresh()
    return NewKeyView(key=text, details=KeyView.of(key))


@router.get("")
def list_keys(
    request: Request,
    response: Response,
    context: Context,
    caller: Administrator,
    limit: Limit = 1000,
    after: After = None,
) -> Page[KeyView]:
    """All keys, including revoked ones, oldest first."""
    page, has_more = keys.list_keys(context.listed_store(request, caller), limit=limit, after=after)
    return page_of(request, response, [*map(KeyView.of, page)], has_more)


@router.delete("/{key_id}")
async def revoke_key(key_id: KeyId, context: Context, caller: Administrator) -> KeyView:
    """Revoke a key; a second call changes nothing."""
    key = await run_in_threadpool(
        keys.revoke_key, context.store_of(caller), key_id, by_operator=_is_operator(caller)
    )
    await context.refresher.refresh()
    return KeyView.of(key)


def _is_operator(caller: ApiKey) -> bool:
    return "operator" in caller.scopes
