"""Traces in OpenTelemetry's protocol: OTLP over HTTP with JSON, and W3C trace context.

Own code instead of the SDK, whose start and end of a recorded span take some 20 µs and whose packages need
7 MB: a span here is a small object, which a thread of the exporter encodes and sends. What cannot be sent is
dropped. Sources: OTLP 1.x specification, section OTLP/HTTP, JSON Protobuf Encoding; W3C Trace Context,
section 3.2.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from urllib import request

from app.domain.log_context import TraceContext, current_trace

logger = logging.getLogger(__name__)

Attributes: TypeAlias = Mapping[str, str | int | float | bool | None]

INTERNAL, SERVER = 1, 2
"""Kinds of spans, as OTLP numbers them."""

_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")
_MAX_WAITING: Final = 4096
_MAX_BATCH: Final = 512
_FLUSH_SECONDS: Final = 1.0
_SEND_SECONDS: Final = 5.0


@dataclass(slots=True)
class Span:
    """A part of a trace. start, end: Unix time in seconds. error: why it failed; None if it did not."""

    name: str
    context: TraceContext
    parent_id: str | None
    start: float
    end: float = 0.0
    kind: int = INTERNAL
    attributes: dict[str, Any] = field(default_factory=dict)
    error: str | None = None


class Tracer:
    """Samples requests, and sends spans to a collector.

    endpoint: of OTLP over HTTP, such as ``http://collector:4318``; ``/v1/traces`` is appended. rate: share of
    requests without a traceparent that are traced. resource: attributes of this process.
    """

    def __init__(self, endpoint: str, rate: float, resource: Attributes) -> None:
        self._address = endpoint.rstrip("/").removesuffix("/v1/traces") + "/v1/traces"
        self._rate = rate
        self._resource = _encoded(resource)
        self._waiting: deque[Span] = deque(maxlen=_MAX_WAITING)
        self._wake = threading.Event()
        self._closed = False
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="stms-traces", daemon=True)
        self._thread.start()

    def sample(self, traceparent: bytes | None) -> TraceContext | None:
        """The parent of a request's span, or None if it is not traced.

        A sampled traceparent is joined; otherwise a coin decides, and the parent has no span id.
        """
        if traceparent is not None and (parent := parse_traceparent(traceparent)) is not None:
            return parent
        if random.random() < self._rate:  # noqa: S311 - a coin, not a secret
            return TraceContext(secrets.token_hex(16), "")
        return None

    def query(self, traceparent: bytes | None, seconds: float, model: str, rows: int) -> None:
        """Record a query that has just been answered, if it is sampled."""
        parent = self.sample(traceparent)
        if parent is not None:
            span = begin("query", parent, kind=SERVER)
            span.start = span.start - seconds
            span.attributes |= {"stms.model": model, "stms.rows": rows}
            self.finish(span)

    def finish(self, span: Span) -> None:
        """End a span now, unless it has an end, and hand it to the exporter."""
        span.end = span.end or time.time()
        self._waiting.append(span)
        if len(self._waiting) >= _MAX_BATCH:
            self._wake.set()

    def close(self) -> None:
        """Send what is left, for some seconds at most."""
        self._closed = True
        self._wake.set()
        self._thread.join(_SEND_SECONDS)

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait(_FLUSH_SECONDS)
            self._wake.clear()
            self._flush()
        self._flush()

    def _flush(self) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(_MAX_BATCH, len(self._waiting)))]
            try:
                self._send(batch)
                self._failing = False
            except (OSError, ValueError) as error:
                if not self._failing:
                    logger.warning("spans are dropped, because the collector cannot be reached: %s", error)
                self._failing = True
                return

    def _send(self, batch: list[Span]) -> None:
        scope = {"scope": {"name": "stms"}, "spans": [_document(span) for span in batch]}
        body = {"resourceSpans": [{"resource": {"attributes": self._resource}, "scopeSpans": [scope]}]}
        headers = {"Content-Type": "application/json"}
        sent = request.Request(self._address, json.dumps(body).encode(), headers, method="POST")  # noqa: S310
        with request.urlopen(sent, timeout=_SEND_SECONDS) as response:  # noqa: S310 - the operator's address
            response.read()


def begin(
    name: str,
    parent: TraceContext,
    attributes: Attributes | None = None,
    *,
    kind: int = INTERNAL,
    span_id: str | None = None,
) -> Span:
    """A span that starts now. parent: without a span id, the span is the first of its trace."""
    context = TraceContext(parent.trace_id, span_id or secrets.token_hex(8))
    return Span(
        name, context, parent.span_id or None, time.time(), kind=kind, attributes=dict(attributes or {})
    )


def parse_traceparent(text: bytes | str) -> TraceContext | None:
    """The context of a W3C traceparent that is valid and sampled; None for any other."""
    found = _TRACEPARENT.fullmatch(text if isinstance(text, str) else text.decode("latin-1"))
    if found is None or not int(found[3], 16) & 1 or not int(found[1], 16) or not int(found[2], 16):
        return None
    return TraceContext(found[1], found[2])


def traceparent() -> str | None:
    """The span in progress as a W3C traceparent; None if nothing is traced."""
    context = current_trace()
    return None if context is None else f"00-{context.trace_id}-{context.span_id}-01"


def derived_id(text: str) -> str:
    """A span id that every process derives from the same text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def open_tracer(endpoint: str, rate: float, part: str, version: str) -> Tracer | None:
    """The tracer of this process; None without the address of a collector.

    endpoint: by default that of the variable OTEL_EXPORTER_OTLP_ENDPOINT. part: such as "api" or "worker".
    """
    endpoint = endpoint or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    if not endpoint:
        return None
    name = os.environ.get("OTEL_SERVICE_NAME", "stms")
    resource: dict[str, str | int] = {
        "service.name": name,
        "service.version": version,
        "stms.part": part,
        "process.pid": os.getpid(),
    }
    return Tracer(endpoint, rate, resource)


def _document(span: Span) -> dict[str, Any]:
    """A span in the JSON of OTLP: ids in hexadecimal, 64-bit integers as text."""
    document: dict[str, Any] = {
        "traceId": span.context.trace_id,
        "spanId": span.context.span_id,
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": str(int(span.start * 1e9)),
        "endTimeUnixNano": str(int(span.end * 1e9)),
        "attributes": _encoded(span.attributes),
    }
    if span.parent_id is not None:
        document["parentSpanId"] = span.parent_id
    if span.error is not None:
        document["status"] = {"code": 2, "message": span.error}
    return document


def _encoded(attributes: Attributes) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(value)} for name, value in attributes.items() if value is not None]


def _value(value: str | float | bool) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"stringValue": str(value)}
