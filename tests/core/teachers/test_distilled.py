"""Distilled weights against scikit-learn's ridge regression, in each of their three forms."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import Ridge

from core.errors import Cancelled, InvalidProblem
from core.run import Run
from core.teachers import distilled
from core.teachers.distilled import distilled_weights


def fitted_by_ridge(features, scores):
    dense = features.toarray() if sp.issparse(features) else features
    alpha = distilled._RIDGE * (dense**2).sum() / min(dense.shape)
    return Ridge(alpha=alpha, fit_intercept=False, solver="svd").fit(dense, scores).coef_


@pytest.mark.parametrize("limit", [4096, 0], ids=["cholesky", "conjugate gradients"])
@pytest.mark.parametrize("shape", [(60, 9), (9, 25), (30, 30)])
@pytest.mark.parametrize("make", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
def test_the_weights_are_those_of_ridge_regression(limit, shape, make, monkeypatch):
    monkeypatch.setattr(distilled, "_DIRECT_LIMIT", limit)
    for seed in range(10):
        rng = np.random.default_rng(seed)
        features = make(rng.normal(size=shape) * (rng.random(shape) < 0.7))
        scores = rng.normal(size=(shape[0], 3))
        weights = distilled_weights(features, scores, Run())
        expected = fitted_by_ridge(features, scores)
        np.testing.assert_allclose(features @ weights.T, features @ expected.T, atol=1e-5)
        if shape[0] > shape[1]:
            np.testing.assert_allclose(weights, expected, atol=1e-6)


def test_scores_that_are_linear_are_found_again():
    rng = np.random.default_rng(0)
    features, truth = rng.normal(size=(200, 12)).astype(np.float32), rng.normal(size=(4, 12))
    weights = distilled_weights(features, features @ truth.T, Run())
    np.testing.assert_allclose(weights, truth, atol=1e-5)


@pytest.mark.parametrize("scores", [np.zeros((4, 2)), np.zeros(5), np.full((5, 2), np.nan)])
def test_scores_that_cannot_be_distilled_are_refused(scores):
    with pytest.raises(InvalidProblem):
        distilled_weights(np.ones((5, 3)), scores, Run())


@pytest.mark.parametrize("limit", [4096, 0])
@pytest.mark.parametrize("shape", [(60, 9), (9, 25)])
def test_it_can_be_cancelled(limit, shape, monkeypatch):
    monkeypatch.setattr(distilled, "_DIRECT_LIMIT", limit)
    with pytest.raises(Cancelled):
        distilled_weights(np.ones(shape), np.ones((shape[0], 2)), Run(should_cancel=lambda: True))
