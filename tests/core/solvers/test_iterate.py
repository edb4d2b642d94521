from __future__ import annotations

import numpy as np
import pytest

from core.errors import Cancelled, InvalidProblem
from core.run import Run
from core.solvers.iterate import Certificate, iterate
from core.solvers.solution import Status


class Halving:
    """A method whose gap halves in each round and that stalls when told to."""

    def __init__(self, stalls_at: int = 1000) -> None:
        self.value, self.dual, self.iterations = np.zeros(1), np.zeros(1), 0
        self.stalls_at = stalls_at

    def advance(self, run):
        run.check_cancel()
        self.iterations += 1
        return Certificate(1.0 + 0.5**self.iterations, 1.0, stalled=self.iterations >= self.stalls_at)


def run(method, **changes):
    arguments = {"tolerance": 1e-3, "max_iterations": 100, "run": Run()}
    return iterate(method, stage="halving", **(arguments | changes))


def test_the_loop_stops_on_the_relative_gap():
    solution = run(Halving())
    assert solution.status is Status.CONVERGED
    assert solution.iterations == 10
    assert solution.relative_gap <= 1e-3
    assert solution.trace == tuple(1.0 + 0.5**k for k in range(1, 11))


def test_the_loop_tells_a_limit_from_a_stall():
    assert run(Halving(), max_iterations=3).status is Status.MAX_ITERATIONS
    assert run(Halving(stalls_at=3)).status is Status.STALLED


def test_the_loop_ends_at_once_when_it_is_cancelled():
    answers = iter([False] * 6 + [True])
    method = Halving()
    with pytest.raises(Cancelled):
        run(method, run=Run(should_cancel=lambda: next(answers)))
    assert method.iterations == 3


def test_every_limit_out_of_range_is_named():
    with pytest.raises(InvalidProblem) as error:
        run(Halving(), tolerance=0.0, max_iterations=0)
    assert [fault.field for fault in error.value.faults] == ["tolerance", "max_iterations"]
