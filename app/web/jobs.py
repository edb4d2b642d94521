"""Pages of training jobs: the list, and one job with its classes while it runs."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from app.api.border import BorderRoute
from app.api.dependencies import AppContext, Context, Trainer, parameters_of
from app.api.jobs import JobId
from app.domain.entities import ApiKey, Job, JobState
from app.domain.errors import Conflict, InputFault, InvalidRequest, NotFound
from app.domain.event_text import describe_event
from app.domain.job_share import estimated_finish, share_done
from app.services import datasets, retention, training
from app.services.class_table import MAX_OFFSET, PAGE_ROWS, ClassTable, class_table
from app.services.keys import key_names
from app.store.unit_of_work import Store
from app.web import advice
from app.web.charts import histogram_bars
from app.web.column_kinds import said_kinds
from app.web.forms import read_form, see
from app.web.rendering import page, shared_fragment

router = APIRouter(route_class=BorderRoute)

STAGES: Final = ("Waiting", "Teacher", "Students", "Done")
_UNFINISHED: Final = (JobState.RUNNING, JobState.CANCELLING, JobState.QUEUED)
_BROKEN: Final = (JobState.FAILED, JobState.PARTIALLY_SUCCEEDED)
_JOBS: Final = 50
_FIRST: Final = 100
_MARKED: Final = 250
_EVENTS: Final = 12
_DAY: Final = 86400.0

States = Annotated[list[JobState] | None, Query(alias="state")]
Text = Annotated[str, Query(max_length=400)]
Name = Annotated[str, Query(max_length=100)]
Skipped = Annotated[int, Query(ge=0, le=MAX_OFFSET)]


@dataclass(frozen=True, slots=True)
class JobFilters:
    """Which jobs are listed: in these states, of a model, by a key; those after a job."""

    state: States = None
    model: Name = ""
    created_by: Name = ""
    after: Name = ""

    @property
    def equal(self) -> dict[str, Any]:
        """What the fields of a job must be; None for anything."""
        return {"model": self.model or None, "created_by": self.created_by or None}

    def listed(self, store: Store, limit: int) -> tuple[Sequence[Job], bool]:
        """At most ``limit`` jobs, newest first, and whether more follow."""
        after = self.after or None
        return training.list_jobs(store, limit=limit, after=after, states=self.state or [], **self.equal)


@dataclass(frozen=True, slots=True)
class ClassesView:
    """Which classes of a job are listed, and in which order, as the API's list of students.

    sort: one of `ORDERS`, with a minus sign descending. label: text in their labels. after: rows to skip.
    """

    method: Name = ""
    sort: Name = "failed"
    label: Text = ""
    after: Skipped = 0

    @property
    def order(self) -> str:
        """What the classes are sorted by."""
        return self.sort.removeprefix("-")

    @property
    def is_descending(self) -> bool:
        """Whether the largest come first."""
        return self.sort.startswith("-")

    def table(self, store: Store, job: Job) -> ClassTable:
        """One page of classes."""
        return class_table(
            store,
            job,
            method=self.method or None,
            order=self.order,
            descending=self.is_descending,
            search=self.label,
            offset=self.after,
        )


Filters = Annotated[JobFilters, Depends(parameters_of(JobFilters))]
View = Annotated[ClassesView, Depends(parameters_of(ClassesView))]


@router.get("/ui/jobs")
def jobs_page(
    request: Request,
    context: Context,
    caller: Trainer,
    filters: Filters,
) -> Response:
    """All jobs: those in progress and those that have failed lately first."""
    return page(request, "jobs.html", **_jobs(request, context, caller, filters))


@router.get("/ui/fragments/jobs")
async def jobs_fragment(
    request: Request,
    context: Context,
    caller: Trainer,
    filters: Filters,
) -> Response:
    """The part of `jobs_page` that changes."""
    return await shared_fragment(request, "jobs_part.html", lambda: _jobs(request, context, caller, filters))


@router.get("/ui/jobs/{job_id}")
def job_page(
    job_id: JobId,
    request: Request,
    context: Context,
    caller: Trainer,
    view: View,
) -> Response:
    """One job: its state, its classes as they arrive, and what happened."""
    job = training.get_job(context.store_of(caller), job_id)
    return page(request, "job.html", **_job(context, caller, job), **_classes(context, caller, job, view))


@router.get("/ui/fragments/jobs/{job_id}")
async def job_fragment(job_id: JobId, request: Request, context: Context, caller: Trainer) -> Response:
    """State, progress and events of a job."""
    store = context.store_of(caller)
    return await shared_fragment(
        request, "job_part.html", lambda: _job(context, caller, training.get_job(store, job_id))
    )


@router.get("/ui/fragments/jobs/{job_id}/classes")
async def classes_fragment(
    job_id: JobId,
    request: Request,
    context: Context,
    caller: Trainer,
    view: View,
) -> Response:
    """The table of a job's classes."""

    def values() -> dict[str, Any]:
        job = training.get_job(context.store_of(caller), job_id)
        return {"job": job} | _classes(context, caller, job, view)

    return await shared_fragment(request, "classes_part.html", values)


