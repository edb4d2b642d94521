"""The shared threshold, against scikit-learn and brute force."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score

from core.model_selection.class_thresholds import compare_thresholds, shared_threshold
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


def held_out(shifts: np.ndarray, positives: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, scores and folds: the scores of each class are shifted, and rise by 2 for its own rows."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(shifts)), positives)
    scores = 2.0 * (labels == np.arange(len(shifts))[:, None]) + 0.5 * rng.standard_normal(
        (len(shifts), len(labels))
    )
    return labels, scores + shifts[:, None], np.tile(np.arange(3), len(labels) // 3)


@pytest.mark.parametrize("seed", range(3))
def test_few_rows_of_similar_classes_share_a_threshold(seed: int):
    labels, scores, folds = held_out(np.full(80, -1.0), 6, seed)
    found = compare_thresholds(labels, range(80), scores, folds, "f1")
    assert found.threshold == shared_threshold(labels == np.arange(80)[:, None], scores)
    assert found.shared_f1 > found.own_f1


@pytest.mark.parametrize("seed", range(3))
def test_classes_whose_scores_differ_keep_their_own_thresholds(seed: int):
    labels, scores, folds = held_out(np.linspace(-2.0, 2.0, 6), 60, seed)
    found = compare_thresholds(labels, range(6), scores, folds, "f1")
    assert found.threshold is None
    assert found.own_f1 > found.shared_f1 + 0.1


def test_the_rows_of_a_fold_have_no_say_in_the_thresholds_that_they_are_measured_with():
    labels, scores, folds = held_out(np.full(10, -1.0), 9, 0)
    measured = compare_thresholds(labels, range(10), scores, folds, "f1")
    lower = np.where(folds == 0, -9.0, scores)
    again = compare_thresholds(labels, range(10), lower, folds, "f1")
    # Rows of the first fold are all rejected now; thresholds from the other two still accept what they did.
    assert again.shared_f1 < measured.shared_f1
    assert again.shared_f1 > 0.5
