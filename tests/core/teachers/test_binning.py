"""Bins of columns: a row's bin against its value, and where edges lie."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from core.teachers.binning import Bins

NUMBERS = st.one_of(st.integers(-4, 4).map(float), st.floats(-1e100, 1e100))


@given(
    arrays(np.float64, st.tuples(st.integers(1, 30), st.integers(1, 3)), elements=NUMBERS), st.integers(2, 9)
)
def test_a_bin_is_the_number_of_edges_below_the_value(X: np.ndarray, most: int):
    bins = Bins.of(X, most)
    codes = bins.codes(X)
    for column in range(X.shape[1]):
        edges = bins.edges[bins.feature == column]
        assert len(edges) < most
        assert (np.diff(edges) > 0.0).all()
        np.testing.assert_array_equal(codes[:, column], (X[:, column, None] > edges).sum(axis=1))
        distinct = np.unique(X[:, column])
        if len(distinct) <= most:
            assert len(edges) == len(distinct) - 1
            np.testing.assert_array_equal(np.unique(codes[:, column]), np.arange(len(distinct)))


def test_an_edge_between_neighbouring_numbers_is_the_lower_one():
    low = 1.0
    X = np.array([[low], [np.nextafter(low, 2.0)]])
    np.testing.assert_array_equal(Bins.of(X, 4).edges, [low])
    np.testing.assert_array_equal(Bins.of(X, 4).codes(X).ravel(), [0.0, 1.0])


def test_a_few_extreme_values_have_bins_of_their_own():
    rng = np.random.default_rng(0)
    common, rare = rng.integers(0, 100, size=20_000), np.arange(1000, 1040)
    bins = Bins.of(np.concatenate([common, rare])[:, None].astype(float), 32)
    assert (bins.edges > 1000.0).sum() >= 3
    assert (bins.edges < 100.0).sum() >= 15


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_columns_without_a_second_value_have_no_edges(dtype: type):
    X = np.ones((5, 2), dtype=dtype)
    X[0, 1] = 0.1
    bins = Bins.of(X, 16)
    np.testing.assert_array_equal(bins.feature, [1])
    np.testing.assert_array_equal(bins.first, [0, 0])
    np.testing.assert_array_equal(bins.codes(X)[:, 1], [0, 1, 1, 1, 1])
