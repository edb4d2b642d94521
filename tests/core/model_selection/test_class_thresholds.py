"""The shared threshold, against scikit-learn and brute force."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score

from core.model_selection.class_thresholds import shared_threshold
from tests.lanes import first_short


def sample(seed: int, n: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = rng.random(n) < 0.3
    return truth, np.round(truth + rng.standard_normal(n), 1)


@pytest.mark.parametrize("seed", first_short(range(8), 2))
def test_no_threshold_beats_the_shared_one_over_all_classes(seed: int):
    pairs = [sample(3 * seed + k, 40) for k in range(3)]
    truth, score = (np.stack(each) for each in zip(*pairs, strict=True))

    def value(threshold: float) -> float:
        says = score >= threshold
        return float(
            np.mean(
                [
                    accuracy_score(own, one) + f1_score(own, one, zero_division=0.0)
                    for own, one in zip(truth, says, strict=True)
                ]
            )
        )

    # With fewer scores than quantiles every cut between them is a candidate.
    candidates = [score.min(), *(np.unique(score) + 1e-6)]
    assert value(shared_threshold(truth, score)) >= max(map(value, candidates[:-1])) - 1e-12


def test_of_equal_thresholds_the_nearest_to_zero_is_taken():
    truth = np.array([[True, True, False, False], [True, False, False, False]])
    score = np.array([[3.0, 1.0, -1.0, -3.0], [2.0, -1.5, -2.0, -4.0]])
    assert shared_threshold(truth, score) == 0.0
