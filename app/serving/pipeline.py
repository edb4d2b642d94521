"""The steps of a query that all wire formats share.

The caller is identified from the headers before any resource is used (authentication, rate limit,
authorisation). Then the body is read within bounds, the query takes its place among those in progress, its
rows are decided inline or in a thread, the response is sent, and the query is counted. The handlers in
`query` and `open_inference` are adapters: they parse a request and encode its response.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any, Final, Generic, TypeVar

from app.auth.audit_writer import AuditWriter, is_access_denial
from app.auth.authenticator import Authenticator, authorise
from app.auth.shares import QUERY_THREADS, Admission, Budgets, counting
from app.domain.entities import ApiKey
from app.domain.errors import ServiceError
from app.http.body import declared_length, max_body_bytes, read_rest, whole_body
from app.http.cors import CrossOrigin
from app.http.problem import Problem, ProblemError, internal_problem, problem_of
from app.http.request_id import HEADER, request_id_for
from app.http.responses import Response, send_response
from app.http.types import Body, HeaderList, Receive, Scope, Send
from app.processes.metrics import Metrics
from app.serving.cache import ModelCache
from app.serving.loop_time import LoopTime, timed
from app.serving.row_source import RowSource
from app.serving.watch import SAMPLE_HEADER, Noted, refuses_samples
from app.serving.work import RequestLimits
from app.settings import Settings
from app.tracing import Tracer

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_HEALTH: Final = "/v2/health/"
_SMALL_BYTES: Final = 64 * 1024
"""Compressed bodies that cannot become larger than this are not counted once they have arrived."""


class Exchange:
    """One request while it is handled.

    headers: by name. model: label of its metrics, empty until the model is found. asked: whose answer it is,
    once they are found. started: perf_counter in seconds. admission: what it holds of the budgets, from the
    moment that the caller is known. noted: scores to note once it is answered. samples: ids of its
    answers that people are asked about, see `SAMPLE_HEADER`. refuses_samples: whether the key of the caller
    wants none of them to be chosen.
    """

    __slots__ = (
        "admission",
        "asked",
        "headers",
        "model",
        "noted",
        "refuses_samples",
        "request_id",
        "samples",
        "scope",
        "started",
    )

    def __init__(self, scope: Scope) -> None:
        self.started = perf_counter()
        self.scope = scope
        self.headers: Mapping[bytes, bytes] = dict(scope["headers"])
        self.request_id = request_id_for(self.headers.get(HEADER))
        self.model = ""
        self.asked: Sequence[LoopTime] = ()
        self.admission: Admission | None = None
        self.noted: Noted = []
        self.refuses_samples = False
        self.samples = b""

    @property
    def seconds(self) -> float:
        """Seconds since the request started."""
        return perf_counter() - self.started

    @property
    def is_probe(self) -> bool:
        """Whether a probe asks for the health of the server."""
        return str(self.scope["path"]).startswith(_HEALTH)


State = TypeVar("State", bound=Exchange)
Source = TypeVar("Source")
Answer = TypeVar("Answer")


class WireFormat(ABC, Generic[State, Source, Answer]):
    """An adapter of one protocol to the pipeline. Source: origin of a request. Answer: a response."""

    @abstractmethod
    async def answer(self, exchange: State, source: Source) -> Answer:
        """The response to a request. Raises ServiceError and ProblemError."""

    @abstractmethod
    def refuse(self, exchange: State, problem: Problem) -> Answer:
        """The response to a request that failed; counts it."""


class QueryPipeline:
    """Shared state and steps. budgets: limits of the queries in progress and of the bytes of their bodies.

    tracer: None if nothing is traced. cross_origin: adds headers to the responses of prepared requests;
    `StmsApi` adds them to all others.
    """

    def __init__(
        self,
        settings: Settings,
        authenticator: Authenticator,
        cache: ModelCache,
        metrics: Metrics,
        audit_writer: AuditWriter,
        budgets: Budgets,
    ) -> None:
        self.max_bytes, self.max_rows = settings.max_query_bytes, settings.max_query_rows
        self.max_work = settings.max_query_work
        self.limits = RequestLimits(self.max_bytes, self.max_rows, self.max_work)
        self.authenticator = authenticator
        self.cache = cache
        self.metrics = metrics
        self.budgets = budgets
        self.tracer: Tracer | None = None
        self.cross_origin: CrossOrigin | None = None
        self._audit_writer = audit_writer
        self._threads = ThreadPoolExecutor(QUERY_THREADS, thread_name_prefix="stms-query")

    async def handle(
        self, wire_format: WireFormat[State, Receive, Response], exchange: State, receive: Receive, send: Send
    ) -> None:
        """Answer one request of HTTP; every error becomes a response."""
        try:
            response = await self.respond(wire_format, exchange, receive)
            await send_response(send, response, exchange.request_id)
        finally:
            if exchange.admission is not None:
                exchange.admission.close()

    async def respond(
        self, wire_format: WireFormat[State, Source, Answer], exchange: State, source: Source
    ) -> Answer:
        """The response to one request, also to one that failed, when it is its turn to be sent.

        The caller closes the admission of the request after that.
        """
        try:
            response = await wire_format.answer(exchange, source)
        except ServiceError as error:
            response = wire_format.refuse(exchange, problem_of(error))
        except ProblemError as error:
            response = wire_format.refuse(exchange, error.problem)
        except Exception:
            request_id = exchange.request_id.decode()
            logger.exception("request %s failed unexpectedly", request_id, extra={"request_id": request_id})
            response = wire_format.refuse(exchange, internal_problem())
        if exchange.admission is None:
            await self._wait_for_turn(exchange)
        else:
            # A client that reads slowly must not keep the place.
            exchange.admission.leave()
        return response

    async def _wait_for_turn(self, exchange: Exchange) -> None:
        """Let responses to callers without a valid key take turns."""
        scope = exchange.scope
        if self.authenticator.caller_of(scope["headers"]) is None:
            address = self.authenticator.address_of(scope)
            await self.budgets.wait_without_key(address, is_probe=exchange.is_probe)

    def admit(self, exchange: Exchange, required_scope: str, model: str | None) -> ApiKey:
        """The key of a caller who may proceed, decided from the headers alone; nothing is held yet.

        Raises Overloaded, NotAuthorised, and as `Authenticator.authenticate`.
        """
        key = self.authenticator.authenticate(exchange.scope, exchange.headers)
        authorise(key, required_scope, model)
        exchange.refuses_samples = key.samples == "never"
        # Without a place for the query its body need not be read.
        exchange.admission = self.budgets.of_query(key)
        return key

    async def read_body(self, exchange: Exchange, receive: Receive, *, compressed: bool) -> Body:
        """The whole body, still compressed; then the query takes its place among those in progress.

        Bodies that arrive in one piece take no further memory unless they are compressed. Only other bodies
        count in the byte budget, until the request ends; a body without a declared length counts as it
        arrives.

        Raises Overloaded, TooLarge and InvalidRequest.
        """
        admission, limit = exchange.admission, self.max_bytes
        assert admission is not None  # noqa: S101 - `admit` has set it
        length = declared_length(exchange.headers.get(b"content-length"), limit)
        message = await receive()
        body: Body | None = whole_body(message, length, limit)
        size = max_body_bytes(length, limit, compressed=compressed)
        if body is None and length is None and not compressed:
            admission.hold(len(message.get("body", b"")))
            receive = counting(receive, admission)
        elif body is None or (compressed and size > _SMALL_BYTES):
            admission.hold(size)
        if body is None:
            body = await read_rest(message, receive, length, limit)
        admission.enter()
        return body

    async def run(
        self, exchange: Exchange, inline: bool, work: Callable[..., Result], *arguments: Any
    ) -> Result:
        """The result of ``work``: computed here if ``inline`` is true, otherwise in a thread.

        The queries of one API key, and of a tenant while there are others, have two of the three threads.
        Tenants take turns, and so do their keys.
        """
        if inline:
            return timed(exchange.asked, work, *arguments)
        assert exchange.admission is not None  # noqa: S101 - `admit` has set it
        async with self.budgets.query_threads.turn(exchange.admission.caller):
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    def note(self, exchange: Exchange, source: Callable[[], RowSource | None]) -> HeaderList:
        """Note the answers of a query that has just been answered. source: of its rows, see
        `AnswerWatches.note`.

        Returns the header with the ids of answers that people are asked about, if there are any.
        """
        if exchange.noted:
            is_refused = exchange.refuses_samples or refuses_samples(exchange.headers)
            exchange.samples = self.cache.watches.note(
                exchange.noted, exchange.request_id, refused=is_refused, source=source
            )
        return [(SAMPLE_HEADER, exchange.samples)] if exchange.samples else []

    def trace(self, exchange: Exchange, rows: int) -> None:
        """Record a query that has just been answered, if it is sampled."""
        if self.tracer is not None:
            traceparent = exchange.headers.get(b"traceparent")
            self.tracer.query(traceparent, exchange.seconds, exchange.model, rows)

    def record_error(
        self, exchange: Exchange, problem: Problem, *, is_query: bool = True, changes: bool = False
    ) -> None:
        """Count a failed request, and audit it if access was denied or ``changes`` is true."""
        self.metrics.failed(problem.code)
        if is_query:
            self.metrics.refused(exchange.model, problem.status)
        if changes or is_access_denial(problem):
            self._audit_writer.record_denial(
                exchange.scope, problem.code, exchange.request_id.decode("ascii")
            )

    def close(self) -> None:
        """Accept no more work for the threads; running work ends on its own."""
        self._threads.shutdown(wait=False, cancel_futures=True)
