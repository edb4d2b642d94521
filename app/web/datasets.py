"""Pages of data sets."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from app.api.datasets import DatasetId
from app.api.dependencies import Context, Trainer
from app.services import datasets
from app.web.forms import see
from app.web.rendering import page

router = APIRouter()

_DATASETS: Final = 50
_CLASSES: Final = 100

Name = Annotated[str, Query(max_length=100)]


@router.get("/ui/datasets")
def datasets_page(request: Request, context: Context, caller: Trainer, after: Name = "") -> Response:
    """All data sets, newest first."""
    store = context.listed_store(request, caller)
    listed, has_more = datasets.list_datasets(store, limit=_DATASETS, after=after or None)
    return page(request, "datasets.html", datasets=listed, next=listed[-1].id if has_more else None)


@router.get("/ui/datasets/{dataset_id}")
def dataset_page(
    dataset_id: DatasetId,
    request: Request,
    context: Context,
    caller: Trainer,
    page_number: Annotated[int, Query(alias="page", ge=1, le=100_000)] = 1,
) -> Response:
    """One data set: its classes with their counts, and warnings."""
    dataset = datasets.get_dataset(context.store_of(caller), dataset_id)
    first = (page_number - 1) * _CLASSES
    counts = dataset.summary.get("class_counts", {})
    return page(
        request,
        "dataset.html",
        dataset=dataset,
        classes=[(label, counts.get(label)) for label in dataset.classes[first : first + _CLASSES]],
        largest=max(counts.values(), default=0),
        pages=max(1, -(-len(dataset.classes) // _CLASSES)),
        page_number=page_number,
    )


@router.post("/ui/datasets/{dataset_id}/delete")
async def delete(dataset_id: DatasetId, context: Context, caller: Trainer, tenant: Name = "") -> Response:
    """Delete a data set that no unfinished job uses."""
    await run_in_threadpool(datasets.delete_dataset, context.store_of(caller), dataset_id)
    return see("/ui/datasets", tenant=tenant, done="delete")
