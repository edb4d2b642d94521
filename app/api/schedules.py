"""``/v1/models/{model}/schedule``: when the service trains a model again without being asked."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from app.api.border import BorderRoute
from app.api.dependencies import Context, Trainer
from app.api.etags import CONDITIONS, etag, expected_revision
from app.api.models import ModelName
from app.domain.schedules import Schedule, ScheduleSettings
from app.services import schedules

router = APIRouter(prefix="/v1/models/{model}/schedule", tags=["models"], route_class=BorderRoute)


@router.get("")
def get_schedule(model: ModelName, response: Response, context: Context, caller: Trainer) -> Schedule:
    """The schedule of a model, and what it did last; changing it requires its ETag."""
    found = schedules.get_schedule(context.store_of(caller), model)
    # What it did changes without its revision.
    response.headers.update({"etag": etag(found.revision), "cache-control": "no-cache"})
    return found


@router.put("", openapi_extra={"parameters": CONDITIONS})
def put_schedule(
    model: ModelName,
    body: ScheduleSettings,
    request: Request,
    response: Response,
    context: Context,
    caller: Trainer,
) -> Schedule:
    """Train a model again by time, after new rows or on an alarm. Without a schedule, nothing does so.

    The jobs belong to the caller, whose quotas they take. At most one a day is begun by new rows and alarms.
    No alias moves, unless it has a gate, the schedule says ``promote: if_gate_passes``, and the new version
    passes. If-Match names the revision that was read, as for aliases.
    """
    stored = schedules.put_schedule(
        context.store_of(caller), context.settings, model, body, expected_revision(request), caller.id
    )
    response.headers["etag"] = etag(stored.revision)
    return stored


@router.delete("", status_code=204, openapi_extra={"parameters": [{**CONDITIONS[0], "required": True}]})
def delete_schedule(model: ModelName, request: Request, context: Context, caller: Trainer) -> None:
    """Delete the schedule of a model. If-Match names the revision; a job that it has begun goes on."""
    schedules.delete_schedule(context.store_of(caller), model, expected_revision(request))