@router.post("/ui/jobs/several")
async def several(request: Request, context: Context, caller: Trainer, tenant: Name = "") -> Response:
    """Cancel or delete the marked jobs, each as on its own page, and say which could not be."""
    form = await read_form(request)
    action, job_ids = form.text("do"), list(dict.fromkeys(form.all("job")))
    store = context.store_of(caller)
    actions: dict[str, Callable[[str], object]] = {
        "cancel": lambda job_id: training.cancel_job(store, context.queue, job_id),
        "delete": lambda job_id: retention.delete_job(store, job_id),
    }
    are_ids = all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", job_id) for job_id in job_ids)
    if action not in actions or not are_ids or not 0 < len(job_ids) <= _MARKED:
        message = f"Mark 1 to {_MARKED} jobs in the list, then choose what to do with them."
        raise InvalidRequest(message, code="not_marked", faults=[InputFault("job", "not_marked", message)])
    failed = await run_in_threadpool(_each, actions[action], job_ids)
    if failed:
        values = {"action": action, "failed": failed, "count": len(job_ids)}
        return page(request, "several.html", 409, **values)
    return see("/ui/jobs", tenant=tenant, done=f"{action}-several")


def _each(action: Callable[[str], object], job_ids: Sequence[str]) -> list[tuple[str, str]]:
    """Do this with each job; returns those with which it could not be done, and why."""
    failed = []
    for job_id in job_ids:
        try:
            action(job_id)
        except (NotFound, Conflict) as error:
            failed.append((job_id, error.message))
    return failed


@router.post("/ui/jobs/{job_id}/cancel")
async def cancel(job_id: JobId, context: Context, caller: Trainer, tenant: Name = "") -> Response:
    """Stop a job."""
    await run_in_threadpool(training.cancel_job, context.store_of(caller), context.queue, job_id)
    return see(f"/ui/jobs/{job_id}", tenant=tenant, done="cancel")


@router.post("/ui/jobs/{job_id}/retry")
async def retry(job_id: JobId, context: Context, caller: Trainer, tenant: Name = "") -> Response:
    """Queue an ended job again."""
    store, settings = context.store_of(caller), context.settings
    await run_in_threadpool(training.retry_job, store, context.queue, job_id, settings)
    return see(f"/ui/jobs/{job_id}", tenant=tenant, done="retry")


@router.post("/ui/jobs/{job_id}/delete")
async def delete(job_id: JobId, context: Context, caller: Trainer, tenant: Name = "") -> Response:
    """Delete an ended job without a version."""
    await run_in_threadpool(retention.delete_job, context.store_of(caller), job_id)
    return see("/ui/jobs", tenant=tenant, done="delete")


def _jobs(request: Request, context: AppContext, caller: ApiKey, filters: Filters) -> dict[str, Any]:
    store = context.listed_store(request, caller)
    states, equal = filters.state or [], filters.equal
    first: list[Job] = []
    if not states and not filters.after:
        unfinished, _ = training.list_jobs(store, limit=_FIRST, states=_UNFINISHED, **equal)
        since = time.time() - _DAY
        broken, _ = training.list_jobs(store, limit=_FIRST, states=_BROKEN, since=since, **equal)
        order = {state: rank for rank, state in enumerate((*_BROKEN, *_UNFINISHED))}
        first = sorted([*broken, *unfinished], key=lambda job: order[job.state])
    listed, has_more = filters.listed(store, _JOBS)
    known = {job.id for job in first}
    jobs = [*first, *(job for job in listed if job.id not in known)]
    return {
        "jobs": jobs,
        "first": len(first),
        "workers": training.workers_of(store, jobs),
        "finish": {job.id: estimated_finish(job, time.time()) for job in jobs},
        "shares": {job.id: share_done(job, time.time()) for job in jobs},
        "counts": training.count_jobs(store),
        "names": key_names(store, (job.created_by for job in jobs)),
        "next": listed[-1].id if has_more else None,
        "filters": {
            "state": [state.value for state in states],
            "model": filters.model,
            "created_by": filters.created_by,
        },
        "after": filters.after,
    }


def _job(context: AppContext, caller: ApiKey, job: Job) -> dict[str, Any]:
    store = context.store_of(caller)
    events = training.last_events(store, job.id, limit=_EVENTS)
    lines = [(event, describe_event(event.type, event.data)) for event in events]
    return {
        "job": job,
        "names": key_names(store, [job.created_by]),
        "dataset_name": datasets.dataset_name(store, job.dataset_id),
        "kinds": said_kinds(job.spec),
        "stages": STAGES,
        "stage": _stage(job),
        "workers": training.workers_of(store, [job])[job.id],
        "finish": estimated_finish(job, time.time()),
        "share": share_done(job, time.time()),
        "elapsed": _elapsed(job),
        "events": [(event, line) for event, line in lines if line],
        "warnings": job.warnings,
        "job_advice": advice.for_job(job.error_code),
        "retriable": job.state in training.RETRIABLE,
    }


def _stage(job: Job) -> int:
    """The number of the stage in `STAGES` that the job has reached."""
    if job.state is JobState.QUEUED:
        return 0
    if job.state.ended:
        return len(STAGES) - 1
    return 2 if job.stage == "students" else 1


def _elapsed(job: Job) -> float | None:
    if job.started_at is None:
        return None
    ends = job.finished_at or 60.0 * (time.time() // 60.0)
    return max(0.0, ends - job.started_at)


def _classes(context: AppContext, caller: ApiKey, job: Job, view: View) -> dict[str, Any]:
    table = view.table(context.store_of(caller), job)
    return {
        "table": table,
        "bars": histogram_bars(table.histogram),
        "measured": sum(table.histogram),
        "pages": max(1, -(-table.total // PAGE_ROWS)),
        "page_number": 1 + view.after // PAGE_ROWS,
        "page_rows": PAGE_ROWS,
        "after": view.after,
        "order": view.order,
        "is_descending": view.is_descending,
        "view": {"method": view.method, "sort": view.sort, "label": view.label},
    }
