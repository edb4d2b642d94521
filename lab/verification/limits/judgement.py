"""Figures of a measurement and the limits that they must keep."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

TRIES: Final = 3
"""Measurements of which the median counts, where the first is beyond a limit."""


class Judgement:
    """Figures by name, and the limits that were missed, as sentences. shown: whether both are printed."""

    def __init__(self, *, shown: bool = True) -> None:
        self.figures: dict[str, Any] = {}
        self.missed: list[str] = []
        self._shown = shown

    def note(self, name: str, value: Any) -> None:
        """Report a figure that has no limit."""
        self.figures[name] = round(value, 2) if isinstance(value, float) else value
        self._show(f"{name}: {self.figures[name]}")

    def at_most(self, name: str, value: float, limit: float) -> None:
        """Report a figure that must not exceed a limit."""
        self.note(name, float(value))
        if not value <= limit:
            self._miss(f"{name} is {value:.2f}, the limit is {limit:.2f}")

    def equal(self, name: str, value: object, expected: object) -> None:
        """Report a figure that has one right value."""
        self.note(name, value)
        if value != expected:
            self._miss(f"{name} is {value!r} instead of {expected!r}")

    def _miss(self, sentence: str) -> None:
        self.missed.append(sentence)
        self._show(f"MISSED: {sentence}")

    def _show(self, line: str) -> None:
        if self._shown:
            print(line, flush=True)


def repeated(
    measure: Callable[[], Mapping[str, float]], is_good: Callable[[Mapping[str, float]], bool]
) -> dict[str, float]:
    """The figures of a measurement, or the median of each in `TRIES` where the first are not good.

    A delay that an attack causes is there each time, and one of other work on the machine is not. Of the
    figure ``failed`` the sum counts.
    """
    results: Sequence[Mapping[str, float]] = [measure()]
    if not is_good(results[0]):
        results = [*results, *(measure() for _ in range(TRIES - 1))]
    medians = {name: statistics.median(each[name] for each in results) for name in results[0]}
    return medians | {"failed": sum(each["failed"] for each in results)}
