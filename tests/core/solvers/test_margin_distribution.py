"""ODM: the equations, warnings about arguments, sparse rows, cancellation."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from core.errors import Cancelled, InvalidProblem
from core.run import Run
from core.solvers import ridge_system
from core.solvers.margins.margin_distribution import MarginDistributionProblem, solve_margin_distribution
from core.solvers.solution import Status


def problem(n=60, m=6, *, C=100.0, band=0.2, excess=0.5, sparse=False, seed=0, **changed):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, m))
    signs = np.where(features[:, 0] + 0.3 * rng.normal(size=n) > 0.4, 1.0, -1.0)
    arrays = {"features": sp.csr_array(features) if sparse else features, "signs": signs, "gate": np.zeros(n)}
    return MarginDistributionProblem(**(arrays | changed), C=C, band=band, excess=excess)


def test_margins_are_drawn_together_as_the_weight_of_the_upper_side_grows():
    spreads = []
    for excess in (1e-3, 0.1, 1.0):
        stated = problem(C=1e4, excess=excess)
        margins = stated.margins(solve_margin_distribution(stated, tolerance=1e-9).value)
        spreads.append(margins.std())
    assert spreads == sorted(spreads, reverse=True)
    assert spreads[0] > 1.5 * spreads[-1]


def test_a_gate_within_the_band_is_the_solution():
    signs = np.where(np.arange(60) % 3 == 0, 1.0, -1.0)
    solution = solve_margin_distribution(problem(signs=signs, gate=1.1 * signs))
    np.testing.assert_array_equal(solution.value, 0.0)
    assert solution.objective == 0.0
    assert solution.status is Status.CONVERGED


def test_the_dual_point_gives_the_primal_one_and_its_sign_the_side():
    stated = problem()
    solution = solve_margin_distribution(stated, tolerance=1e-10)
    np.testing.assert_allclose(stated.features.T @ (stated.signs * solution.dual), solution.value, atol=1e-6)
    margins = stated.margins(solution.value)
    assert (margins[solution.dual > 1e-9] < 0.8).all()
    assert (margins[solution.dual < -1e-9] > 1.2).all()
    inside = (margins > 0.8 + 1e-9) & (margins < 1.2 - 1e-9)
    assert inside.any()
    np.testing.assert_array_equal(solution.dual[inside], 0.0)


def test_sparse_and_single_precision_rows_give_the_same_solution():
    dense = solve_margin_distribution(problem(), tolerance=1e-9)
    sparse = solve_margin_distribution(problem(sparse=True), tolerance=1e-9)
    np.testing.assert_allclose(sparse.value, dense.value, rtol=1e-6)
    single = problem().features.astype(np.float32)
    coarse = solve_margin_distribution(problem(features=single), tolerance=1e-9)
    assert coarse.objective == pytest.approx(dense.objective, rel=1e-5)


def test_large_systems_are_solved_by_conjugate_gradients(monkeypatch):
    direct = solve_margin_distribution(problem(200, 20), tolerance=1e-8).objective
    monkeypatch.setattr(ridge_system, "_DIRECT_LIMIT", 4)
    assert solve_margin_distribution(problem(200, 20), tolerance=1e-8).objective == pytest.approx(direct)


def test_a_matrix_that_is_lost_to_rounding_ends_the_fit_as_stalled(monkeypatch):
    def fails(*args, **kwargs):
        raise np.linalg.LinAlgError

    monkeypatch.setattr("core.solvers.margins.margin_distribution.solve_ridge_system", fails)
    solution = solve_margin_distribution(problem())
    assert solution.status is Status.STALLED
    assert solution.gap > 0.0


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"C": 0.0}, "C"),
        ({"band": 1.0}, "1 - band"),
        ({"excess": -1.0}, "excess"),
        ({"gate": np.zeros(3)}, "gate"),
        ({"signs": np.zeros(60)}, "signs"),
        ({"features": np.full((60, 2), np.nan)}, "features"),
    ],
)
def test_what_does_not_fit_is_named(changed, field):
    with pytest.raises(InvalidProblem) as caught:
        problem(**changed)
    assert [fault.field for fault in caught.value.faults] == [field]


def test_a_cancelled_fit_stops_and_progress_is_reported():
    reports = []
    solve_margin_distribution(problem(), run=Run(progress=reports.append))
    assert {report.stage for report in reports} == {"odm"}
    assert reports[-1].gap <= 1e-6 * reports[-1].objective
    with pytest.raises(Cancelled):
        solve_margin_distribution(problem(), run=Run(should_cancel=lambda: True))
