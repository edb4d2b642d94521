from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse as sp

from core.errors import Cancelled, InvalidProblem
from core.run import Run
from core.solvers import crammer_singer
from core.solvers.crammer_singer import CrammerSingerProblem, solve_crammer_singer
from core.solvers.multiclass_hinge import best_multiple
from core.solvers.solution import Status
from tests.refusals import at_fault

PHI = np.eye(3)
LABELS = np.array([0, 1, 2])


def test_the_objective_is_equation_1_written_out(make_multiclass):
    problem = make_multiclass(10, 4, 3)
    W = np.random.default_rng(0).normal(size=(3, 4))
    by_hand = 0.5 * (W**2).sum()
    for phi, y in zip(problem.features, problem.labels, strict=True):
        by_hand += problem.bound * max((k != y) + W[k] @ phi - W[y] @ phi for k in range(3))
    assert problem.primal_objective(W) == pytest.approx(by_hand, rel=1e-13)


@pytest.mark.parametrize("K", [2, 3, 10])
@pytest.mark.parametrize("bound", [1e-4, 0.1, 1.0])
def test_the_solution_certifies_itself(K, bound, make_multiclass):
    problem = make_multiclass(80, 5, K, bound)
    solution = solve_crammer_singer(problem, tolerance=1e-6, max_epochs=20_000)
    assert solution.status is Status.CONVERGED
    assert -1e-12 <= solution.relative_gap <= 1e-6
    assert solution.objective == pytest.approx(problem.primal_objective(solution.value), rel=1e-12)
    W = problem.weights_of(solution.dual)
    assert solution.dual_objective == pytest.approx(problem.dual_objective_at(solution.dual, W), rel=1e-10)
    upper = np.where(problem.labels[:, None] == np.arange(K), bound, 0.0)
    assert (solution.dual <= upper).all()
    np.testing.assert_allclose(solution.dual.sum(axis=1), 0.0, atol=1e-11 * bound)


def test_a_dual_that_falls_in_the_last_round_of_float32_is_no_stall(make_multiclass):
    problem = make_multiclass(80, 5, 2, 1.0)
    found = [solve_crammer_singer(problem, tolerance=1e-6, run=Run(seed)) for seed in range(30)]
    assert {one.status for one in found} == {Status.CONVERGED}


def test_no_direction_leads_further_down(make_multiclass):
    problem = make_multiclass()
    solution = solve_crammer_singer(problem, tolerance=1e-9)
    rng = np.random.default_rng(0)
    for size in (1e-3, 1e-1, 1.0):
        for _ in range(20):
            nearby = solution.value + size * rng.normal(size=solution.value.shape)
            assert problem.primal_objective(nearby) >= solution.objective * (1 - 1e-8)


@pytest.mark.long
def test_csr_and_float32_give_the_same_answer():
    rng = np.random.default_rng(1)
    features = (rng.normal(size=(60, 9)) * (rng.random((60, 9)) < 0.4)).astype(np.float32)
    features[5] = 0.0
    labels = rng.integers(0, 3, 60)
    answers = [
        solve_crammer_singer(CrammerSingerProblem(matrix, labels, 3, 0.7), tolerance=1e-7)
        for matrix in (features, features.astype(np.float64), sp.csr_array(features))
    ]
    for answer in answers:
        assert answer.status is Status.CONVERGED
        assert answer.objective == pytest.approx(answers[0].objective, rel=1e-6)


def test_rows_of_zeros_cost_one_each():
    problem = CrammerSingerProblem(np.zeros((4, 2)), np.array([0, 1, 2, 2]), 3, 0.5)
    solution = solve_crammer_singer(problem)
    assert solution.objective == pytest.approx(2.0)
    assert solution.status is Status.CONVERGED


def test_one_example_and_an_absent_class_are_solved():
    # min ‖w‖² + b [1 − 2w]_+ over w_0 = −w_1 = w: w = ½, objective ¼
    alone = solve_crammer_singer(CrammerSingerProblem(np.ones((1, 1)), np.array([0]), 2, 10.0))
    np.testing.assert_allclose(alone.value, [[0.5], [-0.5]], atol=1e-2)
    absent = CrammerSingerProblem(PHI, LABELS, 5, 1.0)
    assert solve_crammer_singer(absent).status is Status.CONVERGED


