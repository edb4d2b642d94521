"""Factors of the columns: slopes against differences, and columns of noise against columns that matter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core.data.dataset import LabelledData
from core.errors import Cancelled, InvalidProblem
from core.features.base import kernel_standardisation
from core.features.maps import fit_feature_map
from core.features.spec import FeatureSpec
from core.model_selection.column_factors import learn_column_factors, loss_and_slopes
from core.run import Run

SPEC = FeatureSpec("kernel", gamma=0.1)


def noisy(n: int = 240, noise: int = 8) -> LabelledData:
    """Two columns with three rings, and columns of noise."""
    rng = np.random.default_rng(0)
    labels = np.arange(n) % 3
    angle, radius = rng.uniform(0, 2 * np.pi, n), 1.0 + labels + 0.2 * rng.normal(size=n)
    X = np.column_stack([radius * np.cos(angle), radius * np.sin(angle), rng.normal(size=(n, noise))])
    return LabelledData.from_arrays(X, labels)


def test_the_slopes_are_those_of_the_leave_one_out_loss():
    rng = np.random.default_rng(1)
    rows, labels = rng.normal(size=(40, 3)), np.arange(40) % 3
    signs = np.where(labels[:, None] == np.arange(3), 1.0, -1.0)
    logs = np.array([0.1, -0.3, 0.2])

    def loss(at: np.ndarray) -> float:
        return loss_and_slopes(rows * np.exp(at), signs, 0.1)[0]

    differences = [(loss(logs + step) - loss(logs - step)) / 2e-5 for step in 1e-5 * np.eye(3)]
    assert loss_and_slopes(rows * np.exp(logs), signs, 0.1)[1] == pytest.approx(differences, rel=1e-5)


def test_the_loss_is_that_of_refits():
    rng = np.random.default_rng(2)
    rows, signs = rng.normal(size=(20, 2)), np.where(np.arange(20) % 2, 1.0, -1.0)[:, None]
    kernel = np.exp(-((rows[:, None] - rows) ** 2).sum(axis=2)) + 1.0
    losses = []
    for left_out in range(20):
        kept = np.arange(20) != left_out
        weights = np.linalg.solve(kernel[np.ix_(kept, kept)] + 0.3 * np.eye(19), signs[kept])
        prediction = kernel[left_out, kept] @ weights
        losses.append(max(0.0, 1.0 - float((signs[left_out] * prediction)[0])) ** 2)
    assert loss_and_slopes(rows, signs, 0.3)[0] == pytest.approx(np.mean(losses))


def test_columns_of_noise_get_small_factors_and_the_same_seed_the_same_ones():
    data = noisy()
    factors = learn_column_factors(SPEC, data.X, data.y, data.K, 0.1, Run(3))
    assert min(factors[:2]) > 2.0 * max(factors[2:])
    assert factors == learn_column_factors(SPEC, data.X, data.y, data.K, 0.1, Run(3))


def test_factors_multiply_the_scaled_columns():
    data = noisy(60, 2)
    factors = (2.0, 1.0, 0.5, 0.1)
    plain, _ = kernel_standardisation(data.X, SPEC)
    scaled, _ = kernel_standardisation(data.X, replace(SPEC, column_factors=factors))
    np.testing.assert_array_equal(scaled.scale, plain.scale * factors)
    features = fit_feature_map(data.X, replace(SPEC, column_factors=factors), 0).transform(data.X)[:, :-1]
    rows = plain.apply(data.X) * factors
    kernel = np.exp(-0.1 * ((rows[:, None] - rows) ** 2).sum(axis=2))
    np.testing.assert_allclose(features @ features.T, kernel, atol=1e-6)


def test_factors_come_back_from_json_and_bad_ones_are_refused():
    spec = replace(SPEC, column_factors=(1.0, 0.25))
    assert FeatureSpec(**spec.as_dict()) == spec
    assert "column_factors" not in SPEC.as_dict()
    for bad in ((1.0, 0.0), (float("nan"),), (float("inf"),)):
        with pytest.raises(InvalidProblem, match="positive and finite"):
            replace(SPEC, column_factors=bad)
    with pytest.raises(InvalidProblem, match="2 factors for 3 columns"):
        fit_feature_map(np.eye(3), spec, 0)


def test_a_cancel_stops_the_learning():
    data = noisy(30)
    with pytest.raises(Cancelled):
        learn_column_factors(SPEC, data.X, data.y, data.K, 0.1, Run(should_cancel=lambda: True))
