"""Inferences whose request head is understood, see `app.serving.prepared`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from time import perf_counter_ns
from typing import Final

import msgspec

from app.domain.errors import InvalidRequest
from app.http.headers import MIN_COMPRESSED_BYTES, preferred_coding
from app.http.problem import NO_STORE
from app.http.types import Body, Header, HeaderList
from app.serving.columns.base import Columns, Rows
from app.serving.loop_time import LoopTime, timed
from app.serving.open_inference.evaluate import answer, encode
from app.serving.open_inference.one_row import OneRowReader, RowEncoder
from app.serving.open_inference.paths import ParsedPath
from app.serving.open_inference.requests import parse_inference
from app.serving.open_inference.statistics import Statistics
from app.serving.pipeline import QueryPipeline
from app.serving.prepared import Computed, PreparedRequest, header_lines
from app.serving.row_source import MAX_SOURCE_BYTES, RowSource
from app.serving.servable import INLINE_BYTES, ServableStudent
from app.serving.work import INLINE_WORK

JSON_LENGTH: Final = b"inference-header-content-length"
"""The header with the length of the JSON in front of binary tensors."""

_LENGTH: Final = re.compile(rb"[0-9]{1,9}")
JSON: Final = (b"content-type", b"application/json")
_BINARY: Final = (b"content-type", b"application/octet-stream")
_VARY: Final = (b"vary", b"accept-encoding")


class PreparedInference(PreparedRequest):
    """An inference. path: without its tenant. statistics: counts the inference."""

    def __init__(
        self,
        pipeline: QueryPipeline,
        headers: HeaderList,
        client: tuple[str, int] | None,
        path: ParsedPath,
        statistics: Statistics,
    ) -> None:
        super().__init__(pipeline, headers, client, path.model)
        self._path = path.of_tenant(self.tenant)
        self._reference = self._path.cache_reference
        self._statistics = statistics
        length = self._json_length = self.by_name.get(JSON_LENGTH)
        self._rows_at = int(length) if length is not None and _LENGTH.fullmatch(length) else None
        if length is not None and self._rows_at is None:
            raise InvalidRequest(f"{JSON_LENGTH.decode()} cannot be read.")
        self._name = msgspec.json.encode(path.name)
        self._reader = OneRowReader(0)
        self._encoder: RowEncoder | None = None
        self._asked: Sequence[LoopTime] = ()
        self._may_compress = preferred_coding(self.by_name.get(b"accept-encoding")) is not None
        self._json_lines = header_lines(answer_headers(None))

    def asked(self) -> Sequence[LoopTime]:
        encoder = self._encoder
        return self._asked or (() if encoder is None else [encoder.served.loop])

    def source(self, body: Body) -> RowSource | None:
        if len(body) > MAX_SOURCE_BYTES:
            return None
        kept = bytes(body)

        def read(columns: Columns) -> Rows:
            inference = parse_inference(kept, self._json_length, self._path)
            return inference.rows(columns, self.pipeline.max_rows)

        return RowSource(len(kept), read)

    def compute(self, body: Body) -> Computed | None:
        if len(body) > INLINE_BYTES:
            return None
        path = self._path
        if path.label is None:
            return self._infer(body)
        student = self.pipeline.cache.get(self._reference, path.label)
        if student is None:
            return None
        if student.loop.is_quick:
            return self._ask(body, student)
        return timed([student.loop], self._ask, body, student) if student.loop.is_allowed else None

    def _ask(self, body: Body, student: ServableStudent) -> Computed | None:
        """Like `compute`. student: the one that the path names."""
        if student.columns.is_table and student.work <= INLINE_WORK:
            began = perf_counter_ns()
            if self._reader.n_columns != student.n_columns:
                self._reader = OneRowReader(student.n_columns)
            row = self._reader.read(body, self._rows_at)
            if row is not None:
                parsed = perf_counter_ns()
                score = student.score_packed(row.x)
                decided = perf_counter_ns()
                if student.watch.is_on:
                    self.noted.append((student.watch, score, None))
                encoder = self._encoder
                if encoder is None or encoder.served is not student:
                    encoder = self._encoder = RowEncoder(student, self._name)
                return self._computed(student, 1, encoder.encode(score, row), (began, parsed, decided))
        return self._infer(body)

    def _infer(self, body: Body) -> Computed | None:
        """As `compute`, of any body."""
        began = perf_counter_ns()
        pipeline, path = self.pipeline, self._path
        inference = parse_inference(body, self._json_length, path)
        students: dict[str, ServableStudent] = {}
        for label in inference.distinct:
            served = pipeline.cache.get(self._reference, label)
            if served is None or not served.loop.is_allowed:
                return None
            students[label] = served
        first = students[inference.labels[0]]
        rows = inference.rows(first.columns, pipeline.max_rows)
        parsed = perf_counter_ns()
        self._asked = [served.loop for served in students.values()]
        if len(rows) * max(served.explained_work for served in students.values()) > INLINE_WORK:
            return None
        outputs = timed(self._asked, answer, inference, rows, students, pipeline.limits, self.noted)
        decided = perf_counter_ns()
        fields = {"model_name": path.name, "model_version": str(first.version)}
        return self._computed(first, len(rows), encode(inference, *outputs, fields), (began, parsed, decided))

    def _computed(
        self,
        student: ServableStudent,
        rows: int,
        encoded: tuple[bytes, int | None],
        times: tuple[int, int, int],
    ) -> Computed | None:
        """Count an inference. times: when it began, was parsed, and was decided."""
        content, json_length = encoded
        if self._may_compress and len(content) >= MIN_COMPRESSED_BYTES:
            return None
        version = student.tenant, student.model, student.version
        self._statistics.note(version, rows, (*times, perf_counter_ns()))
        lines = self._json_lines if json_length is None else header_lines(answer_headers(json_length))
        return content, lines, student.metric_label, rows


def answer_headers(json_length: int | None) -> list[Header]:
    """The headers of an answer. json_length: of its JSON, if binary data follow it."""
    if json_length is None:
        return [JSON, _VARY, NO_STORE]
    return [_BINARY, (JSON_LENGTH, b"%d" % json_length), _VARY, NO_STORE]
