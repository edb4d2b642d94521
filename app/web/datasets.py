"""Pages of data sets: the list, and one data set with its classes, columns and first rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from app.api.border import BorderRoute
from app.api.datasets import DatasetId
from app.api.dependencies import AppContext, Context, Trainer
from app.domain.entities import ApiKey, Dataset
from app.domain.errors import ServiceError
from app.domain.names import MAX_CLASS_NAME
from app.ingest.dataset_rows import StoredRow
from app.services import datasets
from app.services.keys import key_names
from app.web.charts import BAR_HEIGHT, SIDE, outline
from app.web.column_kinds import shown_columns
from app.web.forms import see
from app.web.rendering import page
from app.web.uploads import upload_form

router = APIRouter(route_class=BorderRoute)

_DATASETS: Final = 50
_CLASSES: Final = 100
_HISTOGRAMS: Final = 24
_ROWS: Final = 20
_ROW_COLUMNS: Final = 12
_SHOWN_LETTERS: Final = 80
"""Of the text of a cell."""
_SMALL_BYTES: Final = 64 * 10**6
"""Rows of larger files are shown when they are asked for: this server may have to fetch all of them first."""

Number = Annotated[int, Query(ge=1, le=100_000)]
Label = Annotated[str, Query(alias="class", max_length=MAX_CLASS_NAME)]
Name = Annotated[str, Query(max_length=100)]


@router.get("/ui/datasets")
def datasets_page(request: Request, context: Context, caller: Trainer, after: Name = "") -> Response:
    """All data sets, newest first."""
    store = context.listed_store(request, caller)
    listed, has_more = datasets.list_datasets(store, limit=_DATASETS, after=after or None)
    return page(
        request,
        "datasets.html",
        datasets=listed,
        next=listed[-1].id if has_more else None,
        **upload_form(context, {}, is_open=not listed),
    )


@router.get("/ui/datasets/{dataset_id}")
def dataset_page(
    dataset_id: DatasetId,
    request: Request,
    context: Context,
    caller: Trainer,
    after: Annotated[int, Query(ge=-1, le=2**31 - 1)] = -1,
    columns: Number = 1,
    label: Label = "",
    rows: bool = False,
) -> Response:
    """One data set: its classes with their counts, warnings, histograms of its columns and its first rows.

    after: number of the last class of the previous page. columns: page of the histograms. label: of the rows
    to show. rows: show rows also of a large data set.
    """
    store = context.store_of(caller)
    dataset = datasets.get_dataset(store, dataset_id)
    listed = datasets.dataset_classes(store, dataset_id, limit=_CLASSES, after=after)
    counts = dataset.summary.get("class_counts", {})
    return page(
        request,
        "dataset.html",
        dataset=dataset,
        names=key_names(store, [dataset.created_by]),
        classes=[(one, counts.get(one)) for one in listed],
        largest=max(counts.values(), default=0),
        pages=max(1, -(-dataset.class_count // _CLASSES)),
        page_number=1 + (after + 1) // _CLASSES,
        after=after,
        class_rows=_CLASSES,
        side=SIDE,
        bar_height=BAR_HEIGHT,
        label=label,
        **_columns(dataset, columns),
        **_rows(context, caller, dataset, label, is_wanted=rows or bool(label)),
    )


@router.post("/ui/datasets/{dataset_id}/delete")
async def delete(dataset_id: DatasetId, context: Context, caller: Trainer, tenant: Name = "") -> Response:
    """Delete a data set that no unfinished job uses."""
    await run_in_threadpool(datasets.delete_dataset, context.store_of(caller), dataset_id)
    return see("/ui/datasets", tenant=tenant, done="delete")


def _columns(dataset: Dataset, number: int) -> dict[str, Any]:
    """One page of the first columns of numbers, with their ranges and histograms."""
    features = dataset.summary.get("features", [])
    drawn = sum("counts" in column for column in features)
    first = (number - 1) * _HISTOGRAMS
    listed = [
        column | {"number": first + place, "outline": outline(column["counts"])}
        for place, column in enumerate(features[first : min(first + _HISTOGRAMS, drawn)])
    ]
    return {
        "schema": shown_columns(dataset.summary, is_stored=True),
        "features": listed,
        "drawn": drawn,
        "columns_page": number,
        "columns_pages": max(1, -(-drawn // _HISTOGRAMS)),
    }


def _rows(
    context: AppContext, caller: ApiKey, dataset: Dataset, label: str, *, is_wanted: bool
) -> dict[str, Any]:
    """The first rows with their first columns. rows: None if they are not asked for. rows_error: why not."""
    values: dict[str, Any] = {"rows": None, "rows_error": None, "heads": column_heads(dataset, ())}
    if not is_wanted and dataset.size_bytes > _SMALL_BYTES:
        return values
    store = context.store_of(caller)
    try:
        rows, _ = datasets.stored_rows(store, context.files, dataset, label=label or None, limit=_ROWS)
    except ServiceError as error:
        return values | {"rows_error": error.message}
    classes = datasets.class_names(store, dataset.id, {row.code for row in rows})
    listed = [(row.number, classes.get(row.code), first_values(dataset, row)) for row in rows]
    return values | {"rows": listed, "heads": column_heads(dataset, rows)}


def column_heads(dataset: Dataset, rows: Sequence[StoredRow]) -> list[Any]:
    """The names of the first columns of some rows, or their numbers where they have none."""
    shown = min(dataset.columns, _ROW_COLUMNS)
    if rows and rows[0].is_record:
        return list(islice(rows[0].x, shown))
    names = [column.get("name") for column in dataset.summary.get("features", [])]
    return [names[k] if k < len(names) and names[k] is not None else k for k in range(shown)]


def first_values(dataset: Dataset, row: StoredRow) -> list[Any]:
    """The first values of a row, those that a sparse row leaves out as 0."""
    x, shown = row.x, min(dataset.columns, _ROW_COLUMNS)
    if isinstance(x, list):
        return x[:shown]
    if row.is_record:
        return [_shortened(value) for value in islice(x.values(), shown)]
    stored = dict(zip(x["indices"], x["values"], strict=True))
    return [stored.get(column, 0.0) for column in range(shown)]


def _shortened(value: Any) -> Any:
    """A cell of a table, without the end of a long text."""
    return value[:_SHOWN_LETTERS] + "…" if isinstance(value, str) and len(value) > _SHOWN_LETTERS else value
