"""The steps of a query that all wire formats share.

A query is admitted (limit of queries in flight, authentication, rate limit, authorisation), its body is read
within bounds, its rows are decided inline or in a thread, the response is sent, and the query is counted. The
handlers in `query` and `open_inference` are adapters: they parse a request and encode its response.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any, Final, Generic, TypeVar

from app.auth.audit_writer import AuditWriter, is_access_denial
from app.auth.authenticator import Authenticator
from app.domain.entities import ApiKey
from app.domain.errors import Overloaded, ServiceError
from app.http.body import declared_length, read_rest, whole_body
from app.http.byte_budget import ByteBudget, max_body_bytes
from app.http.problem import Problem, ProblemError, internal_problem, problem_of
from app.http.request_id import HEADER, request_id_for
from app.http.responses import Response, send_response
from app.http.types import Body, Receive, Scope, Send
from app.processes.metrics import Metrics
from app.serving.cache import ModelCache
from app.settings import Settings

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_THREADS: Final = 2


class Exchange:
    """One request while it is handled.

    headers: by name. model: label of its metrics, empty until the model is found. started: perf_counter in
    seconds. reserved: bytes of the byte budget.
    """

    __slots__ = ("headers", "model", "request_id", "reserved", "scope", "started")

    def __init__(self, scope: Scope) -> None:
        self.started = perf_counter()
        self.scope = scope
        self.headers: Mapping[bytes, bytes] = dict(scope["headers"])
        self.request_id = request_id_for(self.headers.get(HEADER))
        self.model = ""
        self.reserved = 0

    @property
    def seconds(self) -> float:
        """Seconds since the request started."""
        return perf_counter() - self.started


State = TypeVar("State", bound=Exchange)


class WireFormat(ABC, Generic[State]):
    """An adapter of one protocol to the pipeline."""

    @abstractmethod
    async def answer(self, exchange: State, receive: Receive) -> Response:
        """The response to a request. Raises ServiceError and ProblemError."""

    @abstractmethod
    def refuse(self, exchange: State, problem: Problem) -> Response:
        """The response to a request that failed; counts it."""


class QueryPipeline:
    """Shared state and steps. At most ``max_inflight_queries`` requests are handled at once.

    inflight: requests in progress. byte_budget: memory of their large bodies.
    """

    def __init__(
        self,
        settings: Settings,
        authenticator: Authenticator,
        cache: ModelCache,
        metrics: Metrics,
        audit_writer: AuditWriter,
    ) -> None:
        self.max_bytes, self.max_rows = settings.max_query_bytes, settings.max_query_rows
        self.max_inflight = settings.max_inflight_queries
        self.authenticator = authenticator
        self.cache = cache
        self.metrics = metrics
        self._audit_writer = audit_writer
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="stms-query")
        self.inflight = 0
        self.byte_budget = ByteBudget(settings.max_inflight_bytes)

    async def handle(
        self, wire_format: WireFormat[State], exchange: State, receive: Receive, send: Send
    ) -> None:
        """Answer one request; every error becomes a response."""
        self.inflight += 1
        try:
            try:
                response = await wire_format.answer(exchange, receive)
            except ServiceError as error:
                response = wire_format.refuse(exchange, problem_of(error))
            except ProblemError as error:
                response = wire_format.refuse(exchange, error.problem)
            except Exception:
                logger.exception("request %s failed unexpectedly", exchange.request_id.decode())
                response = wire_format.refuse(exchange, internal_problem())
            await send_response(send, response, exchange.request_id)
        finally:
            self.inflight -= 1
            self.byte_budget.release(exchange.reserved)

    def admit(self, exchange: Exchange, required_scope: str, model: str | None) -> ApiKey:
        """The key of a caller who may proceed. Raises Overloaded, and as `Authenticator.authenticate`."""
        if self.inflight > self.max_inflight:
            raise Overloaded(f"{self.max_inflight} queries are in progress already.")
        return self.authenticator.authenticate(exchange.scope, required_scope, model, exchange.headers)

    async def read_body(self, exchange: Exchange, receive: Receive, *, compressed: bool) -> Body:
        """The whole body, still compressed. Raises Overloaded, TooLarge and InvalidRequest.

        Bodies that arrive in one piece take no further memory, unless they are compressed: only the others
        are charged to the byte budget, until the request ends.
        """
        limit = self.max_bytes
        length = declared_length(exchange.headers.get(b"content-length"), limit)
        message = await receive()
        body: Body | None = whole_body(message, length, limit)
        if body is None or compressed:
            size = max_body_bytes(length, limit, compressed=compressed)
            exchange.reserved = self.byte_budget.reserve(size)
        return await read_rest(message, receive, length, limit) if body is None else body

    async def run(self, inline: bool, work: Callable[..., Result], *arguments: Any) -> Result:
        """The result of ``work``: computed here if ``inline`` is true, otherwise in a thread."""
        if inline:
            return work(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    def record_error(
        self, exchange: Exchange, problem: Problem, *, is_query: bool = True, changes: bool = False
    ) -> None:
        """Count a failed request, and audit it if access was denied or ``changes`` is true."""
        if is_query:
            self.metrics.refused(exchange.model, problem.status)
        if changes or is_access_denial(problem):
            self._audit_writer.record_denial(
                exchange.scope, problem.code, exchange.request_id.decode("ascii")
            )

    def close(self) -> None:
        """Accept no more work for the threads; running work ends on its own."""
        self._threads.shutdown(wait=False, cancel_futures=True)
