"""``/v1/uploads``: files that clients send to the object store themselves, instead of to the API."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import Field, StringConstraints
from starlette.concurrency import run_in_threadpool

from app.api.border import BorderRoute
from app.api.dependencies import Context, Trainer
from app.api.schemas import Body, Time, View
from app.domain.installation import require_training
from app.services import uploads

router = APIRouter(prefix="/v1/uploads", tags=["data sets"], route_class=BorderRoute)


class PlanUpload(Body):
    """The file that will be sent: its size in bytes, and its SHA-256 in hexadecimal."""

    bytes: Annotated[int, Field(ge=1, le=2**53)]
    sha256: Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]


class UploadView(View):
    """A planned upload. url: presigned; whoever has it can put the file until ``expires_at``."""

    id: str
    method: Literal["PUT"] = "PUT"
    url: str
    bytes: int
    sha256: str
    expires_at: Time


@router.post("", status_code=201)
async def plan_upload(body: PlanUpload, context: Context, caller: Trainer) -> UploadView:
    """Plan an upload past the API: send the file to ``url``, then ``POST /v1/datasets?upload=`` and the id.

    The API then takes the file from the object store, compares size and digest with those planned, and
    registers it as if it had been sent. Without an object store: 409 ``no_object_store``.
    """
    require_training()
    upload, url = await run_in_threadpool(
        uploads.plan_upload,
        context.store_of(caller),
        context.settings,
        body.bytes,
        body.sha256,
        created_by=caller.id,
    )
    return UploadView(
        id=upload.id, url=url, bytes=upload.bytes, sha256=upload.sha256, expires_at=upload.expires_at
    )
