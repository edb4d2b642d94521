"""The execution context that long computations accept."""

from __future__ import annotations

import pytest

from core.errors import Cancelled, InvalidProblem
from core.run import Run
from tests.refusals import at_fault


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"seed": -1}, "seed"),
        ({"seed": 0.5}, "seed"),
        ({"n_threads": 0}, "n_threads"),
        ({"n_threads": 5000}, "n_threads"),
    ],
)
def test_values_out_of_bounds_are_refused_by_name(values, field):
    with at_fault(InvalidProblem, field=field):
        Run(**values)


def test_reports_carry_the_name_of_the_stage():
    reports = []
    run = Run(progress=reports.append)
    run.report("solver", 1, 2, 3.0, 0.5)
    run.stage("student").report("solver", 2, 2)
    run.silent().report("solver", 3, 3)
    assert [(step.stage, step.done, step.total, step.objective, step.gap) for step in reports] == [
        ("solver", 1, 2, 3.0, 0.5),
        ("student", 2, 2, None, None),
    ]


def test_a_cancelled_run_raises():
    Run().check_cancel()
    with pytest.raises(Cancelled, match="tuning"):
        Run(should_cancel=lambda: True).stage("tuning").check_cancel()


def test_by_default_all_processors_are_used():
    assert Run().threads >= 1
    assert Run(n_threads=3).threads == 3
