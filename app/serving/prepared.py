"""Requests whose head has been processed: the caller, its permission, and the remaining work for each body.

The server keeps them by the bytes of their head, see `app.server.fast_path`, and forgets them when keys
change. A request that cannot be answered at once is not answered here: the pipeline handles it again,
from its head on, and reports its errors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter, time
from typing import ClassVar, TypeAlias

from app.auth.authenticator import ANONYMOUS, FOREVER, authorise
from app.domain.entities import Caller
from app.domain.errors import InvalidRequest, Overloaded
from app.http.request_id import HEADER, request_id_for
from app.http.types import Body, HeaderList
from app.serving.loop_time import SLOW_SECONDS, LoopTime
from app.serving.pipeline import QueryPipeline
from app.serving.row_source import RowSource
from app.serving.watch import SAMPLE_HEADER, Noted, refuses_samples
from core.errors import InvalidProblem

Computed: TypeAlias = tuple[bytes, bytes, str, int]
"""Body of an answer, its headers in HTTP/1.1, label of the model in the metrics, and number of rows."""


def header_lines(headers: HeaderList) -> bytes:
    """Headers in HTTP/1.1, each with its line end."""
    return b"".join(b"%s: %s\r\n" % header for header in headers)


class PreparedRequest(ABC):
    """A request for the answer of a model, for which the caller is authorised.

    pipeline: of all queries. headers: with names in lower case. client: (host, port). model: whose scope the
    caller needs. Raises ServiceError, also if the length of the body is not declared.
    status: of its immediate responses. scope: that the caller needs. has_body: whether a length is required.
    noted: scores to note once a body is answered.
    """

    status: ClassVar[bytes] = b"200 OK"
    scope: ClassVar[str] = "query"
    has_body: ClassVar[bool] = True

    def __init__(
        self, pipeline: QueryPipeline, headers: HeaderList, client: tuple[str, int] | None, model: str
    ) -> None:
        by_name = self.by_name = dict(headers)
        self.pipeline = pipeline
        authenticator = pipeline.authenticator
        key, self._expires = authenticator.identify_until(by_name, client, headers)
        authorise(key, self.scope, model)
        self._quota = authenticator.quota_of(key, client, headers)
        self._places = pipeline.budgets.queries
        self._key, self._holder = key, Caller.of(key)
        self.caller = None if key is ANONYMOUS and self._quota is not None else key.id
        declared = by_name.get(b"content-length", b"" if self.has_body else b"0")
        self.length = _declared_length(declared, pipeline.max_bytes)
        self._requested_id = by_name.get(HEADER)
        self._traceparent = by_name.get(b"traceparent")
        cross_origin = pipeline.cross_origin
        origin_headers = () if cross_origin is None else cross_origin.headers(by_name.get(b"origin"))
        self._more = header_lines(origin_headers)
        self.noted: Noted = []
        self._refuses_samples = key.samples == "never" or refuses_samples(by_name)

    @property
    def tenant(self) -> str:
        """The tenant of the caller."""
        return self._key.tenant

    def takes(self, size: int) -> bool:  # noqa: ARG002 - of most requests only small bodies
        """Whether bodies of ``size`` bytes, more than a few packets, are answered at once."""
        return False

    def reserve(self) -> bool:
        """Reserve the body in the budget of bytes, see `app.server.fast_path.Prepared`."""
        if not self.takes(self.length):
            return False
        try:
            self.pipeline.budgets.body_bytes.take(self._holder, self.length)
        except Overloaded:
            return False
        return True

    def release(self) -> None:
        """Release reserved resources."""
        self.pipeline.budgets.body_bytes.release(self._holder, self.length)

    @abstractmethod
    def compute(self, body: Body) -> Computed | None:
        """The answer to a body, or None if it takes long. Raises the errors of the pipeline."""

    def source(self, body: Body) -> RowSource | None:  # noqa: ARG002 - most requests have no rows to keep
        """What the rows of an answered body can be read from later."""
        return None

    def asked(self) -> Sequence[LoopTime]:
        """The loop times of the students and teachers of the last answer, if they are loaded."""
        return ()

    def count(self, model: str, rows: int, seconds: float) -> None:
        """Count an answer in the metrics."""
        if rows == 1:
            self.pipeline.metrics.answered_row(model, seconds)
        else:
            self.pipeline.metrics.answered(model, rows, seconds)

    def arriving(self, body: memoryview) -> ArrivingRequest | None:  # noqa: ARG002 - most bodies are needed whole
        """Begin to answer a body, see `app.server.fast_path.Prepared`."""
        return None

    def admit(self) -> bool:
        """Charge a request, if the caller may have an immediate answer."""
        quota, places = self._quota, self._places
        if places.used and not places.is_available(self._holder):
            return False
        if self._expires is not FOREVER and self._expires <= time():
            return False
        return quota is None or not quota.take()

    def refund(self) -> None:
        """Undo the charge of `admit`, because the pipeline handles the request again."""
        if self._quota is not None:
            self._quota.refund()

    def answer(self, body: Body) -> tuple[bytes, bytes] | None:
        """Header lines and body of the response, see `app.server.fast_path.Answerer`."""
        return self.respond(body, self.compute) if self.admit() else None

    def respond(
        self, body: Body, compute: Callable[[Body], Computed | None], spent: float = 0.0
    ) -> tuple[bytes, bytes] | None:
        """The response that ``compute`` makes of a body for an admitted request. spent: seconds before."""
        started = perf_counter() - spent
        try:
            computed = compute(body)
        except Exception:  # noqa: BLE001 - the pipeline reports the error
            computed = None
        noted = self.noted
        if computed is None:
            noted.clear()
            self.refund()
            return None
        content, lines, model, rows = computed
        request_id = request_id_for(self._requested_id)
        if noted:
            samples = self.pipeline.cache.watches.note(
                noted, request_id, refused=self._refuses_samples, source=partial(self.source, body)
            )
            noted.clear()
            if samples:
                lines = b"%s%s: %s\r\n" % (lines, SAMPLE_HEADER, samples)
        pipeline, seconds = self.pipeline, perf_counter() - started
        if seconds - spent > SLOW_SECONDS:
            for asked in self.asked():
                asked.doubt()
        self.count(model, rows, seconds)
        if pipeline.tracer is not None:
            pipeline.tracer.query(self._traceparent, seconds, model, rows)
        return b"%sx-request-id: %s\r\n%s" % (lines, request_id, self._more), content


class ArrivingRequest(ABC):
    """An admitted request whose body is worked on while it arrives, see `app.server.fast_path.Arriving`."""

    def __init__(self, prepared: PreparedRequest) -> None:
        self._prepared = prepared
        self.status = prepared.status
        self._failed = False
        self._spent = 0.0

    @abstractmethod
    def advance(self, filled: int) -> None:
        """Process the received part. Raises InvalidProblem."""

    @abstractmethod
    def compute(self, body: Body) -> Computed | None:
        """Like `PreparedRequest.compute`."""

    def progress(self, filled: int) -> None:
        """Work on the first ``filled`` bytes, unless there was something wrong in them already."""
        started = perf_counter()
        if not self._failed:
            try:
                self.advance(filled)
            except InvalidProblem:
                self._failed = True
        self._spent += perf_counter() - started

    def answer(self, body: Body) -> tuple[bytes, bytes] | None:
        """Like `PreparedRequest.answer`, after the charge."""
        return self._prepared.respond(body, self._computed, self._spent)

    def _computed(self, body: Body) -> Computed | None:
        return None if self._failed else self.compute(body)


def _declared_length(text: bytes, limit: int) -> int:
    """The value of Content-Length. Raises InvalidRequest unless it is the usual form of a number in reach."""
    length = int(text) if text.isdigit() else -1
    if not 0 <= length <= limit or b"%d" % length != text:
        raise InvalidRequest("The length of the body is not declared, or too large.")
    return length
