"""``POST /v1/models/{model}:predict``: the full teacher, for comparison with the students."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from fastapi import APIRouter, Path, Query, Request, Response
from numpy.typing import NDArray
from starlette.concurrency import run_in_threadpool

from app.api.dependencies import Context, Reader
from app.auth.authenticator import authorise
from app.domain.errors import NotFound, TooLarge
from app.serving.cache import ServableTeacher
from app.serving.query import openapi
from app.serving.query.negotiation import MediaType, RequestFormat, negotiate
from app.serving.query.requests import MAX_SCORES, QueryRequest, RequestLimits, parse_tensor, unpacked
from app.serving.query.rows import QueryBody, decode
from core.errors import InvalidProblem

router = APIRouter(tags=["queries"])

Json = dict[str, Any]
Reference = Annotated[
    str,
    Path(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}(@[A-Za-z0-9._-]{1,100})?$",
        description="``name``, ``name@alias`` or ``name@3``.",
    ),
]
_ANSWER: Final = {
    200: {
        "description": "One decision, or a list of them.",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/PredictAnswer"}}},
    }
}


class PredictBody(QueryBody):
    """A query body with more wishes.

    scores: give the scores of all classes. target: decide "is it this class?" instead, stopping as soon as
    another class scores higher (Remark 2).
    """

    scores: bool = False
    target: Annotated[str | None, msgspec.Meta(description="Decide whether a row is of this class.")] = None


_DECODER: Final = msgspec.json.Decoder(PredictBody)


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
    """Ask the whole teacher: which class is it? Costs all classes where a query costs one student."""
    authorise(caller, "query", model.partition("@")[0])
    format_ = negotiate(dict(request.scope["headers"]), request.scope["query_string"])
    data = await request.body()
    served = await context.cache.teacher(model)
    limits = RequestLimits(context.settings.max_query_bytes, context.settings.max_query_rows)
    answer = await run_in_threadpool(_answer, served, data, format_, limits, scores, target)
    context.metrics.predicted(served.model)
    return Response(answer, media_type="application/json")


def _answer(
    served: ServableTeacher,
    data: bytes,
    format_: RequestFormat,
    limits: RequestLimits,
    scores: bool,
    target: str | None,
) -> bytes:
    given = unpacked(data, format_, limits)
    if format_.body is MediaType.JSON:
        body = decode(_DECODER, given, limits.max_rows)
        query = QueryRequest(body.x, body.rows, explain=False)
        scores, target = scores or body.scores, target if body.target is None else body.target
    else:
        query = parse_tensor(given, format_, limits)
    code = _code(served, target)
    origin: Json = {"model": served.model, "version": served.version}
    if target is not None:
        origin["target"] = target
    columns, classes = served.teacher.map.n_columns, len(served.teacher.classes)
    if scores and query.n_rows * classes > MAX_SCORES:
        raise TooLarge(f"At most {MAX_SCORES} scores are given in one answer.", code="too_many_scores")
    results: list[Json] = []
    for part, table in query.blocks(columns, classes):
        try:
            results += _results(served, table, code, scores)
        except InvalidProblem as error:
            raise query.error(error, part.start) from error
    return _encode(results[0] | origin if query.single else {"results": results, **origin})


def _code(served: ServableTeacher, target: str | None) -> int | None:
    if target is None:
        return None
    if target not in served.codes:
        message = f"Version {served.version} of model {served.model!r} has no class {target!r}."
        raise NotFound(message, code="class_not_found")
    return served.codes[target]


def _results(
    served: ServableTeacher, X: NDArray[np.float64], code: int | None, with_scores: bool
) -> list[Json]:
    """One result a row of X (n, d). Raises InvalidProblem."""
    teacher = served.teacher
    if code is not None:
        decisions = [teacher.is_class(x, code) for x in X]
        return [{"match": match, "classes_evaluated": evaluated} for match, evaluated in decisions]
    scores = teacher.scores(X)
    results: list[Json] = [{"label": teacher.classes[k]} for k in scores.argmax(axis=1).tolist()]
    if with_scores:
        for result, row in zip(results, scores.tolist(), strict=True):
            result["scores"] = dict(zip(teacher.classes, row, strict=True))
    return results


def _encode(answer: Json) -> bytes:
    return json.dumps(answer, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
