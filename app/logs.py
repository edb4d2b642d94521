"""No secrets in logs, whatever they got into: a message, an argument, the traceback of an error."""

from __future__ import annotations

import logging

from app.domain.masking import masked


class Masking(logging.Formatter):
    """What another formatter writes, without secrets."""

    def __init__(self, inner: logging.Formatter | None = None) -> None:
        super().__init__()
        self._inner = inner or logging.Formatter()

    def format(self, record: logging.LogRecord) -> str:
        """The line, or lines."""
        return masked(self._inner.format(record))


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
