"""``POST /v1/models/{model}/classes/{class}:query``, what the service is for, as a plain ASGI application.

One query is: recognise the caller, look up the student, read the numbers, one decision, answer. When the
student is loaded there is no database read, no thread and no framework between.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote_to_bytes

import msgspec

from app.api.problem import Headers, Problem, internal_problem, method_not_allowed, problem_of
from app.api.request_id import HEADER, request_id_of
from app.domain.entities import ModelVersion
from app.domain.errors import NotFound, Overloaded, ServiceError
from app.serving.access import KeyGate, authorise
from app.serving.body import Receive, Scope, Send, declared_length, read_body
from app.serving.cache import ModelCache, ServedStudent
from app.serving.metrics import Metrics
from app.serving.rows import QueryBody, SparseRow, block_error, decode, dense_blocks, row_error
from app.settings import Settings
from core.errors import InvalidProblem
from core.packed import PackedStudent

logger = logging.getLogger(__name__)

INLINE_BYTES: Final = 32 * 1024
"""Larger bodies are decoded and decided in a thread; below, changing threads costs more than the work."""

_PREFIX: Final = b"/v1/models/"
_MIDDLE: Final = b"/classes/"
_SUFFIX: Final = b":query"
_REFERENCE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}(@[A-Za-z0-9._-]{1,100})?")
_MAX_LABEL: Final = 400
_THREADS: Final = 2
_DECODER: Final = msgspec.json.Decoder(QueryBody)


@dataclass(slots=True)
class _Visit:
    """What is known of the request under way, for its answer and its count."""

    request_id: str
    instance: str
    model: str = ""
    rows: int = 1
    started: float = field(default_factory=time.perf_counter)


class QueryPath:
    """The application. At most ``max_inflight_queries`` requests are inside at once, the others get 429."""

    def __init__(self, settings: Settings, gate: KeyGate, cache: ModelCache, metrics: Metrics) -> None:
        self._max_bytes = settings.max_query_bytes
        self._max_rows = settings.max_query_rows
        self._max_inflight = settings.max_inflight_queries
        self._gate = gate
        self._cache = cache
        self._metrics = metrics
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="stms-query")
        self.inflight = 0

    @staticmethod
    def takes(scope: Scope) -> bool:
        """Whether the request is for this application; a look at the path, nothing more."""
        if scope["type"] != "http":
            return False
        path: bytes = scope["raw_path"]
        return path.startswith(_PREFIX) and path[-8:].replace(b"%3A", b":").replace(b"%3a", b":").endswith(
            _SUFFIX
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: Headers = scope["headers"]
        visit = _Visit(request_id_of(headers), scope["raw_path"].decode("latin-1"))
        if scope["method"] != "POST":
            await self._refuse(method_not_allowed(scope["method"], "POST"), visit, send)
            return
        self.inflight += 1
        try:
            body = await self._answer(scope, receive, visit)
        except ServiceError as error:
            await self._refuse(problem_of(error), visit, send)
        except Exception:
            logger.exception("request %s: a query failed unexpectedly", visit.request_id)
            await self._refuse(internal_problem(), visit, send)
        else:
            await _send(send, 200, [(b"content-type", b"application/json")], body, visit)
            self._metrics.answered(visit.model, visit.rows, time.perf_counter() - visit.started)
        finally:
            self.inflight -= 1

    def close(self) -> None:
        """Take no more work; what is under way ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _answer(self, scope: Scope, receive: Receive, visit: _Visit) -> bytes:
        if self.inflight > self._max_inflight:
            raise Overloaded(f"{self._max_inflight} queries are under way already.")
        headers: Headers = scope["headers"]
        reference, label = parse_path(scope["raw_path"])
        authorise(self._gate.caller(headers), "query", reference.partition("@")[0])
        length = declared_length(_header(headers, b"content-length"), self._max_bytes)
        data = await read_body(receive, length, self._max_bytes)
        served = self._cache.get(reference, label) or await self._cache.student(reference, label)
        visit.model = served.model
        if len(data) <= INLINE_BYTES:
            body, visit.rows = answer(served, data, self._max_rows)
        else:
            loop = asyncio.get_running_loop()
            body, visit.rows = await loop.run_in_executor(self._threads, answer, served, data, self._max_rows)
        return body

    async def _refuse(self, problem: Problem, visit: _Visit, send: Send) -> None:
        body = problem.body(visit.request_id, visit.instance)
        await _send(send, problem.status, problem.headers(), body, visit)
        self._metrics.refused(visit.model, problem.status)