def test_a_warm_start_saves_most_of_the_work(make_multiclass, monkeypatch):
    monkeypatch.setattr(crammer_singer, "_MOST_NEWTON_WEIGHTS", 0)  # epochs and Newton steps do not compare
    near, far = make_multiclass(bound=2.0), make_multiclass(bound=2.2)
    cold = solve_crammer_singer(far)
    warm = solve_crammer_singer(far, initial_dual=solve_crammer_singer(near).dual)
    assert warm.objective == pytest.approx(cold.objective, rel=2e-4)
    assert warm.iterations < cold.iterations


def test_any_finite_start_is_made_feasible(make_multiclass):
    problem = make_multiclass(K=3)
    start = np.random.default_rng(0).normal(size=(60, 3)) * 100
    alpha = problem.feasible_start(start)
    np.testing.assert_allclose(alpha.sum(axis=1), 0.0, atol=1e-12)
    assert (alpha <= np.where(problem.labels[:, None] == np.arange(3), problem.bound + 1e-15, 0.0)).all()
    assert solve_crammer_singer(problem, initial_dual=start).status is Status.CONVERGED


@pytest.mark.parametrize("start", [np.zeros((60, 2)), np.full((60, 4), np.nan)])
def test_a_start_that_does_not_fit_is_refused(start, make_multiclass):
    with pytest.raises(InvalidProblem, match="initial_dual"):
        solve_crammer_singer(make_multiclass(), initial_dual=start)


