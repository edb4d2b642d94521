"""Curves of scores: every point is exact, and the few that are kept represent the whole."""

from __future__ import annotations

import numpy as np
import pytest

from core.errors import InvalidProblem
from core.model_selection.curves import MAX_POINTS, ScoreCurve, score_curve


def example(n: int, seed: int = 0, ties: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = rng.random(n) < 0.1
    score = rng.normal(size=n) + 2.0 * truth
    return truth, np.round(score, ties) if ties else score


def area(curve: ScoreCurve) -> float:
    fpr = np.array([0, *curve.fp, curve.negatives]) / curve.negatives
    tpr = np.array([0, *curve.tp, curve.positives]) / curve.positives
    return float(np.trapezoid(tpr, fpr))


@pytest.mark.parametrize(("n", "ties"), [(30, 0), (5000, 0), (5000, 1), (60000, 3)])
def test_every_point_counts_the_rows_at_or_above_its_threshold(n: int, ties: int):
    truth, score = example(n, ties=ties)
    curve = score_curve(truth, score, 0.25)
    assert len(curve.thresholds) <= MAX_POINTS
    assert list(curve.thresholds) == sorted(set(curve.thresholds), reverse=True)
    assert 0.25 in curve.thresholds
    assert (curve.positives, curve.negatives) == (truth.sum(), (~truth).sum())
    for threshold, tp, fp in zip(curve.thresholds, curve.tp, curve.fp, strict=True):
        accepted = score >= threshold
        assert (tp, fp) == ((accepted & truth).sum(), (accepted & ~truth).sum())


def test_a_thinned_curve_has_the_area_of_the_whole():
    truth, score = example(60000)
    whole = score_curve(truth, score, 0.0, max_points=10**6)
    assert len(whole.thresholds) == 60001
    assert abs(area(score_curve(truth, score, 0.0)) - area(whole)) < 1e-3


def test_the_best_point_for_any_ratio_of_costs_is_kept_unless_the_hull_is_long():
    truth, score = example(2000, seed=3)
    whole, thin = score_curve(truth, score, 0.0, max_points=10**6), score_curve(truth, score, 0.0)

    def cheapest(curve: ScoreCurve, ratio: float) -> float:
        return min(fp + ratio * (curve.positives - tp) for tp, fp in zip(curve.tp, curve.fp, strict=True))

    for ratio in np.geomspace(0.01, 100, 30):
        assert cheapest(thin, ratio) == cheapest(whole, ratio)


def test_low_false_positive_rates_are_well_represented():
    truth, score = example(60000, seed=1)
    curve = score_curve(truth, score, 0.0)
    few = [fp for fp in curve.fp if 0 < fp <= 54]
    assert len(few) > 20, "of one in a thousand of the negatives"


@pytest.mark.parametrize("truth", [[True] * 5, [False] * 5])
def test_one_class_alone_has_a_curve_of_counts(truth: list[bool]):
    curve = score_curve(np.array(truth), np.arange(5.0), 9.0)
    assert curve.thresholds == (9.0, 4.0, 3.0, 2.0, 1.0, 0.0)
    counts = (0, 1, 2, 3, 4, 5)
    assert (curve.tp, curve.fp) == ((counts, (0,) * 6) if truth[0] else ((0,) * 6, counts))


def test_scores_that_cannot_be_ranked_are_refused():
    with pytest.raises(InvalidProblem, match="finite"):
        score_curve(np.array([True, False]), np.array([0.0, np.nan]), 0.0)
    with pytest.raises(InvalidProblem, match="one length"):
        score_curve(np.array([True]), np.array([0.0, 1.0]), 0.0)
