"""The operations of the Open Inference Protocol for HTTP and gRPC: inferences, repository, statistics."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from typing import Any, Final, Generic, TypeVar

from app.auth.audit_writer import AuditWriter
from app.domain.entities import ApiKey
from app.http.problem import Problem
from app.http.types import Scope
from app.serving.open_inference.evaluate import Outputs, answer
from app.serving.open_inference.paths import ParsedPath
from app.serving.open_inference.repository import Repository
from app.serving.open_inference.requests import Inference, RequestedOutput
from app.serving.open_inference.statistics import Durations, Statistics, Version
from app.serving.pipeline import Exchange, QueryPipeline
from app.serving.row_source import RowSource
from app.serving.servable import INLINE_BYTES, ServableStudent
from app.serving.work import INLINE_WORK
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


class InferenceExchange(Exchange):
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


class InferenceForm(ABC, Generic[Result]):
    """An inference that has arrived whole, and the form of its answer. size: its bytes."""

    size: int

    @abstractmethod
    def parse(self, path: ParsedPath) -> Inference:
        """The request. Raises InvalidRequest, TooLarge and NotFound."""

    @abstractmethod
    def encode(
        self,
        inference: Inference,
        outputs: Outputs,
        requested_outputs: Sequence[RequestedOutput],
        path: ParsedPath,
        student: ServableStudent,
    ) -> Result:
        """The response with these outputs."""


class Operations:
    """The operations of the protocol in one process. is_ready: whether the server is ready for queries."""

    def __init__(
        self,
        pipeline: QueryPipeline,
        store: Store,
        files: BlobCache,
        audit_writer: AuditWriter,
        is_ready: Callable[[], bool],
    ) -> None:
        self.pipeline = pipeline
        self.is_ready = is_ready
        self.server = {"name": "stms", "version": metadata.version("stms"), "extensions": EXTENSIONS}
        self._audit_writer = audit_writer
        # Not the threads of the pipeline: a slow database must not delay queries.
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="stms-repository")
        self._repository = Repository(store, files, pipeline.cache, self._in_thread)
        metrics = pipeline.metrics
        self.statistics = Statistics(metrics.scoreboard, metrics.slot)
        metrics.count_noted = self.statistics.count_noted

    def close(self) -> None:
        """Accept no more work for the threads; running work ends on its own."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def manage(self, caller: ApiKey, exchange: InferenceExchange, body: bytes) -> Any:
        """The document of an operation on the model repository or the statistics.

        body: JSON with the parameters of those operations that have any. Raises NotFound, InvalidRequest
        and Unavailable.
        """
        path, repository = exchange.path, self._repository
        if path.operation == "model":
            return await repository.metadata(path)
        if path.operation == "model_config":
            return await repository.config(path, self.pipeline.max_rows)
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

    async def infer(self, exchange: InferenceExchange, form: InferenceForm[Result]) -> Result:
        """The response to an inference, which is counted. Raises as `InferenceForm.parse` and `answer`."""
        path, took, cache = exchange.path, Durations(), self.pipeline.cache
        pipeline = self.pipeline
        if path.label is not None:
            self._found(exchange, await cache.students(path.cache_reference, [path.label]))
        inline = form.size <= INLINE_BYTES
        inference, parsing = await self._timed(exchange, took, inline, form.parse, path)
        labels = list(inference.distinct)
        loaded = await cache.students(path.cache_reference, labels)
        self._found(exchange, loaded)
        students = dict(zip(labels, loaded, strict=True))
        rows, reading = await self._timed(
            exchange, took, inline, inference.rows, loaded[0].columns, pipeline.max_rows
        )
        took.compute_input = parsing + reading
        exchange.asked = [student.loop for student in students.values()]
        per_row = max(student.explained_work for student in students.values())
        inline = inline and len(rows) * per_row <= INLINE_WORK
        inline = inline and all(asked.is_allowed for asked in exchange.asked)
        answered, took.compute_infer = await self._timed(
            exchange, took, inline, answer, inference, rows, students, pipeline.limits, exchange.noted
        )
        student = exchange.student
        assert student is not None  # noqa: S101 - set by `_found`
        response, took.compute_output = await self._timed(
            exchange, took, inline, form.encode, inference, *answered, path, student
        )
        pipeline.note(exchange, lambda: RowSource(form.size, lambda _columns: rows))
        pipeline.metrics.answered(exchange.model, len(rows), exchange.seconds)
        pipeline.trace(exchange, len(rows))
        self.statistics.succeeded(_version(student), len(rows), exchange.nanoseconds, took)
        return response

    def record_error(self, exchange: InferenceExchange, problem: Problem) -> None:
        """Count a request that failed, and audit it if access was denied or it was to change something."""
        operation, student = exchange.path.operation, exchange.student
        if student is not None:
            self.statistics.failed(_version(student), exchange.nanoseconds)
        self.pipeline.record_error(
            exchange, problem, is_query=operation == "infer", changes=operation in CHANGES
        )

    async def _stats(self, caller: ApiKey, path: ParsedPath) -> Any:
        if path.operation == "model_stats":
            version = await self._repository.version(path)
            key = version.tenant, version.model, version.version
            return {"model_stats": [self.statistics.of_version(key)]}
        return {"model_stats": self.statistics.of_tenant(caller.tenant, caller.models)}

    @staticmethod
    def _found(exchange: InferenceExchange, students: list[ServableStudent]) -> None:
        exchange.student, exchange.model = students[0], students[0].metric_label

    async def _in_thread(self, work: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    async def _timed(
        self,
        exchange: InferenceExchange,
        took: Durations,
        inline: bool,
        work: Callable[..., Result],
        *arguments: Any,
    ) -> tuple[Result, int]:
        """The result of ``work`` and its nanoseconds; adds the time that it waited for a thread."""
        submitted = time.perf_counter_ns()
        result, began, ended = await self.pipeline.run(exchange, inline, _clocked, work, *arguments)
        took.queue += began - submitted
        return result, ended - began


def _version(student: ServableStudent) -> Version:
    return student.tenant, student.model, student.version


def _clocked(work: Callable[..., Result], *arguments: Any) -> tuple[Result, int, int]:
    began = time.perf_counter_ns()
    result = work(*arguments)
    return result, began, time.perf_counter_ns()
