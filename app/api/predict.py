"""``POST /v1/models/{model}:predict``: the full teacher, for comparison with the students."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Path, Query, Request, Response

from app.api.border import BorderRoute
from app.api.dependencies import Context, Reader
from app.auth.authenticator import authorise
from app.domain.entities import Caller
from app.domain.names import REFERENCE, qualified
from app.http.body import declared_length, read_rest
from app.serving.query import openapi
from app.serving.query.negotiation import negotiate
from app.serving.query.pictures import is_about_pictures

router = APIRouter(tags=["queries"], route_class=BorderRoute)

Reference = Annotated[
    str,
    Path(
        pattern=REFERENCE,
        description="``name``, ``name@alias`` or ``name@3``.",
    ),
]
_ANSWER: Final = {
    200: {
        "description": "One decision, or a list of them.",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/PredictAnswer"}}},
    }
}


@router.post(
    "/v1/models/{model}:predict",
    openapi_extra={
        "requestBody": openapi.body_of("PredictRequest"),
        "parameters": openapi.TENSOR_PARAMETERS,
    },
    responses=_ANSWER,  # type: ignore[arg-type]
    response_class=Response,
)
async def predict(
    model: Reference,
    request: Request,
    context: Context,
    caller: Reader,
    scores: Annotated[bool, Query(description="Give the scores of all classes.")] = False,
    target: Annotated[str | None, Query(description="Decide on this class instead.")] = None,
) -> Response:
    """Classify rows with the whole teacher, which evaluates all classes; a query evaluates one student."""
    authorise(caller, "query", model.partition("@")[0])
    format_ = negotiate(dict(request.scope["headers"]), b"")
    limit = context.settings.max_query_bytes
    length = declared_length(request.headers.get("content-length", "").encode("latin-1") or None, limit)
    data = await read_rest(await request.receive(), request.receive, length, limit)
    teacher = await context.cache.teacher(qualified(caller.tenant, model))
    if teacher.columns.pictures or is_about_pictures(data, format_):
        content_type = request.headers.get("content-type", "").encode("latin-1")
        data, format_ = await context.pictures.without(
            teacher.columns, data, format_, caller.tenant, content_type
        )
    body = await context.predictor.predict(
        Caller.of(caller),
        teacher,
        data,
        format_,
        scores=scores,
        target=target,
        charge=lambda work: context.authenticator.charge_work(request.scope, caller, work),
        is_disconnected=request.is_disconnected,
    )
    context.metrics.predicted(teacher.metric_label)
    return Response(body, media_type="application/json")
