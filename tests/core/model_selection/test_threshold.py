"""Thresholds: the best of all cuts, in the middle of its gap, on scores that were held out."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import beta, binomtest, norm
from sklearn.metrics import accuracy_score, f1_score

from core.errors import InvalidProblem
from core.model_selection.threshold import NOT_PROMISED, Promise, choose_threshold
from core.students.sigmoid import fit_sigmoid
from tests.refusals import at_fault


def all_thresholds(scores):
    """One threshold for every way to cut: between neighbours, below all and above all."""
    levels = np.unique(scores)
    return [levels[0] - 1.0, *((levels[:-1] + levels[1:]) / 2), levels[-1] + 1.0]


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
    accepted = max(0, int(budget * ((~truth).sum() + 1)) - 1)
    allowed = [scores >= t for t in all_thresholds(scores) if (scores[~truth] >= t).sum() <= accepted]
    most = max((other & truth).sum() for other in allowed)
    assert (decision & ~truth).sum() <= accepted
    assert (decision & truth).sum() == most
    assert (decision & ~truth).sum() == min((o & ~truth).sum() for o in allowed if (o & truth).sum() == most)


def test_the_expected_f_is_largest_at_its_threshold():
    rng = np.random.default_rng(0)
    scores = 2.0 * rng.normal(size=20_000)
    truth = rng.random(20_000) < 1.0 / (1.0 + np.exp(2.0 - scores))
    threshold = choose_threshold(truth, scores, "expected_f1")
    best = max(f1_score(truth, scores >= cut) for cut in np.linspace(-1.0, 4.0, 51))
    assert f1_score(truth, scores >= threshold) > best - 0.002
    assert f1_score(truth, scores >= threshold) > f1_score(truth, scores >= 2.0) + 0.02


def test_scores_that_say_nothing_are_cut_at_zero():
    truth = np.arange(40) % 2 == 0
    assert choose_threshold(truth, np.where(truth, -1.0, 1.0), "expected_f1") == 0.0


def test_a_sigmoid_of_few_positives_has_less_say():
    def few(positives: int) -> tuple[np.ndarray, np.ndarray]:
        truth = np.arange(500) < positives
        return truth, np.where(truth, 1.0, -3.0) + np.linspace(-1.0, 1.0, 500)

    found = {positives: choose_threshold(*few(positives), "expected_f1") for positives in (1, 5, 19, 20, 40)}
    assert all(threshold < -0.01 for threshold in found.values())
    for positives, threshold in found.items():
        fitted = fit_sigmoid(*few(positives))
        p = np.sort(fitted.probabilities(few(positives)[1]))[::-1]
        f1 = 2.0 * np.cumsum(p) / (np.arange(1, 501) + p.sum())
        # A row is accepted from the probability F*/2 on, where the sigmoid says so by itself.
        alone = threshold / min(1.0, positives / 20)
        np.testing.assert_allclose(fitted.probabilities(np.array([alone]))[0], f1.max() / 2.0)


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
    with at_fault(InvalidProblem, code):
        choose_threshold(np.array(truth), np.array(scores), rule, budget)


def test_a_budget_holds_on_further_rows_and_not_only_on_those_it_was_chosen_on():
    """Accepting 2 % of 200 negatives themselves, so 4, would let 2.5 % of further ones through."""
    rng = np.random.default_rng(0)
    truth = np.arange(2200) >= 200
    rates = []
    for _ in range(400):
        threshold = choose_threshold(truth, rng.normal(size=2200) + truth, "fpr", 0.02)
        rates.append(norm.sf(threshold))
    error = np.std(rates) / 20.0
    assert 0.019 < np.mean(rates) < 0.02 + 3.0 * error
    assert 0.02 + 3.0 * error < 0.0225


@pytest.mark.parametrize(
    ("negatives", "budget", "accepted"),
    [
        (98, 0.01, 0),
        (99, 0.01, 0),
        (198, 0.01, 0),
        (199, 0.01, 1),
        (99, 0.29, 28),
        (999, 0.001, 0),
        (50, 0.0, 0),
    ],
)
def test_as_many_negatives_are_accepted_as_the_budget_allows(negatives: int, budget: float, accepted: int):
    truth = np.arange(2 * negatives) % 2 == 0
    scores = np.arange(2 * negatives, 0, -1) / 1.0
    threshold = choose_threshold(truth, scores, "fpr", budget)
    assert (scores[~truth] >= threshold).sum() == accepted
    promise = Promise.of(truth, scores, threshold, budget)
    assert (promise.negatives, promise.accepted) == (negatives, accepted)
    assert promise.expected == (accepted + 1) / (negatives + 1)


def test_a_promise_that_takes_more_rows_is_a_warning_with_the_number_of_them():
    kept, broken, never = Promise(0.001, 999, 0), Promise(0.001, 300, 0), Promise(0.0, 300, 0)
    assert kept.warning is None
    assert kept.as_dict() == {"budget": 0.001, "negatives": 999, "accepted": 0, "expected": 0.001}
    assert broken.as_dict()["warning"] == NOT_PROMISED
    assert broken.message == (
        "A false-positive rate of 0.1 % cannot be promised with 300 training rows of other classes (it takes"
        " 999): the threshold rejects all of them, and up to 0.33 % of further rows may be accepted."
    )
    assert "(no number would do)" in never.as_dict()["message"]


@pytest.mark.parametrize(
    ("negatives", "budget", "confidence"),
    [(299, 0.01, 0.95), (999, 0.01, 0.95), (2000, 0.01, 0.9), (5000, 0.002, 0.99), (60, 0.05, 0.95)],
)
def test_a_confidence_admits_as_many_as_the_exact_interval_allows(
    negatives: int, budget: float, confidence: float
):
    truth = np.arange(2 * negatives) % 2 == 0
    scores = np.arange(2 * negatives, 0, -1) / 1.0
    threshold = choose_threshold(truth, scores, "fpr", budget, confidence)
    promise = Promise.of(truth, scores, threshold, budget, confidence)
    upper = [
        binomtest(a, negatives, alternative="less").proportion_ci(confidence, "exact").high
        for a in (promise.accepted, promise.accepted + 1)
    ]
    assert upper[0] <= budget < upper[1]
    assert promise.bound == pytest.approx(upper[0], rel=1e-9)
    assert promise.bound == pytest.approx(
        beta.isf(1 - confidence, promise.accepted + 1, negatives - promise.accepted), rel=1e-12
    )
    assert promise.warning is None
    assert promise.as_dict().keys() == {
        *("budget", "negatives", "accepted", "confidence", "expected", "bound")
    }


def test_with_a_confidence_the_rate_of_so_many_students_is_within_the_budget():
    """Without one that of nearly half of them is above it, though their mean is not."""
    rng = np.random.default_rng(1)
    truth = np.arange(2400) >= 999
    above = {}
    for confidence in (None, 0.9):
        rates = [
            norm.sf(choose_threshold(truth, rng.normal(size=2400) + 4 * truth, "fpr", 0.03, confidence))
            for _ in range(1000)
        ]
        above[confidence] = np.mean(np.array(rates) > 0.03)
    assert 0.4 < above[None] < 0.5
    assert 0.04 < above[0.9] < 0.1 + 3 * np.sqrt(0.09 / 1000)


def test_a_confidence_without_rows_enough_is_a_warning_with_the_number_of_them():
    truth = np.arange(400) % 2 == 0
    threshold = choose_threshold(truth, np.arange(400.0), "fpr", 0.01, 0.95)
    promise = Promise.of(truth, np.arange(400.0), threshold, 0.01, 0.95)
    assert promise.accepted == 0
    assert promise.as_dict()["warning"] == NOT_PROMISED
    assert promise.message == (
        "A false-positive rate of 1 % cannot be promised 95 % surely with 200 training rows of other classes"
        " (it takes 299): the threshold rejects all of them, and up to 1.5 % of further rows may be accepted."
    )
    assert Promise(0.5, 3, 3, 0.9).bound == 1.0
    with at_fault(InvalidProblem, "out_of_bounds", field="threshold.confidence"):
        choose_threshold(truth, np.arange(400.0), "fpr", 0.01, 1.0)
