"""The protocol as a plain ASGI application, in front of the framework like the native query path.

Recognition of callers, limits, the count of requests in flight and the metrics are those of the native path.
Errors are ``{"error": "…"}``; every JSON answer is exactly ``application/json``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Final, Protocol, TypeVar

import msgspec

from app.api import health
from app.api.dependencies import AppContext
from app.auth.audit_writer import is_access_denial
from app.domain.entities import ApiKey
from app.domain.errors import Overloaded, ServiceError
from app.http import headers as compression
from app.http.body import declared_length, read_buffer
from app.http.byte_budget import ByteBudget, max_body_bytes
from app.http.decompression import decompress
from app.http.problem import (
    NO_STORE,
    Headers,
    Problem,
    internal_problem,
    method_not_allowed,
    problem_of,
    short,
)
from app.http.request_id import HEADER, request_id_for
from app.http.types import Body, Receive, Scope, Send
from app.serving.open_inference.evaluate import answer, encode
from app.serving.open_inference.paths import ParsedPath, parse_path
from app.serving.open_inference.repository import Repository
from app.serving.open_inference.requests import Inference, read_inference
from app.serving.open_inference.statistics import Durations, Statistics
from app.serving.servable import INLINE_BYTES, ServableStudent
from app.serving.several import students_of

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

EXTENSIONS: Final = ["binary_tensor_data", "model_repository", "parameters", "statistics"]

INLINE_WORK: Final = 1 << 20
"""Rows times basis values beyond which a decision is made in a thread."""

CHANGES: Final = frozenset({"load", "unload"})
"""Verbs that change something, if only what is in memory."""

_THREADS: Final = 2
_JSON: Final = b"application/json"
_BINARY: Final = b"application/octet-stream"


class InFlight(Protocol):
    """Who counts the queries under way, and the bytes of the large ones."""

    inflight: int
    byte_budget: ByteBudget


@dataclass(frozen=True, slots=True)
class _Reply:
    body: bytes
    status: int = 200
    headers: Headers = field(default_factory=lambda: [(b"content-type", _JSON)])


@dataclass(slots=True)
class _RequestState:
    """What is known of the request under way, for its answer and its count."""

    headers: Mapping[bytes, bytes]
    scope: Scope
    request_id: bytes
    path: ParsedPath = field(default_factory=lambda: ParsedPath("server"))
    served: ServableStudent | None = None
    started: int = field(default_factory=time.perf_counter_ns)
    held: int = 0

    @property
    def elapsed(self) -> int:
        """Nanoseconds so far."""
        return time.perf_counter_ns() - self.started


class InferenceHandler:
    """The application. queries: counts those in flight of both ways to ask, up to one limit."""

    def __init__(self, runtime: AppContext, queries: InFlight) -> None:
        self._settings = runtime.settings
        self._authenticator, self._cache, self._metrics = (
            runtime.authenticator,
            runtime.cache,
            runtime.metrics,
        )
        self._audit_writer = runtime.audit_writer
        self._queries = queries
        self._is_ready = lambda: health.is_ready(health.run_checks(runtime))
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="stms-v2")
        self._repository = Repository(runtime, self._in_thread)
        self._statistics = Statistics()
        self._server = {"name": "stms", "version": metadata.version("stms"), "extensions": EXTENSIONS}

    @staticmethod
    def matches(scope: Scope) -> bool:
        """Whether the request is for this application."""
        return scope["type"] == "http" and scope["raw_path"][:4] in (b"/v2", b"/v2/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        state = _RequestState(headers, scope, request_id_for(headers.get(HEADER)))
        self._queries.inflight += 1
        try:
            reply = await self._reply(scope, receive, state)
            await _send(send, reply, state.request_id)
        finally:
            self._queries.inflight -= 1
            self._queries.byte_budget.release(state.held)

    def close(self) -> None:
        """Take no more work; what is under way ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _reply(self, scope: Scope, receive: Receive, state: _RequestState) -> _Reply:
        try:
            state.path = parse_path(scope["raw_path"])
            if scope["method"] != state.path.method:
                return self._refusal(method_not_allowed(scope["method"], state.path.method), state)
            return await self._answer(receive, state)
        except ServiceError as error:
            return self._refusal(problem_of(error), state)
        except Exception:
            logger.exception("%s failed unexpectedly", state.path.operation)
            return self._refusal(internal_problem(), state)

    async def _answer(self, receive: Receive, state: _RequestState) -> _Reply:
        path = state.path
        if path.operation in ("server", "live"):
            return _json(self._server if path.operation == "server" else {"live": True})
        if path.operation == "ready":
            ready = await self._in_thread(self._is_ready)
            return _json({"ready": ready, "live": True}, 200 if ready else 503)
        if self._queries.inflight > self._settings.max_inflight_queries:
            raise Overloaded(f"{self._settings.max_inflight_queries} queries are under way already.")
        needed = "train" if path.operation in CHANGES else "query"
        caller = self._authenticator.authenticate(state.scope, needed, path.model or None, state.headers)
        if path.operation == "infer":
            return await self._infer(receive, state)
        return _json(await self._other(caller, receive, state))

    async def _other(self, caller: ApiKey, receive: Receive, state: _RequestState) -> Any:
        path, repository = state.path, self._repository
        if path.operation == "model":
            return await repository.metadata(path)
        if path.operation == "model_ready":
            return await repository.ready(path)
        if path.operation in ("stats", "model_stats"):
            return await self._stats(caller, path)
        body = bytes(await self._body(receive, state))
        if path.operation == "index":
            return await repository.index(caller, body)
        done = await (repository.load if path.operation == "load" else repository.unload)(path, body)
        request_id, action = state.request_id.decode("ascii"), f"student.{path.operation}"
        await self._in_thread(
            self._audit_writer.record_action, state.scope, request_id, caller, action, path.name
        )
        return done

    async def _stats(self, caller: ApiKey, path: ParsedPath) -> Any:
        if path.operation == "model_stats":
            version = await self._repository.version(path)
            known = [(version.model, version.version)]
        else:
            known = [key for key in self._statistics.known() if not caller.models or key[0] in caller.models]
        return {"model_stats": [self._statistics.document(*key) for key in known]}

    async def _infer(self, receive: Receive, state: _RequestState) -> _Reply:
        path, took = state.path, Durations()
        body = await self._body(receive, state)
        if path.label is not None:
            [state.served] = await students_of(self._cache, path.reference, [path.label])
        large = len(body) > INLINE_BYTES
        inference, took.compute_input = await self._timed(took, large, self._read, body, state)
        if state.served is not None:
            students = {inference.labels[0]: state.served}
        else:
            labels = list(inference.distinct)
            found = await students_of(self._cache, path.reference, labels)
            students, state.served = dict(zip(labels, found, strict=True)), found[0]
        width = max(served.student.map.n_basis for served in students.values())
        heavy = large or len(inference.rows) * width > INLINE_WORK
        answered, took.compute_infer = await self._timed(took, heavy, answer, inference, students)
        reply, took.compute_output = await self._timed(took, heavy, _write, inference, *answered, state)
        model, version, rows = state.served.model, state.served.version, len(inference.rows)
        self._metrics.answered(model, rows, state.elapsed * 1e-9)
        self._statistics.succeeded(model, version, rows, state.elapsed, took)
        return reply

    def _read(self, body: Body, state: _RequestState) -> Inference:
        columns = None if state.served is None else state.served.student.map.n_columns
        length = state.headers.get(b"inference-header-content-length")
        return read_inference(body, length, state.path, columns, self._settings.max_query_rows)

    async def _body(self, receive: Receive, state: _RequestState) -> Body:
        """The whole body, bounded and unpacked."""
        limit = self._settings.max_query_bytes
        packed = compression.is_packed(state.headers.get(b"content-encoding"))
        length = declared_length(state.headers.get(b"content-length"), limit)
        state.held = self._queries.byte_budget.reserve(max_body_bytes(length, limit, packed=packed))
        body = await read_buffer(receive, length, limit)
        # However small it is: what it unpacks to may be hundreds of times as large.
        return await self._in_thread(decompress, body, limit) if packed else body

    def _refusal(self, problem: Problem, state: _RequestState) -> _Reply:
        model = ""
        if state.served is not None:
            model = state.served.model
            self._statistics.failed(model, state.served.version, state.elapsed)
        if state.path.operation == "infer":
            self._metrics.refused(model, problem.status)
        if is_access_denial(problem) or state.path.operation in CHANGES:
            self._audit_writer.record_denial(state.scope, problem.code, state.request_id.decode("ascii"))
        headers = [header for header in problem.headers() if header[0] != b"content-type"]
        return _json({"error": short(problem.detail)}, problem.status, headers)

    async def _in_thread(self, work: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    async def _timed(
        self, took: Durations, heavy: bool, work: Callable[..., Result], *arguments: Any
    ) -> tuple[Result, int]:
        """The result of ``work``, in a thread if it is heavy, and its nanoseconds; notes those it waited."""
        asked = time.perf_counter_ns()
        if heavy:
            result, began, ended = await self._in_thread(_clocked, work, *arguments)
        else:
            result, began, ended = _clocked(work, *arguments)
        took.queue += began - asked
        return result, ended - began


def _clocked(work: Callable[..., Result], *arguments: Any) -> tuple[Result, int, int]:
    began = time.perf_counter_ns()
    result = work(*arguments)
    return result, began, time.perf_counter_ns()


def _write(inference: Inference, outputs: Any, requested_outputs: Any, state: _RequestState) -> _Reply:
    """The answer to an inference, compressed where that is wanted and worth it."""
    assert state.served is not None  # noqa: S101 - `_students` has found it
    origin = {"model_name": state.path.name, "model_version": str(state.served.version)}
    body, head = encode(inference, outputs, requested_outputs, origin)
    headers = [(b"content-type", _JSON)]
    if head is not None:
        headers = [(b"content-type", _BINARY), (b"inference-header-content-length", b"%d" % head)]
    headers.append((b"vary", b"accept-encoding"))
    wanted = compression.wanted_encoding(state.headers.get(b"accept-encoding"))
    if wanted is not None and len(body) >= compression.MIN_BYTES:
        body = compression.deflate(body, wanted)
        headers.append((b"content-encoding", wanted))
    return _Reply(body, headers=headers)


def _json(document: Any, status: int = 200, headers: Headers | None = None) -> _Reply:
    return _Reply(msgspec.json.encode(document), status, [(b"content-type", _JSON), *(headers or ())])


async def _send(send: Send, reply: _Reply, request_id: bytes) -> None:
    headers = [
        *reply.headers,
        *(() if any(name == b"cache-control" for name, _ in reply.headers) else (NO_STORE,)),
        (b"content-length", b"%d" % len(reply.body)),
        (HEADER, request_id),
    ]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})
