"""The bootstrap against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

from lab.experiments.stats import bootstrap, completed, interval


def sample(seed: int, n: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = rng.random(n) < 0.3
    return truth, np.round(truth + rng.standard_normal(n), 1)


def test_replicates_agree_with_scikit_learn_on_the_same_rows():
    truth, score = sample(0)
    decision = score >= 0.5
    found = bootstrap(truth, decision, score, 20, seed=4)
    rng = np.random.default_rng([4, len(truth)])
    for k in range(20):
        rows = rng.integers(0, len(truth), len(truth))
        assert found["accuracy"][k] == pytest.approx(accuracy_score(truth[rows], decision[rows]))
        assert found["f1"][k] == pytest.approx(f1_score(truth[rows], decision[rows]))
        assert found["auc"][k] == pytest.approx(roc_auc_score(truth[rows], score[rows]))


def test_a_replicate_without_positives_is_undefined():
    truth = np.zeros(30, dtype=bool)
    truth[0] = True
    found = bootstrap(truth, truth, truth.astype(float), 50)
    undefined = np.isnan(found["f1"])
    assert 0 < undefined.sum() < 50
    assert np.array_equal(undefined, np.isnan(found["auc"]))
    assert interval(found["f1"]) == (1.0, 1.0)
    assert np.isnan(interval(np.full(3, np.nan))).all()


def test_an_undefined_replicate_is_another_of_the_same_class_and_pairs_stay_pairs():
    nan = np.nan
    found = completed(np.array([[nan, 0.1, nan, nan, 0.4, nan], [0.5, nan, nan, 0.8, 0.9, 1.0], [nan] * 6]))
    assert found[0].tolist() == [0.1, 0.1, 0.4, 0.4, 0.4, 0.1]
    assert found[1].tolist() == [0.5, 0.8, 0.8, 0.8, 0.9, 1.0]
    assert np.isnan(found[2]).all()


def test_the_interval_of_a_mean_contains_it_although_a_class_has_one_test_row():
    truth = np.zeros((2, 40), dtype=bool)
    truth[0, 0], truth[1, 1:21] = True, True
    rng = np.random.default_rng(7)
    decisions = [truth[0], truth[1] ^ (rng.random(40) < 0.3)]
    scores = [decision.astype(float) for decision in decisions]
    found = [bootstrap(t, d, s, 400)["f1"] for t, d, s in zip(truth, decisions, scores, strict=True)]
    value = np.mean([f1_score(t, d) for t, d in zip(truth, decisions, strict=True)])
    low, high = interval(completed(np.array(found)).mean(axis=0))
    assert low < value < high
    assert high - low < 0.2


def test_the_interval_contains_95_per_cent():
    low, high = interval(np.arange(1001.0))
    assert (low, high) == pytest.approx((25.0, 975.0))
