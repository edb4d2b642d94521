"""``/v1/models``: published models, their versions and aliases."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import ConfigDict, Field, StringConstraints
from pydantic.config import JsonDict
from starlette.concurrency import run_in_threadpool

from app.api.border import BorderRoute
from app.api.dependencies import Context, Reader, Trainer
from app.api.etags import CONDITIONS, etag, expected_revision, unless_known
from app.api.paging import After, AfterModel, AfterNumber, Limit, Page, next_page, page_of
from app.api.schemas import (
    Body,
    ClassView,
    ModelView,
    PointAlias,
    VersionView,
)
from app.auth.authenticator import authorise
from app.domain.answers import Answers
from app.domain.entities import Alias, AliasMove, ModelSummary
from app.domain.figures import KEPT_INPUTS_DAYS
from app.domain.names import ALIAS, MAX_CLASS_NAME, MODEL_NAME, USABLE, qualified
from app.domain.threshold_rules import ChosenThresholds, ThresholdRule, VersionThreshold
from app.services import curves, models
from app.services.answers import version_answers
from app.services.models import DEFAULT_ALIAS
from app.serving.columns.report import Inputs, input_report

router = APIRouter(prefix="/v1/models", tags=["models"], route_class=BorderRoute)

ModelName = Annotated[str, Path(pattern=MODEL_NAME)]
AliasText = Annotated[str, Path(pattern=ALIAS)]
NewAlias = Annotated[str, Path(max_length=100, json_schema_extra={"pattern": ALIAS})]
"""An alias to be made: `check_alias` explains what is wrong with its name."""
ImportAlias = Annotated[
    str,
    Query(
        max_length=100,
        description="Alias to move to the new version; empty: none.",
        json_schema_extra={"pattern": f"^$|{ALIAS}"},
    ),
]
AllowSchemaChange = Annotated[
    bool,
    Query(description="Whether the version that then answers may refuse what the present one answers."),
]
VersionName = Annotated[str, Path(pattern=MODEL_NAME, description="Number of a version, or an alias.")]


@router.get("")
def list_models(
    request: Request,
    response: Response,
    context: Context,
    caller: Reader,
    limit: Limit = 100,
    after: AfterModel = None,
) -> Page[ModelSummary]:
    """All models by name; a key that is limited to some models sees only those.

    An operator sees the models of all tenants, ordered by tenant and name.
    """
    tenant, slash, name = (after or "").rpartition("/")
    start = None if after is None else (tenant if slash else caller.tenant, name)
    store = context.listed_store(request, caller)
    page, has_more = models.list_models(store, limit=limit, after=start, among=caller.models)

    def name_of(last: ModelSummary) -> str:
        return last.name if last.tenant == caller.tenant else qualified(last.tenant, last.name)

    return page_of(request, response, page, has_more, name_of)


@router.get("/{model}", response_model=ModelView)
def get_model(
    model: ModelName,
    request: Request,
    response: Response,
    context: Context,
    caller: Reader,
    limit: Limit = 100,
    after: AfterNumber = None,
) -> Any:
    """One model with its versions, newest first, and its aliases, of which it has at most 1000.

    Pages of versions are linked: ``after`` is the number of the last version of the previous page.
    """
    authorise(caller, "query", model)
    page = models.get_model(context.store_of(caller), model, limit=limit, before=after)
    link = {"link": next_page(request, page.versions[-1].version)} if page.has_more else {}

    def view() -> ModelView:
        return ModelView(
            name=model,
            has_more=page.has_more,
            versions=[VersionView.of(version) for version in page.versions],
            aliases=list(page.aliases),
        )

    return unless_known(request, response, etag(*page.state), view, **link)


BaseVersion: TypeAlias = Annotated[str, StringConstraints(pattern=MODEL_NAME)]
Label: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=MAX_CLASS_NAME)]
LABELS: Final[JsonDict] = {"propertyNames": {"minLength": 1, "maxLength": MAX_CLASS_NAME, "pattern": USABLE}}


class DeriveVersion(Body):
    """A version to publish: an earlier one with other thresholds.

    base: number of the version, or an alias. thresholds: by label of the class; the others stay as they are.
    choose: rules that choose the thresholds of further classes on their curves; that of ``*`` is for all
    classes for which nothing else is given.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"required": [name], "properties": {name: {"minProperties": 1}}}
                for name in ("thresholds", "choose")
            ]
        }
    )

    base: BaseVersion = DEFAULT_ALIAS
    thresholds: dict[Label, Annotated[float, Field(allow_inf_nan=False)]] = Field(
        {}, max_length=curves.MAX_THRESHOLDS, json_schema_extra=LABELS
    )
    choose: dict[Label, ThresholdRule] = Field({}, max_length=curves.MAX_THRESHOLDS, json_schema_extra=LABELS)


