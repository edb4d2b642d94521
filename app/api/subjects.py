"""``/v1/subjects/{subject}``: delete the rows, samples and feedback of a subject."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request

from app.api import uploads
from app.api.border import BorderRoute
from app.api.dependencies import Context, Trainer
from app.domain.entities import Caller
from app.domain.installation import require_training
from app.domain.names import USABLE
from app.ingest.orders import RevisionContent
from app.services import subjects
from app.services.subject_keys import MAX_SUBJECT

router = APIRouter(prefix="/v1/subjects", tags=["data sets"], route_class=BorderRoute)


@router.delete("/{subject}")
async def erase_subject(
    subject: Annotated[str, Path(min_length=1, max_length=MAX_SUBJECT, pattern=USABLE)],
    request: Request,
    context: Context,
    caller: Trainer,
) -> subjects.ErasedSubject:
    """Delete all rows about a subject, in the data sets of all series, and its samples and feedback.

    Each series gets a revision without its rows, and the data sets that have any are deleted. ``versions``
    are those that were trained on such rows; what ``contains`` names stays in their packages until they and
    their jobs are deleted. Backups keep the rows until they expire.
    """
    require_training()
    context.reader.check_queue(caller.tenant)
    return await uploads.while_connected(
        request,
        lambda gone: subjects.erase_subject(
            context.store_of(caller),
            context.files,
            subject,
            created_by=caller.id,
            limits=context.settings,
            read=lambda order: context.reader.read(order, RevisionContent, gone, Caller.of(caller)),
        ),
    )
