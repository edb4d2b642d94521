"""Evaluation of a whole teacher, for comparison with the students."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from app.domain.entities import Json
from app.domain.errors import NotFound
from app.domain.near_names import known_names, spellings
from app.http.types import Body
from app.serving.cache import ServableTeacher
from app.serving.columns.base import Rows
from app.serving.loader import Teacher
from app.serving.query.bodies import QueryBody, decode
from app.serving.query.negotiation import MediaType, RequestFormat
from app.serving.query.requests import check_scores, decompressed, given_tensor
from app.serving.work import RequestLimits, check_work, prediction_work
from core.errors import InvalidProblem

_COMPARED_CLASSES: Final = 200
"""The first classes of a teacher, among which a near name is looked for."""

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
    rows: Rows
    scores: bool
    target: str | None
    code: int | None
    row_work: int

    @property
    def work(self) -> int:
        """Multiply-adds for all rows."""
        return len(self.rows) * self.row_work

    def blocks(self) -> Iterator[bytes]:
        """The results of all rows in JSON, separated by commas, one block at a time.

        A block is about 50 ms of work, or a single row. Hardly any of it holds the interpreter lock, for
        which the event loop would wait.

        Raises InvalidRequest.
        """
        width = max(len(self.servable.teacher.classes), self.row_work // _WORK_PER_ENTRY)
        for numbers, table in self.rows.blocks(width):
            try:
                results = b",".join(_results(self.servable, table, self.code, self.scores))
            except InvalidProblem as error:
                raise self.rows.error(error, numbers, table) from error
            yield results

    def answer(self, blocks: list[bytes]) -> bytes:
        """The JSON answer with all `blocks`."""
        model_fields: Json = {"model": self.servable.model, "version": self.servable.version}
        if self.target is not None:
            model_fields["target"] = self.target
        results = blocks[0][:-1] if self.rows.single else b'{"results":[' + b",".join(blocks) + b"]"
        return results + b"," + msgspec.json.encode(model_fields)[1:]


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
        given, fields = decode(_DECODER, data, limits.max_rows)
        scores, target = scores or fields.scores, target if fields.target is None else fields.target
    else:
        given = given_tensor(data, format_, limits)
    rows = given.of(servable.columns, limits.max_rows)
    teacher = servable.teacher
    n_classes = len(teacher.classes)
    if scores:
        check_scores(n_classes, len(rows))
    per_row = prediction_work(teacher.map, n_classes, target=target is not None)
    check_work(len(rows), per_row, limits.max_work)
    return Prediction(servable, rows, scores, target, _code(servable, target), per_row)


def _code(teacher: ServableTeacher, target: str | None) -> int | None:
    """The number of the target class."""
    if target is None:
        return None
    if target not in teacher.codes:
        names = _known_names(teacher, target)
        message = (
            f"Version {teacher.version} of model {teacher.model!r} has no class {target!r:.400}; {names}"
        )
        raise NotFound(message, code="class_not_found")
    return teacher.codes[target]


def _known_names(teacher: ServableTeacher, target: str) -> str:
    near = next((name for name in spellings(target) if name in teacher.codes), "")
    classes = teacher.teacher.classes
    return known_names(target, classes[:_COMPARED_CLASSES], "classes", count=len(classes), near=near)


def _results(
    servable: ServableTeacher, X: NDArray[np.float64], code: int | None, with_scores: bool
) -> Iterable[bytes]:
    """One result in JSON for each row of X (n, d). Raises InvalidProblem."""
    teacher = servable.teacher
    if code is not None:
        return map(msgspec.json.encode, _matches(teacher, X, code))
    scores = teacher.scores(X)
    codes: list[int] = scores.argmax(axis=1).tolist()
    if with_scores:
        return map(msgspec.json.encode, _scored(teacher.classes, codes, scores))
    texts = {k: msgspec.json.encode({"label": teacher.classes[k]}) for k in set(codes)}
    return map(texts.__getitem__, codes)


def _matches(teacher: Teacher, X: NDArray[np.float64], code: int) -> Iterator[Json]:
    for x in X:
        match, evaluated = teacher.is_class(x, code)
        yield {"match": match, "classes_evaluated": evaluated}


def _scored(classes: Sequence[str], codes: list[int], scores: NDArray[np.float64]) -> Iterator[Json]:
    for k, row in zip(codes, scores, strict=True):
        yield {"label": classes[k], "scores": dict(zip(classes, row.tolist(), strict=True))}
