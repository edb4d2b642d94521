from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, StandardScaler

from core.data.scaling import column_moments, column_range, fit_standardisation
from core.data.scaling_kind import Scaling

tables = hnp.arrays(
    st.sampled_from([np.float32, np.float64]),
    st.tuples(st.integers(1, 12), st.integers(1, 5)),
    elements=st.floats(-1e6, 1e6, width=32),
)


def test_z_scores_equal_those_of_scikit_learn():
    X = np.random.default_rng(0).normal(3.0, 20.0, (50, 4))

    scaled = fit_standardisation(X, Scaling.ZSCORE).apply(X)

    np.testing.assert_allclose(scaled, StandardScaler().fit_transform(X), rtol=1e-12)


def test_min_max_equals_that_of_scikit_learn_on_minus_one_to_one():
    X = np.random.default_rng(1).normal(3.0, 20.0, (50, 4))

    scaled = fit_standardisation(X, Scaling.MINMAX).apply(X)

    np.testing.assert_allclose(scaled, MinMaxScaler((-1, 1)).fit_transform(X), atol=1e-12)


def test_no_scaling_leaves_the_numbers_as_they_are():
    X = np.random.default_rng(2).normal(size=(9, 3)).astype(np.float32)

    scaled = fit_standardisation(X, Scaling.NONE).apply(X)

    assert scaled.dtype == np.float64
    np.testing.assert_array_equal(scaled, X)


@pytest.mark.parametrize(
    ("method", "reference"),
    [(Scaling.ZSCORE, StandardScaler(with_mean=False)), (Scaling.MINMAX, MaxAbsScaler())],
)
def test_sparse_columns_are_scaled_but_never_shifted(method, reference):
    X = sp.random_array((60, 8), density=0.3, rng=np.random.default_rng(3), format="csr") * -7.0

    standardisation = fit_standardisation(X, method)
    scaled = standardisation.apply(X)

    assert isinstance(scaled, sp.csr_array)
    assert not standardisation.shift.any()
    np.testing.assert_allclose(
        scaled.toarray(), reference.fit_transform(sp.csr_matrix(X)).toarray(), rtol=1e-12
    )


def test_a_shift_fitted_on_dense_rows_is_applied_to_sparse_rows_too():
    X = np.random.default_rng(4).normal(2.0, 1.0, (20, 3))
    standardisation = fit_standardisation(X, Scaling.ZSCORE)

    np.testing.assert_allclose(standardisation.apply(sp.csr_array(X)), standardisation.apply(X))


@pytest.mark.parametrize("method", list(Scaling))
@pytest.mark.parametrize("constant", [0.0, 4.0, 0.1, 1e17, -1e99])
def test_a_constant_column_becomes_zero_or_stays_and_never_nan(method, constant):
    X = np.column_stack([np.full(7, constant), np.arange(7.0)])

    scaled = fit_standardisation(X, method).apply(X)

    expected = constant if method in {Scaling.NONE, Scaling.IDF} else 0.0
    np.testing.assert_array_equal(scaled[:, 0], expected)
    assert np.isfinite(scaled).all()


@pytest.mark.parametrize("method", list(Scaling))
def test_an_empty_sparse_column_keeps_scale_one(method):
    X = sp.csr_array(np.array([[0.0, 1.0], [0.0, 3.0]]))

    assert fit_standardisation(X, method).scale[0] == 1.0


def test_a_column_that_varies_only_in_denormals_is_taken_for_constant():
    X = np.array([[0.0], [1e-300], [2e-300]])

    assert fit_standardisation(X, Scaling.ZSCORE).scale[0] == 1.0


@given(tables, st.sampled_from(list(Scaling)))
def test_scaled_values_are_finite_and_min_max_stays_within_bounds(X, method):
    scaled = fit_standardisation(X, method).apply(X)

    assert np.isfinite(scaled).all()
    if method is Scaling.MINMAX:
        assert np.abs(scaled).max() <= 1 + 1e-6


@given(tables)
def test_moments_and_ranges_agree_between_dense_and_sparse(X):
    sparse = sp.csr_array(X)

    for dense_part, sparse_part in zip(column_moments(X), column_moments(sparse), strict=True):
        np.testing.assert_allclose(sparse_part, dense_part, rtol=1e-9, atol=1e-3)
    np.testing.assert_array_equal(column_range(X), column_range(sparse))


def test_moments_of_many_rows_equal_those_of_numpy_in_double_precision():
    X = np.random.default_rng(5).normal(1e4, 1.0, (70_000, 40)).astype(np.float32)

    mean, variance = column_moments(X)

    np.testing.assert_allclose(mean, X.astype(np.float64).mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(variance, X.astype(np.float64).var(axis=0), rtol=1e-9)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([0.3, 0.1 * 3], np.float64),
        ([1e15, np.nextafter(1e15, 2e15)], np.float64),
        ([1.0, np.nextafter(np.float32(1), np.float32(2))], np.float32),
        ([-7.0, -7.0 - 1e-13], np.float64),
        ([5e-321, 1e-320], np.float64),
    ],
)
def test_a_column_that_varies_by_rounding_alone_is_constant(values: list[float], dtype: Any) -> None:
    """Divided by the spread that rounding left, a query that differs by 0.001 had scores of 1e11."""
    X = np.column_stack([np.tile(values, 50), np.arange(100)]).astype(dtype)
    for method in (Scaling.ZSCORE, Scaling.MINMAX):
        for matrix in (X, sp.csr_array(X)):
            assert fit_standardisation(matrix, method).scale[0] == 1.0
            assert fit_standardisation(matrix, method).scale[1] != 1.0


@pytest.mark.parametrize("values", [[1.7e9, 1.7e9 + 1e-3], [1.0, 1.0 + 1e-12], [1e-90, 2e-90], [0.0, 1e-99]])
def test_a_column_that_varies_by_more_than_rounding_is_scaled(values: list[float]) -> None:
    X = np.tile(values, 50)[:, np.newaxis]
    np.testing.assert_allclose(
        fit_standardisation(X, Scaling.MINMAX).apply(X).ravel(), np.tile([-1.0, 1.0], 50), rtol=1e-3
    )


def test_a_rare_value_of_many_rows_is_no_rounding() -> None:
    """Its column's spread is a small part of its magnitude, but its range is not."""
    X = np.zeros((200_000, 1), dtype=np.float32)
    X[7] = 1.0
    assert fit_standardisation(X, Scaling.ZSCORE).scale[0] == pytest.approx(np.sqrt(200_000), rel=1e-3)
