"""Evaluation of a whole teacher, for comparison with the students."""

from __future__ import annotations

import json
from typing import Annotated, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from app.domain.entities import Json
from app.domain.errors import NotFound, TooLarge
from app.http.types import Body
from app.serving.cache import ServableTeacher
from app.serving.query.negotiation import MediaType, RequestFormat
from app.serving.query.requests import MAX_SCORES, QueryRequest, RequestLimits, decompressed, parse_tensor
from app.serving.query.rows import QueryBody, decode
from core.errors import InvalidProblem


class PredictBody(QueryBody):
    """JSON body of a prediction.

    scores: adds the scores of all classes. target: decide "is it this class?" instead, stopping as soon as
    another class scores higher (Remark 2).
    """

    scores: bool = False
    target: Annotated[str | None, msgspec.Meta(description="Decide whether a row is of this class.")] = None


_DECODER: Final = msgspec.json.Decoder(PredictBody)


def answer_teacher(
    teacher: ServableTeacher,
    data: Body,
    format_: RequestFormat,
    limits: RequestLimits,
    scores: bool,
    target: str | None,
) -> bytes:
    """The JSON answer of a teacher. scores, target: as in `PredictBody`, from the query string.

    Raises InvalidRequest, TooLarge, and NotFound for an unknown target.
    """
    data = decompressed(data, format_, limits)
    if format_.body is MediaType.JSON:
        body = decode(_DECODER, data, limits.max_rows)
        request = QueryRequest(body.x, body.rows, explain=False)
        scores, target = scores or body.scores, target if body.target is None else body.target
    else:
        request = parse_tensor(data, format_, limits)
    code = _code(teacher, target)
    model_fields: Json = {"model": teacher.model, "version": teacher.version}
    if target is not None:
        model_fields["target"] = target
    n_columns, n_classes = teacher.teacher.map.n_columns, len(teacher.teacher.classes)
    if scores and request.n_rows * n_classes > MAX_SCORES:
        raise TooLarge(f"At most {MAX_SCORES} scores are given in one answer.", code="too_many_scores")
    results: list[Json] = []
    for block, table in request.blocks(n_columns, n_classes):
        try:
            results += _results(teacher, table, code, scores)
        except InvalidProblem as error:
            raise request.error(error, block.start) from error
    answer = results[0] | model_fields if request.single else {"results": results, **model_fields}
    return json.dumps(answer, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()


def _code(teacher: ServableTeacher, target: str | None) -> int | None:
    """The number of the target class."""
    if target is None:
        return None
    if target not in teacher.codes:
        message = f"Version {teacher.version} of model {teacher.model!r} has no class {target!r}."
        raise NotFound(message, code="class_not_found")
    return teacher.codes[target]


def _results(
    servable: ServableTeacher, X: NDArray[np.float64], code: int | None, with_scores: bool
) -> list[Json]:
    """One result for each row of X (n, d). Raises InvalidProblem."""
    teacher = servable.teacher
    if code is not None:
        decisions = [teacher.is_class(x, code) for x in X]
        return [{"match": match, "classes_evaluated": evaluated} for match, evaluated in decisions]
    scores = teacher.scores(X)
    results: list[Json] = [{"label": teacher.classes[k]} for k in scores.argmax(axis=1).tolist()]
    if with_scores:
        for result, row in zip(results, scores.tolist(), strict=True):
            result["scores"] = dict(zip(teacher.classes, row, strict=True))
    return results
