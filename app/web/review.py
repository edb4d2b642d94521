"""The page of the review: one sample at a time, and one key for each answer."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from app.api.border import BorderRoute
from app.api.dependencies import Context, Reader, Trainer
from app.api.models import AliasText, ModelName
from app.api.uploads import while_connected
from app.auth.authenticator import authorise
from app.domain.entities import Caller
from app.domain.errors import InputFault, InvalidRequest
from app.domain.monitors import FeedbackItem
from app.domain.names import MAX_CLASS_NAME
from app.ingest.orders import DatasetContent, RevisionContent
from app.services import review as reviews
from app.services import shadows
from app.services.feedback import give_feedback
from app.services.revisions import Changes, revised_dataset
from app.web.forms import read_form, see
from app.web.rendering import page, segment

router = APIRouter(route_class=BorderRoute)

_VALUES: Final = 200
"""Values of a row that are shown."""
_LISTED_CLASSES: Final = 1000
Name = Annotated[str, Query(max_length=100)]
Label = Annotated[str, Query(alias="class", max_length=MAX_CLASS_NAME)]


@router.get("/ui/models/{model}/aliases/{alias}/review")
def review_page(
    model: ModelName, alias: AliasText, request: Request, context: Context, caller: Reader, label: Label = ""
) -> Response:
    """The sample to look at next. label: of the only class."""
    authorise(caller, "query", model)
    store = context.store_of(caller)
    found = reviews.review(store, model, alias, label or None, 1)
    with store.read() as uow:
        classes = uow.models.version(model, found.version).classes[:_LISTED_CLASSES]
    return page(
        request,
        "review.html",
        model=model,
        alias=alias,
        label=label,
        waiting=found.waiting,
        item=found.items[0] if found.items else None,
        values=_values(found.items[0].row) if found.items else [],
        classes=classes,
    )


@router.post("/ui/models/{model}/aliases/{alias}/review")
async def say(
    model: ModelName, alias: AliasText, request: Request, context: Context, caller: Reader, tenant: Name = ""
) -> Response:
    """Store what somebody says of a sample, and show the next one."""
    authorise(caller, "query", model)
    form = await read_form(request)
    label = form.exact("class")[:MAX_CLASS_NAME]
    item = _item(
        form.text("sample"), form.text("said"), form.exact("truth"), was_yes=form.text("was") == "yes"
    )
    await run_in_threadpool(
        give_feedback, context.store_of(caller), context.settings, [item], caller.id, models=caller.models
    )
    return see(_path(model, alias), {"class": label} if label else None, tenant=tenant)


@router.post("/ui/models/{model}/aliases/{alias}/review/dataset")
async def make_dataset(
    model: ModelName, alias: AliasText, request: Request, context: Context, caller: Trainer, tenant: Name = ""
) -> Response:
    """Make a data set of the reviewed rows, or a revision of one with them appended."""
    form = await read_form(request)
    base = form.text("append_to")[:64]
    store, by = context.store_of(caller), Caller.of(caller)
    context.reader.check_queue(caller.tenant)

    def make(gone: Callable[[], bool]) -> str:
        made, _, _ = reviews.dataset_of_review(
            store,
            context.files,
            model,
            alias,
            name=None,
            created_by=caller.id,
            limits=context.settings,
            read=lambda order: context.reader.read(order, DatasetContent, gone, by),
        )
        if not base:
            return made.id
        revised, _ = revised_dataset(
            store,
            context.files,
            base,
            Changes(append=made.id, note=f"reviewed rows of {model}@{alias}"),
            created_by=caller.id,
            limits=context.settings,
            read=lambda order: context.reader.read(order, RevisionContent, gone, by),
        )
        return revised.id

    return see(f"/ui/datasets/{await while_connected(request, make)}", tenant=tenant, done="reviewed")


@router.post("/ui/models/{model}/aliases/{alias}/live/shadow")
async def change_shadow(
    model: ModelName, alias: AliasText, request: Request, context: Context, caller: Trainer, tenant: Name = ""
) -> Response:
    """Begin a shadow of an alias, or end it."""
    form = await read_form(request)
    version, store = form.whole("version"), context.store_of(caller)
    if version is None:
        await run_in_threadpool(shadows.delete_shadow, store, model, alias)
    else:
        wanted = shadows.settings_of(version, form.number("share"), form.number("days"))
        await run_in_threadpool(shadows.put_shadow, store, model, alias, wanted, caller.id)
    await context.refresher.refresh(f"{caller.tenant}/{model}")
    return see(f"/ui/models/{segment(model)}/aliases/{segment(alias)}/live", tenant=tenant, done="shadow")


def _item(sample: str, said: str, truth: str, *, was_yes: bool) -> FeedbackItem:
    """The feedback that a form gives. Raises InvalidRequest."""
    what: dict[str, Any]
    if said in ("yes", "no"):
        what = {"correct": (said == "yes") == was_yes}
    elif said == "truth" and truth:
        what = {"truth": truth[:MAX_CLASS_NAME]}
    elif said == "skip":
        what = {"skip": True}
    else:
        message = "Say whether the row is of the class, of which class it is, or skip it."
        raise InvalidRequest(message, faults=[InputFault("said", "missing", message)])
    try:
        return FeedbackItem(sample=sample, **what)
    except ValueError as error:
        message = "There is no such sample."
        raise InvalidRequest(message, faults=[InputFault("sample", "bad_text", message)]) from error


def _values(body: dict[str, Any] | None) -> list[tuple[Any, Any]]:
    """Names, or numbers, and values of a row's columns."""
    if body is None:
        return []
    if "text" in body:
        return [("text", body["text"])]
    row = body.get("record", body.get("x"))
    if isinstance(row, dict) and "indices" in row:
        pairs = zip(row["indices"], row["values"], strict=True)
    elif isinstance(row, dict):
        pairs = zip(row, row.values(), strict=True)
    else:
        pairs = zip(range(len(row or ())), row or (), strict=True)
    return list(islice(pairs, _VALUES))


def _path(model: str, alias: str) -> str:
    return f"/ui/models/{segment(model)}/aliases/{segment(alias)}/review"
