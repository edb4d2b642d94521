"""Predictions of whole teachers that cost little, answered as queries are, see `app.serving.prepared`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from app.domain.errors import NotFound
from app.domain.names import is_reference, qualified
from app.http.types import Body, HeaderList
from app.serving.cache import ServableTeacher
from app.serving.loop_time import LoopTime, timed
from app.serving.pipeline import QueryPipeline
from app.serving.prepared import Computed, PreparedRequest, header_lines
from app.serving.query.negotiation import DEFAULT_FORMAT
from app.serving.query.paths import PREFIX
from app.serving.query.predict import parse_prediction
from app.serving.query.responses import JSON_HEADERS
from app.serving.row_decoder import decode_row
from app.serving.servable import INLINE_BYTES
from app.serving.work import RequestLimits, prediction_work

SUFFIX: Final = b":predict"
ROUTE: Final = "/v1/models/{model}:predict"
"""The label of predictions in the metrics of routes."""
INLINE_WORK: Final = 1 << 20
"""Most multiply-adds of a prediction in the event loop, about a millisecond."""

_LINES: Final = header_lines(JSON_HEADERS)


class RowLabels:
    """Answers of one teacher to single dense rows, as `Prediction.answer` gives them.

    n_columns: numbers of a row. work: multiply-adds for a row.
    """

    def __init__(self, served: ServableTeacher) -> None:
        self.served = served
        teacher = served.teacher
        self.n_columns = teacher.map.n_columns
        self.work = prediction_work(teacher.map, len(teacher.classes))
        self._scores, self._classes = teacher.scores, teacher.classes
        self._end = b"," + msgspec.json.encode({"model": served.model, "version": served.version})[1:]

    def of_row(self, row: bytes) -> bytes:
        """The answer to a row of `app.serving.row_decoder`. Raises InvalidProblem."""
        code = int(self._scores(np.frombuffer(row)[np.newaxis]).argmax())
        return msgspec.json.encode({"label": self._classes[code]})[:-1] + self._end


class PreparedPrediction(PreparedRequest):
    """A prediction with JSON in request and response. target: of the request line. Raises ServiceError."""

    def __init__(
        self,
        pipeline: QueryPipeline,
        headers: HeaderList,
        client: tuple[str, int] | None,
        target: bytes,
        limits: RequestLimits,
    ) -> None:
        reference = target[len(PREFIX) : -len(SUFFIX)].decode("ascii")
        if not is_reference(reference):
            raise NotFound("There is no such model.", code="model_not_found")
        super().__init__(pipeline, headers, client, reference.partition("@")[0])
        self._reference = qualified(self.tenant, reference)
        self._limits = limits
        self._labels: RowLabels | None = None
        self._most_work = min(INLINE_WORK, pipeline.authenticator.rate_work or INLINE_WORK)

    def asked(self) -> Sequence[LoopTime]:
        teacher = self.pipeline.cache.loaded_teacher(self._reference)
        return () if teacher is None else [teacher.loop]

    def compute(self, body: Body) -> Computed | None:
        cache = self.pipeline.cache
        teacher = cache.loaded_teacher(self._reference)
        if teacher is None:
            # For the next one.
            cache.load_small_teacher(self._reference, INLINE_WORK)
            return None
        if len(body) > INLINE_BYTES or teacher.columns.pictures:
            return None
        if teacher.loop.is_quick:
            return self._answer(teacher, body)
        return timed([teacher.loop], self._answer, teacher, body) if teacher.loop.is_allowed else None

    def _answer(self, teacher: ServableTeacher, body: Body) -> Computed | None:
        if teacher.columns.is_table:
            labels = self._labels
            if labels is None or labels.served is not teacher:
                labels = self._labels = RowLabels(teacher)
            if labels.work < min(self._most_work, self._limits.max_work):
                row = decode_row(body, labels.n_columns)
                if row is not None:
                    return labels.of_row(row), _LINES, teacher.metric_label, 1
        prediction = parse_prediction(teacher, body, DEFAULT_FORMAT, self._limits, False, None)
        if prediction.work >= self._most_work:
            return None
        content = prediction.answer(list(prediction.blocks()))
        return content, _LINES, teacher.metric_label, len(prediction.rows)

    def count(self, model: str, rows: int, seconds: float) -> None:  # noqa: ARG002 - predictions count no rows
        metrics = self.pipeline.metrics
        metrics.predicted(model)
        metrics.responded("POST", ROUTE, 200, seconds)
