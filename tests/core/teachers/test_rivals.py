"""Nearest rivals and thresholds of a head, against plain NumPy, and what they mean for its students."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.errors import InvalidProblem
from core.teachers import rivals as module
from core.teachers.rivals import nearest_rivals, typical_largest_score
from tests.refusals import at_fault

K, D = 40, 6
RNG = np.random.default_rng(2)
WEIGHTS = RNG.normal(size=(K, D)) * RNG.uniform(0.5, 2.0, size=(K, 1))
BIAS = RNG.normal(size=K)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rivals_are_the_classes_with_the_nearest_boundaries(dtype: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_BLOCK_ENTRIES", 7 * K)
    found = nearest_rivals(WEIGHTS.astype(dtype), BIAS, 5)
    assert (found.shape, found.dtype) == ((K, 5), np.int64)
    for k in range(K):
        margins = (WEIGHTS[k] - WEIGHTS) @ WEIGHTS[k] + BIAS[k] - BIAS
        spread = np.linalg.norm(WEIGHTS[k] - WEIGHTS, axis=1)
        others = np.delete(np.arange(K), k)
        expected = others[np.argsort(margins[others] / spread[others])][:5]
        np.testing.assert_array_equal(found[k], expected)


def test_rows_that_are_equal_are_the_nearest():
    unit = WEIGHTS[:5] / np.linalg.norm(WEIGHTS[:5], axis=1, keepdims=True)
    weights = np.vstack([unit, unit[1]])
    found = nearest_rivals(weights, np.zeros(6), 1)
    assert (found[1, 0], found[5, 0]) == (5, 1)


def test_no_class_is_its_own_rival_however_large_the_weights():
    weights = (WEIGHTS * 1e30).astype(np.float32)
    assert not (nearest_rivals(weights, BIAS, 5) == np.arange(K)[:, None]).any()


def test_more_rivals_than_there_are_others_means_all_of_them():
    found = nearest_rivals(WEIGHTS[:4], BIAS[:4], 64)
    assert [sorted(row) for row in found.tolist()] == [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]]
    with at_fault(InvalidProblem, "no_rivals"):
        nearest_rivals(WEIGHTS[:1], BIAS[:1], 1)


def test_more_rivals_accept_fewer_rows_and_always_those_of_the_head():
    X = RNG.normal(size=(2000, D))
    scores = X @ WEIGHTS.T + BIAS
    answer, found = scores.argmax(axis=1), nearest_rivals(WEIGHTS, BIAS, K - 1)
    shares = []
    for p in (1, 4, 16, K - 1):
        accepted = np.array([scores[:, k] >= scores[:, found[k, :p]].max(axis=1) for k in range(K)])
        assert accepted[answer, np.arange(len(X))].all()
        shares.append(accepted.mean())
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] == 1 / K


def test_half_of_the_random_rows_of_the_length_score_above_the_threshold():
    threshold = typical_largest_score(WEIGHTS, BIAS, 3.0)
    X = np.random.default_rng(9).normal(size=(4000, D))
    largest = (3.0 * X / np.linalg.norm(X, axis=1, keepdims=True) @ WEIGHTS.T + BIAS).max(axis=1)
    # The standard error of either median is about one in a hundred.
    assert 0.45 < (largest > threshold).mean() < 0.55
    assert typical_largest_score(WEIGHTS.astype(np.float32), BIAS, 3.0) == pytest.approx(threshold, rel=1e-5)
