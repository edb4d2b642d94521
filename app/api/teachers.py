"""``POST /v1/teachers``: imports a linear head as a version of a model, which can be queried immediately."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from app.api import uploads
from app.api.border import BorderRoute
from app.api.dependencies import Context, Trainer
from app.api.models import AllowSchemaChange, ImportAlias
from app.api.schemas import VersionView, View
from app.domain.entities import Caller
from app.domain.installation import require_training
from app.domain.names import ModelName
from app.ingest.orders import HeadContent
from app.services import models
from app.services.head_import import import_head
from app.services.models import DEFAULT_ALIAS
from core.packed.head import MAX_RIVALS, Kind

router = APIRouter(prefix="/v1/teachers", tags=["models"], route_class=BorderRoute)

_KINDS: Final[dict[str, Kind]] = {"head": "head", "students": "linear"}

Rivals = Annotated[
    int,
    Query(
        ge=0,
        le=MAX_RIVALS,
        description="Of a head: a class must also score higher than so many of its nearest rivals.",
    ),
]
RowNorm = Annotated[
    float | None,
    Query(
        gt=0,
        le=1e6,
        allow_inf_nan=False,
        description="Of a head without thresholds: the length of a typical row; the threshold is then the"
        " median of the largest score on random rows of this length.",
    ),
]


class NoteView(View):
    """Something that is worth a look. code: a stable word for programs."""

    code: str
    message: str


class ImportedVersionView(VersionView):
    """A version of an imported head. alias: the alias that was moved to it; null if none was.

    warnings: what is odd about the head, such as classes with names that look alike.
    """

    alias: str | None
    warnings: list[NoteView]


@router.post(
    "",
    status_code=201,
    openapi_extra={"requestBody": uploads.HEAD_BODY},
    responses={200: {"description": "The same head is published already.", "model": ImportedVersionView}},
)
async def import_teacher(
    request: Request,
    response: Response,
    context: Context,
    caller: Trainer,
    model: Annotated[ModelName, Query(description="Model to publish the head under.")],
    kind: Annotated[
        Literal["head", "students"],
        Query(description="head: rows of a teacher; students: trained linear students."),
    ] = "head",
    alias: ImportAlias = DEFAULT_ALIAS,
    rivals: Rivals = 0,
    row_norm: RowNorm = None,
    allow_schema_change: AllowSchemaChange = False,
) -> ImportedVersionView:
    """Upload a linear head as safetensors or .npz: `weights` (K × columns), `labels`, `bias` and `threshold`.

    Each class can be queried as soon as the response arrives: score = w·x + b, match = score ≥ threshold
    (default 0). With `rivals` the score is the smallest of the differences to the scores of the nearest other
    classes and, if there are thresholds, w·x + b − threshold; match = score ≥ 0. The whole file is validated
    first; errors name array, row and column. Uploading the same head again with the same options returns the
    existing version. An alias that an operator moves during the upload stays where it is. Where the head
    refuses questions which the present version of the alias answers, nothing is imported unless
    ``allow_schema_change`` is true: 409 ``schema_change``.
    """
    require_training()
    store, wanted = context.store_of(caller), alias or None
    seen = await run_in_threadpool(models.alias_revision, store, model, wanted)
    limit = context.settings.max_head_bytes
    context.reader.check_queue(caller.tenant)
    async with uploads.receive_upload(request, context, caller, "versions", limit) as sent:
        imported = await uploads.while_connected(
            request,
            lambda gone: import_head(
                store,
                context.files,
                sent.file.path,
                model=model,
                kind=_KINDS[kind],
                alias=wanted,
                alias_revision=seen,
                rivals=rivals,
                row_norm=row_norm,
                allow_schema_change=allow_schema_change,
                limits=context.settings,
                read=lambda order: context.reader.read(order, HeadContent, gone, Caller.of(caller)),
            ),
        )
    version = imported.version
    if imported.is_new:
        await context.refresher.refresh(version.qualified_model)
    else:
        response.status_code = 200
    response.headers["location"] = f"/v1/models/{version.model}/versions/{version.version}"
    warnings = [{"code": code, "message": message} for code, message in imported.warnings]
    return ImportedVersionView.model_validate(
        dataclasses.asdict(version)
        | {"inputs": version.inputs, "alias": imported.alias, "warnings": warnings}
    )
