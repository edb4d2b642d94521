"""Scaling of single rows: proportions, rows of zeros, extreme and negative values."""

from __future__ import annotations

import numpy as np
import pytest

from core.data.row_scaling import RowScaling, scale_rows


@pytest.mark.parametrize("method", [RowScaling.UNIT, RowScaling.HELLINGER])
def test_only_proportions_count(method):
    X = np.random.default_rng(0).uniform(0.0, 5.0, (20, 6))
    scaled = scale_rows(X, method)
    np.testing.assert_allclose(np.linalg.norm(scaled, axis=1), 1.0)
    np.testing.assert_allclose(scale_rows(X * 1e-3, method), scaled)
    assert np.shares_memory(scale_rows(X, RowScaling.NONE), X)


def test_the_distance_is_that_of_hellinger():
    first, second = np.array([0.2, 0.3, 0.5]), np.array([0.6, 0.4, 0.0])
    hellinger = np.sqrt(1.0 - np.sum(np.sqrt(first * second)))
    scaled = scale_rows(np.array([first * 7.0, second * 300.0]), RowScaling.HELLINGER)
    np.testing.assert_allclose(np.linalg.norm(scaled[0] - scaled[1]), np.sqrt(2.0) * hellinger)


@pytest.mark.parametrize("method", [RowScaling.UNIT, RowScaling.HELLINGER])
def test_extreme_rows_stay_finite(method):
    X = np.array([[0.0, 0.0], [1e300, 1e300], [1e-310, 0.0], [1e-200, 1e200]])
    scaled = scale_rows(X, method)
    np.testing.assert_allclose(scaled, [[0.0, 0.0], [0.5**0.5, 0.5**0.5], [1.0, 0.0], [0.0, 1.0]], atol=1e-90)


def test_negative_values_count_as_nothing_for_proportions():
    np.testing.assert_allclose(scale_rows(np.array([[-3.0, 4.0]]), RowScaling.HELLINGER), [[0.0, 1.0]])
    np.testing.assert_allclose(scale_rows(np.array([[-3.0, 4.0]]), RowScaling.UNIT), [[-0.6, 0.8]])
