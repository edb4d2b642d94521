"""``/v1/keys``: API keys, for administrators."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Path
from starlette.concurrency import run_in_threadpool

from app.api.dependencies import Administrator, Context
from app.api.paging import Page
from app.api.schemas import CreateKey, KeyView, NewKeyView, RotateKey
from app.services import keys

router = APIRouter(prefix="/v1/keys", tags=["keys"])

KeyId = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


@router.post("", status_code=201)
async def create(body: CreateKey, context: Context, _caller: Administrator) -> NewKeyView:
    """Create a key. Its text is shown only in this response.

    As soon as a server has a first key, every request requires one.
    """
    seconds = body.expires_in_seconds
    key, text = await run_in_threadpool(
        keys.create_key,
        context.store,
        body.name,
        body.scopes,
        body.models,
        expires_at=None if seconds is None else time.time() + seconds,
        rate_limit=body.rate_limit,
        rate_burst=body.rate_burst,
    )
    await context.refresher.refresh()
    return NewKeyView(key=text, details=KeyView.of(key))


@router.post("/{key_id}/rotate")
async def rotate(
    key_id: KeyId, context: Context, _caller: Administrator, body: RotateKey | None = None
) -> NewKeyView:
    """Replace the secret of a key. The new text is shown only in this response.

    The previous text stays valid for the overlap, which is 0 by default; older texts are invalid.
    """
    overlap = 0.0 if body is None else body.overlap_seconds
    key, text = await run_in_threadpool(keys.rotate_key, context.store, key_id, overlap)
    await context.refresher.refresh()
    return NewKeyView(key=text, details=KeyView.of(key))


@router.get("")
def list_keys(context: Context, _caller: Administrator) -> Page[KeyView]:
    """All keys, including revoked ones, oldest first."""
    return Page(data=[KeyView.of(key) for key in keys.list_keys(context.store)], has_more=False)


@router.delete("/{key_id}")
async def revoke(key_id: KeyId, context: Context, _caller: Administrator) -> KeyView:
    """Revoke a key; a second call changes nothing."""
    key = await run_in_threadpool(keys.revoke_key, context.store, key_id)
    await context.refresher.refresh()
    return KeyView.of(key)
