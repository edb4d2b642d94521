from __future__ import annotations

import numpy as np
import pytest

from core.solvers import crammer_singer
from core.solvers.crammer_singer import CrammerSingerProblem, solve_crammer_singer
from core.solvers.jit import as_rows
from core.solvers.plane_search import PlaneSearch
from core.solvers.solution import Status


def feasible(rng, problem, share=0.3):
    n, K = len(problem.labels), problem.n_classes
    return problem.feasible_start(-rng.exponential(problem.bound, (n, K)) * (rng.random((n, K)) < share))


def search_over(problem, dual, order):
    """A search whose active classes are those below their bounds, as after a certificate."""
    n, K = dual.shape
    classes, counts = np.zeros((n, K), dtype=np.int32), np.zeros(n, dtype=np.int32)
    upper = np.where(problem.labels[:, None] == np.arange(K), problem.bound, 0.0)
    for i in range(n):
        free = np.flatnonzero(dual[i] < upper[i])
        classes[i, : len(free)], counts[i] = free, len(free)
    rows = as_rows(problem.features)
    search = PlaneSearch(rows, problem.labels, problem.bound, order, dual, classes, counts)
    return search, classes, counts, upper


def test_dual_never_falls_and_what_leaves_a_bound_is_active_again(make_multiclass):
    problem = make_multiclass(40, 5, 4, 0.8)
    order = np.arange(0, 40, 2)
    moves = 0
    for seed in range(8):
        rng = np.random.default_rng(seed)
        dual = feasible(rng, problem)
        search, classes, counts, upper = search_over(problem, dual, order)
        for _ in range(3):
            W = problem.weights_of(dual)
            search.start(W)
            towards = feasible(rng, problem)
            dual[order] += 0.2 * (towards - dual)[order]
            W = problem.weights_of(dual)
            reached, fixed = problem.dual_objective_at(dual, W), dual[1::2].copy()
            moved = search.improve(W)
            moves += moved
            np.testing.assert_allclose(W, problem.weights_of(dual), atol=1e-10)
            assert problem.dual_objective_at(dual, W) >= reached - 1e-10
            np.testing.assert_array_equal(dual[1::2], fixed)
            assert (dual <= upper).all()
            np.testing.assert_allclose(dual.sum(axis=1), 0.0, atol=1e-12)
            if moved:
                for i in order:
                    assert set(np.flatnonzero(dual[i] < upper[i])) <= set(classes[i, : counts[i]])
                    assert len(set(classes[i, : counts[i]])) == counts[i]
    assert moves > 5


def test_without_bounds_in_the_way_no_slope_is_left_along_both_steps():
    labels = np.arange(6) % 3
    features = np.diag([1.0, 1.2, 1.4, 1.6, 1.8, 2.0])
    problem = CrammerSingerProblem(features, labels, 3, 100.0)
    dual = np.full((6, 3), -0.4)
    dual[np.arange(6), labels] = 0.8
    search, *_ = search_over(problem, dual, np.arange(6))
    losses = np.where(labels[:, None] == np.arange(3), 0.0, 1.0)
    last = None
    for _ in range(2):
        W, start = problem.weights_of(dual), dual.copy()
        search.start(W)
        uphill = -(features @ W.T + losses)
        dual += 1e-3 * (uphill - uphill.mean(axis=1, keepdims=True))
        steps = [dual - start, *([] if last is None else [last])]
        W = problem.weights_of(dual)
        assert search.improve(W)
        for step in steps:
            gain = step[np.arange(6), labels].sum()
            assert gain == pytest.approx(np.vdot(W, problem.weights_of(step)), rel=1e-4)
        last = dual - start


def test_an_epoch_that_changes_nothing_moves_nothing(make_multiclass):
    problem = make_multiclass()
    dual = feasible(np.random.default_rng(0), problem)
    search, *_ = search_over(problem, dual, np.arange(60))
    W = problem.weights_of(dual)
    search.start(W)
    before = dual.copy()
    assert not search.improve(W)
    np.testing.assert_array_equal(dual, before)


@pytest.mark.parametrize("bound", [100.0, 1e4])
def test_it_saves_epochs_where_descent_is_slow(bound, make_multiclass, monkeypatch):
    monkeypatch.setattr(crammer_singer, "_MOST_NEWTON_WEIGHTS", 0)
    problem = make_multiclass(400, 40, 6, bound)
    fast = solve_crammer_singer(problem, tolerance=1e-4, max_epochs=20_000)
    monkeypatch.setattr(crammer_singer, "_CLOSE", 0.0)
    plain = solve_crammer_singer(problem, tolerance=1e-4, max_epochs=20_000)
    assert fast.status is plain.status is Status.CONVERGED
    assert fast.objective == pytest.approx(plain.objective, rel=2e-4)
    assert fast.iterations < 0.8 * plain.iterations
