"""Paired comparison of ROC areas."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from core.model_selection.ranking import compare_rankings


def scores_of(n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The truth, of which a fifth is positive, and two correlated scores of which the first is better."""
    rng = np.random.default_rng(seed)
    truth = np.arange(n) % 5 == 0
    teacher = truth * 1.5 + rng.standard_normal(n)
    return truth, teacher, np.round(teacher + rng.standard_normal(n), 1)


def test_areas_are_those_of_scikit_learn_with_ties():
    truth, teacher, student = scores_of(500, 0)
    one = compare_rankings(truth, teacher, student, np.zeros(500, int))
    assert one.teacher_auc == pytest.approx(roc_auc_score(truth, teacher), abs=1e-12)
    assert one.student_auc == pytest.approx(roc_auc_score(truth, student), abs=1e-12)
    assert set(one.as_dict()) == {"teacher_auc", "student_auc", "auc_standard_error"}


def test_the_standard_error_is_the_spread_of_the_difference_over_samples():
    found = [compare_rankings(*scores_of(400, seed), np.zeros(400, int)) for seed in range(400)]
    losses = [one.teacher_auc - one.student_auc for one in found]
    assert np.mean([one.standard_error for one in found]) == pytest.approx(np.std(losses), rel=0.1)


def test_scales_of_the_folds_do_not_matter_and_folds_of_one_side_do_not_count():
    truth, teacher, student = scores_of(300, 1)
    fold_of = np.arange(300) // 100
    truth[fold_of == 2] = False
    one = compare_rankings(truth, teacher, student, fold_of)
    shifted = compare_rankings(truth, teacher + 100.0 * fold_of, student - 7.0 * fold_of, fold_of)
    assert shifted.teacher_auc == pytest.approx(one.teacher_auc)
    assert shifted.standard_error == pytest.approx(one.standard_error)
    known = fold_of < 2
    fewer = compare_rankings(truth[known], teacher[known], student[known], fold_of[known])
    assert fewer == one
    assert compare_rankings(truth[~known], teacher[~known], student[~known], fold_of[~known]) is None


def test_equal_scores_differ_by_nothing_and_a_lone_positive_is_no_certainty():
    truth, teacher, student = scores_of(100, 2)
    equal = compare_rankings(truth, teacher, teacher, np.zeros(100, int))
    assert (equal.teacher_auc - equal.student_auc, equal.standard_error) == (0.0, 0.0)
    lone = np.arange(100) == 5
    one = compare_rankings(lone, teacher, student, np.zeros(100, int))
    assert one.standard_error >= abs(one.teacher_auc - one.student_auc)
