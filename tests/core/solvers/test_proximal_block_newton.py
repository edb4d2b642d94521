from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import LinAlgError

from core.errors import Cancelled
from core.run import Run
from core.solvers import proximal_block_newton
from core.solvers.crammer_singer import CrammerSingerProblem
from core.solvers.proximal_block_newton import proximal_block_step
from core.solvers.proximal_point import MAX_NEWTON_STEPS


def some_dual(problem: CrammerSingerProblem, seed: int = 0) -> np.ndarray:
    """A feasible α with many entries at their bounds."""
    rng = np.random.default_rng(seed)
    n, K = len(problem.labels), problem.n_classes
    return problem.feasible_start(-rng.exponential(problem.bound, (n, K)) * (rng.random((n, K)) < 0.2))


@pytest.mark.parametrize("width", [1e-4, 1.0, 100.0])
@pytest.mark.parametrize("every", [1, 3])
def test_a_step_is_feasible_and_never_lowers_the_dual(width, every, make_multiclass):
    problem = make_multiclass(120, 6, 4, 100.0)
    active = np.arange(0, 120, every)
    upper = np.where(problem.labels[active, None] == np.arange(4), 100.0, 0.0)
    for seed in range(5):
        start = some_dual(problem, seed)
        W = problem.weights_of(start)
        step = proximal_block_step(problem, start, W, active, width=width, accuracy=1e-9, run=Run())
        after = start.copy()
        after[active] = step.alpha
        assert (step.alpha <= upper).all()
        np.testing.assert_allclose(step.alpha.sum(axis=1), 0.0, atol=1e-10)
        before = problem.dual_objective_at(start, W)
        assert problem.dual_objective_at(after, problem.weights_of(after)) > before
        assert 0 < step.newton_steps <= MAX_NEWTON_STEPS


def test_a_step_at_the_optimum_stays_there():
    """One example, two classes: α = ½ at the optimum, see the solver's own test."""
    problem = CrammerSingerProblem(np.ones((1, 1)), np.array([0]), 2, 10.0)
    start = np.array([[0.5, -0.5]])
    step = proximal_block_step(
        problem, start, problem.weights_of(start), np.array([0]), width=1.0, accuracy=0.0, run=Run()
    )
    np.testing.assert_allclose(step.alpha, start)
    np.testing.assert_allclose(step.point, [[0.5], [-0.5]])
    assert step.newton_steps == 0


def test_a_step_ends_when_its_direction_is_below_rounding(make_multiclass, monkeypatch):
    """Whether a line search ends with step 0 depends on the rounding of the machine, so it is made to."""
    problem = make_multiclass(30, 3, 3, 1.0)
    start = some_dual(problem)
    never = -1.0
    monkeypatch.setattr(proximal_block_newton, "exact_step", lambda _derivative: 0.0)
    step = proximal_block_step(
        problem, start, problem.weights_of(start), np.arange(30), width=1.0, accuracy=never, run=Run()
    )
    assert step.newton_steps == 0


def test_a_system_that_cannot_be_factored_ends_the_step(make_multiclass, monkeypatch):
    """Which one that is hangs on the machine's rounding, so it is said instead of made."""

    def refuse(*_arguments: object, **_options: object) -> None:
        raise LinAlgError("not positive definite")

    monkeypatch.setattr(proximal_block_newton, "cho_factor", refuse)
    problem = make_multiclass(bound=1e3)
    start = some_dual(problem)
    W = problem.weights_of(start)
    step = proximal_block_step(problem, start, W, np.arange(60), width=1.0, accuracy=0.0, run=Run())
    assert step.newton_steps == 0
    after = problem.dual_objective_at(step.alpha, problem.weights_of(step.alpha))
    assert after >= problem.dual_objective_at(start, W)


def test_a_step_without_examples_changes_nothing(make_multiclass):
    problem = make_multiclass()
    start = some_dual(problem)
    W = problem.weights_of(start)
    nobody = np.empty(0, dtype=np.int64)
    step = proximal_block_step(problem, start, W, nobody, width=1.0, accuracy=1e-9, run=Run())
    assert step.alpha.shape == (0, problem.n_classes)
    np.testing.assert_array_equal(step.point, W)


def test_a_step_asks_for_a_cancel(make_multiclass):
    problem = make_multiclass()

    run = Run(should_cancel=lambda: True)
    start = problem.feasible_start(None)
    with pytest.raises(Cancelled):
        proximal_block_step(
            problem, start, problem.weights_of(start), np.arange(60), width=1.0, accuracy=1e-9, run=run
        )
