"""What holds for both solvers of the gated hinge problem."""

from __future__ import annotations

import time

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.linalg import LinAlgError

from core.errors import Cancelled, InvalidProblem
from core.run import Run
from core.solvers.dual_cd import solve_dual_cd
from core.solvers.gated_hinge import GatedHingeProblem
from core.solvers.mm_irls import solve_mm_irls
from core.solvers.solution import Status
from tests.lanes import first_short

SOLVERS = pytest.mark.parametrize("solve", [solve_dual_cd, solve_mm_irls])
SETTINGS = [(60, 8, 1e-3, 20), (60, 8, 1.0, 3), (200, 10, 1e3, 1), (30, 60, 10.0, 10), (80, 6, 1e5, 30)]


@SOLVERS
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_solution_certifies_itself(solve, setting, make_gated):
    n, m, C, positives = setting
    problem = make_gated(n, m, C, positives)
    solution = solve(problem, tolerance=1e-5)
    assert solution.status is Status.CONVERGED
    assert -1e-12 <= solution.relative_gap <= 1e-5
    assert solution.objective == pytest.approx(problem.primal_objective(solution.value), rel=1e-12)
    assert ((solution.dual >= 0) & (solution.dual <= problem.bounds)).all()
    assert solution.dual_objective == pytest.approx(problem.dual_objective(solution.dual)[0], rel=1e-10)


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_two_solvers_agree(setting, make_gated):
    n, m, C, positives = setting
    problem = make_gated(n, m, C, positives, seed=3)
    by_coordinates, by_majorising = solve_dual_cd(problem), solve_mm_irls(problem)
    assert by_majorising.objective == pytest.approx(by_coordinates.objective, rel=2e-6)
    np.testing.assert_allclose(
        by_majorising.value,
        by_coordinates.value,
        atol=4 * np.sqrt(1e-6 * by_coordinates.objective),  # the objective is strongly convex with modulus 1
    )


@SOLVERS
def test_the_trace_never_rises(solve, make_gated):
    for setting in SETTINGS:
        n, m, C, positives = setting
        trace = np.array(solve(make_gated(n, m, C, positives)).trace)
        assert (np.diff(trace) <= 1e-12 * np.abs(trace[:-1])).all()


@SOLVERS
def test_integer_weights_equal_repeated_rows(solve, make_gated):
    problem = make_gated(30, 5, 20.0, 10)
    times = np.random.default_rng(0).integers(1, 4, 30)
    weighted = GatedHingeProblem(problem.features, problem.signs, problem.targets, 0.4 * times)
    index = np.repeat(np.arange(30), times)
    repeated = GatedHingeProblem(
        problem.features[index], problem.signs[index], problem.targets[index], np.full(len(index), 0.4)
    )
    one, other = solve(weighted, tolerance=1e-8), solve(repeated, tolerance=1e-8)
    assert one.objective == pytest.approx(other.objective, rel=1e-7)
    np.testing.assert_allclose(one.value, other.value, atol=1e-3)


@SOLVERS
def test_csr_gives_the_same_answer_as_dense(solve):
    rng = np.random.default_rng(2)
    features = rng.normal(size=(50, 12)) * (rng.random((50, 12)) < 0.3)
    features[7] = 0.0
    signs = np.where(rng.random(50) < 0.4, 1.0, -1.0)
    dense = solve(GatedHingeProblem.svm(features, signs, C=30.0))
    sparse = solve(GatedHingeProblem.svm(sp.csr_array(features), signs, C=30.0))
    assert sparse.objective == pytest.approx(dense.objective, rel=2e-6)
    assert sparse.status is Status.CONVERGED


@SOLVERS
def test_float32_features_are_summed_in_float64(solve, make_gated):
    single = make_gated(80, 6, 100.0, 20, dtype=np.float32)
    double = GatedHingeProblem(
        single.features.astype(np.float64), single.signs, single.targets, single.bounds
    )
    assert solve(single).objective == pytest.approx(solve(double).objective, rel=2e-6)
    assert solve(single).value.dtype == np.float64


@SOLVERS
@pytest.mark.parametrize("target", [1.0, -1.0, 0.0])
def test_rows_of_zeros_cost_their_constant_hinge(solve, target):
    features, bounds = np.zeros((3, 2)), np.array([1.0, 2.0, 3.0])
    problem = GatedHingeProblem(features, np.ones(3), np.full(3, target), bounds)
    solution = solve(problem)
    np.testing.assert_array_equal(solution.value, 0.0)
    assert solution.objective == pytest.approx(6.0 * max(target, 0.0))
    assert solution.status is Status.CONVERGED