def test_the_same_seed_gives_the_same_bits_and_another_seed_the_same_optimum(make_multiclass):
    problem = make_multiclass()
    one, same, other = (solve_crammer_singer(problem, run=Run(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.value, same.value)
    assert other.objective == pytest.approx(one.objective, rel=2e-4)
    assert other.trace != one.trace


@pytest.mark.parametrize("bound", [0.01, 10.0])
def test_two_workers_certify_themselves_and_one_thread_gives_the_same_bits(
    bound, make_multiclass, monkeypatch
):
    problem = make_multiclass(3000, 300, 8, bound)
    shares = []

    def merge(*arguments):
        shares.append(arguments[-1])
        return original(*arguments)

    original = crammer_singer.merge
    monkeypatch.setattr(crammer_singer, "merge", merge)
    threads = solve_crammer_singer(problem, tolerance=1e-3)
    assert shares
    assert threads.status is Status.CONVERGED
    assert threads.objective == pytest.approx(problem.primal_objective(threads.value), rel=1e-12)
    W = problem.weights_of(threads.dual)
    assert threads.dual_objective == pytest.approx(problem.dual_objective_at(threads.dual, W), rel=1e-10)
    upper = np.where(problem.labels[:, None] == np.arange(8), bound, 0.0)
    assert (threads.dual <= upper).all()
    monkeypatch.setattr(crammer_singer, "ThreadPoolExecutor", lambda max_workers: ThreadPoolExecutor(1))
    alone = solve_crammer_singer(problem, tolerance=1e-3)
    np.testing.assert_array_equal(alone.value, threads.value)
    np.testing.assert_array_equal(alone.dual, threads.dual)


def test_without_combined_steps_the_certificate_is_the_same(make_multiclass, monkeypatch):
    problem = make_multiclass(n=400, m=12, K=6, bound=1.0)
    combined = solve_crammer_singer(problem, tolerance=1e-6)
    monkeypatch.setattr("core.solvers.crammer_singer.MOST_PLANE_ENTRIES", 0)
    plain = solve_crammer_singer(problem, tolerance=1e-6)
    assert plain.status is combined.status is Status.CONVERGED
    assert plain.objective == pytest.approx(combined.objective, rel=2e-6)


def test_newton_steps_end_what_block_descent_crawls_at(make_multiclass, monkeypatch):
    problem = make_multiclass(500, 12, 6, 1e4)
    solution = solve_crammer_singer(problem, tolerance=1e-8, max_epochs=1000)
    assert solution.status is Status.CONVERGED
    assert solution.objective == pytest.approx(problem.primal_objective(solution.value), rel=1e-12)
    upper = np.where(problem.labels[:, None] == np.arange(6), 1e4, 0.0)
    assert (solution.dual <= upper).all()
    np.testing.assert_allclose(solution.dual.sum(axis=1), 0.0, atol=1e-7)
    monkeypatch.setattr(crammer_singer, "_MOST_NEWTON_WEIGHTS", 0)
    alone = solve_crammer_singer(problem, tolerance=1e-8, max_epochs=1000)
    assert alone.relative_gap > 1e-2


def test_rows_that_one_class_has_alone_need_no_newton_step():
    """Two classes far apart, a large C: nothing is left to move before so many slow rounds."""
    rng = np.random.default_rng(0)
    labels = np.arange(400) % 2
    features = np.where(labels == 0, 5.0, -5.0)[:, None] + rng.normal(size=(400, 3))
    solution = solve_crammer_singer(CrammerSingerProblem(features, labels, 2, 1e6), tolerance=1e-9)
    assert solution.status is Status.CONVERGED


def test_an_epoch_limit_and_an_unreachable_tolerance_are_reported(make_multiclass):
    limited = solve_crammer_singer(make_multiclass(bound=100.0), max_epochs=1)
    assert limited.status is Status.MAX_ITERATIONS
    stalled = solve_crammer_singer(make_multiclass(n=20, bound=100.0), tolerance=1e-17, max_epochs=100_000)
    # Rounding may as well leave no gap at all.
    assert stalled.status is (Status.STALLED if stalled.gap > 0.0 else Status.CONVERGED)
    assert stalled.relative_gap < 1e-8


def test_progress_ends_with_the_solution(make_multiclass):
    seen = []
    solution = solve_crammer_singer(make_multiclass(), run=Run(progress=seen.append))
    assert seen[-1].done == solution.iterations
    assert seen[-1].gap == pytest.approx(solution.gap)


@pytest.mark.long
def test_a_large_problem_asks_for_a_cancel_all_the_time():
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(20_000, 300)), rng.integers(0, 30, 20_000)
    solve_crammer_singer(CrammerSingerProblem(features[:5], labels[:5], 30, 1.0))
    asked: list[float] = []

    def should_cancel() -> bool:
        asked.append(time.thread_time())
        return asked[-1] - asked[0] > 2.0

    with pytest.raises(Cancelled):
        solve_crammer_singer(
            CrammerSingerProblem(features, labels, 30, 100.0),
            tolerance=1e-9,
            run=Run(should_cancel=should_cancel),
        )
    assert np.diff(asked).max() < 0.3


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"features": PHI[0]}, "features"),
        ({"labels": LABELS[:2]}, "labels"),
        ({"labels": LABELS + 1}, "labels"),
        ({"labels": LABELS - 1}, "labels"),
        ({"labels": LABELS.astype(float)}, "labels"),
        ({"n_classes": 1}, "n_classes"),
        ({"bound": 0.0}, "bound"),
        ({"bound": np.inf}, "bound"),
    ],
)
def test_an_ill_formed_problem_is_refused_with_the_field_at_fault(change, field):
    arguments = {"features": PHI, "labels": LABELS, "n_classes": 3, "bound": 1.0} | change
    with at_fault(InvalidProblem, field=field):
        CrammerSingerProblem(**arguments)


@pytest.mark.parametrize("seed", range(20))
def test_the_best_multiple_is_the_lowest_of_a_fine_grid(seed):
    rng = np.random.default_rng(seed)
    ahead = rng.normal(rng.choice([-2.0, 0.0, 0.3]), 1.0, int(rng.integers(1, 30)))
    norm2, bound = rng.exponential(3.0), 10.0 ** rng.uniform(-2, 3)

    def objective(c):
        return 0.5 * c**2 * norm2 + bound * np.maximum(1.0 + np.multiply.outer(c, ahead), 0.0).sum(axis=-1)

    best = best_multiple(norm2, bound, ahead)
    assert best >= 0.0
    grid = np.concatenate((np.linspace(0.0, 3.0 * best + 1.0, 4001), best * np.linspace(0.99, 1.01, 4001)))
    assert objective(best) <= objective(grid).min() + 1e-9 * abs(objective(best))
    assert best_multiple(0.0, bound, ahead) == 1.0
