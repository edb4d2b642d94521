"""``…/aliases/{alias}/monitor`` and ``/v1/feedback``: answers that people are asked about, what they say."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from app.api.border import BorderRoute
from app.api.datasets import registered_view
from app.api.dependencies import Context, Reader, Trainer
from app.api.etags import CONDITIONS, etag, expected_revision
from app.api.models import AliasText, ModelName
from app.api.paging import After, Limit, Page, page_of
from app.api.schemas import Body, DatasetView, View
from app.api.uploads import while_connected
from app.auth.authenticator import authorise
from app.domain.entities import Caller
from app.domain.installation import require_training
from app.domain.monitors import (
    MAX_FEEDBACK,
    FeedbackItem,
    FeedbackResults,
    Label,
    Monitor,
    MonitorSettings,
    SampleView,
)
from app.domain.names import DISPLAY_NAME, qualified
from app.domain.performance import Acknowledged, Acknowledgement, Performance
from app.domain.review import MAX_REVIEWED, Review
from app.ingest.orders import DatasetContent
from app.services import monitors, performance, review
from app.services.feedback import give_feedback as store_feedback

router = APIRouter(prefix="/v1/models", tags=["monitors"], route_class=BorderRoute)
feedback_router = APIRouter(prefix="/v1/feedback", tags=["monitors"], route_class=BorderRoute)

OfClass = Annotated[Label | None, Query(alias="class", description="Label of the only class to tell of.")]


@router.get("/{model}/aliases/{alias}/monitor")
def get_monitor(
    model: ModelName, alias: AliasText, response: Response, context: Context, caller: Reader
) -> Monitor:
    """The monitor of an alias; changing it requires its ETag."""
    authorise(caller, "query", model)
    found = monitors.get_monitor(context.store_of(caller), model, alias)
    # Its counts change without its revision.
    response.headers.update({"etag": etag(found.revision), "cache-control": "no-cache"})
    return found


@router.put("/{model}/aliases/{alias}/monitor", openapi_extra={"parameters": CONDITIONS})
async def put_monitor(
    model: ModelName,
    alias: AliasText,
    body: MonitorSettings,
    request: Request,
    response: Response,
    context: Context,
    caller: Trainer,
) -> Monitor:
    """Say what an alias promises in production, and which of its answers people are asked about.

    From now on some answers of the version that the alias points to are samples, whichever way it is asked
    for: their responses have the header ``X-Sample-Id``. A query with ``X-Sample: no`` is not sampled. What
    is kept of a sample is not its row, but model, class, score, probability, answer, time and request id.
    Nothing from before a change counts, nor from before the alias moved to another version.

    If-Match names the revision that was read, as for aliases.
    """
    monitor = await run_in_threadpool(
        monitors.put_monitor,
        context.store_of(caller),
        context.files,
        context.settings,
        model,
        alias,
        body,
        expected_revision(request),
        caller.id,
    )
    await context.refresher.refresh(qualified(caller.tenant, model))
    response.headers["etag"] = etag(monitor.revision)
    return monitor


@router.delete(
    "/{model}/aliases/{alias}/monitor",
    status_code=204,
    openapi_extra={"parameters": [{**CONDITIONS[0], "required": True}]},
)
async def delete_monitor(
    model: ModelName, alias: AliasText, request: Request, context: Context, caller: Trainer
) -> None:
    """Delete a monitor with its samples and all feedback on them. If-Match names the revision."""
    expected = expected_revision(request)
    await run_in_threadpool(monitors.delete_monitor, context.store_of(caller), model, alias, expected)
    await context.refresher.refresh(qualified(caller.tenant, model))


@router.get("/{model}/aliases/{alias}/samples")
def list_samples(
    model: ModelName,
    alias: AliasText,
    request: Request,
    response: Response,
    context: Context,
    caller: Reader,
    label: OfClass = None,
    limit: Limit = 100,
    after: After = None,
) -> Page[SampleView]:
    """The samples without feedback, oldest first."""
    authorise(caller, "query", model)
    page, has_more = monitors.waiting_samples(
        context.store_of(caller), model, alias, label, limit=limit, after=after
    )
    return page_of(request, response, page, has_more)


@router.get("/{model}/aliases/{alias}/review")
def get_review(
    model: ModelName,
    alias: AliasText,
    context: Context,
    caller: Reader,
    label: OfClass = None,
    limit: Annotated[int, Query(ge=1, le=MAX_REVIEWED, description="Most samples.")] = 20,
) -> Review:
    """What people should look at next: the samples whose labels make the rates exact soonest come first.

    Samples of equal answers and similar probabilities come in an order that has nothing to do with what they
    are, so that rates stay right wherever people stop. ``row`` is there where the monitor stores rows.
    """
    authorise(caller, "query", model)
    return review.review(context.store_of(caller), model, alias, label, limit)


class ReviewDataset(Body):
    """A data set to make of reviewed rows."""

    name: str | None = Field(None, max_length=100, json_schema_extra={"pattern": DISPLAY_NAME})


class ReviewedDatasetView(View):
    """A data set of reviewed rows. left_out: how many rows were not taken, by reason."""

    dataset: DatasetView
    left_out: dict[str, int]


@router.post("/{model}/aliases/{alias}/review:dataset", status_code=201)
async def make_review_dataset(
    model: ModelName,
    alias: AliasText,
    body: ReviewDataset,
    request: Request,
    response: Response,
    context: Context,
    caller: Trainer,
) -> ReviewedDatasetView:
    """Make a data set of the sampled rows whose class people have given.

    To append it to another one, revise that one with it (``POST /v1/datasets/{dataset_id}/revisions``). The
    rows that were chosen for their answers are not distributed as queries are: do not measure on them.
    ``left_out`` counts the other rows by reason: nobody gave a class (``class_unknown``), people gave several
    (``contradiction``), the columns are not those of the other rows (``other_form``), or there were already
    20 000 rows or 256 MiB (``too_many``).
    """
    require_training()
    context.reader.check_queue(caller.tenant)
    store = context.store_of(caller)
    dataset, created, left_out = await while_connected(
        request,
        lambda gone: review.dataset_of_review(
            store,
            context.files,
            model,
            alias,
            name=body.name,
            created_by=caller.id,
            limits=context.settings,
            read=lambda order: context.reader.read(order, DatasetContent, gone, Caller.of(caller)),
        ),
    )
    view = await registered_view(response, store, dataset, created=created)
    return ReviewedDatasetView(dataset=view, left_out=left_out)


@router.get("/{model}/aliases/{alias}/performance")
def get_performance(
    model: ModelName,
    alias: AliasText,
    context: Context,
    caller: Reader,
    label: OfClass = None,
    days: Annotated[int, Query(ge=1, le=365, description="Whole days to look back.")] = 28,
) -> Performance:
    """How well an alias answers in production: rates from feedback on samples, and the promises.

    Rates cover the last ``days``, each with its interval and the method of that. The evidence against a
    promise covers all answers since the monitor's run began, and stays valid however often it is read.
    Without ``class`` the answer has the 100 classes whose promises are nearest to an alarm.
    """
    authorise(caller, "query", model)
    return performance.performance(context.store_of(caller), context.files, model, alias, days, label)


@router.post("/{model}/aliases/{alias}/monitor:acknowledge")
def acknowledge_alarms(
    model: ModelName, alias: AliasText, body: Acknowledgement, context: Context, caller: Trainer
) -> Acknowledged:
    """Say that alarms were seen: the evidence against their promises begins again with the next hour."""
    store = context.store_of(caller)
    return performance.acknowledge(store, model, alias, body.labels, body.note)


class GiveFeedback(Body):
    """Feedback on answers."""

    feedback: list[FeedbackItem] = Field(min_length=1, max_length=MAX_FEEDBACK)


@feedback_router.post("")
def give_feedback(body: GiveFeedback, context: Context, caller: Reader) -> FeedbackResults:
    """Say of answers whether they were right, or of which class their rows are.

    By the id of a sample, or by the id of a request with its row and class. Rates are made of feedback on
    samples alone: a report about another answer is kept apart. An item that cannot be accepted has a ``code``
    in its result, and the others are stored: ``unknown_sample``, ``ambiguous_request``, ``contradiction``,
    ``answer_required`` and ``too_many_reports``. The same feedback again changes nothing, and another one on
    the same answer takes the place of the first.
    """
    store, settings = context.store_of(caller), context.settings
    return store_feedback(store, settings, body.feedback, caller.id, models=caller.models)
