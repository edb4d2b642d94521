"""``/v1/datasets``: upload, list, read and delete data sets; make them from the labels that jobs found."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic import BeforeValidator, ConfigDict, Field, StringConstraints
from pydantic.dataclasses import dataclass
from starlette.concurrency import run_in_threadpool

from app.api import uploads
from app.api.border import BorderRoute
from app.api.dependencies import AppContext, Context, Trainer, parameters_of
from app.api.etags import etag, unless_known
from app.api.jobs import JobId
from app.api.paging import After, AfterNumber, Limit, Page, page_of
from app.api.schemas import (
    Body,
    DatasetClassView,
    DatasetRowView,
    DatasetView,
    ReadingView,
)
from app.domain.entities import ApiKey, Caller, Dataset, ListedDataset
from app.domain.errors import Conflict
from app.domain.file_formats import MEDIA_TYPES, FileFormat, in_words
from app.domain.installation import require_training
from app.domain.names import (
    DATASET_REF,
    DISPLAY_NAME,
    MAX_CLASS_NAME,
    MAX_DISPLAY_NAME,
    USABLE,
)
from app.ingest.orders import DatasetContent
from app.services import datasets, labels
from app.services import uploads as stored_uploads
from app.store.unit_of_work import Store

router = APIRouter(prefix="/v1/datasets", tags=["data sets"], route_class=BorderRoute)
labels_router = APIRouter(prefix="/v1/training-jobs", tags=["training jobs"], route_class=BorderRoute)

_LISTED_CLASSES: Final = 1000
"""Classes in the document of a data set; the others are on pages of their own."""
_LISTS = ("columns",)
"""Fields that a form may have several times: one for each column."""

DatasetId = Annotated[str, Path(pattern=DATASET_REF)]


@dataclasses.dataclass(frozen=True, slots=True)
class UploadParameters:
    """The query parameters of an upload; all but dry_run may be fields of a form instead."""

    name: Annotated[
        str | None,
        Query(
            max_length=MAX_DISPLAY_NAME,
            description="Name of the data set.",
            json_schema_extra=uploads.NAME_OR_EMPTY,
        ),
    ] = None
    filename: Annotated[
        str | None,
        Query(max_length=400, description="Name of the file; its ending may determine the format."),
    ] = None
    format: Annotated[
        str | None,
        Query(
            max_length=20,
            description=f"{in_words(FileFormat)}; detected by default.",
            json_schema_extra=uploads.FORMAT,
        ),
    ] = None
    label_column: Annotated[
        str | None,
        Query(
            max_length=400,
            description="Name of the label column, or its number, counted from 0, negative from the end. By"
            " default the one with a usual name (label, class, target, …), or else the last one if it seems"
            " to hold classes.",
        ),
    ] = None
    header: Annotated[
        str | None,
        Query(
            max_length=10,
            description="Whether line 1 of a CSV file names the columns: yes, no, or auto, the default.",
            json_schema_extra=uploads.HEADER,
        ),
    ] = None
    separator: Annotated[
        str | None,
        Query(
            max_length=10,
            description="Separator of a CSV file: one character, or comma, semicolon, tab, pipe, space.",
            json_schema_extra=uploads.SEPARATOR,
        ),
    ] = None
    decimal: Annotated[
        str | None,
        Query(
            max_length=10,
            description="Sign of decimals of a CSV file: . (point) or , (comma).",
            json_schema_extra=uploads.DECIMAL,
        ),
    ] = None
    index_column: Annotated[
        str | None,
        Query(
            max_length=400,
            description="Name or number of a column to leave out, since it numbers the rows; none keeps all.",
        ),
    ] = None
    index_base: Annotated[
        str | None,
        Query(
            max_length=10,
            description="First index of the sparse rows of an svmlight file: 0 or 1.",
            json_schema_extra=uploads.INDEX_BASE,
        ),
    ] = None
    columns: Annotated[
        str | None,
        Query(
            max_length=uploads.MAX_LIST,
            description="Kinds of columns, which are found by default: NAME:KIND of each, separated by"
            " commas. KIND is number, boolean, category, date, text, vector, image or ignore, or date: and a"
            " pattern such as %d/%m/%Y, or number: and a number such as $1,234.5.",
        ),
    ] = None
    null_values: Annotated[
        str | None,
        Query(
            max_length=uploads.MAX_LIST,
            description="Further tokens that stand for a missing value, separated by commas.",
        ),
    ] = None
    skip_lines: Annotated[
        str | None,
        Query(
            max_length=10,
            description="Number of lines above the table of a CSV file, 0 to 1000.",
            json_schema_extra=uploads.SKIP_LINES,
        ),
    ] = None
    column_names: Annotated[
        str | None,
        Query(
            max_length=uploads.MAX_LIST,
            description="Names of the columns of a CSV file, separated by commas; with header=yes in place of"
            " its own.",
        ),
    ] = None
    encoding: Annotated[
        str | None,
        Query(
            max_length=20,
            description="Encoding of a CSV file: utf-8, the default, latin-1 or windows-1252.",
            json_schema_extra=uploads.ENCODING,
        ),
    ] = None
    rare_classes: Annotated[
        str | None,
        Query(
            max_length=10,
            description="Classes of a single row. drop: leave them out; keep: keep them, in a file to test"
            " on; refuse: name them; auto, the default:"
            " drop them with a warning where they are at most 1 % of the rows, otherwise refuse.",
            json_schema_extra=uploads.RARE_CLASSES,
        ),
    ] = None
    unlabelled: Annotated[
        str | None,
        Query(
            max_length=20,
            description="Training rows whose label is missing. accept: keep them; drop: leave them out;"
            " refuse: name them; auto, the default: drop them with a warning where they are at most 1 % of"
            " the rows, otherwise refuse.",
            json_schema_extra=uploads.UNLABELLED,
        ),
    ] = None
    subject_column: Annotated[
        str | None,
        Query(
            max_length=400,
            description="Name or number of the column that tells whom a row is about. It is no feature: rows"
            " keep a pseudonym, by which all rows about a subject can be deleted.",
        ),
    ] = None
    upload: Annotated[
        str | None,
        Query(
            description="Id of an upload of ``POST /v1/uploads``, whose file is taken instead of a body.",
            pattern=uploads.UPLOAD_ID,
        ),
    ] = None
    dry_run: Annotated[
        bool, Query(description="Whether the file is only read and described, and nothing is stored.")
    ] = False


_PARAMETERS: Final = tuple(
    field.name for field in dataclasses.fields(UploadParameters) if field.name not in ("upload", "dry_run")
)
READING: Final = _PARAMETERS[3:]
"""Those that say how a file is read; the others are its name, its file's name and its format."""


