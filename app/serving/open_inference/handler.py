"""The ASGI handler of the Open Inference Protocol, in front of the web framework like native queries.

Both share `QueryPipeline`. Errors are ``{"error": "…"}``; every JSON response has exactly the content type
``application/json``, as clients of the protocol compare it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from typing import Any, Final, TypeVar
from urllib.parse import parse_qs

import msgspec

from app.auth.audit_writer import AuditWriter
from app.domain.entities import ApiKey
from app.domain.errors import InvalidRequest, NotFound, ServiceError
from app.http.decompression import decompress
from app.http.headers import MIN_COMPRESSED_BYTES, compress, content_coding, preferred_coding
from app.http.parameters import check_known
from app.http.problem import NO_STORE, Problem, ProblemError, method_not_allowed, short
from app.http.responses import Response
from app.http.types import Body, HeaderList, Receive, Scope, Send
from app.serving.open_inference.evaluate import answer, encode
from app.serving.open_inference.paths import ParsedPath, parse_path
from app.serving.open_inference.prepared import (
    INLINE_WORK,
    JSON,
    JSON_LENGTH,
    PreparedInference,
    answer_headers,
    row_work,
)
from app.serving.open_inference.repository import Repository
from app.serving.open_inference.requests import Inference, classes_of, parse_inference
from app.serving.open_inference.statistics import Durations, Statistics, Version
from app.serving.pipeline import Exchange, QueryPipeline, WireFormat
from app.serving.servable import INLINE_BYTES, ServableStudent
from app.store.blob_cache import BlobCache
from app.store.unit_of_work import Store

Result = TypeVar("Result")

EXTENSIONS: Final = [
    "binary_tensor_data",
    "model_configuration",
    "model_repository",
    "parameters",
    "statistics",
]

CHANGES: Final = frozenset({"load", "unload"})
"""Operations that change something, if only in memory."""

_THREADS: Final = 2


class _State(Exchange):
    """A request of the protocol. student: set once it is found, for the labels of the statistics."""

    __slots__ = ("path", "student")

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope)
        self.path = ParsedPath("server")
        self.student: ServableStudent | None = None

    @property
    def nanoseconds(self) -> int:
        """Nanoseconds since the request started."""
        return int(self.seconds * 1e9)


class InferenceHandler(WireFormat[_State]):
    """Parses requests of the protocol and encodes their responses.

    is_ready: whether the server is ready for queries.
    """

    def __init__(
        self,
        pipeline: QueryPipeline,
        store: Store,
        files: BlobCache,
        audit_writer: AuditWriter,
        is_ready: Callable[[], bool],
    ) -> None:
        self._pipeline = pipeline
        self._audit_writer = audit_writer
        self._is_ready = is_ready
        # Not the threads of the pipeline: a slow database must not delay queries.
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="stms-repository")
        self._repository = Repository(store, files, pipeline.cache, self._in_thread)
        metrics = pipeline.metrics
        self._statistics = Statistics(metrics.scoreboard, metrics.slot)
        metrics.count_noted = self._statistics.count_noted
        self._server = {"name": "stms", "version": metadata.version("stms"), "extensions": EXTENSIONS}

    PREFIX: Final = b"/v2/"

    @staticmethod
    def matches(scope: Scope) -> bool:
        """Whether this handler is responsible for a request, judged by its path only."""
        return scope["type"] == "http" and scope["raw_path"][:4] in (b"/v2", b"/v2/")

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        """Handle one request, as an ASGI application."""
        return self._pipeline.handle(self, _State(scope), receive, send)

    def prepare(
        self, target: bytes, headers: HeaderList, client: tuple[str, int] | None = None
    ) -> PreparedInference | None:
        """What the head of an inference means; None for any other request. See `QueryHandler.prepare`."""
        if not target.startswith(self.PREFIX) or b"?" in target or b"#" in target or not target.isascii():
            return None
        try:
            path = parse_path(target)
            if (
                path.operation != "infer"
                or content_coding(dict(headers).get(b"content-encoding")) is not None
            ):
                return None
            return PreparedInference(self._pipeline, headers, client, path, self._statistics)
        except ServiceError:
            return None

    def close(self) -> None:
        """Accept no more work for the threads; running work ends on its own."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def answer(self, exchange: _State, receive: Receive) -> Response:
        path = exchange.path = parse_path(exchange.scope["raw_path"])
        if exchange.scope["method"] != path.method:
            raise ProblemError(method_not_allowed(exchange.scope["method"], [path.method]))
        if path.operation in ("server", "live"):
            return _json(self._server if path.operation == "server" else {"live": True})
        if path.operation == "ready":
            ready = self._is_ready()
            return _json({"ready": ready, "live": True}, 200 if ready else 503)
        required_scope = "train" if path.operation in CHANGES else "query"
        caller = self._pipeline.admit(exchange, required_scope, path.model or None)
        if exchange.scope["query_string"]:
            names = parse_qs(exchange.scope["query_string"].decode("latin-1"), keep_blank_values=True)
            check_known(names, ())
        path = exchange.path = path.of_tenant(caller.tenant)
        if path.operation == "infer":
            return await self._infer(exchange, receive)
        return _json(await self._manage(caller, exchange, receive))

    def refuse(self, exchange: _State, problem: Problem) -> Response:
        operation, student = exchange.path.operation, exchange.student
        if student is not None:
            self._statistics.failed(_version(student), exchange.nanoseconds)
        self._pipeline.record_error(
            exchange, problem, is_query=operation == "infer", changes=operation in CHANGES
        )
        headers = [header for header in problem.headers() if header[0] != b"content-type"]
        body = msgspec.json.encode({"error": short(problem.detail)})
        return Response(body, [JSON, *headers], problem.status)

    async def _manage(self, caller: ApiKey, exchange: _State, receive: Receive) -> Any:
        """The document of an operation on the model repository or the statistics."""
        path, repository = exchange.path, self._repository
        if path.operation in ("index", *CHANGES):
            body = bytes(await self._read_body(exchange, receive))
        else:
            assert exchange.admission is not None  # noqa: S101 - the caller was admitted
            exchange.admission.enter()
        if path.operation == "model":
            return await repository.metadata(path)
        if path.operation == "model_config":
            return await repository.config(path, self._pipeline.max_rows)
        if path.operation == "model_ready":
            return await repository.ready(path)
        if path.operation in ("stats", "model_stats"):
            return await self._stats(caller, path)
        if path.operation == "index":
            return await repository.index(caller, body)
        document = await (repository.load if path.operation == "load" else repository.unload)(path, body)
        request_id, action = exchange.request_id.decode("ascii"), f"student.{path.operation}"
        await self._in_thread(
            self._audit_writer.record_action, exchange.scope, request_id, caller, action, path.name
        )
        return document

    async def _stats(self, caller: ApiKey, path: ParsedPath) -> Any:
        if path.operation == "model_stats":
            version = await self._repository.version(path)
            key = version.tenant, version.model, version.version
            return {"model_stats": [self._statistics.of_version(key)]}
        return {"model_stats": self._statistics.of_tenant(caller.tenant, caller.models)}

    async def _infer(self, exchange: _State, receive: Receive) -> Response:
        path, took, cache = exchange.path, Durations(), self._pipeline.cache
        body = await self._read_body(exchange, receive)
        if path.label is not None:
            self._found(exchange, await cache.students(path.cache_reference, [path.label]))
        inline = len(body) <= INLINE_BYTES
        inference = await self._parsed(exchange, took, inline, body)
        if exchange.student is not None and len(inference.distinct) == 1:
            students = {inference.labels[0]: exchange.student}
        else:
            labels = list(inference.distinct)
            loaded = await cache.students(path.cache_reference, labels)
            self._found(exchange, loaded)
            students = dict(zip(labels, loaded, strict=True))
            if loaded[0].inputs.records is not None and inference.source is None:
                inference, _ = await self._timed(exchange, took, inline, self._parse, body, exchange)
        per_row = max(row_work(student) for student in students.values())
        inline = inline and len(inference.rows) * per_row <= INLINE_WORK
        answered, took.compute_infer = await self._timed(
            exchange, took, inline, answer, inference, students, self._pipeline.max_work
        )
        response, took.compute_output = await self._timed(
            exchange, took, inline, _encode, inference, *answered, exchange
        )
        assert exchange.student is not None  # noqa: S101 - set by `_found`
        rows = len(inference.rows)
        self._pipeline.metrics.answered(exchange.model, rows, exchange.seconds)
        self._pipeline.trace(exchange, rows)
        self._statistics.succeeded(_version(exchange.student), rows, exchange.nanoseconds, took)
        return response

    async def _parsed(self, exchange: _State, took: Durations, inline: bool, body: Body) -> Inference:
        """The request. Records can be read only once their version is known, which their class tells."""
        try:
            inference, took.compute_input = await self._timed(
                exchange, took, inline, self._parse, body, exchange
            )
        except InvalidRequest as error:
            if exchange.student is not None:
                raise
            length = exchange.headers.get(JSON_LENGTH)
            labels = classes_of(body, length, exchange.path)
            try:
                loaded = await self._pipeline.cache.students(exchange.path.cache_reference, labels)
            except NotFound:
                raise error from None
            if not labels or loaded[0].inputs.records is None:
                raise
            self._found(exchange, loaded)
            inference, took.compute_input = await self._timed(
                exchange, took, inline, self._parse, body, exchange
            )
        return inference

    @staticmethod
    def _found(exchange: _State, students: list[ServableStudent]) -> None:
        exchange.student, exchange.model = students[0], students[0].metric_label

    def _parse(self, body: Body, exchange: _State) -> Inference:
        columns = None if exchange.student is None else exchange.student.student.map.n_columns
        length = exchange.headers.get(JSON_LENGTH)
        records = None if exchange.student is None else exchange.student.inputs.records
        return parse_inference(body, length, exchange.path, columns, self._pipeline.max_rows, records)

    async def _read_body(self, exchange: _State, receive: Receive) -> Body:
        """The whole body, decompressed."""
        coding = content_coding(exchange.headers.get(b"content-encoding"))
        body = await self._pipeline.read_body(exchange, receive, compressed=coding is not None)
        if coding is None:
            return body
        # Always in a thread: a small body may decompress to hundreds of times as much.
        return await self._pipeline.run(exchange, False, decompress, body, self._pipeline.max_bytes)

    async def _in_thread(self, work: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    async def _timed(
        self, exchange: _State, took: Durations, inline: bool, work: Callable[..., Result], *arguments: Any
    ) -> tuple[Result, int]:
        """The result of ``work`` and its nanoseconds; adds the time that it waited for a thread."""
        submitted = time.perf_counter_ns()
        result, began, ended = await self._pipeline.run(exchange, inline, _clocked, work, *arguments)
        took.queue += began - submitted
        return result, ended - began


def _version(student: ServableStudent) -> Version:
    return student.tenant, student.model, student.version


def _clocked(work: Callable[..., Result], *arguments: Any) -> tuple[Result, int, int]:
    began = time.perf_counter_ns()
    result = work(*arguments)
    return result, began, time.perf_counter_ns()


def _encode(inference: Inference, outputs: Any, requested_outputs: Any, exchange: _State) -> Response:
    """The response to an inference, compressed if the client accepts that and its size is worth it."""
    assert exchange.student is not None  # noqa: S101 - `_infer` has set it
    model_fields = {"model_name": exchange.path.name, "model_version": str(exchange.student.version)}
    body, json_length = encode(inference, outputs, requested_outputs, model_fields)
    headers = answer_headers(json_length)
    coding = preferred_coding(exchange.headers.get(b"accept-encoding"))
    if coding is not None and len(body) >= MIN_COMPRESSED_BYTES:
        body = compress(body, coding)
        headers.append((b"content-encoding", coding))
    return Response(body, headers)


def _json(document: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(document), [JSON, NO_STORE], status)
