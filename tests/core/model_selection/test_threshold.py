"""Thresholds: the best of all cuts, in the middle of its gap, on scores that were held out."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score

from core.errors import InvalidProblem
from core.model_selection.threshold import choose_threshold


def all_thresholds(scores):
    """One threshold for every way to cut: between neighbours, below all and above all."""
    levels = np.unique(scores)
    return [levels[0] - 1.0, *((levels[:-1] + levels[1:]) / 2), levels[-1] + 1.0]


def false_positive_rate(truth, decision) -> float:
    return float((decision & ~truth).sum() / (~truth).sum())


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("rule", "measure"), [("accuracy", accuracy_score), ("f1", f1_score)])
def test_no_other_cut_measures_better(rule, measure, seed: int):
    rng = np.random.default_rng(seed)
    truth = rng.random(40) < 0.3
    truth[:2] = True, False
    scores = np.round(rng.normal(size=40) + truth, rng.integers(0, 3))
    chosen = measure(truth, scores >= choose_threshold(truth, scores, rule))
    assert chosen == pytest.approx(max(measure(truth, scores >= t) for t in all_thresholds(scores)))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("budget", [0.0, 0.05, 0.3, 0.99])
def test_the_budget_is_kept_and_no_cut_within_it_finds_more(budget: float, seed: int):
    rng = np.random.default_rng(seed)
    truth = rng.random(60) < 0.4
    truth[:2] = True, False
    scores = np.round(rng.normal(size=60) + truth, 1)
    decision = scores >= choose_threshold(truth, scores, "fpr", budget)
    allowed = [
        scores >= t for t in all_thresholds(scores) if false_positive_rate(truth, scores >= t) <= budget
    ]
    most = max((other & truth).sum() for other in allowed)
    assert false_positive_rate(truth, decision) <= budget
    assert (decision & truth).sum() == most
    assert (decision & ~truth).sum() == min((o & ~truth).sum() for o in allowed if (o & truth).sum() == most)


def test_the_cut_lies_in_the_middle_of_its_gap():
    truth = np.array([True, True, False, False])
    assert choose_threshold(truth, np.array([3.0, 2.0, -1.0, -4.0]), "f1") == 0.5


def test_of_equally_good_cuts_the_one_in_the_widest_gap_is_taken():
    truth = np.array([True, False, True, False])
    scores = np.array([10.0, 9.0, 5.0, 4.5])
    # One error each: yes to the first only (gap 1), or to the first three (gap 0.5).
    assert choose_threshold(truth, scores, "accuracy") == 9.5


def test_the_paper_threshold_is_zero_whatever_the_scores():
    assert choose_threshold(np.array([True]), np.array([-3.0]), "zero") == 0.0


def test_scores_in_the_wrong_order_make_the_best_cut_say_no_to_all():
    truth = np.array([False, False, True])
    scores = np.array([2.0, 1.0, 0.0])
    threshold = choose_threshold(truth, scores, "accuracy")
    assert threshold > 2.0
    assert not (scores >= threshold).any()


def test_many_positives_under_every_negative_make_the_best_cut_say_yes_to_all():
    truth = np.array([False, True, True, True])
    assert choose_threshold(truth, np.array([2.0, 1.0, 0.5, 0.25]), "f1") == 0.25


def test_neighbouring_floats_are_still_told_apart():
    low = 1.0
    high = np.nextafter(low, 2.0)
    threshold = choose_threshold(np.array([False, True]), np.array([low, high]), "accuracy")
    assert low < threshold <= high


@pytest.mark.parametrize(
    ("truth", "scores", "rule", "budget", "code"),
    [
        ([True, False], [1.0, 0.0], "best", None, "unknown_choice"),
        ([True, False], [1.0, 0.0], "fpr", None, "out_of_bounds"),
        ([True, False], [1.0, 0.0], "fpr", 1.0, "out_of_bounds"),
        ([True, True], [1.0, 0.0], "f1", None, "single_class"),
        ([False, False], [1.0, 0.0], "f1", None, "single_class"),
        ([True, False], [1.0], "f1", None, "wrong_shape"),
        ([True, False], [1.0, np.nan], "f1", None, "not_finite"),
    ],
)
def test_what_cannot_be_cut_is_refused(truth, scores, rule, budget, code: str):
    with pytest.raises(InvalidProblem) as caught:
        choose_threshold(np.array(truth), np.array(scores), rule, budget)
    assert caught.value.faults[0].code == code