@router.post(
    "",
    status_code=201,
    openapi_extra={"requestBody": uploads.DATASET_BODY},
    responses={
        200: {
            "description": "The same bytes are registered already; with dry_run, what would be registered.",
            "model": DatasetView | ReadingView,
        }
    },
)
async def upload_dataset(
    request: Request,
    response: Response,
    said: Annotated[UploadParameters, Depends(parameters_of(UploadParameters))],
    context: Context,
    caller: Trainer,
) -> DatasetView | ReadingView:
    """Upload a data set, as the body or as the file of a form, in a format that ``format`` lists.

    The digest of its bytes identifies it, so uploading the same file again changes nothing, unless it is read
    in another way. ``reading`` in the response says how it was read; what is doubtful is an error that names
    the parameter which settles it. The whole file is validated before it is stored; errors name row and
    column. With ``upload`` the file is in the object store already, and the body is empty. Texts,
    categories, dates and gaps make it a table of raw cells, whose columns ``summary.schema`` describes.
    """
    parameters = {name: getattr(said, name) for name in _PARAMETERS}
    if said.dry_run:
        response.status_code = 200
        async with receive_file(request, context, caller, said.upload) as sent:
            return _reading(await inspect_file(request, context, caller, sent, parameters))
    dataset, created = await receive_dataset(request, context, caller, parameters, said.upload)
    if said.upload is not None:
        await run_in_threadpool(stored_uploads.end_upload, context.store_of(caller), said.upload)
    return await registered_view(response, context.store_of(caller), dataset, created=created)


async def registered_view(
    response: Response, store: Store, dataset: Dataset, *, created: bool
) -> DatasetView:
    """The answer to a request that has registered a data set, which may have been known; sets its headers."""
    if not created:
        response.status_code = 200
    response.headers["location"] = f"/v1/datasets/{dataset.id}"
    response.headers["etag"] = etag(dataset.digest)
    return await run_in_threadpool(dataset_view, store, dataset)


async def receive_dataset(
    request: Request,
    context: AppContext,
    caller: ApiKey,
    parameters: dict[str, str | None],
    upload: str | None = None,
) -> tuple[Dataset, bool]:
    """Register the file in a request as a data set; returns it and whether it is new.

    parameters: name, filename, format and those of the reading, as far as the query string gives them.
    upload: of a file in the object store, instead. Raises as `receive_file` and `datasets.register_dataset`.
    """
    async with receive_file(request, context, caller, upload) as sent:
        return await register_file(request, context, caller, sent, parameters)


async def register_file(
    request: Request,
    context: AppContext,
    caller: ApiKey,
    sent: uploads.Upload,
    parameters: Mapping[str, str | None],
) -> tuple[Dataset, bool]:
    """Register a file that was received as a data set; parameters and errors as `receive_dataset`."""
    options = _options(sent, parameters)
    return await uploads.while_connected(
        request,
        lambda gone: datasets.register_dataset(
            context.store_of(caller),
            context.files,
            sent.file,
            created_by=caller.id,
            limits=context.settings,
            read=lambda order: context.reader.read(order, DatasetContent, gone, Caller.of(caller)),
            **options,
        ),
    )


