"""``…/aliases/{alias}/shadow``: another version that answers a share of an alias's queries, unseen."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool

from app.api.border import BorderRoute
from app.api.dependencies import Context, Reader, Trainer
from app.api.models import AliasText, ModelName
from app.auth.authenticator import authorise
from app.domain.names import qualified
from app.domain.shadows import Shadow, ShadowReport, ShadowSettings
from app.services import shadows

router = APIRouter(
    prefix="/v1/models/{model}/aliases/{alias}/shadow", tags=["monitors"], route_class=BorderRoute
)


@router.get("")
def get_shadow(model: ModelName, alias: AliasText, context: Context, caller: Reader) -> ShadowReport:
    """How often the shadow of an alias gave the same answers, by class, and how much traffic it got.

    The counts are of the version that the alias points to now.
    """
    authorise(caller, "query", model)
    return shadows.shadow_report(context.store_of(caller), model, alias)


@router.put("")
async def put_shadow(
    model: ModelName, alias: AliasText, body: ShadowSettings, context: Context, caller: Trainer
) -> Shadow:
    """Let another version answer a share of the queries to an alias as well.

    The service asks the other version after it has answered the query, sends that second answer to nobody and
    stores no row. The shadow ends after ``days``. Another shadow of the alias starts with counts of zero. The
    service does not repeat a query with the header ``X-Sample: no``.
    """
    shadow = await run_in_threadpool(
        shadows.put_shadow, context.store_of(caller), model, alias, body, caller.id
    )
    await context.refresher.refresh(qualified(caller.tenant, model))
    return shadow


@router.delete("", status_code=204)
async def delete_shadow(model: ModelName, alias: AliasText, context: Context, caller: Trainer) -> None:
    """Delete the shadow of an alias with its counts."""
    await run_in_threadpool(shadows.delete_shadow, context.store_of(caller), model, alias)
    await context.refresher.refresh(qualified(caller.tenant, model))