class ChooseThresholds(Body):
    """Rules that choose thresholds of a version.

    base: its number, or an alias. choose: by label of the class; the rule of ``*`` is for all without one.
    """

    base: BaseVersion = DEFAULT_ALIAS
    choose: dict[Label, ThresholdRule] = Field(
        min_length=1, max_length=curves.MAX_THRESHOLDS, json_schema_extra=LABELS
    )


@router.post("/{model}/thresholds")
def choose_thresholds(
    model: ModelName, body: ChooseThresholds, context: Context, caller: Trainer
) -> ChosenThresholds:
    """The thresholds that rules would choose, and what is expected of them. Nothing is published."""
    return curves.choose_thresholds(context.store_of(caller), context.files, model, body.base, body.choose)


@router.get("/{model}/thresholds")
def list_thresholds(
    model: ModelName,
    label: Annotated[Label, Query(alias="class", description="Label of the class.")],
    request: Request,
    response: Response,
    context: Context,
    caller: Reader,
    limit: Limit = 100,
    after: AfterNumber = None,
) -> Page[VersionThreshold]:
    """The threshold of a class in the versions of a model, newest first.

    limit: versions to look at; those without a student of the class are left out. ``after`` is the number of
    the last version of the previous page.
    """
    authorise(caller, "query", model)
    page, last = curves.version_thresholds(
        context.store_of(caller), context.files, model, label, limit=limit, before=after
    )
    if last is not None:
        response.headers["link"] = next_page(request, last)
    return Page(data=page, has_more=last is not None)


@router.post("/{model}/versions", status_code=201)
async def derive_version(
    model: ModelName, body: DeriveVersion, response: Response, context: Context, caller: Trainer
) -> VersionView:
    """Publish an earlier version with other thresholds as a new version. No alias is moved.

    Nothing is trained: the students are those of the earlier version. Metrics that depend on a threshold are
    those of the curve at this point, and null between its points.
    """
    version = await run_in_threadpool(
        curves.publish_thresholds,
        context.store_of(caller),
        context.files,
        context.settings,
        model,
        body.base,
        body.thresholds,
        caller.id,
        choose=body.choose,
    )
    await context.refresher.refresh(version.qualified_model)
    response.headers["location"] = f"/v1/models/{model}/versions/{version.version}"
    return VersionView.of(version)


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
    row = models.get_version(context.store_of(caller), model, version)
    return unless_known(request, response, etag("v", row.version), lambda: VersionView.of(row))


@router.delete("/{model}/versions/{version}", status_code=204)
async def delete_version(
    model: ModelName,
    version: Annotated[int, Path(ge=1, le=2**31 - 1, description="Number of a version.")],
    context: Context,
    caller: Trainer,
) -> None:
    """Delete a version to which no alias points. Its number is not used again, and its job stays.

    The record of a version with other thresholds is deleted with it.
    """
    await run_in_threadpool(models.delete_version, context.store_of(caller), model, version)
    await context.refresher.refresh(qualified(caller.tenant, model))


@router.get("/{model}/versions/{version}/schema", response_model=dict[str, Any])
async def get_record_schema(
    model: ModelName, version: VersionName, request: Request, context: Context, caller: Reader
) -> Response:
    """The JSON Schema of a record of a version: its columns, their kinds, and which of them are required.

    The ETag is its digest: a request with it gets 304 as long as the schema is the same.
    """
    authorise(caller, "query", model)
    row = await run_in_threadpool(models.get_version, context.store_of(caller), model, version)
    schema = await context.schemas.of(row, await context.cache.columns(row))
    response = Response(schema.body, media_type="application/json")
    return unless_known(request, response, etag(schema.digest), lambda: response)


@router.get("/{model}/versions/{version}/inputs")
async def get_inputs(
    model: ModelName,
    version: VersionName,
    context: Context,
    caller: Reader,
    hours: Annotated[
        int, Query(ge=1, le=24 * KEPT_INPUTS_DAYS, description="Whole hours to look back.")
    ] = 24,
) -> Inputs:
    """What the records of queries to a version were like, compared with the rows that it was trained on.

    Each server process adds what it has counted once a minute. No value of a query is stored.
    """
    authorise(caller, "query", model)
    store = context.store_of(caller)
    row = await run_in_threadpool(models.get_version, store, model, version)
    known = await context.cache.columns(row)
    rows = await run_in_threadpool(models.input_rows, store, row, hours)
    return input_report(known, row, rows, hours)


