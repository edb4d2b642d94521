"""Log formatting: plain or JSON, secrets masked, and repeated lines suppressed."""

from __future__ import annotations

import json
import logging
import time
from datetime import UTC, datetime
from typing import Any, Final

from app.domain.audit_context import current_context
from app.domain.log_context import current_job, current_trace
from app.domain.redaction import redact

_MAX_LINES: Final = 1000


class Masking(logging.Formatter):
    """Masks secrets in the output of another formatter: in messages, arguments and tracebacks."""

    def __init__(self, inner: logging.Formatter | None = None) -> None:
        super().__init__()
        self._inner = inner or logging.Formatter()

    def format(self, record: logging.LogRecord) -> str:
        """Format a record and mask it."""
        return redact(self._inner.format(record))


class JsonLines(Masking):
    """One JSON object a line: ts, level, logger, msg, pid, and where they are known request_id, key, job_id,
    trace_id, span_id and exc.

    key: id of the API key. Texts are masked one by one, because masking a whole line could break its JSON.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Format a record."""
        context, trace = current_context(), current_trace()
        fields: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "msg": redact(record.getMessage()),
            "pid": record.process,
            "request_id": getattr(record, "request_id", None) or context.request_id,
            "key": context.actor.id if context.request_id else None,
            "job_id": current_job(),
            "trace_id": trace and trace.trace_id,
            "span_id": trace and trace.span_id,
        }
        if record.exc_info:
            fields["exc"] = redact(self.formatException(record.exc_info))
        return json_line(fields)


def json_line(fields: dict[str, Any]) -> str:
    """A line of JSON without the fields that are None."""
    shown = {name: value for name, value in fields.items() if value is not None}
    return json.dumps(shown, ensure_ascii=True, separators=(",", ":"))


def message_line(name: str, message: str) -> str:
    """A message of a process that does not use logging, as `JsonLines` shows log lines."""
    record = logging.LogRecord(name, logging.INFO, "", 0, message, None, None)
    return JsonLines().format(record)


class Repeats(logging.Filter):
    """Suppresses a line that was written in the last ``seconds``, such as that of a waiting job."""

    def __init__(self, seconds: float = 10.0) -> None:
        super().__init__()
        self._seconds = seconds
        self._written: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written; lines with a traceback always are."""
        if record.exc_info:
            return True
        line, now = (record.name, record.getMessage()), time.monotonic()
        if now - self._written.get(line, float("-inf")) < self._seconds:
            return False
        if len(self._written) >= _MAX_LINES:
            self._written.clear()
        self._written[line] = now
        return True


def mask_logs(log_format: str = "text") -> None:
    """Mask secrets in all handlers of this process; idempotent. log_format: "json" for `JsonLines`."""
    loggers = [logging.getLogger(), *map(logging.getLogger, list(logging.root.manager.loggerDict))]
    handlers = {handler for logger in loggers for handler in logger.handlers}
    if logging.lastResort is not None:
        # It writes the records of loggers without a handler.
        handlers.add(logging.lastResort)
    for handler in handlers:
        if log_format == "json":
            handler.setFormatter(JsonLines())
        elif not isinstance(handler.formatter, Masking):
            handler.setFormatter(Masking(handler.formatter))
