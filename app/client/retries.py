"""When a call is made again, and after which pause."""

from __future__ import annotations

import random
from dataclasses import dataclass

from app.client.errors import Problem, StmsError, TooBusy, Unavailable, Unreachable


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how patiently a call is repeated.

    attempts: in all; 1 means never again. first: seconds before the second attempt, doubled each time.
    longest: most seconds to wait; a server that asks for more gets its refusal passed on at once.
    """

    attempts: int = 4
    first: float = 0.1
    longest: float = 10.0

    def pause(self, attempt: int, error: StmsError, *, repeatable: bool) -> float | None:
        """Seconds before the next attempt after ``attempt`` of them; None if there shall be none.

        repeatable: whether doing it twice does no harm. 429 and 503 mean that nothing was done; so does a
        connection that was never made.
        """
        if attempt >= self.attempts or not _may_be_repeated(error, repeatable):
            return None
        # Half of it by chance, so that clients shed together do not come back together.
        doubled: float = min(self.first * 2 ** (attempt - 1), self.longest)
        wait = doubled * random.uniform(0.5, 1.0)  # noqa: S311
        asked = error.retry_after if isinstance(error, Problem) else None
        if asked is None:
            return wait
        return None if asked > self.longest else asked + wait


def _may_be_repeated(error: StmsError, repeatable: bool) -> bool:
    if isinstance(error, TooBusy):
        return True
    if isinstance(error, Unavailable):
        # 502 and 504 come from something in between, and say nothing about what happened behind it.
        return error.status == 503 or repeatable
    return isinstance(error, Unreachable) and (repeatable or not error.connected)
