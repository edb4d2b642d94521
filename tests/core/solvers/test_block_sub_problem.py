from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from core.solvers.block_sweeps import simplex_threshold, solve_block


def solve(curvature, linear, upper, volume):
    count = len(linear)
    x = np.empty(count)
    solve_block(curvature, linear, upper, volume, count, np.empty(count), x)
    return x


def enumerate_active_sets(curvature, linear, upper, volume):
    """The best of all points that fix some variables at their bounds and solve for the others."""
    best, best_value = None, np.inf
    for fixed in product([False, True], repeat=len(linear)):
        free = ~np.array(fixed)
        x = upper.astype(float)
        if free.any():
            threshold = (curvature * (upper[free].sum() - volume) + linear[free].sum()) / free.sum()
            x[free] = (threshold - linear[free]) / curvature
        if not np.isclose(x.sum(), upper.sum() - volume) or (x > upper + 1e-9).any():
            continue
        value = 0.5 * curvature * x @ x + linear @ x
        if value < best_value:
            best, best_value = x, value
    return best


@pytest.mark.parametrize("seed", range(30))
def test_the_block_solution_is_the_best_of_all_active_sets(seed):
    rng = np.random.default_rng(seed)
    K = int(rng.integers(1, 7))
    linear, upper = rng.normal(size=K), rng.normal(size=K)
    curvature, volume = rng.uniform(0.1, 5), rng.uniform(0, 3)
    expected = enumerate_active_sets(curvature, linear, upper, volume)
    np.testing.assert_allclose(solve(curvature, linear, upper, volume), expected, atol=1e-9)


def test_no_volume_leaves_every_variable_at_its_bound():
    upper = np.array([1.0, -2.0, 0.5])
    np.testing.assert_allclose(solve(2.0, np.array([3.0, 1.0, -1.0]), upper, 0.0), upper, atol=1e-15)


def test_only_values_above_the_threshold_are_lowered():
    values = np.array([1.0, 5.0, 4.0])
    assert simplex_threshold(values, 3, 1.5) == pytest.approx(3.75)
    assert simplex_threshold(np.array([1.0, 5.0, 4.0]), 3, 7.0) == pytest.approx(1.0)
    assert simplex_threshold(np.array([1.0, 5.0, 4.0]), 3, 10.0) == pytest.approx(0.0)


def test_entries_beyond_the_count_are_left_alone():
    x = np.full(4, 9.0)
    solve_block(1.0, np.zeros(4), np.ones(4), 2.0, 2, np.empty(4), x)
    np.testing.assert_allclose(x, [0.0, 0.0, 9.0, 9.0])


@pytest.mark.parametrize("K", [1, 2, 26, 1000])
@pytest.mark.parametrize("volume", [0.0, 1e-12, 1.0, 1e6])
def test_the_threshold_takes_the_volume_off_the_values_above_it(K, volume):
    rng = np.random.default_rng(K)
    for values in (rng.normal(size=K), np.full(K, 0.1), np.round(rng.normal(size=K), 1)):
        threshold = simplex_threshold(values.copy(), K, volume)
        taken = np.maximum(values - threshold, 0.0).sum()
        assert taken == pytest.approx(volume, rel=1e-9, abs=1e-12 * K)
        assert threshold <= values.max() + 1e-15
