"""Labels that are unknown: sets against brute force, the relaxation against Clarabel, monotone falls."""

from __future__ import annotations

import numpy as np
import pytest

from core.errors import Cancelled, InvalidProblem
from core.run import Run
from core.solvers.labels.label_set import LabelSet
from core.solvers.labels.margin_labels import LabelProblem, Mixture, most_violated, solve_labels
from core.solvers.solution import Status
from tests.reference import labels as oracles
from tests.refusals import at_fault

NO_PAIRS = np.empty((0, 2), dtype=int)


def free_rows(n, K, least=0, must_link=NO_PAIRS, cannot_link=NO_PAIRS):
    return LabelSet(np.full(n, -1), K, np.full(K, least), must_link, cannot_link)


def test_the_best_labels_are_those_of_brute_force():
    assert all(oracles.labels_agree(seed) for seed in range(30))


def test_the_relaxation_reaches_the_optimum_of_an_interior_point_method():
    assert max(oracles.relaxation_difference(seed) for seed in range(3)) < 1e-6


@pytest.mark.parametrize("seed", range(2))
def test_the_objectives_of_relaxation_and_result_never_rise(seed: int):
    problem = oracles.label_problem(seed, 30, 1e-8)
    start = problem.labels.best(np.random.default_rng(seed).normal(size=(30, problem.labels.n_classes)))
    solution = solve_labels(problem, [start], rounds=5)
    for objectives in (solution.relaxed, solution.lowered):
        assert (np.diff(objectives) <= 1e-7 * objectives[0]).all()
    assert len(solution.relaxed) > 1
    assert solution.summary.objective == solution.lowered[-1]
    assert solution.mixture.sum() == pytest.approx(1.0)
    assert problem.fit(problem.features, problem.signs[solution.codes], Run())[2] == pytest.approx(
        solution.summary.objective, rel=1e-6
    )


def test_the_losses_of_the_labels_and_the_norms_of_the_planes_are_the_objective():
    problem = oracles.label_problem(0, 30, 1e-8)
    codes = problem.labels.best(np.random.default_rng(0).normal(size=(30, problem.labels.n_classes)))
    planes, _, objective = problem.fit(problem.features, problem.signs[codes], Run())
    losses = problem.losses(problem.features @ planes.T)[np.arange(30), codes]
    assert 0.5 * (planes**2).sum() + losses.sum() == pytest.approx(objective, rel=1e-6)


def test_the_relaxation_is_a_bound_of_its_label_vectors_and_ends_where_none_is_violated():
    problem = oracles.label_problem(1, 12, 1e-9)
    every = oracles.allowed(oracles.label_problem(1, 8, 1e-9).labels)
    assert len(every) > 50
    start = problem.labels.best(np.random.default_rng(0).normal(size=(12, 3)))
    solution = solve_labels(problem, [start], rounds=50, tolerance=1e-6)
    assert solution.summary.status == Status.CONVERGED.value
    assert solution.relaxed[-1] <= solution.summary.objective
    assert solution.violation <= 1e-3


def test_the_most_violated_labels_maximise_the_linearised_violation():
    for seed in range(8):
        problem = oracles.label_problem(seed, 8, 1e-6)
        rng = np.random.default_rng(seed)
        duals, signs = rng.normal(size=(8, problem.signs.shape[1])), problem.signs
        every = oracles.allowed(problem.labels)
        before = every[rng.integers(len(every))]
        pulled = problem.features.T @ (duals * signs[before])
        values = [float((pulled * (problem.features.T @ (duals * signs[codes]))).sum()) for codes in every]
        found = most_violated(problem.labels, problem.features, duals, signs, before)
        value = float((pulled * (problem.features.T @ (duals * signs[found]))).sum())
        assert value == pytest.approx(max(values), rel=1e-9, abs=1e-9)


def test_links_hold_and_spread_over_several_rows():
    labels = free_rows(6, 2, 0, np.array([[0, 1], [1, 2]]), np.array([[2, 3], [3, 4]]))
    codes = labels.best(np.array([[3.0, 0.0], [0, 1], [0, 1], [5, 0], [1, 0], [0, 1]]))
    np.testing.assert_array_equal(codes, [1, 1, 1, 0, 1, 1])


def test_balance_moves_the_rows_that_lose_least():
    scores = np.column_stack([np.zeros(6), [-5.0, -1.0, -3.0, -2.0, -6.0, 1.0]])
    np.testing.assert_array_equal(free_rows(6, 2, 3).best(scores), [0, 1, 0, 1, 0, 1])


@pytest.mark.parametrize(
    ("must_link", "cannot_link", "field"),
    [
        ([[0, 1]], [[0, 1]], "labelling.cannot_link"),
        ([[0, 2]], NO_PAIRS, "labelling.must_link"),
        (NO_PAIRS, [[0, 9]], "labelling.cannot_link"),
        (NO_PAIRS, [[0, 3]], "labelling.must_link"),
    ],
)
def test_conditions_that_contradict_each_other_are_refused(must_link, cannot_link, field: str):
    known = np.array([0, -1, 1, 0])
    with at_fault(InvalidProblem, field=field):
        LabelSet(known, 2, np.zeros(2, dtype=int), np.array(must_link), np.array(cannot_link))


def test_conditions_that_no_labels_respect_are_refused():
    apart = np.array([[0, 1], [1, 2], [0, 2]])
    for rows, field in (
        (free_rows(3, 2, 0, NO_PAIRS, apart), "cannot_link"),
        (free_rows(3, 2, 2), "balance"),
    ):
        with pytest.raises(InvalidProblem, match="No labels") as caught:
            rows.best(np.zeros((3, 2)))
        fault = caught.value.faults[0]
        assert (fault.field, fault.code) == (f"labelling.{field}", "impossible")


def test_a_cancel_ends_the_solver():
    problem = oracles.label_problem(0, 20, 1e-6)
    start = problem.labels.best(np.zeros((20, 2)))
    with pytest.raises(Cancelled):
        solve_labels(problem, [start], run=Run(should_cancel=lambda: True))
    assert isinstance(problem, LabelProblem)
    assert Mixture(problem, [start], Run()).gap == pytest.approx(0.0)
