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

from app.auth.audit_writer import Witness, is_audited
from app.auth.authenticator import KeyGate, authorise
from app.domain.errors import Overloaded, ServiceError
from app.http.body import Body, Receive, Scope, Send, declared_length, read_rest, whole_body
from app.http.byte_budget import HeldBytes, most_bytes
from app.http.problem import Headers, Problem, internal_problem, method_not_allowed, problem_of
from app.http.request_id import HEADER, request_id_for
from app.processes.metrics import Metrics
from app.serving.cache import ModelCache
from app.serving.query import evaluate
from app.serving.query.negotiation import PLAIN, Manner, manner_of
from app.serving.query.paths import PREFIX, SUFFIXES, Route, route_of
from app.serving.query.requests import Limits, read_classes
from app.serving.query.responses import Answer
from app.serving.servable import INLINE_BYTES
from app.serving.several import students_of
from app.settings import Settings

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
AtOnceAnswer: TypeAlias = tuple[Headers, bytes]

_THREADS: Final = 2


class _Visit:
    """The request under way. model: its name, a label of its count, once the model was found."""

    model = ""


class QueryPath:
    """The application. At most ``max_inflight_queries`` requests are inside at once, the others get 429."""

    def __init__(
        self, settings: Settings, gate: KeyGate, cache: ModelCache, metrics: Metrics, witness: Witness
    ) -> None:
        self._limits = Limits(settings.max_query_bytes, settings.max_query_rows)
        self._max_inflight = settings.max_inflight_queries
        self._gate = gate
        self._cache = cache
        self._metrics = metrics
        self._witness = witness
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="stms-query")
        self.inflight = 0
        self.held = HeldBytes(settings.max_inflight_bytes)

    @staticmethod
    def takes(scope: Scope) -> bool:
        """Whether the request is for this application; a look at the path, nothing more."""
        if scope["type"] != "http":
            return False
        path: bytes = scope["raw_path"]
        return path.endswith(SUFFIXES) and path.startswith(PREFIX)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A warm query for one row passes this function and `query.ask_plain`, and hardly any other.
        started = perf_counter()
        headers: dict[bytes, bytes] = dict(scope["headers"])
        request_id, visit = request_id_for(headers.get(HEADER)), _Visit()
        if scope["method"] != "POST":
            await self._refuse(method_not_allowed(scope["method"], "POST"), scope, request_id, visit, send)
            return
        self.inflight += 1
        held = 0
        try:
            if self.inflight > self._max_inflight:
                raise Overloaded(f"{self._max_inflight} queries are under way already.")
            route = route_of(scope["raw_path"])
            self._gate.admit(scope, "query", route.model, headers)
            manner, length = self._manner(scope["query_string"], headers)
            message = await receive()
            data: Body | None = whole_body(message, length, self._limits.max_bytes)
            if data is None or manner.encoding is not None:
                # Neither does it come in one piece, nor is it as small as it looks.
                packed = manner.encoding is not None
                held = self.held.take(most_bytes(length, self._limits.max_bytes, packed=packed))
            if data is None:
                data = await read_rest(message, receive, length, self._limits.max_bytes)
            served = None
            if manner is PLAIN and route.label is not None:
                served = self._cache.get(route.reference, route.label)
            if served is not None and len(data) <= served.inline_bytes:
                visit.model = served.model
                body, rows, described = evaluate.ask_plain(served, data, self._limits)
            else:
                body, rows, described = await self._answer(route, manner, data, visit)
        except ServiceError as error:
            await self._refuse(problem_of(error), scope, request_id, visit, send)
        except Exception:
            logger.exception("request %s: a query failed unexpectedly", request_id.decode())
            await self._refuse(internal_problem(), scope, request_id, visit, send)
        else:
            answered: Headers = [*described, (b"content-length", b"%d" % len(body)), (HEADER, request_id)]
            await send({"type": "http.response.start", "status": 200, "headers": answered})
            await send({"type": "http.response.body", "body": body})
            self._metrics.answered(visit.model, rows, perf_counter() - started)
        finally:
            self.inflight -= 1
            self.held.give_back(held)

    def at_once(
        self,
        target: bytes,
        headers: list[tuple[bytes, bytes]],
        data: bytes,
        client: tuple[str, int] | None = None,
    ) -> AtOnceAnswer | None:
        """The answer to a warm query for one class, without a task and before anything is put off.

        None for whatever is not that, errors too: `__call__` has all answers. Only what is answered here is
        paid for here.
        """
        started = perf_counter()
        if not target.startswith(PREFIX) or b"?" in target or b"#" in target or not target.isascii():
            return None
        given, budget = dict(headers), None
        try:
            if self.inflight >= self._max_inflight:
                return None
            route = route_of(target)
            key = self._gate.caller_of(given)
            authorise(key, "query", route.model)
            manner, length = self._manner(b"", given)
            if manner is not PLAIN or route.label is None or length != len(data):
                return None
            served = self._cache.get(route.reference, route.label)
            if served is None or len(data) > served.inline_bytes:
                return None
            if self._gate.limits.any:
                budget = self._gate.budget(key, client, headers)
                if budget is not None and budget.take():
                    return None
            body, rows, described = evaluate.ask_plain(served, data, self._limits)
        except Exception:  # noqa: BLE001 - it comes again in `__call__`, which tells the caller and the log
            if budget is not None:
                budget.give_back()
            return None
        self._metrics.answered(served.model, rows, perf_counter() - started)
        length_header = (b"content-length", b"%d" % len(body))
        return [*described, length_header, (HEADER, request_id_for(given.get(HEADER)))], body

    def close(self) -> None:
        """Take no more work; what is under way ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _manner(self, query_string: bytes, headers: dict[bytes, bytes]) -> tuple[Manner, int | None]:
        """How it is asked, and the length of the body. Raises ServiceError."""
        length = declared_length(headers.get(b"content-length"), self._limits.max_bytes)
        return manner_of(headers, query_string), length

    async def _answer(self, route: Route, manner: Manner, data: Body, visit: _Visit) -> Answer:
        """The answer to any query. Raises ServiceError."""
        if route.label is None:
            return await self._answer_classes(route, manner, data, visit)
        served = await self._cache.student(route.reference, route.label)
        visit.model = served.model
        if served.is_quick(len(data), manner):
            return evaluate.ask_class(served, data, manner, self._limits)
        return await self._in_thread(evaluate.ask_class, served, data, manner, self._limits)

    async def _answer_classes(self, route: Route, manner: Manner, data: Body, visit: _Visit) -> Answer:
        if len(data) <= INLINE_BYTES and manner.encoding is None:
            question = read_classes(data, manner, self._limits)
        else:
            question = await self._in_thread(read_classes, data, manner, self._limits)
        students = await students_of(self._cache, route.reference, question.classes)
        visit.model = students[0].model
        if students[0].is_quick(len(data) * len(students), manner):
            return evaluate.ask_classes(students, question, manner)
        return await self._in_thread(evaluate.ask_classes, students, question, manner)

    async def _in_thread(self, work: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    async def _refuse(
        self, problem: Problem, scope: Scope, request_id: bytes, visit: _Visit, send: Send
    ) -> None:
        body = problem.body(request_id.decode("ascii"), scope["raw_path"].decode("latin-1"))
        headers = [*problem.headers(), (b"content-length", b"%d" % len(body)), (HEADER, request_id)]
        await send({"type": "http.response.start", "status": problem.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        self._metrics.refused(visit.model, problem.status)
        if is_audited(problem):
            self._witness.refused(scope, problem.code, request_id.decode("ascii"))
