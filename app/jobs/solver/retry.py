"""Retries after a solver dies, hangs or lacks a resource, and finds the class that causes deaths."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from app.domain.entities import Json
from app.jobs.errors import AttemptLost, SolverBlocked, SolverDied, SolverFailed
from app.jobs.solver.messages import StudentKey, StudentResult
from app.jobs.solver.process import Report, Solver

logger = logging.getLogger(__name__)

T = TypeVar("T")

_MAX_DEATHS: Final = 2
_MAX_CACHE_ROUNDS: Final = 60


def with_retries(solver: Solver, make: Callable[[Report], T], report: Report) -> T:
    """`Solver.label` or `Solver.prepare`, repeated once in a new process if the first one dies.

    It is repeated without limit while the database cannot be reached; when the local cache cannot be written,
    the process keeps its results and only the writing is repeated.
    Raises SolverFailed, and AttemptLost if the cache stays blocked.
    """
    deaths = 0
    blocks = _Blocks(solver)
    while True:
        try:
            return make(report)
        except SolverBlocked as blocked:
            blocks.wait(blocked)
        except SolverDied as death:
            report(_report_of(death))
            deaths += 1
            if deaths == _MAX_DEATHS:
                raise _died_twice(death) from death


def train_with_retries(
    solver: Solver,
    keys: Sequence[StudentKey],
    preparation_digest: str,
    report: Report,
    label_of: Callable[[int], str],
) -> Iterator[list[StudentResult]]:
    """Train every student; yields those that have just been trained or have failed, in any order.

    A student in training when the process died is tried once more, alone, so that a class that kills the
    solver does not affect others. While the database is unavailable, the rest is retried without limit. When
    the process dies twice without training anything, or reports that it cannot continue, all remaining
    students have failed. Raises AttemptLost if the local cache stays blocked.
    """
    remaining = dict.fromkeys(keys)
    blocks = _Blocks(solver)
    deaths: Counter[StudentKey] = Counter()
    idle_deaths = 0
    while remaining:
        suspects = [key for key in remaining if deaths[key]]
        try:
            for results in solver.train(suspects[:1] or list(remaining), preparation_digest, report):
                for result in results:
                    del remaining[result.key]
                yield results
        except SolverDied as death:
            report(_report_of(death))
            deaths.update(death.in_flight)
            idle_deaths += not death.in_flight
            if idle_deaths == _MAX_DEATHS:
                yield failed_results(remaining, label_of, _died_twice(death))
                return
            at_fault = [key for key in remaining if deaths[key] == _MAX_DEATHS]
            failure = SolverFailed("solver_died", f"{death} This class caused it twice.")
            yield failed_results(at_fault, label_of, failure)
            for key in at_fault:
                del remaining[key]
        except SolverBlocked as blocked:
            blocks.wait(blocked)
        except SolverFailed as failure:
            yield failed_results(remaining, label_of, failure)
            return


class _Blocks:
    """Pauses of a solver that lacks a resource. It waits about a minute for a full cache."""

    def __init__(self, solver: Solver) -> None:
        self._solver = solver
        self._rounds = 0

    def wait(self, blocked: SolverBlocked) -> None:
        """Pause. Raises AttemptLost when other work should get this worker's slot."""
        logger.warning("a solver waits: %s", blocked)
        self._rounds = self._rounds + 1 if blocked.by_cache else 0
        if self._rounds > _MAX_CACHE_ROUNDS:
            raise AttemptLost(blocked.code, f"{blocked} It stayed so for {self._rounds} attempts.")
        self._solver.back_off(keep=blocked.by_cache)


def failed_results(
    keys: Iterable[StudentKey], label_of: Callable[[int], str], failure: SolverFailed
) -> list[StudentResult]:
    row = {"code": failure.code, "message": failure.message}
    return [StudentResult(key, label_of(key[0]), row, None) for key in keys]


def _report_of(death: SolverDied) -> Json:
    """The message for an event of the job; it names at most ten of the students in training."""
    kind = "solver_hung" if death.hung else "solver_died"
    return {
        "type": kind,
        "message": str(death),
        "training": [list(key) for key in sorted(death.in_flight)][:10],
    }


def _died_twice(death: SolverDied) -> SolverFailed:
    return SolverFailed("solver_died", f"{death} It happened twice.")
