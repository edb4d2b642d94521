"""Encoders whose processes die again and again rest: a file that kills its process keeps no one busy."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from app.domain.errors import Unavailable

_DEATHS: Final = 3
_WINDOW_SECONDS: Final = 600.0
_FIRST_SECONDS: Final = 60.0
_LONGEST_SECONDS: Final = 900.0
_MAX_KEYS: Final = 10_000

Key = tuple[str, str]
"""The identity of an encoder and the tenant whose questions it answered."""


@dataclass(slots=True)
class _Health:
    deaths: list[float] = field(default_factory=list)
    until: float = 0.0
    pause: float = _FIRST_SECONDS


class Rests:
    """After three deaths in ten minutes an encoder rests for a minute, then two, at most fifteen.

    A tenant whose pictures end a process rests alone. Thread-safe. clock: seconds of a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._health: dict[Key, _Health] = {}

    def check(self, key: Key, name: str) -> None:
        """Raise Unavailable with the code encoder_unavailable while the encoder rests."""
        with self._lock:
            health = self._health.get(key)
            left = 0.0 if health is None else health.until - self._clock()
        if left > 0:
            text = f"The encoder {name} has ended {_DEATHS} times and rests; ask again in {left:.0f} s."
            raise Unavailable(text, code="encoder_unavailable", retry_after=left)

    def note_death(self, key: Key) -> None:
        """Count a death."""
        now = self._clock()
        with self._lock:
            if len(self._health) >= _MAX_KEYS:
                self._forget(now)
            health = self._health.setdefault(key, _Health())
            if now - max(health.until, *health.deaths, 0.0) > _WINDOW_SECONDS:
                health.pause = _FIRST_SECONDS
            health.deaths = [*(at for at in health.deaths if now - at < _WINDOW_SECONDS), now]
            if len(health.deaths) >= _DEATHS:
                health.until = now + health.pause
                health.pause = min(2 * health.pause, _LONGEST_SECONDS)
                health.deaths = []

    def _forget(self, now: float) -> None:
        recent = {
            key: health
            for key, health in self._health.items()
            if now - max(health.until, *health.deaths, 0.0) < _WINDOW_SECONDS
        }
        newest = list(recent.items())[-_MAX_KEYS // 2 :]
        self._health = dict(newest)
