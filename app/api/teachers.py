"""``POST /v1/teachers``: a linear head from outside, which becomes a model that can be asked at once."""

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
    responses={200: {"description": "The same head is a version already.", "model": VersionView}},
)
async def import_(
    request: Request,
    response: Response,
    context: Context,
    _caller: Trainer,
    model: Annotated[ModelName, Query(description="The model it becomes a version of.")],
    kind: Annotated[
        Literal["head", "students"],
        Query(description="head: rows of a teacher; students: linear students that are ready to use."),
    ] = "head",
    alias: Annotated[
        str,
        Query(
            max_length=100,
            description="Alias moved to the new version; empty: none.",
            json_schema_extra={"pattern": f"^$|{ALIAS}"},
        ),
    ] = DEFAULT_ALIAS,
) -> VersionView:
    """Send a linear head as safetensors or .npz: `weights` (K × columns), `labels`, and `bias`, `threshold`.

    Each class can be asked as soon as the answer is there: score = w·x + b, match = score ≥ threshold, which
    is 0 unless given. Everything is checked first; what is wrong is told by array, row and column. The same
    head sent again is the version that it was before.
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