def receive_file(
    request: Request, context: AppContext, caller: ApiKey, upload: str | None = None
) -> AbstractAsyncContextManager[uploads.Upload]:
    """The file in a request, with the fields of its form; raises as `uploads.receive_upload`, and Overloaded
    where too many files wait to be read, OnlyServes, and Conflict where files are not sent to the API.

    upload: id of the file in the object store; raises then as `uploads.take_upload`.
    """
    require_training()
    context.reader.check_queue(caller.tenant)
    if upload is not None:
        return uploads.take_upload(request, context, caller, "datasets", upload)
    limit = context.settings.max_upload_bytes
    if context.settings.uploads == "presigned":
        text = "This installation takes files by way of its object store only: POST /v1/uploads first."
        raise Conflict(text, code="uploads_presigned")
    return uploads.receive_upload(request, context, caller, "datasets", limit, _PARAMETERS, _LISTS)


async def inspect_file(
    request: Request,
    context: AppContext,
    caller: ApiKey,
    sent: uploads.Upload,
    parameters: dict[str, str | None],
) -> DatasetContent:
    """What would be registered of a file, and nothing is; parameters and errors as `receive_dataset`."""
    options = _options(sent, parameters)
    return await uploads.while_connected(
        request,
        lambda gone: datasets.inspect_file(
            context.files,
            sent.file,
            limits=context.settings,
            read=lambda order: context.reader.read(order, DatasetContent, gone, Caller.of(caller)),
            **options,
        ),
    )


@router.get("")
def list_datasets(
    request: Request,
    response: Response,
    context: Context,
    caller: Trainer,
    limit: Limit = 100,
    after: After = None,
) -> Page[ListedDataset]:
    """All data sets, newest first, without their classes and summaries."""
    page, has_more = datasets.list_datasets(context.listed_store(request, caller), limit=limit, after=after)
    return page_of(request, response, page, has_more)


@router.get("/{dataset_id}", response_model=DatasetView)
def get_dataset(
    dataset_id: DatasetId, request: Request, response: Response, context: Context, caller: Trainer
) -> Any:
    """One data set: the first 1000 classes and their counts, ranges of its columns, and warnings."""
    store = context.store_of(caller)
    dataset = datasets.get_dataset(store, dataset_id)
    latest = datasets.latest_revision(store, dataset)
    parts = [dataset.digest] if latest == dataset.id else [dataset.digest, latest]
    return unless_known(request, response, etag(*parts), lambda: dataset_view(store, dataset))


@router.get("/{dataset_id}/classes")
def list_dataset_classes(
    dataset_id: DatasetId,
    request: Request,
    response: Response,
    context: Context,
    caller: Trainer,
    limit: Limit = 100,
    after: AfterNumber = None,
) -> Page[DatasetClassView]:
    """The classes of a data set, in the order of their numbers."""
    store, first = context.store_of(caller), 0 if after is None else after + 1
    dataset = datasets.get_dataset(store, dataset_id)
    counts = dataset.summary.get("class_counts", {})
    page = datasets.dataset_classes(store, dataset.id, limit=limit, after=first - 1)
    has_more = first + len(page) < dataset.class_count
    classes = [
        DatasetClassView(id=number, label=label, rows=counts.get(label))
        for number, label in enumerate(page, first)
    ]
    return page_of(request, response, classes, has_more)


@router.get("/{dataset_id}/rows")
def list_dataset_rows(
    dataset_id: DatasetId,
    request: Request,
    response: Response,
    context: Context,
    caller: Trainer,
    part: Annotated[
        Literal["train", "test"], Query(description="The training part or the test part.")
    ] = "train",
    label: Annotated[str | None, Query(alias="class", max_length=MAX_CLASS_NAME)] = None,
    limit: Annotated[int, Query(ge=1, le=100, description="Maximum number of rows.")] = 20,
    after: AfterNumber = None,
) -> Page[DatasetRowView]:
    """Rows of a data set in their order, of one class if it is named; fewer at once if they are long."""
    store = context.store_of(caller)
    dataset = datasets.get_dataset(store, dataset_id)
    start = -1 if after is None else after
    page, has_more = datasets.stored_rows(
        store, context.files, dataset, part=part, label=label, after=start, limit=limit
    )
    names = datasets.class_names(store, dataset.id, {row.code for row in page})
    rows = [
        DatasetRowView.model_validate(
            {"id": row.number, "row_id": row.row_id, "label": names.get(row.code), "x": row.x}
        )
        for row in page
    ]
    return page_of(request, response, rows, has_more)


