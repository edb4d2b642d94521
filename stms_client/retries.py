"""The retry policy: which calls are repeated, and after which pause."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from stms_client.errors import Problem, StmsError, TooBusy, Unavailable, Unreachable

_STORED: Final = "registry_unavailable"
"""The only code of 503 whose change is made: it is stored, and not in effect on the server yet."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Exponential back-off with jitter.

    attempts: total number; 1 disables retries. first: seconds before the second attempt, doubled each time.
    longest: maximum seconds to wait; the error is raised immediately if the server requires more.
    """

    attempts: int = 4
    first: float = 0.1
    longest: float = 10.0

    def pause(self, attempt: int, error: StmsError, *, repeatable: bool) -> float | None:
        """Seconds to wait after attempt number ``attempt``; None if the call must not be repeated.

        repeatable: whether executing the call twice is harmless. After 429, a failed connection, and 503 but
        for one code, every call can be repeated, because it had no effect.
        """
        if attempt >= self.attempts or not _may_be_repeated(error, repeatable):
            return None
        # Half of the pause is random, so that clients that were shed together do not return together.
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
        # 502 and 504, of the service or of a proxy, do not say that the request had no effect.
        return repeatable or (error.status == 503 and error.code != _STORED)
    return isinstance(error, Unreachable) and (repeatable or not error.connected)
