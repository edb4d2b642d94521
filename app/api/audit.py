"""``/v1/audit``: the audit log, for administrators."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from app.api.dependencies import Administrator, Context
from app.api.paging import After, Limit, Page, link_next
from app.api.schemas import AuditView
from app.services import audit

router = APIRouter(prefix="/v1/audit", tags=["operation"])

_TEXT = r"^[^\x00-\x1f]*$"
Actor = Annotated[
    str | None, Query(max_length=100, pattern=_TEXT, description="Id of an API key, cli, system.")
]
Action = Annotated[str | None, Query(max_length=60, pattern=_TEXT, description="For example dataset.delete.")]
Object = Annotated[
    str | None, Query(max_length=500, pattern=_TEXT, description="Id of the object of the action.")
]
Moment = Annotated[float | None, Query(ge=0, le=253402300799, description="Seconds since the epoch.")]


@router.get("")
def list_audit(
    request: Request,
    response: Response,
    context: Context,
    _caller: Administrator,
    actor: Actor = None,
    action: Action = None,
    object: Object = None,  # noqa: A002 - the name of the parameter
    since: Moment = None,
    until: Moment = None,
    limit: Limit = 100,
    after: After = None,
) -> Page[AuditView]:
    """Actions and denied requests, newest first.

    Requests of one caller that are denied within a second are one record, with their number in the details.
    """
    page, has_more = audit.list_records(
        context.store,
        limit=limit,
        after=after,
        since=since,
        until=until,
        actor=actor,
        action=action,
        object=object,
    )
    if has_more:
        link_next(request, response, page[-1].id)
    return Page(data=[AuditView.of(record) for record in page], has_more=has_more)