@router.delete("/{dataset_id}", status_code=204)
def delete_dataset(dataset_id: DatasetId, context: Context, caller: Trainer) -> None:
    """Delete a data set that no unfinished job uses; jobs and models made from it stay."""
    datasets.delete_dataset(context.store_of(caller), dataset_id)


def whole(value: object) -> object:
    """In JSON 1.0 is a whole number, too."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


RowNumber = Annotated[int, Field(strict=True, ge=0, le=2**31 - 1), BeforeValidator(whole)]


# Not a `Body`: tens of thousands of them are checked in a fifth of the time.
@dataclass(config=ConfigDict(extra="forbid"), slots=True)
class Correction:
    """The right label of a row; null takes its label away."""

    row: RowNumber
    label: Annotated[str, Field(min_length=1, max_length=MAX_CLASS_NAME, pattern=USABLE)] | None


class CorrectLabels(Body):
    """Corrections of the labels that a job found.

    rename: new names of its classes, before the corrections. keep: all labels, or only those that the data
    set had and the corrections, so that a job can label the rest again.
    """

    corrections: list[Correction] = Field([], max_length=labels.MAX_CORRECTIONS)
    rename: dict[str, Annotated[str, StringConstraints(min_length=1, max_length=400)]] = Field(
        {}, max_length=1000, json_schema_extra={"propertyNames": {"pattern": USABLE}}
    )
    keep: Literal["all", "given"] = "all"
    name: str | None = Field(None, max_length=100, json_schema_extra={"pattern": DISPLAY_NAME})


@labels_router.get("/{job_id}/labels")
def list_job_labels(
    job_id: JobId,
    request: Request,
    response: Response,
    context: Context,
    caller: Trainer,
    limit: Limit = 100,
    after: AfterNumber = None,
    order: Annotated[
        Literal["row", "certainty"],
        Query(description="certainty: the least certain first, without labels that were given."),
    ] = "row",
    label: Annotated[str | None, Query(max_length=400, description="Only rows with this label.")] = None,
) -> Page[labels.Label]:
    """The labels of the training part's rows after the job's labelling. after: number of rows to skip."""
    skip = max(after or 0, 0)
    page, has_more = labels.job_labels(
        context.store_of(caller), context.files, job_id, skip=skip, limit=limit, order=order, label=label
    )
    return page_of(request, response, page, has_more, lambda _: skip + len(page))


@labels_router.post(
    "/{job_id}/labels",
    status_code=201,
    responses={200: {"description": "The same labels are a data set already.", "model": DatasetView}},
)
def correct_job_labels(
    job_id: JobId, body: CorrectLabels, response: Response, context: Context, caller: Trainer
) -> DatasetView:
    """Store the rows with the job's labels, corrected, as a data set; a job on it trains with them."""
    store = context.store_of(caller)
    dataset, created = labels.corrected_dataset(
        store,
        context.files,
        job_id,
        corrections={one.row: one.label for one in body.corrections},
        rename=body.rename,
        keep=body.keep,
        name=body.name,
        created_by=caller.id,
        limits=context.settings,
    )
    if not created:
        response.status_code = 200
    response.headers["location"] = f"/v1/datasets/{dataset.id}"
    return dataset_view(store, dataset)


def dataset_view(store: Store, dataset: Dataset) -> DatasetView:
    classes = datasets.dataset_classes(store, dataset.id, limit=_LISTED_CLASSES)
    fields = dataclasses.asdict(dataset)
    is_truncated = len(classes) < dataset.class_count
    return DatasetView.model_validate(
        fields
        | {
            "classes": list(classes),
            "classes_truncated": is_truncated,
            "reading": dataset.reading,
            "series": dataset.first,
            "latest": datasets.latest_revision(store, dataset),
        }
    )


def _reading(content: DatasetContent) -> ReadingView:
    return ReadingView(
        source_format=content.source_format,
        rows=content.rows,
        test_rows=content.test_rows,
        columns=content.columns,
        classes=list(content.classes[:_LISTED_CLASSES]),
        class_count=len(content.classes),
        classes_truncated=len(content.classes) > _LISTED_CLASSES,
        reading=content.summary["reading"],
        summary=content.summary,
    )


def _options(sent: uploads.Upload, parameters: Mapping[str, str | None]) -> dict[str, str | None]:
    """Name and format options: query parameters first, then form fields, then the content type."""
    values = {name: sent.fields.get(name) for name in _PARAMETERS}
    values |= {name: value for name, value in parameters.items() if value is not None}
    filename = values["filename"] or sent.filename
    return {
        "name": values["name"] or (None if filename else "data set"),
        "filename": filename,
        "file_format": values["format"] or MEDIA_TYPES.get(sent.content_type),
        **{name: values[name] or None for name in READING},
    }