@router.get("/{model}/versions/{version}/answers")
def get_answers(
    model: ModelName,
    version: VersionName,
    context: Context,
    caller: Reader,
    label: Annotated[
        Label | None, Query(alias="class", description="Label of the only class to tell of.")
    ] = None,
    days: Annotated[int, Query(ge=1, le=KEPT_INPUTS_DAYS, description="Whole days to look back.")] = 7,
) -> Answers:
    """What queries to a version have been answered, by class, and what follows if the probabilities hold.

    Each server process adds what it has counted once a minute. Counted are calibrated classes, at most 1000
    of a version. No row and no score is stored.
    """
    authorise(caller, "query", model)
    store = context.store_of(caller)
    row = models.get_version(store, model, version)
    return version_answers(store, context.files, row, days, label)


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
    row = models.get_version(context.store_of(caller), model, version)
    start = -1 if after is None else after
    rows, has_more = models.list_classes(
        context.store_of(caller), context.files, row, limit=limit, after=start
    )
    return page_of(request, response, [*map(ClassView.of_number, rows)], has_more)


@router.get("/{model}/aliases/{alias}", response_model=Alias)
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
    row = models.get_alias(context.store_of(caller), model, alias)
    return unless_known(request, response, etag(row.revision), lambda: row)


@router.get("/{model}/aliases/{alias}/history")
def list_alias_moves(
    model: ModelName,
    alias: AliasText,
    request: Request,
    response: Response,
    context: Context,
    caller: Reader,
    limit: Limit = 100,
    after: After = None,
) -> Page[AliasMove]:
    """Where an alias has pointed, and who moved it, newest first; also of an alias that was deleted.

    A model keeps the last 1000 moves of all its aliases.
    """
    authorise(caller, "query", model)
    page, has_more = models.alias_moves(context.store_of(caller), model, alias, limit=limit, after=after)
    return page_of(request, response, page, has_more)


@router.put("/{model}/aliases/{alias}", openapi_extra={"parameters": CONDITIONS})
async def point_alias(
    model: ModelName,
    alias: NewAlias,
    body: PointAlias,
    request: Request,
    response: Response,
    context: Context,
    caller: Trainer,
) -> Alias:
    """Create or move an alias. Moving it back is a rollback.

    When the response arrives, this server process answers with the new version, and all others do within
    STMS_REFRESH_SECONDS + STMS_MOVE_SECONDS, by default in less than 2 seconds.

    If-Match names the revision that was read: without it an existing alias gives 428, and a revision that is
    not the current one 412. ``If-None-Match: *`` only creates a new alias.

    A version that refuses questions which the present one answers gives 409 ``schema_change``, whose errors
    name the columns, classes and forms of rows, and nothing moves. ``allow_schema_change`` moves the alias
    nevertheless, which the audit log notes. Without the alias ``latest`` the newest version is the present
    one of that name.

    A version that has not passed the gate of the alias gives 409 ``gate_not_passed`` or ``gate_failed``;
    ``override`` moves it nevertheless, needs the scope admin and is audited as ``alias.override``.
    """
    expected = expected_revision(request)
    if body.override is not None:
        authorise(caller, "admin")
    moved = await run_in_threadpool(
        models.point_alias,
        context.store_of(caller),
        context.settings,
        model,
        alias,
        body.version,
        expected,
        allow_schema_change=body.allow_schema_change,
        override=body.override,
    )
    await context.refresher.refresh(qualified(caller.tenant, model))
    response.headers["etag"] = etag(moved.revision)
    return moved


@router.delete(
    "/{model}/aliases/{alias}",
    status_code=204,
    openapi_extra={"parameters": [{**CONDITIONS[0], "required": True}]},
)
async def delete_alias(
    model: ModelName,
    alias: AliasText,
    request: Request,
    context: Context,
    caller: Trainer,
    allow_schema_change: AllowSchemaChange = False,
) -> None:
    """Delete an alias; If-Match names the revision that was read. Its version stays.

    Without the alias ``latest`` the newest version answers: where that refuses questions which the alias's
    version answers, this is 409 ``schema_change``. An alias with a gate needs the scope admin.
    """
    expected = expected_revision(request)
    await run_in_threadpool(
        models.delete_alias,
        context.store_of(caller),
        model,
        alias,
        expected,
        allow_schema_change=allow_schema_change,
        may_delete_gate=not {"admin", "operator"}.isdisjoint(caller.scopes),
    )
    await context.refresher.refresh(qualified(caller.tenant, model))
