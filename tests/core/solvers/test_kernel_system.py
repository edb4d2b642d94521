"""Kernel interpolation against scipy.linalg.solve, on 40 random problems for each preconditioner."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.linalg

from core.errors import Cancelled, InvalidProblem
from core.run import Run
from core.solvers.kernel import rows as kernel_rows
from core.solvers.kernel import system as kernel_system
from core.solvers.kernel.rows import KernelRows
from core.solvers.kernel.system import solve_kernel_system
from core.solvers.kernel.tiled_cholesky import NotPositiveDefinite, TiledCholesky
from core.solvers.solution import Status
from tests.refusals import at_fault

WORST = 1e-6
"""The largest relative difference of α to that of SciPy."""


def problems(number: int = 40) -> Iterator[tuple[np.ndarray, np.ndarray, float]]:
    """Rows, one-hot classes and a jitter."""
    for seed in range(number):
        rng = np.random.default_rng(seed)
        n, d, q = int(rng.integers(5, 200)), int(rng.integers(1, 10)), int(rng.integers(2, 6))
        rows = rng.normal(size=(n, d)) * rng.uniform(0.1, 1.0)
        yield rows, np.eye(q)[rng.integers(q, size=n)], 10.0 ** rng.uniform(-4, -1)


def matrix(rows: np.ndarray, jitter: float) -> np.ndarray:
    distances = ((rows[:, None] - rows) ** 2).sum(axis=2)
    return np.exp(-distances) + jitter * np.eye(len(rows))


@pytest.mark.parametrize(
    "memory", [1e9, pytest.param(8000.0, marks=pytest.mark.long)], ids=["cholesky", "nystroem"]
)
def test_alpha_is_that_of_scipy_and_the_objective_never_rises(memory):
    worst = 0.0
    for rows, right, jitter in problems():
        K = matrix(rows, jitter)
        expected = scipy.linalg.solve(K, right, assume_a="pos")
        found = solve_kernel_system(
            rows, right, jitter=jitter, tolerance=1e-10, max_iterations=5000, memory_bytes=memory, tile=32
        )
        assert found.status is Status.CONVERGED
        assert found.jitter == jitter
        worst = max(worst, float(np.abs(found.value - expected).max() / np.abs(expected).max()))
        residual = np.linalg.norm(K @ found.value - right) / np.linalg.norm(right)
        assert found.residual == pytest.approx(residual, abs=1e-11)
        np.testing.assert_allclose(found.fitted, (K - jitter * np.eye(len(K))) @ found.value, atol=1e-6)
        optimum = -0.5 * np.vdot(right, expected)
        assert found.objective == pytest.approx(optimum, rel=WORST)
        assert np.max(np.diff(found.trace), initial=-np.inf) <= 1e-12 * abs(optimum)
    assert worst <= WORST


def test_in_single_precision_the_residual_says_how_far_it_came():
    rows, right, _ = next(problems())
    found = solve_kernel_system(rows.astype(np.float32), right, jitter=1e-3, tolerance=1e-2, tile=16)
    K = matrix(rows, 1e-3)
    assert found.residual == pytest.approx(
        np.linalg.norm(K @ found.value - right) / np.linalg.norm(right), abs=1e-4
    )
    assert found.summary().relative_gap == found.residual <= 1e-2
    assert found.summary().status == "converged"


def test_the_diagonal_of_the_inverse_and_the_condition_are_those_of_numpy():
    for rows, right, jitter in problems(8):
        K = matrix(rows, jitter)
        found = solve_kernel_system(rows, right, jitter=jitter, with_inverse_diagonal=True, tile=32)
        expected = np.diag(np.linalg.inv(K))
        condition = np.linalg.cond(K)
        np.testing.assert_allclose(found.inverse_diagonal, expected, rtol=1e-7 * condition + 1e-4)
        assert 0.5 * condition < found.condition < 4.0 * condition


@pytest.mark.parametrize("tile", [7, 16, 100])
def test_the_factor_does_not_depend_on_threads_and_solves_at_any_tile(tile):
    rng = np.random.default_rng(0)
    kernel = KernelRows(rng.normal(size=(53, 4)).astype(np.float32))
    right = rng.normal(size=(53, 3))
    answers = []
    for threads in (1, 2):
        with ThreadPoolExecutor(threads) as pool:
            answers.append(TiledCholesky(kernel, 0.1, pool, Run(), tile=tile).solve(right))
    np.testing.assert_array_equal(answers[0], answers[1])
    expected = np.linalg.solve(matrix(kernel.rows.astype(np.float64), 0.1), right)
    np.testing.assert_allclose(answers[0], expected, atol=1e-4)


@pytest.mark.parametrize("n", [16, 50])
def test_products_are_those_of_the_whole_matrix_on_any_number_of_threads(n, monkeypatch):
    monkeypatch.setattr(kernel_rows, "_BLOCK_ROWS", 16)
    rng = np.random.default_rng(0)
    kernel, V = KernelRows(rng.normal(size=(n, 3))), rng.normal(size=(n, 2))
    products = []
    for threads in (1, 3):
        with ThreadPoolExecutor(threads) as pool:
            products.append(kernel.times(V, pool, Run()))
    K = np.exp(-((kernel.rows[:, None] - kernel.rows) ** 2).sum(axis=2))
    np.testing.assert_allclose(products[0], K @ V, rtol=1e-12)
    np.testing.assert_array_equal(*products)


def test_the_jitter_is_raised_where_a_tile_cannot_be_factored():
    rows = np.zeros((40, 2))  # K is a matrix of ones
    right = np.eye(2)[np.arange(40) % 2]
    found = solve_kernel_system(rows, right, jitter=1e-9, tile=16, tolerance=0.5)
    assert found.jitter > 1e-9
    with pytest.raises(NotPositiveDefinite), ThreadPoolExecutor(1) as pool:
        TiledCholesky(KernelRows(rows.astype(np.float32)), 1e-9, pool, Run(), tile=16)


def test_a_matrix_that_no_jitter_mends_is_refused(monkeypatch):
    monkeypatch.setattr(kernel_system, "_MOST_JITTER", 1e-9)
    with at_fault(InvalidProblem, "singular"):
        solve_kernel_system(np.zeros((40, 2)), np.eye(2)[np.arange(40) % 2], jitter=1e-9, tile=16)


def test_steps_that_run_out_are_a_status():
    rows, right, _ = next(problems())
    found = solve_kernel_system(rows, right, jitter=1e-4, tolerance=1e-9, max_iterations=2, memory_bytes=1e3)
    assert found.status is Status.MAX_ITERATIONS
    assert found.iterations == 2
    assert found.condition is None


def test_progress_is_reported_by_tile_and_it_stops_between_tiles():
    rows, right, jitter = next(problems())
    seen = []
    run = Run(n_threads=1, progress=seen.append)
    solve_kernel_system(rows, right, jitter=jitter, tile=16, run=run)
    tiles = -(-len(rows) // 16)
    of_factor = [step.done for step in seen if step.total == tiles * (tiles + 1) // 2]
    assert of_factor == sorted(of_factor)
    assert of_factor[-1] == tiles * (tiles + 1) // 2
    asked = []

    def stop() -> bool:
        asked.append(True)
        return len(asked) > 5

    with pytest.raises(Cancelled):
        solve_kernel_system(rows, right, jitter=jitter, tile=16, run=Run(n_threads=2, should_cancel=stop))
    assert len(asked) < 20


@pytest.mark.parametrize(
    "wrong",
    [
        {"right": np.zeros((5, 2))},
        {"right": np.ones((4, 2))},
        {"jitter": 0.0},
        {"tolerance": -1.0},
        {"max_iterations": -1},
        {"rows": np.full((5, 2), np.nan)},
    ],
)
def test_unusable_arguments_are_refused(wrong):
    rows, right = np.ones((5, 2)), np.ones((5, 2))
    with pytest.raises(InvalidProblem):
        solve_kernel_system(**{"rows": rows, "right": right, **wrong})
