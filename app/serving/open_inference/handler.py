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
from app.auth.audit_writer import is_audited
from app.domain.entities import ApiKey
from app.domain.errors import Overloaded, ServiceError
from app.http import headers as compression
from app.http.body import Body, Receive, Scope, Send, declared_length, read_buffer
from app.http.byte_budget import HeldBytes, most_bytes
from app.http.decompression import inflate
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
from app.serving.open_inference.evaluate import answer, encode
from app.serving.open_inference.paths import Place, parse_path
from app.serving.open_inference.repository import Repository
from app.serving.open_inference.requests import Inference, read_inference
from app.serving.open_inference.statistics import Durations, Statistics
from app.serving.servable import INLINE_BYTES, ServedStudent
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
    held: HeldBytes


@dataclass(frozen=True, slots=True)
class _Reply:
    body: bytes
    status: int = 200
    headers: Headers = field(default_factory=lambda: [(b"content-type", _JSON)])


@dataclass(slots=True)
class _Visit:
    """What is known of the request under way, for its answer and its count."""

    headers: Mapping[bytes, bytes]
    scope: Scope
    request_id: bytes
    place: Place = field(default_factory=lambda: Place("server"))
    served: ServedStudent | None = None
    started: int = field(default_factory=time.perf_counter_ns)
    held: int = 0

    @property
    def elapsed(self) -> int:
        """Nanoseconds so far."""
        return time.perf_counter_ns() - self.started


