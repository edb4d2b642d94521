"""The page of a job's suspect labels: each row is kept, corrected or skipped, with one key."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from app.api.border import BorderRoute
from app.api.dependencies import Context, Trainer
from app.api.jobs import JobId
from app.domain.errors import InputFault, InvalidRequest
from app.domain.names import MAX_CLASS_NAME
from app.services import suspects
from app.web.datasets import column_heads, first_values
from app.web.forms import Form, read_form, see
from app.web.rendering import page

router = APIRouter(route_class=BorderRoute)

_ROWS: Final = 100
_LISTED_CLASSES: Final = 1000

Label = Annotated[str, Query(alias="class", max_length=MAX_CLASS_NAME)]
Skipped = Annotated[int, Query(ge=0, le=10_000)]
Name = Annotated[str, Query(max_length=100)]


@router.get("/ui/jobs/{job_id}/suspects")
def suspects_page(
    job_id: JobId, request: Request, context: Context, caller: Trainer, label: Label = "", after: Skipped = 0
) -> Response:
    """The most suspect rows of a job. label: only rows that have it. after: rows to skip."""
    found = suspects.job_suspects(
        context.store_of(caller), context.files, job_id, label=label or None, skip=after, limit=_ROWS
    )
    rows = [row for _, row in found.rows]
    return page(
        request,
        "suspects.html",
        job_id=job_id,
        dataset=found.dataset,
        classes=found.classes[:_LISTED_CLASSES],
        heads=column_heads(found.dataset, rows),
        rows=[(facts, first_values(found.dataset, row)) for facts, row in found.rows],
        total=found.total,
        label=label,
        after=after,
        next=after + len(rows) if found.has_more else None,
        shown_in="/ui/jobs",
    )


@router.post("/ui/jobs/{job_id}/suspects")
async def correct(
    job_id: JobId, request: Request, context: Context, caller: Trainer, tenant: Name = ""
) -> Response:
    """Store the rows with the labels that were corrected or kept on the page as a data set."""
    form = await read_form(request)
    corrections, confirmed = _decisions(form)
    dataset, _ = await run_in_threadpool(
        lambda: suspects.corrected_suspects(
            context.store_of(caller),
            context.files,
            job_id,
            corrections=corrections,
            confirmed=confirmed,
            name=None,
            created_by=caller.id,
            limits=context.settings,
        )
    )
    return see(f"/ui/datasets/{dataset.id}", tenant=tenant, done="corrected")


def _decisions(form: Form) -> tuple[dict[int, str], set[int]]:
    """The labels of corrected rows, and the rows that keep theirs. Raises InvalidRequest."""
    corrections: dict[int, str] = {}
    confirmed: set[int] = set()
    for text in form.all("row")[:_ROWS]:
        decision = form.text(f"decision-{text}")
        if decision == "skip" or not decision:
            continue
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            message = "A row is a whole number."
            raise InvalidRequest(message, faults=[InputFault("row", "not_a_number", message)])
        if decision == "keep":
            confirmed.add(int(text))
        elif label := form.exact(f"label-{text}")[:MAX_CLASS_NAME]:
            corrections[int(text)] = label
    if not corrections and not confirmed:
        message = "Keep or correct the label of a row first; rows that are skipped stay as they are."
        raise InvalidRequest(message, code="not_marked", faults=[InputFault("row", "not_marked", message)])
    return corrections, confirmed
