"""Log formatting: secrets are masked, and repeated lines are suppressed."""

from __future__ import annotations

import logging
import time
from typing import Final

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


def mask_logs() -> None:
    """Mask secrets in all handlers that exist in this process; idempotent."""
    loggers = [logging.getLogger(), *map(logging.getLogger, list(logging.root.manager.loggerDict))]
    handlers = {handler for logger in loggers for handler in logger.handlers}
    if logging.lastResort is not None:
        # It writes the records of loggers without a handler.
        handlers.add(logging.lastResort)
    for handler in handlers:
        if not isinstance(handler.formatter, Masking):
            handler.setFormatter(Masking(handler.formatter))
