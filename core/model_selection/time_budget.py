"""A budget of seconds for the choices of a job: decides what begins, and records what is left out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

CAUTION: Final = 1.5
"""Work begins if this many times its expected time is left, because samples give rough estimates only."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Work that was not begun. expected_seconds: its estimate. left_seconds: what the budget had left."""

    what: str
    expected_seconds: float
    left_seconds: float


class TimeBudget:
    """A budget of wall seconds, which starts when it is made.

    seconds: above 0. clock: returns seconds since any moment, never falling. left_out: work that did not fit.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self._clock, self._began = seconds, clock, clock()
        self.left_out: list[LeftOut] = []

    @property
    def used(self) -> float:
        """Seconds since the budget was made."""
        return self._clock() - self._began

    @property
    def left(self) -> float:
        """Seconds that remain, at least 0."""
        return max(0.0, self.seconds - self.used)

    def admits(self, what: str, expected: float, kept: float = 0.0) -> bool:
        """Whether work of ``expected`` seconds fits besides ``kept`` seconds for others; if not, it is noted.

        what: names the work in the report.
        """
        left = max(0.0, self.left - kept)
        if CAUTION * expected <= left:
            return True
        self.note(what, expected, left)
        return False

    def note(self, what: str, expected: float, left: float) -> None:
        """Record left-out work of ``expected`` seconds, for which ``left`` seconds were left."""
        self.left_out.append(LeftOut(what, round(expected, 3), round(left, 3)))

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready. repeatable: always False, because what fits depends on the machine and its load."""
        return {
            "seconds": self.seconds,
            "used_by_choice": round(self.used, 3),
            "left_out": [asdict(one) for one in self.left_out],
            "repeatable": False,
        }


def budget_text(budget: dict[str, Any]) -> str:
    """Two sentences about a budget in the form of ``TimeBudget.as_dict``."""
    missed = ", ".join(
        f"{one['what']} (expected {one['expected_seconds']:.1f} s, {one['left_seconds']:.1f} s left)"
        for one in budget["left_out"]
    )
    return (
        f"The budget of {budget['seconds']:g} s left out {missed or 'nothing'}."
        " What fits depends on the machine, so another run may choose otherwise."
    )
