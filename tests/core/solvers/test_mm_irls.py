from __future__ import annotations

import numpy as np
import pytest

from core.errors import InvalidProblem
from core.solvers.mm_irls import majoriser, smoothed_dual, smoothed_hinge, solve_mm_irls
from core.solvers.solution import Status

SLACKS = np.linspace(-5, 5, 2001)


@pytest.mark.parametrize("smoothing", [1e-6, 1e-2, 1.0])
def test_the_smoothed_hinge_lies_between_the_hinge_and_half_the_smoothing_above(smoothing):
    excess = smoothed_hinge(SLACKS, smoothing) - np.maximum(SLACKS, 0)
    assert (excess >= 0).all()
    assert (excess <= smoothing / 2 * (1 + 1e-9)).all()


@pytest.mark.parametrize("smoothing", [1e-2, 1.0])
@pytest.mark.parametrize("at", [-3.0, -0.01, 0.0, 0.2, 4.0])
def test_the_majoriser_majorises_and_touches(at, smoothing):
    upper = majoriser(SLACKS, np.full_like(SLACKS, at), smoothing)
    assert (upper >= smoothed_hinge(SLACKS, smoothing) - 1e-12).all()
    point = np.array([at])
    np.testing.assert_allclose(majoriser(point, point, smoothing), smoothed_hinge(point, smoothing))


def test_the_papers_guarded_bound_is_no_majoriser():
    """Why the code does not use |v| + 1e-6: at v the guarded bound lies below |v| itself."""
    v, guard = 0.5, 1e-6
    guarded = (v**2 / (v + guard) + v) / 2
    assert guarded < v


@pytest.mark.parametrize("smoothing", [1e-2, 1.0])
def test_the_dual_is_the_slope_of_the_smoothed_hinge(smoothing):
    step = 1e-6
    rise = smoothed_hinge(SLACKS + step, smoothing) - smoothed_hinge(SLACKS - step, smoothing)
    slope = smoothed_dual(SLACKS, np.ones_like(SLACKS), smoothing)
    np.testing.assert_allclose(slope, rise / (2 * step), atol=1e-7)
    assert ((slope >= 0) & (slope <= 1)).all()


def test_a_coarse_guard_stalls_within_its_promise(make_gated):
    problem = make_gated(C=100.0)
    exact, coarse = solve_mm_irls(problem), solve_mm_irls(problem, guard=0.1)
    assert coarse.status is Status.STALLED
    assert coarse.objective <= exact.objective + 0.05 * problem.bounds.sum()
    assert coarse.dual_objective <= exact.objective


@pytest.mark.parametrize("guard", [0.0, -1.0, np.nan])
def test_a_guard_that_is_not_positive_is_refused(guard, make_gated):
    with pytest.raises(InvalidProblem, match="guard"):
        solve_mm_irls(make_gated(), guard=guard)
