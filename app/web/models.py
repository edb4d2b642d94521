"""Pages of models: versions, aliases, and moving an alias with the differences in view."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from app.api.border import BorderRoute
from app.api.bundles import bundle_response
from app.api.dependencies import AppContext, Context, Downloader, Reader, Trainer
from app.api.models import AliasText, ModelName, VersionName
from app.api.uploads import while_connected
from app.auth.authenticator import authorise
from app.domain.answers import Answers, ClassAnswers
from app.domain.entities import Alias, Caller, ModelVersion
from app.domain.errors import NotFound
from app.domain.names import check_alias, qualified
from app.domain.performance import MAX_NOTE
from app.ingest.orders import RevisionContent
from app.services import gates, models, monitors, shadows
from app.services.answers import version_answers
from app.services.class_additions import base_of_addition, submit_addition
from app.services.class_changes import change_classes
from app.services.class_merging import merge_classes
from app.services.comparison import is_noise, mean_errors, same_rows
from app.services.datasets import dataset_name, list_datasets
from app.services.performance import acknowledge, performance
from app.services.retraining import retrain
from app.services.review import review
from app.services.rollback import rolled_back_from
from app.services.schema_changes import compare_schemas
from app.serving.columns.report import Inputs, input_report
from app.store.unit_of_work import Store
from app.web.charts import BAR_HEIGHT, SIDE, Overlay, overlay
from app.web.forms import read_form, see
from app.web.rendering import may, page, segment

router = APIRouter(route_class=BorderRoute)

_MODELS: Final = 100
_VERSIONS: Final = 50
_CLASSES: Final = 100
_DATASETS: Final = 100
_HOURS: Final = 24
_ANSWER_DAYS: Final = 7
_LIVE_DAYS: Final = 28
_BUDGET: Final = 0.01
"""Of false positives of a class that is added, where the form says none."""
_ANSWERED: Final = 20
"""Classes whose answers are shown: those that were asked most often."""
MEASURES: Final = (("f1", "F"), ("auc", "AUC"), ("accuracy", "Accuracy"), ("brier", "Brier"))

After = Annotated[str, Query(max_length=201)]
Name = Annotated[str, Query(max_length=100)]
VersionNumber = Annotated[int, Path(ge=1, le=2**31 - 1)]


@router.get("/ui/models")
def models_page(request: Request, context: Context, caller: Reader, after: After = "") -> Response:
    """All models that the caller may see."""
    tenant, slash, name = after.rpartition("/")
    start = (tenant if slash else caller.tenant, name) if after else None
    store = context.listed_store(request, caller)
    listed, has_more = models.list_models(store, limit=_MODELS, after=start, among=caller.models)
    following = qualified(listed[-1].tenant, listed[-1].name) if has_more else None
    return page(request, "models.html", models=listed, next=following)


@router.get("/ui/models/{model}")
def model_page(
    model: ModelName,
    request: Request,
    context: Context,
    caller: Reader,
    after: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None,
) -> Response:
    """One model: its versions, newest first, and its aliases."""
    authorise(caller, "query", model)
    found = models.get_model(context.store_of(caller), model, limit=_VERSIONS, before=after)
    return page(
        request,
        "model.html",
        model=model,
        versions=found.versions,
        aliases=found.aliases,
        next=found.versions[-1].version if found.has_more else None,
        measures=MEASURES,
        means={version.version: means_of(version) for version in found.versions},
    )


@router.get("/ui/models/{model}/versions/{version}")
async def version_page(
    model: ModelName,
    version: VersionName,
    request: Request,
    context: Context,
    caller: Reader,
    after: Annotated[int, Query(ge=-1, le=2**31 - 1)] = -1,
) -> Response:
    """One version: metrics, the inputs of its queries, classes and the aliases that point to it."""
    authorise(caller, "query", model)
    store = context.store_of(caller)
    row = await run_in_threadpool(models.get_version, store, model, version)
    inputs = None
    if row.encoder_digest is not None:
        counted = await run_in_threadpool(models.input_rows, store, row, _HOURS)
        inputs = input_report(await context.cache.columns(row), row, counted, _HOURS)
    return await run_in_threadpool(_version_page, request, context, store, row, inputs, after)


@router.get("/ui/models/{model}/versions/{version}/bundle")
async def download_bundle(
    model: ModelName, version: VersionName, request: Request, context: Context, caller: Downloader
) -> Response:
    """The version as a file, as `stms bundle export` writes it."""
    authorise(caller, "download", model)
    return await run_in_threadpool(bundle_response, request, context, caller, model, version)


def _version_page(
    request: Request,
    context: AppContext,
    store: Store,
    row: ModelVersion,
    inputs: Inputs | None,
    after: int,
) -> Response:
    classes, has_more = models.list_classes(store, context.files, row, limit=_CLASSES, after=after)
    aliases = models.get_model(store, row.model, limit=1).aliases
    answers = version_answers(store, context.files, row, _ANSWER_DAYS)
    return page(
        request,
        "version.html",
        version=row,
        inputs=inputs,
        answers=answers,
        asked_most=_asked_most(answers),
        pictures={} if inputs is None else _pictures(inputs),
        picture_size=(SIDE, BAR_HEIGHT),
        classes=classes,
        next=classes[-1][0] if has_more else None,
        aliases=[alias for alias in aliases if alias.version == row.version],
        measures=MEASURES,
        means=row.metrics.get("means", {}),
        warnings=row.metrics.get("warnings", []),
    )


def _asked_most(answers: Answers) -> list[ClassAnswers]:
    return sorted(answers.classes, key=lambda one: (-one.asked, one.label))[:_ANSWERED]


def _pictures(inputs: Inputs) -> dict[str, Overlay]:
    """The pictures of the columns that can be compared with training."""
    return {column.name: overlay(column.bins) for column in inputs.columns if column.psi is not None}


@router.get("/ui/models/{model}/aliases/{alias}")
def moves_page(
    model: ModelName, alias: AliasText, request: Request, context: Context, caller: Reader, after: Name = ""
) -> Response:
    """Where an alias has pointed, and who moved it."""
    authorise(caller, "query", model)
    store = context.store_of(caller)
    moves, has_more = models.alias_moves(store, model, alias, limit=_VERSIONS, after=after or None)
    gate = gates.gates_of(store, model).get(alias)
    may_set = may(caller, "admin")
    return page(
        request,
        "moves.html",
        model=model,
        alias=alias,
        moves=moves,
        next=moves[-1].id if has_more else None,
        present=models.version_numbers(store, model),
        is_alias=_alias(context, caller, model, alias) is not None,
        gate=gate,
        dataset_name=None if gate is None else dataset_name(store, gate.dataset_id),
        datasets=list_datasets(store, limit=_DATASETS)[0] if may_set else [],
    )


@router.get("/ui/models/{model}/aliases/{alias}/live")
def live_page(
    model: ModelName, alias: AliasText, request: Request, context: Context, caller: Reader
) -> Response:
    """How well an alias answers in production, the classes nearest to a broken promise first."""
    authorise(caller, "query", model)
    store = context.store_of(caller)
    version = models.get_alias(store, model, alias).version
    found, alpha, waiting = None, 0.0, 0
    with store.read() as uow:
        moved_back = rolled_back_from(uow, model, alias)
    try:
        alpha = monitors.get_monitor(store, model, alias).settings.alpha
        found = performance(store, context.files, model, alias, _LIVE_DAYS)
        waiting = review(store, model, alias, None, 0).waiting
    except NotFound as error:
        if error.reason != "monitor_not_found":
            raise
    return page(
        request,
        "live.html",
        model=model,
        alias=alias,
        version=version,
        found=found,
        broken=[one for one in found.classes if one.broken] if found else [],
        alpha=alpha,
        waiting=waiting,
        moved_back=moved_back,
        shadow=shadows.find_report(store, model, alias),
        versions=[number for number in models.version_numbers(store, model) if number != version],
    )


@router.post("/ui/models/{model}/aliases/{alias}/live/acknowledge")
async def acknowledge_alarms(
    model: ModelName, alias: AliasText, request: Request, context: Context, caller: Trainer, tenant: Name = ""
) -> Response:
    """Say that all alarms of an alias were seen."""
    form = await read_form(request)
    note = form.text("note")[:MAX_NOTE]
    await run_in_threadpool(acknowledge, context.store_of(caller), model, alias, None, note)
    return see(
        f"/ui/models/{segment(model)}/aliases/{segment(alias)}/live", tenant=tenant, done="acknowledge"
    )


@router.get("/ui/models/{model}/move")
def move_page(
    model: ModelName,
    request: Request,
    context: Context,
    caller: Trainer,
    version: Annotated[int, Query(ge=1, le=2**31 - 1)],
    alias: Name = models.DEFAULT_ALIAS,
) -> Response:
    """What moving an alias would change, with the form that does it."""
    check_alias(alias)
    store = context.store_of(caller)
    target = models.get_version(store, model, version)
    present = _alias(context, caller, model, alias)
    source = None if present is None else models.get_version(store, model, present.version)
    with store.read() as uow:
        before = models.answering(uow.models, model, alias)
        refusal = gates.refusal_of(uow, uow.models, model, alias, target.version)
    return page(
        request,
        "move.html",
        model=model,
        alias=alias,
        revision=0 if present is None else present.revision,
        source=source,
        target=target,
        answering=before,
        refusal=refusal,
        schemas=compare_schemas(store, before or target, target),
        differences=differences(store, source, target),
        same_rows=None if source is None else same_rows(source, target),
    )


@router.post("/ui/models/{model}/aliases/{alias}")
async def move(
    model: ModelName, alias: AliasText, request: Request, context: Context, caller: Trainer, tenant: Name = ""
) -> Response:
    """Move an alias, unless another has moved it since the page was shown."""
    form = await read_form(request)
    version, revision = form.whole("version") or 0, form.whole("revision")
    store, override = context.store_of(caller), form.text("override") or None
    if override is not None:
        authorise(caller, "admin")
    await run_in_threadpool(
        models.point_alias,
        store,
        context.settings,
        model,
        alias,
        version,
        revision,
        allow_schema_change=bool(form.text("allow_schema_change")),
        override=override,
    )
    await context.refresher.refresh(qualified(caller.tenant, model))
    return see(f"/ui/models/{segment(model)}", tenant=tenant, done="move")


@router.post("/ui/models/{model}/aliases/{alias}/delete")
async def delete_alias(
    model: ModelName, alias: AliasText, request: Request, context: Context, caller: Trainer, tenant: Name = ""
) -> Response:
    """Delete an alias; its version stays."""
    form = await read_form(request)
    store = context.store_of(caller)
    await run_in_threadpool(
        models.delete_alias,
        store,
        model,
        alias,
        form.whole("revision"),
        may_delete_gate=may(caller, "admin"),
    )
    await context.refresher.refresh(qualified(caller.tenant, model))
    return see(f"/ui/models/{segment(model)}", tenant=tenant, done="alias-delete")


@router.post("/ui/models/{model}/versions/{version}/retrain")
async def train_again(
    model: ModelName,
    version: VersionNumber,
    request: Request,
    context: Context,
    caller: Trainer,
    tenant: Name = "",
) -> Response:
    """Train a version again, on the data set that the form names, and show the job."""
    form = await read_form(request)
    job, _ = await run_in_threadpool(
        retrain,
        context.store_of(caller),
        context.queue,
        context.settings,
        model,
        version,
        dataset_id=form.text("dataset_id") or None,
        alias=form.text("alias") or None,
        hyperparameters={},
        created_by=caller.id,
        idempotency_key=None,
        body_digest="",
        classes="changed" if form.text("classes") == "changed" else "all",
    )
    return see(f"/ui/jobs/{job.id}", tenant=tenant)


@router.post("/ui/models/{model}/versions/{version}/classes")
async def change_version_classes(
    model: ModelName,
    version: VersionNumber,
    request: Request,
    context: Context,
    caller: Trainer,
    tenant: Name = "",
) -> Response:
    """Rename or remove a class of a version, and show the version that was published."""
    form = await read_form(request)
    label, new = form.exact("label"), form.exact("new")
    made = await run_in_threadpool(
        change_classes,
        context.store_of(caller),
        context.files,
        context.settings,
        model,
        version,
        rename={label: new} if new else {},
        remove=[] if new else [label],
        created_by=caller.id,
    )
    await context.refresher.refresh(qualified(caller.tenant, model))
    return see(f"/ui/models/{segment(model)}/versions/{made.version}", tenant=tenant, done="classes")


@router.post("/ui/models/{model}/versions/{version}/classes/add")
async def add_version_class(
    model: ModelName,
    version: VersionNumber,
    request: Request,
    context: Context,
    caller: Trainer,
    tenant: Name = "",
) -> Response:
    """Add a class to a version from the rows of a data set, and show the job."""
    form = await read_form(request)
    store, name = context.store_of(caller), form.exact("name")
    base = await run_in_threadpool(base_of_addition, store, context.files, model, version, name)
    job = await run_in_threadpool(
        submit_addition,
        store,
        context.queue,
        context.settings,
        base,
        name,
        form.text("dataset_id"),
        budget=form.number("budget") or _BUDGET,
        confidence=None,
        alias=None,
        created_by=caller.id,
    )
    return see(f"/ui/jobs/{job.id}", tenant=tenant)


@router.post("/ui/models/{model}/versions/{version}/classes/merge")
async def merge_version_classes(
    model: ModelName,
    version: VersionNumber,
    request: Request,
    context: Context,
    caller: Trainer,
    tenant: Name = "",
) -> Response:
    """Make one class of two, and show the job that trains it."""
    form = await read_form(request)
    context.reader.check_queue(caller.tenant)
    job = await while_connected(
        request,
        lambda gone: merge_classes(
            context.store_of(caller),
            context.files,
            context.queue,
            context.settings,
            model,
            version,
            name=form.exact("name"),
            classes=[form.exact("first"), form.exact("second")],
            alias=None,
            created_by=caller.id,
            read=lambda order: context.reader.read(order, RevisionContent, gone, Caller.of(caller)),
        ),
    )
    return see(f"/ui/jobs/{job.id}", tenant=tenant)


@router.post("/ui/models/{model}/versions/{version}/delete")
async def delete_version(
    model: ModelName, version: VersionNumber, context: Context, caller: Trainer, tenant: Name = ""
) -> Response:
    """Delete a version to which no alias points."""
    await run_in_threadpool(models.delete_version, context.store_of(caller), model, version)
    await context.refresher.refresh(qualified(caller.tenant, model))
    return see("/ui/models", tenant=tenant, done="delete")


def means_of(version: ModelVersion) -> dict[str, Any]:
    """Mean metrics of the students that answer queries; empty without a test part."""
    means: dict[str, Any] = version.metrics.get("means", {}).get(version.method, {})
    return means


def differences(store: Store, source: ModelVersion | None, target: ModelVersion) -> list[dict[str, Any]]:
    """Each measure of two versions. error: standard error of the change; None if it is not known.

    better: whether the target's is better; None if that is unknown or may be chance (`is_noise`).
    """
    old, new = {} if source is None else means_of(source), means_of(target)
    errors = {} if source is None else mean_errors(store, source, target)
    rows = []
    for name, title in MEASURES:
        before, after = old.get(name), new.get(name)
        if before is None and after is None:
            continue
        change = None if before is None or after is None else after - before
        error = errors.get(name)
        better = None if not change or is_noise(change, error) else (change < 0) == (name == "brier")
        rows.append(
            {"title": title, "before": before, "after": after, "change": change, "error": error}
            | {"better": better}
        )
    return rows


def _alias(context: Context, caller: Reader, model: str, alias: str) -> Alias | None:
    try:
        return models.get_alias(context.store_of(caller), model, alias)
    except NotFound:
        return None
