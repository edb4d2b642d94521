"""``/v1/training-jobs``: submit, read, follow, cancel, retry and delete training jobs."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
import zlib
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request, Response
from pydantic import ConfigDict

from app.api.border import BorderRoute
from app.api.dependencies import AppContext, Context, Trainer
from app.api.etags import etag, unless_known
from app.api.paging import After, AfterNumber, Limit, Moment, Page, page_of
from app.api.schemas import Body, JobView, SubmitJob, View
from app.api.sse import last_event_id
from app.auth.authenticator import authorise_priority
from app.domain.entities import ApiKey, Event, Job, JobState, Json, StudentRow
from app.domain.job_share import share_done
from app.domain.names import MODEL_NAME
from app.services import curves, retention, training
from app.services.class_table import class_table
from app.store.repositories.students import ORDERS

router = APIRouter(prefix="/v1/training-jobs", tags=["training jobs"], route_class=BorderRoute)

JobId = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
_METHOD = r"^[a-z0-9+_-]+$"
_TEXT = r"^[^\x00-\x1f]*$"
Method = Annotated[str | None, Query(max_length=16, pattern=_METHOD)]
IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=255,
        pattern=r"^[\x21-\x7e]+$",
        description="Repeats with the same key and body return the same job; another body gives 422.",
    ),
]
POLL_AFTER = "1"
"""Retry-After of unfinished jobs, in seconds."""


@router.post("", status_code=202)
def submit_job(
    body: SubmitJob,
    response: Response,
    context: Context,
    caller: Trainer,
    idempotency_key: IdempotencyKey = None,
) -> JobView:
    """Train a teacher and one student per class on a data set, and publish them as a version of a model."""
    authorise_priority(caller, body.priority)
    job, created = training.submit_job(
        context.store_of(caller),
        context.queue,
        dataset_id=body.dataset_id,
        model=body.model,
        spec=body.hyperparameters,
        priority=body.priority,
        created_by=caller.id,
        idempotency_key=idempotency_key,
        body_digest=body_digest(body),
        settings=context.settings,
    )
    if not created:
        response.headers["idempotency-replayed"] = "true"
    return accepted(job, response)


@router.get("")
def list_jobs(
    request: Request,
    response: Response,
    context: Context,
    caller: Trainer,
    status: Annotated[list[JobState] | None, Query(description="Only jobs in these states.")] = None,
    state: Annotated[list[JobState] | None, Query(description="The same as status.")] = None,
    model: Annotated[str | None, Query(max_length=100, pattern=MODEL_NAME)] = None,
    created_by: Annotated[
        str | None, Query(max_length=100, pattern=_TEXT, description="Id of an API key.")
    ] = None,
    since: Moment = None,
    limit: Limit = 100,
    after: After = None,
) -> Page[JobView]:
    """All jobs, newest first."""
    jobs, has_more = training.list_jobs(
        context.listed_store(request, caller),
        limit=limit,
        after=after,
        states=[*(status or ()), *(state or ())],
        model=model,
        created_by=created_by,
        since=since,
    )
    workers = training.workers_of(context.listed_store(request, caller), jobs)
    return page_of(request, response, [JobView.of_job(job, workers[job.id]) for job in jobs], has_more)


class TracePointView(View):
    """The last evaluation of one point of a grid.

    margin: ε. floor: ϵ. A further field balance: β, where it is not 0. folds: number of folds evaluated.
    score: the metric, in [0, 1], with its standard error over the folds. gap: largest relative duality gap of
    the fits. seconds: total time of the fits.
    """

    model_config = ConfigDict(extra="allow")

    C: float
    margin: float
    floor: float
    folds: int
    score: float
    standard_error: float
    gap: float
    seconds: float


class LearnerPointView(View):
    """One point of a learner with other hyper-parameters, which are further fields beside the measures."""

    model_config = ConfigDict(extra="allow")

    folds: int
    score: float
    standard_error: float
    gap: float
    seconds: float


class SizePointView(View):
    """One size of a compact student, and its F1 in [0, 1] on held-out folds."""

    n_landmarks: int
    f1: float


class FamilyPointView(View):
    """A family of students with its settings, and its F1 in [0, 1] on held-out folds.

    left_out: why it was not compared; null if it was.
    """

    family: str
    params: Json
    f1: float | None
    seconds: float
    left_out: str | None


class TraceView(View):
    """The search for a student. points: in the order of the grid or of comparison, or by ascending size."""

    job_id: str
    class_index: int
    label: str
    method: str
    chosen: Json
    points: list[TracePointView] | list[FamilyPointView] | list[SizePointView] | list[LearnerPointView]


class JobCounts(View):
    """Numbers of jobs by state."""

    counts: dict[JobState, int]


@router.get("/counts")
def count_jobs(request: Request, context: Context, caller: Trainer) -> JobCounts:
    """How many jobs are in each state."""
    return JobCounts(counts=training.count_jobs(context.listed_store(request, caller)))


@router.get("/{job_id}", response_model=JobView)
def get_job(job_id: JobId, request: Request, response: Response, context: Context, caller: Trainer) -> Any:
    """One job: state, times, progress, hyper-parameters and provenance."""
    job = training.get_job(context.store_of(caller), job_id)
    workers = training.workers_of(context.store_of(caller), [job])[job.id]
    # The workers of a job, and what is done of it, change without a change of its row.
    changing = [f"{zlib.crc32(' '.join(workers).encode()):08x}"] if workers else []
    if job.state is JobState.RUNNING:
        changing.append(f"{100.0 * share_done(job, time.time()):.0f}")
    tag = etag(job.revision, *changing)
    again = {} if job.state.ended else {"retry_after": POLL_AFTER}
    return unless_known(request, response, tag, lambda: JobView.of_job(job, workers), **again)


@router.get(
    "/{job_id}/events",
    response_model=Page[Event],
    responses={
        200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}},
        204: {"description": "Of a stream: the job has ended, and the client has received its last event."},
    },
)
def list_job_events(
    job_id: JobId,
    request: Request,
    response: Response,
    context: Context,
    caller: Trainer,
    limit: Limit = 1000,
    after: AfterNumber = None,
    last_event: Annotated[
        str | None, Header(alias="last-event-id", json_schema_extra={"pattern": "^[0-9]{0,9}$"})
    ] = None,
) -> Any:
    """Events of a job: a page of JSON, or a stream for clients that accept ``text/event-stream``.

    A stream resumes after Last-Event-ID (or ``after``), and is closed when the job has ended.
    """
    last_seen = last_event_id(last_event)
    seen = last_seen if after is None else after
    if "text/event-stream" in request.headers.get("accept", ""):
        return _stream(context, caller, job_id, max(seen, 0))
    page, has_more = training.job_events(context.store_of(caller), job_id, after=max(seen, 0), limit=limit)
    return page_of(request, response, page, has_more)


@router.get("/{job_id}/students")
def list_job_students(
    job_id: JobId,
    request: Request,
    response: Response,
    context: Context,
    caller: Trainer,
    limit: Annotated[int, Query(ge=1, le=1000, description="Most classes in one page.")] = 100,
    after: AfterNumber = None,
    method: Method = None,
    sort: Annotated[
        str | None,
        Query(
            pattern=f"^-?({'|'.join(ORDERS)})$",
            description=f"One of {', '.join(ORDERS)}, with a minus sign descending.",
        ),
    ] = None,
    label: Annotated[
        str | None, Query(max_length=400, description="Only classes whose label contains this, in any case.")
    ] = None,
) -> Page[StudentRow]:
    """The students of a job, one row for each class and method, ordered by class.

    With ``sort`` or ``label`` they are the trained students of one method, by default the served one;
    ``after`` is then the number of rows to skip.
    """
    if sort is not None or label is not None:
        store, job = context.store_of(caller), training.get_job(context.store_of(caller), job_id)
        skipped = max(after or 0, 0)
        table = class_table(
            store,
            job,
            method=method,
            order=(sort or "class").removeprefix("-"),
            descending=(sort or "").startswith("-"),
            search=label or "",
            limit=limit,
            offset=skipped,
        )
        seen = skipped + len(table.rows)
        return page_of(request, response, table.rows, seen < table.total, lambda _: seen)
    start = -1 if after is None else after
    rows, has_more = training.job_students(
        context.store_of(caller), job_id, after=start, limit=limit, method=method
    )
    return page_of(request, response, rows, has_more)


@router.get("/{job_id}/students/{class_index}/{method}/trace")
def get_student_trace(
    job_id: JobId,
    class_index: Annotated[int, Path(ge=0, le=2**31 - 1, description="Number of the class.")],
    method: Annotated[str, Path(max_length=16, pattern=_METHOD)],
    context: Context,
    caller: Trainer,
) -> TraceView:
    """The search for the hyper-parameters of a student, or for the size of a compact student."""
    return TraceView.of(training.student_trace(context.store_of(caller), job_id, class_index, method))


class CurveView(View):
    """What a student would answer at other thresholds, on the test part, by descending threshold.

    At ``thresholds[i]`` it accepts ``tp[i]`` of the ``positives`` rows of its class and ``fp[i]`` of the
    ``negatives`` others. The points are exact, at most 201 of the ROC curve; the threshold in use is one.
    """

    job_id: str
    class_index: int
    method: str
    positives: int
    negatives: int
    thresholds: list[float]
    tp: list[int]
    fp: list[int]


@router.get("/{job_id}/students/{class_index}/{method}/curve")
def get_student_curve(
    job_id: JobId,
    class_index: Annotated[int, Path(ge=0, le=2**31 - 1, description="Number of the class.")],
    method: Annotated[str, Path(max_length=16, pattern=_METHOD)],
    context: Context,
    caller: Trainer,
) -> CurveView:
    """The ROC curve of a student, or of the teacher, on the test part."""
    found = curves.student_curve(context.store_of(caller), job_id, class_index, method)
    about = {"job_id": job_id, "class_index": class_index, "method": method}
    return CurveView.model_validate(dataclasses.asdict(found) | about)


@router.delete("/{job_id}", status_code=204)
def delete_job(job_id: JobId, context: Context, caller: Trainer) -> None:
    """Delete an ended job that published no version, with its students and events."""
    retention.delete_job(context.store_of(caller), job_id)


@router.post("/{job_id}/cancel", status_code=202)
def cancel_job(job_id: JobId, response: Response, context: Context, caller: Trainer) -> JobView:
    """Stop a job. Its finished students are kept."""
    return accepted(training.cancel_job(context.store_of(caller), context.queue, job_id), response)


@router.post("/{job_id}/retry", status_code=202)
def retry_job(job_id: JobId, response: Response, context: Context, caller: Trainer) -> JobView:
    """Queue a failed, cancelled or partly successful job again; only missing students are trained."""
    return accepted(
        training.retry_job(context.store_of(caller), context.queue, job_id, context.settings), response
    )


def accepted(job: Job, response: Response) -> JobView:
    """The answer to a request that has changed a job, with its headers."""
    response.headers["location"] = f"/v1/training-jobs/{job.id}"
    response.headers["etag"] = etag(job.revision)
    if not job.state.ended:
        response.headers["retry-after"] = POLL_AFTER
    return JobView.of_job(job)


def body_digest(body: Body, model: str = "") -> str:
    """Digest of the request's meaning: white space and explicit defaults do not change it.

    model: named in the path.
    """
    text = model + json.dumps(body.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _stream(context: AppContext, caller: ApiKey, job_id: str, after: int) -> Any:
    context.event_streams.require_capacity(caller.id)
    store = context.store_of(caller)
    # The state is read first: a job that has ended stores no further events.
    ended = training.get_job(store, job_id).state.ended
    page, has_more = training.job_events(store, job_id, after=after)
    if not page and ended:
        # 204 tells an EventSource not to come back.
        return Response(status_code=204)
    return context.event_streams.response(caller.id, job_id, after, (page, ended and not has_more))
