"""Logs without secrets, whatever they got into (message, argument, traceback), and without floods."""

from __future__ import annotations

import logging
import time
from typing import Final

from app.domain.redaction import redact

_REMEMBERED: Final = 1000


class Masking(logging.Formatter):
    """What another formatter writes, without secrets."""

    def __init__(self, inner: logging.Formatter | None = None) -> None:
        super().__init__()
        self._inner = inner or logging.Formatter()

    def format(self, record: logging.LogRecord) -> str:
        """The line, or lines."""
        return redact(self._inner.format(record))


class Repeats(logging.Filter):
    """Lets a line pass that was not written in the last ``seconds``: what waits says so often."""

    def __init__(self, seconds: float = 10.0) -> None:
        super().__init__()
        self._seconds = seconds
        self._written: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written. Tracebacks always are."""
        if record.exc_info:
            return True
        line, now = (record.name, record.getMessage()), time.monotonic()
        if now - self._written.get(line, float("-inf")) < self._seconds:
            return False
        if len(self._written) >= _REMEMBERED:
            self._written.clear()
        self._written[line] = now
        return True


def mask_logs() -> None:
    """From now on every handler that there is in this process leaves secrets out. Again does no harm."""
    loggers = [logging.getLogger(), *map(logging.getLogger, list(logging.root.manager.loggerDict))]
    handlers = {handler for logger in loggers for handler in logger.handlers}
    if logging.lastResort is not None:
        # It writes for loggers without any handler.
        handlers.add(logging.lastResort)
    for handler in handlers:
        if not isinstance(handler.formatter, Masking):
            handler.setFormatter(Masking(handler.formatter))
