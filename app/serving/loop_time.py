"""Measures how long answers occupy the event loop, because all other requests wait meanwhile.

The work of an answer is estimated before it is computed. This module finds wrong estimates: after a student
has once occupied the loop for too long, its answers are computed in a thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import perf_counter, thread_time
from typing import Any, Final, TypeVar

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

SLOW_SECONDS: Final = 0.005
"""Longest acceptable time of an answer in the event loop; by the estimate it takes about half of it."""
_MEASURED: Final = 100
"""Answers whose processor time is measured after one that was slow by the clock."""


class LoopTime:
    """Times of the answers of one student or teacher in the event loop.

    name: of the model and class in the log. is_quick: whether no answer was slow recently, so that no more
    are measured. is_allowed: whether answers may be computed in the event loop.
    """

    __slots__ = ("_to_measure", "is_allowed", "is_quick", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_quick = self.is_allowed = True
        self._to_measure = 0

    def doubt(self) -> None:
        """Measure the next answers: one was slow by the clock, which a busy machine may have caused."""
        self.is_quick, self._to_measure = False, _MEASURED

    def note(self, seconds: float) -> None:
        """Take the processor time of an answer."""
        if seconds > SLOW_SECONDS:
            if self.is_allowed:
                text = "%s is answered in threads from now on: an answer took %.0f ms of the event loop"
                logger.warning(text, self.name, 1e3 * seconds)
            self.is_quick = self.is_allowed = False
            return
        self._to_measure -= 1
        self.is_quick = self.is_allowed and self._to_measure <= 0


def timed(asked: Sequence[LoopTime], work: Callable[..., Result], *arguments: Any) -> Result:
    """The result of ``work`` in the event loop. asked: all students and teachers that give the answer."""
    if all(one.is_quick for one in asked):
        began = perf_counter()
        try:
            return work(*arguments)
        finally:
            if perf_counter() - began > SLOW_SECONDS:
                for one in asked:
                    one.doubt()
    began = thread_time()
    try:
        return work(*arguments)
    finally:
        seconds = thread_time() - began
        for one in asked:
            one.note(seconds)
