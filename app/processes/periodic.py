"""Work that a process repeats as long as it lives, and that must not end it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from app.domain.errors import ServiceError

logger = logging.getLogger(__name__)


class PeriodicWork:
    """Runs the parts of periodic work, each for itself.

    parts: their names. log: reports the first failure of a part, and that it works again, as one line each.
    failures: how often each part has failed since the start.
    """

    def __init__(self, parts: Iterable[str], log: logging.Logger = logger) -> None:
        self.failures: dict[str, int] = dict.fromkeys(parts, 0)
        self._failing: dict[str, int] = {}
        self._log = log

    def run(self, part: str, work: Callable[[], object]) -> bool:
        """Call ``work``, which is the part named ``part``; returns whether it succeeded."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - every failure is logged, counted and tried again
            self._failed(part, error)
            return False
        if part in self._failing:
            count = self._failing.pop(part)
            self._log.warning("periodic work %r succeeds again after %d failures", part, count)
        return True

    def _failed(self, part: str, error: Exception) -> None:
        self.failures[part] += 1
        self._failing[part] = self._failing.get(part, 0) + 1
        if self._failing[part] == 1:
            trace = None if isinstance(error, ServiceError) else error
            self._log.error("periodic work %r fails and is tried again: %s", part, error, exc_info=trace)
