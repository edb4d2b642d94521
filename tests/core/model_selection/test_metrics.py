"""Metrics: what is defined is right, what is not is None with a reason."""

from __future__ import annotations

import json

import numpy as np
import pytest

from core.errors import InvalidProblem
from core.model_selection.metrics import CLASS_ABSENT, ONLY_THIS_CLASS, binary_metrics, mean_metrics, roc
from tests.refusals import at_fault


def pairwise_auc(truth, score) -> float:
    """Share of (positive, negative) pairs in the right order, ties counting half."""
    positives, negatives = score[truth], score[~truth]
    wins = [(p > q) + 0.5 * (p == q) for p in positives for q in negatives]
    return float(np.mean(wins))


def test_measures_are_those_counted_by_hand():
    truth = np.array([1, 1, 1, 0, 0, 0, 0, 1], dtype=bool)
    score = np.array([2.0, 1.0, -1.0, 1.0, -2.0, -3.0, 0.5, 0.5])
    metrics = binary_metrics(truth, score >= 0.0, score)
    assert (metrics.tp, metrics.fp, metrics.tn, metrics.fn) == (3, 2, 2, 1)
    assert metrics.accuracy == pytest.approx(5 / 8)
    assert metrics.f1 == pytest.approx(2 * 3 / (2 * 3 + 2 + 1))
    assert metrics.auc == pytest.approx(pairwise_auc(truth, score))
    assert metrics.reason is None


def test_a_class_absent_from_the_test_part_has_no_f_and_no_auc_but_a_reason():
    truth = np.zeros(4, dtype=bool)
    metrics = binary_metrics(truth, np.array([True, False, False, False]), np.arange(4.0))
    assert metrics.accuracy == pytest.approx(0.75)
    assert (metrics.f1, metrics.auc, metrics.reason) == (None, None, CLASS_ABSENT)


def test_a_test_part_of_one_class_only_has_f_but_no_auc():
    truth = np.ones(3, dtype=bool)
    metrics = binary_metrics(truth, np.array([True, True, False]), np.arange(3.0))
    assert metrics.f1 == pytest.approx(0.8)
    assert (metrics.auc, metrics.reason) == (None, ONLY_THIS_CLASS)


def test_a_student_that_never_says_yes_has_an_f_of_zero():
    truth = np.array([True, False, False])
    metrics = binary_metrics(truth, np.zeros(3, dtype=bool), np.zeros(3))
    assert (metrics.f1, metrics.auc) == (0.0, 0.5)


def test_metrics_are_valid_json():
    truth = np.zeros(2, dtype=bool)
    metrics = binary_metrics(truth, truth, np.zeros(2))
    assert json.loads(json.dumps(metrics.as_dict(), allow_nan=False))["f1"] is None
    assert json.loads(json.dumps(mean_metrics([metrics]).as_dict(), allow_nan=False))["auc"] is None


def test_a_mean_leaves_out_the_classes_where_a_measure_is_undefined():
    score = np.array([1.0, -1.0])
    good = binary_metrics(np.array([True, False]), score > 0, score)
    absent = binary_metrics(np.array([False, False]), score > 0, score)
    mean = mean_metrics([good, absent])
    assert (mean.accuracy, mean.f1, mean.auc, mean.classes) == (0.75, 1.0, 1.0, 2)


def test_the_mean_of_nothing_is_nothing():
    mean = mean_metrics([])
    assert (mean.accuracy, mean.f1, mean.auc, mean.classes) == (None, None, None, 0)


def test_the_area_under_the_curve_is_the_auc():
    rng = np.random.default_rng(0)
    truth = rng.random(200) < 0.3
    score = np.round(rng.normal(size=200) + truth, 1)
    curve = roc(truth, score)
    area = np.trapezoid(curve.true_positive_rate, curve.false_positive_rate)
    assert area == pytest.approx(pairwise_auc(truth, score))
    assert np.isfinite(curve.thresholds).all()


def test_every_point_of_the_curve_is_reached_at_its_threshold():
    truth = np.array([True, False, True, False])
    score = np.array([3.0, 2.0, 1.0, 0.0])
    curve = roc(truth, score)
    for fpr, tpr, threshold in zip(
        curve.false_positive_rate, curve.true_positive_rate, curve.thresholds, strict=True
    ):
        accepted = score >= threshold
        assert accepted[truth].mean() == tpr
        assert accepted[~truth].mean() == fpr


@pytest.mark.parametrize("truth", [np.zeros(2, dtype=bool), np.ones(2, dtype=bool)])
def test_a_curve_of_one_class_is_refused(truth):
    with at_fault(InvalidProblem, "single_class"):
        roc(truth, np.zeros(2))


@pytest.mark.parametrize("length", [0, 3])
def test_unequal_or_empty_vectors_are_refused(length: int):
    with pytest.raises(InvalidProblem, match="one length"):
        binary_metrics(np.zeros(length, dtype=bool), np.zeros(2, dtype=bool), np.zeros(2))


def test_scores_that_are_not_finite_are_refused_with_their_row():
    truth = np.array([True, False])
    with pytest.raises(InvalidProblem) as caught:
        binary_metrics(truth, truth, np.array([0.0, np.nan]))
    assert caught.value.faults[0].row == 1
