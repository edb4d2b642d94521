"""Retries after a solver process dies. After a second death the class at fault is found and fails alone."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from app.jobs.errors import SolverBlocked, SolverDied, SolverFailed
from app.jobs.solver.messages import PreparationResult, StudentKey, StudentResult

if TYPE_CHECKING:
    from app.jobs.solver.process import Report, Solver

logger = logging.getLogger(__name__)

_MAX_DEATHS: Final = 2


def prepare(solver: Solver, targets: Sequence[int], report: Report) -> PreparationResult:
    """`Solver.prepare`, repeated once in a new process if the first one dies. Raises SolverFailed.

    It is repeated without limit while the database or the disk blocks the solver.
    """
    deaths = 0
    while True:
        try:
            return solver.prepare(targets, report)
        except SolverBlocked as blocked:
            _back_off(solver, blocked)
        except SolverDied as death:
            deaths += 1
            if deaths == _MAX_DEATHS:
                raise _died_twice(death) from death


def train(
    solver: Solver,
    keys: Sequence[StudentKey],
    preparation_digest: str,
    report: Report,
    label_of: Callable[[int], str],
) -> Iterator[list[StudentResult]]:
    """Every student trained or failed, in any order; yields the ones that have just finished.

    A student in training when the process died is tried once more, alone, so that a class that kills the
    solver takes no other with it. While the database or the disk blocks the solver, the rest is tried again
    without limit. When the process dies twice without training anything, or reports that it cannot go on, all
    remaining students have failed.
    """
    remaining = dict.fromkeys(keys)
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
            deaths.update(death.in_flight)
            idle_deaths += not death.in_flight
            if idle_deaths == _MAX_DEATHS:
                yield _failed(remaining, label_of, _died_twice(death))
                return
            at_fault = [key for key in remaining if deaths[key] == _MAX_DEATHS]
            failure = SolverFailed("solver_died", f"{death} This class caused it twice.")
            yield _failed(at_fault, label_of, failure)
            for key in at_fault:
                del remaining[key]
        except SolverBlocked as blocked:
            _back_off(solver, blocked)
        except SolverFailed as failure:
            yield _failed(remaining, label_of, failure)
            return


def _back_off(solver: Solver, blocked: SolverBlocked) -> None:
    logger.warning("a solver waits: %s", blocked)
    solver.back_off()


def _failed(
    keys: Iterable[StudentKey], label_of: Callable[[int], str], failure: SolverFailed
) -> list[StudentResult]:
    row = {"code": failure.code, "message": failure.message}
    return [StudentResult(key, label_of(key[0]), row, None) for key in keys]


def _died_twice(death: SolverDied) -> SolverFailed:
    return SolverFailed("solver_died", f"{death} It happened twice.")
