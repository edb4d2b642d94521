"""``/v1/models``: published models, their versions and aliases."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from starlette.concurrency import run_in_threadpool

from app.api.dependencies import Context, Reader, Trainer
from app.api.etags import CONDITIONS, etag, expected_revision, not_modified
from app.api.paging import After, AfterNumber, Limit, Page, link_next
from app.api.schemas import AliasView, ClassView, ModelSummaryView, ModelView, PointAlias, VersionView
from app.auth.authenticator import authorise
from app.domain.names import ALIAS, MODEL_NAME
from app.services import models

router = APIRouter(prefix="/v1/models", tags=["models"])

ModelName = Annotated[str, Path(pattern=MODEL_NAME)]
AliasText = Annotated[str, Path(max_length=100, json_schema_extra={"pattern": ALIAS})]
VersionName = Annotated[str, Path(pattern=MODEL_NAME, description="Number of a version, or an alias.")]


@router.get("")
def list_models(
    request: Request,
    response: Response,
    context: Context,
    caller: Reader,
    limit: Limit = 100,
    after: After = None,
) -> Page[ModelSummaryView]:
    """All models by name; a key that is limited to some models sees only those."""
    page, has_more = models.list_models(context.store, limit=limit, after=after)
    if has_more:
        link_next(request, response, page[-1].model)
    shown = [summary for summary in page if not caller.models or summary.model in caller.models]
    return Page(data=[ModelSummaryView.of(summary) for summary in shown], has_more=has_more)


@router.get("/{model}", response_model=ModelView)
def get(model: ModelName, request: Request, response: Response, context: Context, caller: Reader) -> Any:
    """One model with all its versions, newest first, and its aliases."""
    authorise(caller, "query", model)
    versions, aliases = models.get_model(context.store, model)
    moves = sum(alias.revision for alias in aliases)
    headers = {
        "etag": etag(versions[0].version, len(versions), len(aliases), moves),
        "cache-control": "no-cache",
    }
    if not_modified(request, headers["etag"]):
        return Response(status_code=304, headers=headers)
    response.headers.update(headers)
    return ModelView(
        name=model,
        versions=[VersionView.of(version) for version in versions],
        aliases=[AliasView.of(alias) for alias in aliases],
    )


@router.get("/{model}/versions/{version}", response_model=VersionView)
def get_version(
    model: ModelName,
    version: VersionName,
    request: Request,
    response: Response,
    context: Context,
    caller: Reader,
) -> Any:
    """One version, by its number or by an alias."""
    authorise(caller, "query", model)
    row = models.get_version(context.store, model, version)
    headers = {"etag": etag("v", row.version), "cache-control": "no-cache"}
    if not_modified(request, headers["etag"]):
        return Response(status_code=304, headers=headers)
    response.headers.update(headers)
    return VersionView.of(row)


@router.delete("/{model}/versions/{version}", status_code=204)
async def delete_version(
    model: ModelName,
    version: Annotated[int, Path(ge=1, le=2**31 - 1, description="Number of a version.")],
    context: Context,
    _caller: Trainer,
) -> None:
    """Delete a version to which no alias points. Its number is not used again, and its job stays."""
    await run_in_threadpool(models.delete_version, context.store, model, version)
    await context.refresher.refresh()


@router.get("/{model}/versions/{version}/classes")
def list_classes(
    model: ModelName,
    version: VersionName,
    request: Request,
    response: Response,
    context: Context,
    caller: Reader,
    limit: Limit = 100,
    after: AfterNumber = None,
) -> Page[ClassView]:
    """The classes of a version, in the order of their numbers."""
    authorise(caller, "query", model)
    row = models.get_version(context.store, model, version)
    start = -1 if after is None else after
    rows, has_more = models.list_classes(context.store, context.files, row, limit=limit, after=start)
    if has_more:
        link_next(request, response, rows[-1][0])
    return Page(data=[ClassView(id=row, label=label) for row, label in rows], has_more=has_more)


@router.get("/{model}/aliases/{alias}", response_model=AliasView)
def get_alias(
    model: ModelName,
    alias: AliasText,
    request: Request,
    response: Response,
    context: Context,
    caller: Reader,
) -> Any:
    """One alias; moving it requires its ETag."""
    authorise(caller, "query", model)
    row = models.get_alias(context.store, model, alias)
    headers = {"etag": etag(row.revision), "cache-control": "no-cache"}
    if not_modified(request, headers["etag"]):
        return Response(status_code=304, headers=headers)
    response.headers.update(headers)
    return AliasView.of(row)


@router.put("/{model}/aliases/{alias}", openapi_extra={"parameters": CONDITIONS})
async def point_alias(
    model: ModelName,
    alias: AliasText,
    body: PointAlias,
    request: Request,
    response: Response,
    context: Context,
    _caller: Trainer,
) -> AliasView:
    """Create or move an alias; all queries follow immediately. Moving it back is a rollback.

    If-Match names the revision that was read: without it an existing alias gives 428, and a revision that is
    not the current one 412. ``If-None-Match: *`` only creates a new alias.
    """
    expected = expected_revision(request)
    moved = await run_in_threadpool(models.point_alias, context.store, model, alias, body.version, expected)
    await context.refresher.refresh()
    response.headers["etag"] = etag(moved.revision)
    return AliasView.of(moved)


@router.delete("/{model}/aliases/{alias}", status_code=204, openapi_extra={"parameters": CONDITIONS[:1]})
async def delete_alias(
    model: ModelName, alias: AliasText, request: Request, context: Context, _caller: Trainer
) -> None:
    """Delete an alias; If-Match names the revision that was read. Its version stays."""
    expected = expected_revision(request)
    await run_in_threadpool(models.delete_alias, context.store, model, alias, expected)
    await context.refresher.refresh()
