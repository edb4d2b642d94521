"""Evaluation of a whole teacher, for comparison with the students."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
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
from app.serving.work import check_work, row_work
from core.errors import InvalidProblem

_CLASS_OVERHEAD: Final = 2000
"""Multiply-adds that take as long as one step of the loop over the classes in `PackedTeacher.is_class`."""

_WORK_PER_ENTRY: Final = 64
"""Multiply-adds that a block may cost for each of its entries: a block takes about 50 ms of a core."""


class PredictBody(QueryBody):
    """JSON body of a prediction.

    scores: adds the scores of all classes. target: decide "is it this class?" instead, stopping as soon as
    another class scores higher (Remark 2).
    """

    scores: bool = False
    target: Annotated[str | None, msgspec.Meta(description="Decide whether a row is of this class.")] = None


_DECODER: Final = msgspec.json.Decoder(PredictBody)


@dataclass(frozen=True, slots=True)
class Prediction:
    """A parsed request to a teacher. code: number of the target class; None to classify the rows.

    row_work: multiply-adds for one row.
    """

    servable: ServableTeacher
    request: QueryRequest
    scores: bool
    target: str | None
    code: int | None
    row_work: int

    @property
    def work(self) -> int:
        """Multiply-adds for all rows."""
        return self.request.n_rows * self.row_work

    def blocks(self) -> Iterator[list[Json]]:
        """The results of all rows, a block at a time, each about 50 ms of work or a single row.

        Raises InvalidRequest.
        """
        n_columns, n_classes = self.servable.teacher.map.n_columns, len(self.servable.teacher.classes)
        width = max(n_classes, self.row_work // _WORK_PER_ENTRY)
        for block, table in self.request.blocks(n_columns, width):
            try:
                results = _results(self.servable, table, self.code, self.scores)
            except InvalidProblem as error:
                raise self.request.error(error, block.start) from error
            yield results

    def encode(self, results: list[Json]) -> bytes:
        """The JSON answer with the results of all rows."""
        model_fields: Json = {"model": self.servable.model, "version": self.servable.version}
        if self.target is not None:
            model_fields["target"] = self.target
        answer = results[0] | model_fields if self.request.single else {"results": results, **model_fields}
        return json.dumps(answer, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()


def parse_prediction(
    servable: ServableTeacher,
    data: Body,
    format_: RequestFormat,
    limits: RequestLimits,
    scores: bool,
    target: str | None,
) -> Prediction:
    """Parse a request to a teacher. scores, target: as in `PredictBody`, from the query string.

    Raises InvalidRequest, TooLarge, and NotFound for an unknown target.
    """
    data = decompressed(data, format_, limits)
    if format_.body is MediaType.JSON:
        body = decode(_DECODER, data, limits.max_rows)
        request = QueryRequest(body.x, body.rows, explain=False)
        scores, target = scores or body.scores, target if body.target is None else body.target
    else:
        request = parse_tensor(data, format_, limits)
    teacher = servable.teacher
    n_classes = len(teacher.classes)
    if scores and request.n_rows * n_classes > MAX_SCORES:
        raise TooLarge(f"At most {MAX_SCORES} scores are given in one answer.", code="too_many_scores")
    per_row = row_work(teacher.map, n_classes) + (0 if target is None else n_classes * _CLASS_OVERHEAD)
    check_work(request.n_rows, per_row, limits.max_work)
    return Prediction(servable, request, scores, target, _code(servable, target), per_row)


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
