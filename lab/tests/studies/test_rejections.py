"""The figures of heads without data, against a count by hand."""

from __future__ import annotations

import numpy as np
import pytest

from core.teachers.rivals import nearest_rivals
from lab.studies.rejections import heads


def test_answers_are_counted_against_the_argmax():
    weights, bias = heads.low_rank(20, np.random.default_rng(0))
    X = heads.of_classes(weights, 150, np.random.default_rng(1))
    scores, rivals = X @ weights.T + bias, nearest_rivals(weights, bias, 16)
    threshold = float(np.median(scores.max(axis=1)))
    heads.check(weights, bias, threshold, rivals, X)
    found = heads.agreement(scores, rivals, threshold)
    truth = scores.argmax(axis=1)[:, None] == np.arange(20)
    for key, p, least in (("p4", 4, -np.inf), ("p4_threshold", 4, threshold), ("p19", 19, -np.inf)):
        accepted = np.empty(scores.shape, dtype=bool)
        for k in range(20):
            others = rivals[k, :p] if p < 19 else np.delete(np.arange(20), k)
            accepted[:, k] = (scores[:, [k]] >= scores[:, others]).all(axis=1) & (scores[:, k] >= least)
        right = (accepted & truth).sum()
        expected = {
            "agree": (accepted == truth).mean(),
            "alone": (accepted == truth).all(axis=1).mean(),
            "precision": right / accepted.sum(),
            "recall": right / truth.sum(),
            "f1": 2 * right / (accepted.sum() + truth.sum()),
        }
        assert found[key] == pytest.approx({name: 100 * value for name, value in expected.items()}, abs=1e-3)
