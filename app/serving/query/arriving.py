"""Queries whose rows, a raw tensor for a linear student, are scored while they arrive."""

from __future__ import annotations

import numpy as np

from app.http.types import Body
from app.serving.decision import decisions_of
from app.serving.prepared import ArrivingRequest, Computed, PreparedRequest, header_lines
from app.serving.query.evaluate import encode_all
from app.serving.query.negotiation import MediaType, RequestFormat
from app.serving.query.responses import NO_NOTES
from app.serving.servable import ServableStudent
from app.serving.work import RequestLimits
from core.packed.evaluation import Evaluation


class ArrivingRows(ArrivingRequest):
    """A query for one class on several rows. body: memory of a raw tensor that `are_scored` has accepted."""

    def __init__(
        self, prepared: PreparedRequest, servable: ServableStudent, format_: RequestFormat, body: memoryview
    ) -> None:
        super().__init__(prepared)
        self._servable, self._format = servable, format_
        student, linear = servable.student, servable.student.form.linear
        assert format_.shape is not None and linear is not None  # noqa: S101, PT018 - are_scored looked at both
        table = np.frombuffer(body, format_.dtype).reshape(format_.shape)
        self._row_bytes = table.strides[0]
        self._evaluation = Evaluation(student.map, table, [linear])

    def advance(self, filled: int) -> None:
        self._evaluation.advance(filled // self._row_bytes)

    def compute(self, body: Body) -> Computed:  # noqa: ARG002 - its rows are scored already
        servable = self._servable
        decisions = decisions_of(servable.student, self._evaluation.values()[0])
        if servable.watch.is_on:
            self._prepared.noted.append((servable.watch, decisions.scores, None))
        content, rows, headers = encode_all(
            [servable], [decisions], NO_NOTES, self._format.answer, single=False, named=False
        )
        return content, header_lines(headers), servable.metric_label, rows


def are_scored(servable: ServableStudent, format_: RequestFormat, size: int, limits: RequestLimits) -> bool:
    """Whether the rows in a body of ``size`` bytes can be scored while they arrive."""
    student, shape, dtype = servable.student, format_.shape, format_.dtype
    if format_.body is not MediaType.TENSOR or shape is None or dtype is None or format_.explain:
        return False
    return (
        servable.columns.takes_lists
        and student.map.kind == "linear"
        and student.form.linear is not None
        and len(shape) == 2
        and 1 < shape[0] <= limits.max_rows
        and shape[1] == student.map.n_columns
        and size == shape[0] * shape[1] * dtype.itemsize
        and shape[0] * shape[1] <= limits.max_work
    )