@SOLVERS
def test_one_example_and_one_sided_data_are_solved(solve):
    # min ½θ² + 10 [1 + θ]_+ has θ = −1
    alone = solve(GatedHingeProblem.svm(np.ones((1, 1)), np.ones(1), C=10.0))
    assert alone.value[0] == pytest.approx(-1.0, abs=1e-3)
    all_positive = solve(GatedHingeProblem.svm(np.ones((20, 2)), np.ones(20), C=10.0))
    np.testing.assert_allclose(all_positive.value, [-0.5, -0.5], atol=1e-3)


@SOLVERS
def test_a_satisfied_gate_needs_no_student(solve):
    signs = np.array([1.0, -1.0, 1.0])
    problem = GatedHingeProblem.gated(np.eye(3), signs, 5 * signs, C=100.0, margin=1.0)
    solution = solve(problem, tolerance=1e-9)
    assert solution.objective == pytest.approx(0.0, abs=1e-9)


@SOLVERS
def test_progress_ends_with_the_solution(solve, make_gated):
    seen = []
    solution = solve(make_gated(), run=Run(progress=seen.append))
    assert [report.done for report in seen] == sorted(report.done for report in seen)
    assert seen[-1].done == solution.iterations
    assert seen[-1].objective == solution.objective
    assert seen[-1].gap == pytest.approx(solution.gap)
    assert len(seen) == len(solution.trace)


@SOLVERS
def test_an_iteration_limit_is_reported_with_what_is_missing(solve, make_gated):
    limit = {solve_dual_cd: "max_epochs", solve_mm_irls: "max_iterations"}[solve]
    solution = solve(make_gated(C=1e4), tolerance=1e-9, **{limit: 1})
    assert solution.status is Status.MAX_ITERATIONS
    assert solution.relative_gap > 1e-9


@SOLVERS
def test_an_unreachable_tolerance_ends_at_the_limit_of_rounding(solve, make_gated):
    solution = solve(make_gated(200, 10, 1e3, 60), tolerance=1e-17)
    assert solution.status is not Status.MAX_ITERATIONS
    assert abs(solution.relative_gap) < 1e-5


@SOLVERS
@pytest.mark.parametrize("tolerance", [0.0, 1.0, -1.0, np.nan])
def test_a_tolerance_outside_zero_and_one_is_refused(solve, tolerance, make_gated):
    with pytest.raises(InvalidProblem, match="tolerance"):
        solve(make_gated(), tolerance=tolerance)


@pytest.mark.long
@SOLVERS
@pytest.mark.parametrize("shape", first_short([(3000, 2500), (20_000, 400)], 1))
def test_a_large_problem_asks_for_a_cancel_all_the_time(solve, shape):
    rng = np.random.default_rng(0)
    features = rng.normal(size=shape)
    problem = GatedHingeProblem.svm(features, np.where(rng.random(shape[0]) < 0.1, 1.0, -1.0), C=1e6)
    solve(GatedHingeProblem.svm(features[:5], problem.signs[:5], C=1.0))
    asked: list[float] = []

    def should_cancel() -> bool:
        asked.append(time.thread_time())
        return asked[-1] - asked[0] > 0.8  # well before any of the solvers is done

    with pytest.raises(Cancelled):
        solve(problem, tolerance=1e-12, run=Run(should_cancel=should_cancel))
    # One factorisation is the longest step between two questions; other work on the machine stretches it.
    assert np.diff(asked).max() < 1.5
    assert np.median(np.diff(asked)) < 0.1


@SOLVERS
def test_a_system_that_cannot_be_factored_ends_with_a_status(make_gated, solve, monkeypatch):
    """Which system that is depends on the rounding of the machine, so that the solution is made to fail."""

    def fail(*_arguments, **_options):
        raise LinAlgError("not positive definite")

    monkeypatch.setattr("core.solvers.proximal_newton.solve_ridge_system", fail)
    monkeypatch.setattr("core.solvers.mm_irls.solve_ridge_system", fail)
    solution = solve(make_gated(), tolerance=1e-14)
    assert solution.status in (Status.STALLED, Status.CONVERGED, Status.MAX_ITERATIONS)
    assert solution.dual_objective <= solution.objective
    if solve is solve_mm_irls:
        assert solution.status is Status.STALLED
