"""The queries, what the service is for, as a plain ASGI application.

    POST /v1/models/{model}/classes/{class}:query    is it this class?
    POST /v1/models/{model}:query                    the same of several classes, named by the query

One query is: recognise the caller, look up the student, read the numbers, one decision, answer. When the
student is loaded there is no database read, no thread and no framework between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any, Final, TypeAlias, TypeVar

from app.auth.audit_writer import AuditWriter, is_access_denial
from app.auth.authenticator import Authenticator, authorise
from app.domain.errors import Overloaded, ServiceError
from app.http.body import declared_length, read_rest, whole_body
from app.http.byte_budget import ByteBudget, max_body_bytes
from app.http.problem import Headers, Problem, internal_problem, method_not_allowed, problem_of
from app.http.request_id import HEADER, request_id_for
from app.http.types import Body, Receive, Scope, Send
from app.processes.metrics import Metrics
from app.serving.cache import ModelCache
from app.serving.query import evaluate
from app.serving.query.negotiation import DEFAULT_FORMAT, RequestFormat, negotiate
from app.serving.query.paths import PREFIX, SUFFIXES, ParsedPath, parse_query_path
from app.serving.query.requests import RequestLimits, read_classes
from app.serving.query.responses import Answer
from app.serving.servable import INLINE_BYTES
from app.serving.several import students_of
from app.settings import Settings

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
FastResponse: TypeAlias = tuple[Headers, bytes]

_THREADS: Final = 2


class _RequestState:
    """The request under way. model: its name, a label of its count, once the model was found."""

    model = ""


class QueryHandler:
    """The application. At most ``max_inflight_queries`` requests are inside at once, the others get 429."""

    def __init__(
        self,
        settings: Settings,
        authenticator: Authenticator,
        cache: ModelCache,
        metrics: Metrics,
        audit_writer: AuditWriter,
    ) -> None:
        self._limits = RequestLimits(settings.max_query_bytes, settings.max_query_rows)
        self._max_inflight = settings.max_inflight_queries
        self._authenticator = authenticator
        self._cache = cache
        self._metrics = metrics
        self._audit_writer = audit_writer
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="stms-query")
        self.inflight = 0
        self.byte_budget = ByteBudget(settings.max_inflight_bytes)

    @staticmethod
    def matches(scope: Scope) -> bool:
        """Whether the request is for this application; a look at the path, nothing more."""
        if scope["type"] != "http":
            return False
        path: bytes = scope["raw_path"]
        return path.endswith(SUFFIXES) and path.startswith(PREFIX)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A warm query for one row passes this function and `query.answer_single_row`, and hardly any other.
        started = perf_counter()
        headers: dict[bytes, bytes] = dict(scope["headers"])
        request_id, state = request_id_for(headers.get(HEADER)), _RequestState()
        if scope["method"] != "POST":
            await self._send_error(
                method_not_allowed(scope["method"], "POST"), scope, request_id, state, send
            )
            return
        self.inflight += 1
        held = 0
        try:
            if self.inflight > self._max_inflight:
                raise Overloaded(f"{self._max_inflight} queries are under way already.")
            path = parse_query_path(scope["raw_path"])
            self._authenticator.authenticate(scope, "query", path.model, headers)
            format_, length = self._negotiate(scope["query_string"], headers)
            message = await receive()
            data: Body | None = whole_body(message, length, self._limits.max_bytes)
            if data is None or format_.encoding is not None:
                # Neither does it come in one piece, nor is it as small as it looks.
                packed = format_.encoding is not None
                held = self.byte_budget.reserve(max_body_bytes(length, self._limits.max_bytes, packed=packed))
            if data is None:
                data = await read_rest(message, receive, length, self._limits.max_bytes)
            served = None
            if format_ is DEFAULT_FORMAT and path.label is not None:
                served = self._cache.get(path.reference, path.label)
            if served is not None and len(data) <= served.inline_bytes:
                state.model = served.model
                body, rows, described = evaluate.answer_single_row(served, data, self._limits)
            else:
                body, rows, described = await self._answer(path, format_, data, state)
        except ServiceError as error:
            await self._send_error(problem_of(error), scope, request_id, state, send)
        except Exception:
            logger.exception("request %s: a query failed unexpectedly", request_id.decode())
            await self._send_error(internal_problem(), scope, request_id, state, send)
        else:
            answered: Headers = [*described, (b"content-length", b"%d" % len(body)), (HEADER, request_id)]
            await send({"type": "http.response.start", "status": 200, "headers": answered})
            await send({"type": "http.response.body", "body": body})
            self._metrics.answered(state.model, rows, perf_counter() - started)
        finally:
            self.inflight -= 1
            self.byte_budget.release(held)

    def try_respond(
        self,
        target: bytes,
        headers: list[tuple[bytes, bytes]],
        data: bytes,
        client: tuple[str, int] | None = None,
    ) -> FastResponse | None:
        """The answer to a warm query for one class, without a task and before anything is put off.

        None for whatever is not that, errors too: `__call__` has all answers. Only what is answered here is
        paid for here.
        """
        started = perf_counter()
        if not target.startswith(PREFIX) or b"?" in target or b"#" in target or not target.isascii():
            return None
        by_name = dict(headers)
        quota = served = answer = None
        try:
            if self.inflight >= self._max_inflight:
                return None
            path = parse_query_path(target)
            key, quota = self._authenticator.charge(by_name, client, headers)
            authorise(key, "query", path.model)
            format_, length = self._negotiate(b"", by_name)
            if format_ is DEFAULT_FORMAT and path.label is not None and length == len(data):
                served = self._cache.get(path.reference, path.label)
            if served is not None and len(data) <= served.inline_bytes:
                answer = evaluate.answer_single_row(served, data, self._limits)
        except Exception:  # noqa: BLE001 - `__call__` handles the request again, and reports the error
            answer = None
        if answer is None or served is None:
            if quota is not None:
                quota.refund()
            return None
        body, rows, described = answer
        self._metrics.answered(served.model, rows, perf_counter() - started)
        length_header = (b"content-length", b"%d" % len(body))
        return [*described, length_header, (HEADER, request_id_for(by_name.get(HEADER)))], body

    def close(self) -> None:
        """Take no more work; what is under way ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _negotiate(
        self, query_string: bytes, headers: dict[bytes, bytes]
    ) -> tuple[RequestFormat, int | None]:
        """How it is asked, and the length of the body. Raises ServiceError."""
        length = declared_length(headers.get(b"content-length"), self._limits.max_bytes)
        return negotiate(headers, query_string), length

    async def _answer(
        self, path: ParsedPath, format_: RequestFormat, data: Body, state: _RequestState
    ) -> Answer:
        """The answer to any query. Raises ServiceError."""
        if path.label is None:
            return await self._answer_classes(path, format_, data, state)
        served = await self._cache.student(path.reference, path.label)
        state.model = served.model
        if served.is_quick(len(data), format_):
            return evaluate.answer_class(served, data, format_, self._limits)
        return await self._in_thread(evaluate.answer_class, served, data, format_, self._limits)

    async def _answer_classes(
        self, path: ParsedPath, format_: RequestFormat, data: Body, state: _RequestState
    ) -> Answer:
        if len(data) <= INLINE_BYTES and format_.encoding is None:
            question = read_classes(data, format_, self._limits)
        else:
            question = await self._in_thread(read_classes, data, format_, self._limits)
        students = await students_of(self._cache, path.reference, question.classes)
        state.model = students[0].model
        if students[0].is_quick(len(data) * len(students), format_):
            return evaluate.answer_classes(students, question, format_)
        return await self._in_thread(evaluate.answer_classes, students, question, format_)

    async def _in_thread(self, work: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    async def _send_error(
        self, problem: Problem, scope: Scope, request_id: bytes, state: _RequestState, send: Send
    ) -> None:
        body = problem.body(request_id.decode("ascii"), scope["raw_path"].decode("latin-1"))
        headers = [*problem.headers(), (b"content-length", b"%d" % len(body)), (HEADER, request_id)]
        await send({"type": "http.response.start", "status": problem.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        self._metrics.refused(state.model, problem.status)
        if is_access_denial(problem):
            self._audit_writer.record_denial(scope, problem.code, request_id.decode("ascii"))
