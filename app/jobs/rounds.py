"""What to do when a solver process dies: once more, and when it dies again, find the class at fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from app.jobs.solver_process import Pair, Prepared, Report, Solver, SolverDied, SolverFailed, StudentResult

_DEATHS = 2


def prepare(solver: Solver, targets: Sequence[int], report: Report) -> Prepared:
    """`Solver.prepare`, tried again in a new process if the first one dies. Raises SolverFailed."""
    for attempt in range(1, _DEATHS + 1):
        try:
            return solver.prepare(targets, report)
        except SolverDied as death:
            if attempt == _DEATHS:
                raise _given_up(death) from death
    raise AssertionError("unreachable")


def train(
    solver: Solver,
    pairs: Sequence[Pair],
    preparation_digest: str,
    report: Report,
    label_of: Callable[[int], str],
) -> Iterator[StudentResult]:
    """Every pair trained or failed, in any order.

    A pair that was under way when the process died is tried once more, alone, so that one class that kills
    the solver takes no other with it. When the process dies twice without training anything, or says that it
    cannot go on, all that remain have failed.
    """
    remaining = dict.fromkeys(pairs)
    strikes: Counter[Pair] = Counter()
    idle_deaths = 0
    while remaining:
        suspects = [pair for pair in remaining if strikes[pair]]
        try:
            for result in solver.train(suspects[:1] or list(remaining), preparation_digest, report):
                del remaining[result.pair]
                yield result
        except SolverDied as death:
            strikes.update(death.in_flight)
            idle_deaths += not death.in_flight
            if idle_deaths == _DEATHS:
                yield from _failed(remaining, label_of, _given_up(death))
                return
            guilty = [pair for pair in remaining if strikes[pair] == _DEATHS]
            yield from _failed(
                guilty, label_of, SolverFailed("solver_died", f"{death} This class did it twice.")
            )
            for pair in guilty:
                del remaining[pair]
        except SolverFailed as failure:
            yield from _failed(remaining, label_of, failure)
            return


def _failed(
    pairs: Iterable[Pair], label_of: Callable[[int], str], failure: SolverFailed
) -> Iterator[StudentResult]:
    for pair in list(pairs):
        told = {"code": failure.code, "message": failure.message}
        yield StudentResult(pair, label_of(pair[0]), told, None)


def _given_up(death: SolverDied) -> SolverFailed:
    return SolverFailed("solver_died", f"{death} It happened twice.")
