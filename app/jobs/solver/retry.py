"""What to do when a solver process dies: once more, and when it dies again, find the class at fault."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from app.jobs.solver.process import (
    Pair,
    Prepared,
    Report,
    Solver,
    SolverDied,
    SolverFailed,
    SolverHindered,
    StudentResult,
)

logger = logging.getLogger(__name__)

_DEATHS = 2


def prepare(solver: Solver, targets: Sequence[int], report: Report) -> Prepared:
    """`Solver.prepare`, tried again in a new process if the first one dies. Raises SolverFailed.

    However often the database or the disk hinders it, it is tried again.
    """
    deaths = 0
    while True:
        try:
            return solver.prepare(targets, report)
        except SolverHindered as hindered:
            _wait(solver, hindered)
        except SolverDied as death:
            deaths += 1
            if deaths == _DEATHS:
                raise _given_up(death) from death


def train(
    solver: Solver,
    pairs: Sequence[Pair],
    preparation_digest: str,
    report: Report,
    label_of: Callable[[int], str],
) -> Iterator[list[StudentResult]]:
    """Every pair trained or failed, in any order, each time as many as have just finished.

    A pair that was under way when the process died is tried once more, alone, so that one class that kills
    the solver takes no other with it. What the database or the disk hinders is tried again however often it
    takes. When the process dies twice without training anything, or says that it cannot go on, all that
    remain have failed.
    """
    remaining = dict.fromkeys(pairs)
    strikes: Counter[Pair] = Counter()
    idle_deaths = 0
    while remaining:
        suspects = [pair for pair in remaining if strikes[pair]]
        try:
            for results in solver.train(suspects[:1] or list(remaining), preparation_digest, report):
                for result in results:
                    del remaining[result.pair]
                yield results
        except SolverDied as death:
            strikes.update(death.in_flight)
            idle_deaths += not death.in_flight
            if idle_deaths == _DEATHS:
                yield _failed(remaining, label_of, _given_up(death))
                return
            guilty = [pair for pair in remaining if strikes[pair] == _DEATHS]
            twice = SolverFailed("solver_died", f"{death} This class did it twice.")
            yield _failed(guilty, label_of, twice)
            for pair in guilty:
                del remaining[pair]
        except SolverHindered as hindered:
            _wait(solver, hindered)
        except SolverFailed as failure:
            yield _failed(remaining, label_of, failure)
            return


def _wait(solver: Solver, hindered: SolverHindered) -> None:
    logger.warning("a solver waits: %s", hindered)
    solver.wait_for_better()


def _failed(
    pairs: Iterable[Pair], label_of: Callable[[int], str], failure: SolverFailed
) -> list[StudentResult]:
    told = {"code": failure.code, "message": failure.message}
    return [StudentResult(pair, label_of(pair[0]), told, None) for pair in pairs]


def _given_up(death: SolverDied) -> SolverFailed:
    return SolverFailed("solver_died", f"{death} It happened twice.")
