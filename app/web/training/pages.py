"""The form for a training job on a data set, empty or with the hyper-parameters of another job."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response
from pydantic import StringConstraints
from starlette.concurrency import run_in_threadpool

from app.api.border import BorderRoute
from app.api.datasets import DatasetId
from app.api.dependencies import AppContext, Context, Trainer
from app.api.jobs import JobId
from app.auth.authenticator import authorise_priority
from app.domain.entities import ApiKey, Dataset, Job, Json, Priority
from app.domain.errors import InputFault, InvalidRequest, ServiceError
from app.domain.parameter_faults import parameter_faults
from app.domain.spec_changes import changes
from app.domain.training_spec import TrainingSpec
from app.http.problem import problem_of
from app.services import datasets, training
from app.web.column_kinds import MOST_COLUMNS, chosen_kinds, said_kinds
from app.web.forms import read_form, see
from app.web.rendering import base_address, page
from app.web.training.fields import by_field, groups, read_fields, texts_of
from app.web.training.snippets import snippets

router = APIRouter(route_class=BorderRoute)

_LONGEST_KIND: Final = 1000

Name = Annotated[str, Query(max_length=100)]
Kinds = Annotated[
    list[Annotated[str, StringConstraints(max_length=_LONGEST_KIND)]] | None, Query(max_length=MOST_COLUMNS)
]


@dataclass(frozen=True, slots=True)
class Filled:
    """What the form holds.

    texts: of the hyper-parameters, by name. values: their meaning. once: the same in all copies of one form.
    """

    model: str
    priority: str
    texts: Mapping[str, str]
    values: Json
    once: str = field(default_factory=lambda: secrets.token_hex(16))


@router.get("/ui/datasets/{dataset_id}/train")
def train_page(
    dataset_id: DatasetId, request: Request, context: Context, caller: Trainer, kinds: Kinds = None
) -> Response:
    """The form for a job on a data set. kinds: of some columns, as they were chosen on its page."""
    dataset = datasets.get_dataset(context.store_of(caller), dataset_id)
    values: Json = {}
    if chosen := chosen_kinds(kinds or ()):
        values["inputs"] = {"columns": {name: {"kind": kind} for name, kind in chosen.items()}}
    return _form(request, context, dataset, Filled(_model_name(dataset), "normal", texts_of(values), values))


@router.get("/ui/jobs/{job_id}/clone")
def clone_page(job_id: JobId, request: Request, context: Context, caller: Trainer) -> Response:
    """The form with the hyper-parameters of a job."""
    store = context.store_of(caller)
    job = training.get_job(store, job_id)
    dataset = datasets.get_dataset(store, job.dataset_id)
    values = changes(job.spec)
    filled = Filled(job.model, job.priority.value, texts_of(values), values)
    return _form(request, context, dataset, filled, job=job)


@router.post("/ui/datasets/{dataset_id}/train")
async def submit(
    dataset_id: DatasetId, request: Request, context: Context, caller: Trainer, tenant: Name = ""
) -> Response:
    """Submit the job, or show the form again with what is wrong or with the commands that do the same."""
    form = await read_form(request)
    store = context.store_of(caller)
    dataset = await run_in_threadpool(datasets.get_dataset, store, dataset_id)
    texts, values = read_fields(form)
    filled = Filled(
        form.text("model"), form.text("priority") or "normal", texts, values, form.text("once") or "none"
    )
    if form.text("show"):
        return await run_in_threadpool(_form, request, context, dataset, filled, parameter_faults(values))
    try:
        job = await run_in_threadpool(_submitted, context, caller, dataset, filled)
    except ServiceError as error:
        faults = error.faults or [InputFault("", error.reason, error.message)]
        return await run_in_threadpool(
            _form, request, context, dataset, filled, faults, status=problem_of(error).status
        )
    return see(f"/ui/jobs/{job.id}", tenant=tenant, done="submit")


def _submitted(context: AppContext, caller: ApiKey, dataset: Dataset, filled: Filled) -> Job:
    """Submit the job; the same form sent twice is one job. Raises as `training.submit_job`."""
    faults = parameter_faults(filled.values)
    if filled.priority not in set(Priority):
        faults.append(InputFault("", "unknown_choice", "The priority is low, normal or high."))
    if faults:
        raise InvalidRequest("Some fields cannot be used.", faults=faults)
    priority = Priority(filled.priority)
    authorise_priority(caller, priority)
    body = [dataset.id, filled.model, filled.values, filled.priority]
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    job, _ = training.submit_job(
        context.store_of(caller),
        context.queue,
        dataset_id=dataset.id,
        model=filled.model,
        spec=TrainingSpec.model_validate(filled.values),
        priority=priority,
        created_by=caller.id,
        idempotency_key=f"page-{filled.once[:32]}-{digest[:32]}",
        body_digest=digest,
        settings=context.settings,
    )
    return job


def _form(
    request: Request,
    context: AppContext,
    dataset: Dataset,
    filled: Filled,
    faults: Sequence[InputFault] = (),
    *,
    job: Job | None = None,
    status: int = 200,
) -> Response:
    beside, others = by_field(faults)
    base = base_address(request, context)
    return page(
        request,
        "data/train.html",
        400 if faults and status == 200 else status,
        dataset=dataset,
        job=job,
        filled=filled,
        kinds=said_kinds(filled.values),
        groups=groups(),
        beside=beside,
        others=others,
        priorities=[one.value for one in Priority],
        snippets=snippets(base, dataset.id, filled.model, filled.values, filled.priority),
    )


def _model_name(dataset: Dataset) -> str:
    """A name for the model, made from that of the data set."""
    return re.sub(r"[^a-z0-9]+", "-", dataset.name.lower()).strip("-")[:60].strip("-") or "model"
