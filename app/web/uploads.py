"""Data sets from the browser: the form for a file, a look at its columns before it is stored, the example."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from app.api import datasets
from app.api.border import BorderRoute
from app.api.dependencies import AppContext, Context, Trainer
from app.domain.entities import ApiKey, Caller
from app.domain.errors import InvalidRequest, TooLarge, UnsupportedFormat
from app.domain.file_formats import ENDINGS, LABELS, TABLES, FileFormat, in_words
from app.domain.installation import require_training
from app.ingest.orders import DatasetContent
from app.services.example_data import register_example
from app.web.column_kinds import chosen_kinds, listed_kinds, shown_columns
from app.web.forms import see
from app.web.rendering import page, refused_form

router = APIRouter(route_class=BorderRoute)
streamed = APIRouter(include_in_schema=False, route_class=BorderRoute)
"""Routes whose bodies are written to disk as they arrive, with the limits of uploads."""

PATH = "/ui/datasets"
_ENDINGS: Final = ",".join((*ENDINGS, ".txt", ".data"))
"""Names of the files that the browser offers."""

Name = Annotated[str, Query(max_length=100)]


@streamed.post(PATH)
async def upload(
    request: Request, context: Context, caller: Trainer, tenant: Name = "", dry_run: bool = False
) -> Response:
    """Take the file of the form as the API takes uploads, and show the data set.

    dry_run: show what the file holds, or what is wrong with it, beside the form; nothing is stored.
    """
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise InvalidRequest("The form holds no file.", code="no_file")
    if dry_run:
        return await _look(request, context, caller)
    dataset, created = await datasets.receive_dataset(request, context, caller, {})
    return see(f"{PATH}/{dataset.id}", tenant=tenant, done="upload" if created else "known")


async def _look(request: Request, context: AppContext, caller: ApiKey) -> Response:
    """The form as it was sent, with the columns of its file or with what is wrong with it."""
    async with datasets.receive_file(request, context, caller) as sent:
        try:
            content = await datasets.inspect_file(request, context, caller, sent, {})
        except (InvalidRequest, TooLarge, UnsupportedFormat) as error:
            form = upload_form(context, sent.fields, is_open=True)
            return await run_in_threadpool(
                refused_form, request, "data/look.html", error, content=None, **form
            )
    return await run_in_threadpool(_shown, request, context, sent.fields, content)


def _shown(
    request: Request, context: AppContext, fields: Mapping[str, str], content: DatasetContent
) -> Response:
    has_kinds = content.source_format in TABLES
    columns = shown_columns(content.summary, is_stored=False) if has_kinds else []
    # Kinds that were typed are chosen in the table now, but those of columns that it does not show.
    said = chosen_kinds([fields.get("columns", "")])
    shown = {column.entry["name"] for column in columns}
    others = listed_kinds({name: kind for name, kind in said.items() if name not in shown})
    form = upload_form(context, {**fields, "columns": others}, is_open=True)
    return page(request, "data/look.html", content=content, columns=columns, **form)


def upload_form(context: AppContext, sent: Mapping[str, str], *, is_open: bool) -> dict[str, Any]:
    """What the form for a file shows. sent: its fields, to be shown again."""
    formats = {"formats": FileFormat, "labels": in_words(LABELS), "endings": _ENDINGS}
    return {"sent": sent, "is_open": is_open, "max_bytes": context.settings.max_upload_bytes, **formats}


@router.post(f"{PATH}/example")
async def example(context: Context, caller: Trainer, tenant: Name = "") -> Response:
    """Store the example data set, and show it."""
    require_training()
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
