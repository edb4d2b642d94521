"""The ASGI handler of queries to students, in front of the web framework.

    POST /v1/models/{model}/classes/{class}:query    one class
    POST /v1/models/{model}:query                    several classes, named in the body or the query string

A warm query for one row takes the fast path, `QueryHandler.prepare`: no database read, no task and no thread.
All others pass `QueryPipeline`; both take the same steps in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from app.domain.errors import ServiceError, TooLarge, Unavailable
from app.http.path_prefix import path_as_sent
from app.http.problem import Problem, ProblemError, method_not_allowed
from app.http.responses import Response, problem_response
from app.http.types import Body, HeaderList, Receive, Scope, Send
from app.serving.loop_time import LoopTime, timed
from app.serving.pipeline import Exchange, QueryPipeline, WireFormat
from app.serving.prepared import Computed, PreparedRequest, header_lines
from app.serving.query.arriving import ArrivingRows, are_scored
from app.serving.query.evaluate import answer_class, answer_classes
from app.serving.query.negotiation import (
    DEFAULT_FORMAT,
    OF_CLASSES,
    OF_ONE_CLASS,
    MediaType,
    RequestFormat,
    negotiate,
)
from app.serving.query.paths import PREFIX, SUFFIXES, ParsedPath, parse_query_path
from app.serving.query.pictures import Pictures, is_about_pictures
from app.serving.query.prepared_prediction import SUFFIX as PREDICT
from app.serving.query.prepared_prediction import PreparedPrediction
from app.serving.query.requests import Question, check_classes, parse_class, parse_classes
from app.serving.query.responses import JSON_HEADERS, Answer, encode_row
from app.serving.row_decoder import decode_row
from app.serving.row_source import MAX_SOURCE_BYTES, RowSource
from app.serving.servable import INLINE_BYTES, ServableStudent
from app.serving.watch import Noted
from app.serving.work import INLINE_WORK, TOO_MUCH_WORK, RequestLimits

_JSON_LINES: Final = header_lines(JSON_HEADERS)


class QueryHandler(WireFormat[Exchange, Receive, Response]):
    """Parses queries of the native format and encodes their responses.

    pictures: makes vectors of the pictures of queries; None where this process takes none.
    """

    def __init__(self, pipeline: QueryPipeline, pictures: Pictures | None = None) -> None:
        self.pipeline, self._pictures = pipeline, pictures
        self._limits = pipeline.limits
        self._inline_limits = replace(
            self._limits, max_work=min(INLINE_WORK, pipeline.max_work), explains_columns=False
        )

    @staticmethod
    def matches(scope: Scope) -> bool:
        """Whether this handler is responsible for a request, judged by its path only."""
        if scope["type"] != "http":
            return False
        path: bytes = scope["raw_path"]
        return path.endswith(SUFFIXES) and path.startswith(PREFIX)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        """Handle one request, as an ASGI application."""
        return self.pipeline.handle(self, Exchange(scope), receive, send)

    async def answer(self, exchange: Exchange, receive: Receive) -> Response:
        scope = exchange.scope
        if scope["method"] != "POST":
            raise ProblemError(method_not_allowed(scope["method"], ["POST"]))
        path = parse_query_path(scope["raw_path"])
        tenant = self.pipeline.admit(exchange, "query", path.model).tenant
        format_ = negotiate(
            exchange.headers, scope["query_string"], OF_CLASSES if path.label is None else OF_ONE_CLASS
        )
        is_compressed = format_.encoding is not None
        data = await self.pipeline.read_body(exchange, receive, compressed=is_compressed)
        evaluate = self._evaluate_classes if path.label is None else self._evaluate_class
        reference = _reference(tenant, path)
        body, rows, headers = await evaluate(reference, path.label or "", format_, data, exchange)
        parse = parse_classes if path.label is None else parse_class
        more = self.pipeline.note(exchange, partial(_source, data, format_, parse, self._limits))
        self.pipeline.metrics.answered(exchange.model, rows, exchange.seconds)
        self.pipeline.trace(exchange, rows)
        return Response(body, (*headers, *more))

    def refuse(self, exchange: Exchange, problem: Problem) -> Response:
        self.pipeline.record_error(exchange, problem)
        return problem_response(problem, exchange.request_id, path_as_sent(exchange.scope))

    def prepare(
        self, target: bytes, headers: HeaderList, client: tuple[str, int] | None = None
    ) -> PreparedRequest | None:
        """The prepared request for a query for one class, or for a prediction; None for other requests.

        target: of the request line. headers: names in lower case. client: (host, port).
        """
        if not target.startswith(PREFIX) or b"?" in target or b"#" in target or not target.isascii():
            return None
        try:
            format_ = negotiate(dict(headers), b"")
            if format_.encoding is not None or format_.body in (MediaType.PICTURE, MediaType.FORM):
                return None
            if target.endswith(PREDICT):
                if format_ is not DEFAULT_FORMAT:
                    return None
                return PreparedPrediction(self.pipeline, headers, client, target, self._limits)
            path = parse_query_path(target)
            if path.label is None:
                return None
            return PreparedQuery(self.pipeline, headers, client, path, format_, self._inline_limits)
        except ServiceError:
            return None

    async def _evaluate_class(
        self, reference: str, label: str, format_: RequestFormat, data: Body, exchange: Exchange
    ) -> Answer:
        cache = self.pipeline.cache
        student = cache.get(reference, label) or await cache.student(reference, label)
        exchange.model, exchange.asked = student.metric_label, [student.loop]
        data, format_ = await self._without_pictures(student, data, format_, exchange)
        inline = _is_inline(student, len(data), format_)
        return await self._run(exchange, inline, partial(answer_class, student, data, format_))

    async def _evaluate_classes(
        self, reference: str, _label: str, format_: RequestFormat, data: Body, exchange: Exchange
    ) -> Answer:
        pipeline = self.pipeline
        if self._pictures is not None and self._pictures.may_be_in(data, format_):
            # The columns are known by any of the classes, and say whether these are pictures.
            check_classes(named := self._pictures.classes_of(data, format_))
            if named:
                [first] = await pipeline.cache.students(reference, named[:1])
                exchange.model = first.metric_label
                data, format_ = await self._without_pictures(first, data, format_, exchange)
        inline = len(data) <= INLINE_BYTES and format_.encoding is None
        question = await pipeline.run(exchange, inline, parse_classes, data, format_, self._limits)
        students = await pipeline.cache.students(reference, question.classes)
        exchange.model = students[0].metric_label
        if students[0].columns.pictures and question.given.form in ("x", "rows"):
            data, format_ = await self._without_pictures(students[0], data, format_, exchange)
            question = parse_classes(data, format_, self._limits)
        exchange.asked = [student.loop for student in students]
        size = len(data) * len(students)
        inline = all(_is_inline(student, size, format_) for student in students)
        return await self._run(exchange, inline, partial(answer_classes, students, question, format_))

    async def _without_pictures(
        self, student: ServableStudent, data: Body, format_: RequestFormat, exchange: Exchange
    ) -> tuple[Body, RequestFormat]:
        """The query with vectors in place of pictures; as it is for versions and bodies without any."""
        pictures = self._pictures
        if not student.columns.pictures and not is_about_pictures(data, format_):
            return data, format_
        if pictures is None:
            raise Unavailable("This server takes no pictures.", code="encoder_unavailable", retry_after=None)
        assert exchange.admission is not None  # noqa: S101 - `admit` has set it
        tenant = exchange.admission.caller.tenant
        content_type = exchange.headers.get(b"content-type", b"")
        return await pictures.without(student.columns, data, format_, tenant, content_type)

    async def _run(
        self, exchange: Exchange, inline: bool, answer: Callable[[RequestLimits, Noted], Answer]
    ) -> Answer:
        """The result of ``answer``: in the event loop if ``inline`` is true and the rows cost little work."""
        if inline:
            try:
                return timed(exchange.asked, answer, self._inline_limits, exchange.noted)
            except TooLarge as error:
                # A few bytes of sparse rows may need as much work as megabytes of dense rows.
                if error.reason != TOO_MUCH_WORK:
                    raise
        return await self.pipeline.run(exchange, False, answer, self._limits, exchange.noted)


class PreparedQuery(PreparedRequest):
    """A query for one class in a format without compression. limits: for queries with immediate answers."""

    def __init__(
        self,
        pipeline: QueryPipeline,
        headers: HeaderList,
        client: tuple[str, int] | None,
        path: ParsedPath,
        format_: RequestFormat,
        limits: RequestLimits,
    ) -> None:
        super().__init__(pipeline, headers, client, path.model)
        assert path.label is not None  # noqa: S101 - it is a query for one class
        self._label = path.label
        self._reference = _reference(self.tenant, path)
        self._format, self._limits = format_, limits
        self._student = partial(pipeline.cache.get, self._reference, self._label)

    def takes(self, size: int) -> bool:
        student = self._student()
        return (
            student is not None and not student.columns.pictures and _is_inline(student, size, self._format)
        )

    def arriving(self, body: memoryview) -> ArrivingRows | None:
        student = self._student()
        if student is None or not are_scored(student, self._format, len(body), self._limits):
            return None
        return ArrivingRows(self, student, self._format, body) if self.admit() else None

    def asked(self) -> Sequence[LoopTime]:
        student = self._student()
        return () if student is None else [student.loop]

    def compute(self, body: Body) -> Computed | None:
        student = self._student()
        if student is None or student.columns.pictures:
            return None
        if student.loop.is_quick:
            return self._answer(student, body)
        return timed([student.loop], self._answer, student, body) if student.loop.is_allowed else None

    def source(self, body: Body) -> RowSource | None:
        return _source(body, self._format, parse_class, self._limits)

    def _answer(self, student: ServableStudent, body: Body) -> Computed | None:
        if self._format is DEFAULT_FORMAT and len(body) <= student.inline_bytes:
            # One dense row, record or text is the most frequent query.
            if student.score_body is None:
                row = decode_row(body, student.n_columns)
                score = None if row is None else student.score_packed(row)
            else:
                score = student.score_body(body)
            if score is not None:
                if student.watch.is_on:
                    student.watch.note_row(score, self.noted)
                return encode_row(student, score), _JSON_LINES, student.metric_label, 1
        if not _is_inline(student, len(body), self._format):
            return None
        content, rows, headers = answer_class(student, body, self._format, self._limits, self.noted)
        lines = _JSON_LINES if headers is JSON_HEADERS else header_lines(headers)
        return content, lines, student.metric_label, rows


def _source(
    data: Body,
    format_: RequestFormat,
    parse: Callable[[Body, RequestFormat, RequestLimits], Question],
    limits: RequestLimits,
) -> RowSource | None:
    """What the rows of a body can be read from when it is gone from where it arrived; None of a large one."""
    if len(data) > MAX_SOURCE_BYTES:
        return None
    kept = bytes(data)
    return RowSource(
        len(kept), lambda columns: parse(kept, format_, limits).given.of(columns, limits.max_rows)
    )


def _reference(tenant: str, path: ParsedPath) -> str:
    """The model as the cache knows it; the same as `app.domain.names.qualified`, without another file."""
    return f"{tenant}/{path.reference}"


def _is_inline(student: ServableStudent, size: int, format_: RequestFormat) -> bool:
    """Whether ``size`` bytes are decided sooner in the event loop than a thread could start on them."""
    if not student.loop.is_allowed:
        return False
    if format_ is DEFAULT_FORMAT:
        return size <= student.inline_bytes
    if format_.encoding is not None:
        return False
    return size <= (student.inline_bytes if format_.uses_json else student.inline_tensor_bytes)
