"""``POST /v1/teachers``: imports a linear head as a version of a model, which can be queried immediately."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from app.api import uploads
from app.api.dependencies import Context, Trainer
from app.api.schemas import VersionView
from app.domain.names import ALIAS, ModelName
from app.services.head_import import import_head
from app.services.models import DEFAULT_ALIAS
from core.packed.head import Kind

router = APIRouter(prefix="/v1/teachers", tags=["models"])

_KINDS: Final[dict[str, Kind]] = {"head": "head", "students": "linear"}


@router.post(
    "",
    status_code=201,
    openapi_extra={"requestBody": uploads.HEAD_BODY},
    responses={200: {"description": "The same head is published already.", "model": VersionView}},
)
async def import_(
    request: Request,
    response: Response,
    context: Context,
    _caller: Trainer,
    model: Annotated[ModelName, Query(description="Model to publish the head under.")],
    kind: Annotated[
        Literal["head", "students"],
        Query(description="head: rows of a teacher; students: trained linear students."),
    ] = "head",
    alias: Annotated[
        str,
        Query(
            max_length=100,
            description="Alias to move to the new version; empty: none.",
            json_schema_extra={"pattern": f"^$|{ALIAS}"},
        ),
    ] = DEFAULT_ALIAS,
) -> VersionView:
    """Upload a linear head as safetensors or .npz: `weights` (K × columns), `labels`, `bias` and `threshold`.

    Each class can be queried as soon as the response arrives: score = w·x + b, match = score ≥ threshold
    (default 0). The whole file is validated first; errors name array, row and column. Uploading the same head
    again returns the existing version.
    """
    limit = context.settings.max_head_bytes
    async with uploads.receive_upload(request, limit, context.files) as sent:
        version, created = await run_in_threadpool(
            import_head,
            context.store,
            context.files,
            sent.file.path,
            model=model,
            kind=_KINDS[kind],
            alias=alias or None,
            limits=context.settings,
        )
    if created:
        await context.refresher.refresh()
    else:
        response.status_code = 200
    response.headers["location"] = f"/v1/models/{version.model}/versions/{version.version}"
    return VersionView.of(version)