class InferenceProtocol:
    """The application. queries: counts those in flight of both ways to ask, up to one limit."""

    def __init__(self, runtime: AppContext, queries: InFlight) -> None:
        self._settings = runtime.settings
        self._gate, self._cache, self._metrics = runtime.authenticator, runtime.cache, runtime.metrics
        self._witness = runtime.audit_writer
        self._queries = queries
        self._is_ready = lambda: health.is_ready(health.run_checks(runtime))
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="stms-v2")
        self._repository = Repository(runtime, self._in_thread)
        self._statistics = Statistics()
        self._server = {"name": "stms", "version": metadata.version("stms"), "extensions": EXTENSIONS}

    @staticmethod
    def takes(scope: Scope) -> bool:
        """Whether the request is for this application."""
        return scope["type"] == "http" and scope["raw_path"][:4] in (b"/v2", b"/v2/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        visit = _Visit(headers, scope, request_id_for(headers.get(HEADER)))
        self._queries.inflight += 1
        try:
            reply = await self._reply(scope, receive, visit)
            await _send(send, reply, visit.request_id)
        finally:
            self._queries.inflight -= 1
            self._queries.held.give_back(visit.held)

    def close(self) -> None:
        """Take no more work; what is under way ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _reply(self, scope: Scope, receive: Receive, visit: _Visit) -> _Reply:
        try:
            visit.place = parse_path(scope["raw_path"])
            if scope["method"] != visit.place.method:
                return self._refusal(method_not_allowed(scope["method"], visit.place.method), visit)
            return await self._answer(receive, visit)
        except ServiceError as error:
            return self._refusal(problem_of(error), visit)
        except Exception:
            logger.exception("%s failed unexpectedly", visit.place.verb)
            return self._refusal(internal_problem(), visit)

    async def _answer(self, receive: Receive, visit: _Visit) -> _Reply:
        place = visit.place
        if place.verb in ("server", "live"):
            return _json(self._server if place.verb == "server" else {"live": True})
        if place.verb == "ready":
            ready = await self._in_thread(self._is_ready)
            return _json({"ready": ready, "live": True}, 200 if ready else 503)
        if self._queries.inflight > self._settings.max_inflight_queries:
            raise Overloaded(f"{self._settings.max_inflight_queries} queries are under way already.")
        needed = "train" if place.verb in CHANGES else "query"
        caller = self._gate.admit(visit.scope, needed, place.model or None, visit.headers)
        if place.verb == "infer":
            return await self._infer(receive, visit)
        return _json(await self._other(caller, receive, visit))

    async def _other(self, caller: ApiKey, receive: Receive, visit: _Visit) -> Any:
        place, repository = visit.place, self._repository
        if place.verb == "model":
            return await repository.metadata(place)
        if place.verb == "model_ready":
            return await repository.ready(place)
        if place.verb in ("stats", "model_stats"):
            return await self._stats(caller, place)
        body = bytes(await self._body(receive, visit))
        if place.verb == "index":
            return await repository.index(caller, body)
        done = await (repository.load if place.verb == "load" else repository.unload)(place, body)
        request_id, action = visit.request_id.decode("ascii"), f"student.{place.verb}"
        await self._in_thread(self._witness.did, visit.scope, request_id, caller, action, place.name)
        return done

    async def _stats(self, caller: ApiKey, place: Place) -> Any:
        if place.verb == "model_stats":
            version = await self._repository.version(place)
            known = [(version.model, version.version)]
        else:
            known = [key for key in self._statistics.known() if not caller.models or key[0] in caller.models]
        return {"model_stats": [self._statistics.document(*key) for key in known]}

    async def _infer(self, receive: Receive, visit: _Visit) -> _Reply:
        place, took = visit.place, Durations()
        body = await self._body(receive, visit)
        if place.label is not None:
            [visit.served] = await students_of(self._cache, place.reference, [place.label])
        large = len(body) > INLINE_BYTES
        inference, took.compute_input = await self._timed(took, large, self._read, body, visit)
        if visit.served is not None:
            students = {inference.labels[0]: visit.served}
        else:
            labels = list(inference.distinct)
            found = await students_of(self._cache, place.reference, labels)
            students, visit.served = dict(zip(labels, found, strict=True)), found[0]
        width = max(served.student.map.n_basis for served in students.values())
        heavy = large or len(inference.rows) * width > INLINE_WORK
        answered, took.compute_infer = await self._timed(took, heavy, answer, inference, students)
        reply, took.compute_output = await self._timed(took, heavy, _write, inference, *answered, visit)
        model, version, rows = visit.served.model, visit.served.version, len(inference.rows)
        self._metrics.answered(model, rows, visit.elapsed * 1e-9)
        self._statistics.succeeded(model, version, rows, visit.elapsed, took)
        return reply

    def _read(self, body: Body, visit: _Visit) -> Inference:
        columns = None if visit.served is None else visit.served.student.map.n_columns
        length = visit.headers.get(b"inference-header-content-length")
        return read_inference(body, length, visit.place, columns, self._settings.max_query_rows)

    async def _body(self, receive: Receive, visit: _Visit) -> Body:
        """The whole body, bounded and unpacked."""
        limit = self._settings.max_query_bytes
        packed = compression.is_packed(visit.headers.get(b"content-encoding"))
        length = declared_length(visit.headers.get(b"content-length"), limit)
        visit.held = self._queries.held.take(most_bytes(length, limit, packed=packed))
        body = await read_buffer(receive, length, limit)
        # However small it is: what it unpacks to may be hundreds of times as large.
        return await self._in_thread(inflate, body, limit) if packed else body

    def _refusal(self, problem: Problem, visit: _Visit) -> _Reply:
        model = ""
        if visit.served is not None:
            model = visit.served.model
            self._statistics.failed(model, visit.served.version, visit.elapsed)
        if visit.place.verb == "infer":
            self._metrics.refused(model, problem.status)
        if is_audited(problem) or visit.place.verb in CHANGES:
            self._witness.refused(visit.scope, problem.code, visit.request_id.decode("ascii"))
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


def _write(inference: Inference, outputs: Any, wishes: Any, visit: _Visit) -> _Reply:
    """The answer to an inference, compressed where that is wanted and worth it."""
    assert visit.served is not None  # noqa: S101 - `_students` has found it
    origin = {"model_name": visit.place.name, "model_version": str(visit.served.version)}
    body, head = encode(inference, outputs, wishes, origin)
    headers = [(b"content-type", _JSON)]
    if head is not None:
        headers = [(b"content-type", _BINARY), (b"inference-header-content-length", b"%d" % head)]
    headers.append((b"vary", b"accept-encoding"))
    wanted = compression.wanted_encoding(visit.headers.get(b"accept-encoding"))
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
