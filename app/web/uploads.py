"""Data sets from the browser: the form for a file, and the example."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from app.api import datasets
from app.api.border import BorderRoute
from app.api.dependencies import Context, Trainer
from app.domain.errors import InvalidRequest
from app.ingest.reading import DatasetContent
from app.processes.fair_queue import Caller
from app.services.example_data import register_example
from app.web.forms import see

router = APIRouter(route_class=BorderRoute)
streamed = APIRouter(include_in_schema=False, route_class=BorderRoute)
"""Routes whose bodies are written to disk as they arrive, with the limits of uploads."""

PATH = "/ui/datasets"

Name = Annotated[str, Query(max_length=100)]


@streamed.post(PATH)
async def upload(request: Request, context: Context, caller: Trainer, tenant: Name = "") -> Response:
    """Take the file of the form as the API takes uploads, and show the data set."""
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise InvalidRequest("The form holds no file.", code="no_file")
    dataset, created = await datasets.receive_dataset(request, context, caller, {})
    return see(f"{PATH}/{dataset.id}", tenant=tenant, done="upload" if created else "known")


@router.post(f"{PATH}/example")
async def example(context: Context, caller: Trainer, tenant: Name = "") -> Response:
    """Store the example data set, and show it."""
    context.reader.check_queue(caller.tenant)
    dataset, created = await run_in_threadpool(
        register_example,
        context.store_of(caller),
        context.files,
        created_by=caller.id,
        limits=context.settings,
        read=lambda order: context.reader.read(order, DatasetContent, lambda: False, Caller.of(caller)),
    )
    return see(f"{PATH}/{dataset.id}", tenant=tenant, done="upload" if created else "known")