def parse_path(raw_path: bytes) -> tuple[str, str]:
    """Reference of the model (``name``, ``name@alias``, ``name@3``) and class of a query's path.

    The class is everything between ``/classes/`` and ``:query``, so it may hold slashes and colons, encoded
    or not. Raises NotFound.
    """
    if b"%" in raw_path:
        # The model has no slash, so the first "/classes/" of the path as it came ends it.
        head, middle, tail = raw_path[len(_PREFIX) :].partition(_MIDDLE)
        head, tail = unquote_to_bytes(head), unquote_to_bytes(tail)
    else:
        head, middle, tail = raw_path[len(_PREFIX) :].partition(_MIDDLE)
    try:
        reference, label = head.decode("ascii"), tail[: -len(_SUFFIX)].decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotFound("The path of the query is not UTF-8.", code="class_not_found") from error
    if not middle or not _REFERENCE.fullmatch(reference):
        raise NotFound("There is no such model: the path is not that of a query.", code="model_not_found")
    if not label or len(label) > _MAX_LABEL or "\0" in label:
        raise NotFound(f"Model {reference!r} has no such class.", code="class_not_found")
    return reference, label


def serve_student(student: PackedStudent, version: ModelVersion) -> ServedStudent:
    """A loaded student with the parts of its answers that never change."""
    cut = msgspec.json.encode({"threshold": student.threshold})
    origin = msgspec.json.encode({"model": version.model, "version": version.version})
    return ServedStudent(student, version.model, version.version, b"," + cut[1:], b"," + origin[1:])


def answer(served: ServedStudent, data: bytes, max_rows: int) -> tuple[bytes, int]:
    """The body of the answer, and how many rows were decided. Raises InvalidRequest and TooLarge."""
    query = decode(_DECODER, data, max_rows)
    student = served.student
    if query.rows is not None:
        return _many(served, query.rows), len(query.rows)
    try:
        if isinstance(query.x, SparseRow):
            score = float(student.scores_sparse(query.x.indices, query.x.values)[0])
        else:
            score = student.score(query.x)  # type: ignore[arg-type]
    except InvalidProblem as error:
        raise row_error(error) from error
    return _decision(score, student.threshold) + served.cut[:-1] + served.origin, 1


def _many(served: ServedStudent, rows: list[msgspec.Raw]) -> bytes:
    student = served.student
    results: list[bytes] = []
    for part, table in dense_blocks(rows, student.map.n_columns):
        try:
            scores = student.scores(table).tolist()
        except InvalidProblem as error:
            raise block_error(error, part.start) from error
        results += [_decision(score, student.threshold) + served.cut for score in scores]
    return b'{"results":[' + b",".join(results) + b"]" + served.origin


def _decision(score: float, threshold: float) -> bytes:
    # repr of a finite float is JSON, and the shortest text that reads back as the same number.
    return b'{"match":%s,"score":%s' % (b"true" if score >= threshold else b"false", repr(score).encode())


def _header(headers: Headers, wanted: bytes) -> bytes | None:
    for name, value in headers:
        if name == wanted:
            return value
    return None


async def _send(send: Send, status: int, headers: Headers, body: bytes, visit: _Visit) -> None:
    headers += [(b"content-length", b"%d" % len(body)), (HEADER, visit.request_id.encode("ascii"))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
