"""``/v1/token-revocations``: tokens of issuers that are not accepted any more, for administrators."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from app.api.border import BorderRoute
from app.api.dependencies import Administrator, Context
from app.api.paging import After, Limit, Page, page_of
from app.api.schemas import RevokeTokens
from app.domain.entities import TokenRevocation
from app.services import token_revocations

router = APIRouter(prefix="/v1/token-revocations", tags=["keys"], route_class=BorderRoute)


@router.post("", status_code=201)
async def revoke_tokens(body: RevokeTokens, context: Context, caller: Administrator) -> TokenRevocation:
    """Revoke the token with the id `jti`, or all tokens that were issued to the subject `sub` until now.

    It is in effect in all server processes of this machine when the response comes, and in those of other
    machines within a fraction of a second. The issuer must be one of the tenant's in `STMS_TOKEN_ISSUERS`.
    """
    revocation = await run_in_threadpool(
        token_revocations.revoke_tokens,
        context.store_of(caller),
        context.settings.token_issuers,
        body.issuer,
        sub=body.sub,
        jti=body.jti,
        reason=body.reason or "",
    )
    await context.refresher.refresh()
    return revocation


@router.get("")
def list_token_revocations(
    request: Request,
    response: Response,
    context: Context,
    caller: Administrator,
    limit: Limit = 1000,
    after: After = None,
) -> Page[TokenRevocation]:
    """Revocations of tokens that could be valid otherwise, oldest first."""
    store = context.listed_store(request, caller)
    page, has_more = token_revocations.list_revocations(store, limit=limit, after=after)
    return page_of(request, response, page, has_more)
