"""The alarm of a broken promise: exactly a martingale, the formula of all starts, rare false alarms, short
delays.
"""

from __future__ import annotations

import json
from itertools import product
from math import log

import numpy as np
import pytest

from core.errors import InvalidProblem
from core.monitoring.sequential import Evidence, SequentialTest, Trials, alarm_level, mixed, replay
from tests.refusals import at_fault

RATIOS = (1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
ONE_PERCENT = SequentialTest.of_false_positives(0.01)


def every_start(payoffs: list[list[float]], bets: np.ndarray) -> float:
    """E after all periods, as the formula says it: Σ_j w_j mean_λ Π_{s >= j} (1 + λ z) + what has not
    begun.
    """
    total, weights = 0.0, [1.0 / ((j + 1) * (j + 2)) for j in range(len(payoffs))]
    for j, weight in enumerate(weights):
        z = np.array([value for period in payoffs[j:] for value in period])
        total += weight * np.mean([np.prod(1.0 + bet * z) for bet in bets])
    return total + 1.0 - sum(weights)


def alarm_at(test: SequentialTest, batches: list[Trials], level: float) -> float:
    """The number of the first batch after which E reaches the level, inf if none."""
    _, path = replay(test, batches)
    reached = path >= log(level)
    return float(reached.argmax()) if reached.any() else np.inf


def stream(rng, rates: list[float], batch: int = 400, looks: int = 4) -> list[Trials]:
    """Trials with these rates of mistakes in one period each, looked at several times a period."""
    return [
        Trials.of_counts(period, batch // looks, int(wrong))
        for period, rate in enumerate(rates)
        for wrong in rng.binomial(batch // looks, rate, looks)
    ]


def test_the_bets_on_trials_of_equal_weight_are_likelihood_ratios():
    for weight in (1.0, 4.0):
        test = SequentialTest.of_false_positives(0.01, 1.0, weight)
        p = 0.01 / weight
        wrong, right = (
            test.log_factors(trials) for trials in (Trials(0, ((weight, 1),)), Trials(0, (), ((1.0, 1),)))
        )
        np.testing.assert_allclose(np.exp(wrong), RATIOS, rtol=1e-12)
        np.testing.assert_allclose(np.exp(right), (1.0 - np.array(RATIOS) * p) / (1.0 - p), rtol=1e-12)


@pytest.mark.parametrize(
    "test",
    [
        SequentialTest.of_false_positives(0.1, 1.25),
        SequentialTest.of_false_positives(0.3, 1.0, 2.0),
        SequentialTest.of_precision(0.8),
        SequentialTest.of_recall(0.4, 5.0),
    ],
)
def test_e_is_a_martingale_where_the_rate_is_the_limit(test: SequentialTest):
    """Its mean over all sequences of nine trials in three periods is 1, whatever the weights are before
    each.
    """
    weights = (1.0, test.largest_weight, 1.5 if test.largest_weight > 1.5 else 1.0)
    mean = 0.0
    for outcome in product((True, False), repeat=9):
        batches, probability = [], 1.0
        for step, wrong in enumerate(outcome):
            weight = weights[step % 3]
            # Of all trials a mistake is sampled with probability 1/weight.
            p = test.limit / weight if test.of_all else test.limit
            probability *= p if wrong else 1.0 - p
            seen = ((weight, 1),)
            batches.append(Trials(step // 3, seen if wrong else (), () if wrong else seen))
        evidence, _ = replay(test, batches)
        mean += probability * evidence.value
    assert mean == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("promise", [ONE_PERCENT, SequentialTest.of_precision(0.9, 3.0)])
def test_six_numbers_stand_for_every_start(promise: SequentialTest):
    rng = np.random.default_rng(0)
    batches, payoffs = [], []
    for period in range(12):
        wrong = rng.integers(0, 6)
        weighted = ((promise.largest_weight, int(wrong)),)
        batches.append(Trials(period, weighted, ((1.0, 60),)))
        limit = promise.limit
        lost = [
            promise.largest_weight * (1 if promise.of_all else 1 - limit) - limit * promise.of_all
        ] * wrong
        payoffs.append([*lost, *([-limit] * 60)])
        evidence, path = replay(promise, batches)
        exact = every_start(payoffs, promise.bets)
        assert evidence.value == pytest.approx(exact, rel=1e-12)
        assert path[-1] == pytest.approx(log(exact), rel=1e-9, abs=1e-12)
    assert evidence.peak == pytest.approx(np.exp(max(0.0, path.max())))
    assert len(json.dumps(evidence.as_dict())) < 300
    assert Evidence.from_dict(json.loads(json.dumps(evidence.as_dict()))) == evidence
    skipped, _ = replay(promise, [batches[0], batches[-1]])
    rest = [payoffs[0], *([] for _ in range(10)), payoffs[-1]]
    assert skipped.value == pytest.approx(every_start(rest, promise.bets), rel=1e-12)


def test_a_kept_promise_gives_few_alarms_and_a_broken_one_soon():
    rng = np.random.default_rng(1)
    level = alarm_level(1)
    kept = [alarm_at(ONE_PERCENT, stream(rng, [0.01] * 26), level) for _ in range(120)]
    assert np.isfinite(kept).mean() <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 120)
    delays = {
        rate: [alarm_at(ONE_PERCENT, stream(rng, [rate] * 20), level) for _ in range(40)]
        for rate in (0.02, 0.03)
    }
    assert 100 * (np.median(delays[0.02]) + 1) <= 1600
    assert 100 * (np.median(delays[0.03]) + 1) <= 700
    after_good = [alarm_at(ONE_PERCENT, stream(rng, [0.005] * 26 + [0.02] * 26), level) for _ in range(40)]
    assert 100 * (np.median(after_good) + 1) - 26 * 400 <= 3500


def test_further_feedback_can_only_raise_the_evidence():
    rng = np.random.default_rng(2)
    promise = SequentialTest.of_recall(0.8, 10.0)
    before, after = [], []
    for period in range(6):
        wrong, right = rng.integers(0, 4), rng.integers(2, 9)
        before.append(Trials(period, ((10.0, int(wrong)),), ((2.0, int(right) + 1),)))
        # A sampled yes turns out to be no row of the class, and a sampled no to be one.
        after.append(Trials(period, ((10.0, int(wrong) + 1),), ((2.0, int(right)),)))
    assert (replay(promise, after)[1] > replay(promise, before)[1]).all()


def test_reports_of_volunteers_count_beside_the_samples():
    samples, reports = np.array([0.0, 2.0]), np.array([1.0, -800.0])
    np.testing.assert_allclose(mixed(samples, reports), np.log([(1 + np.e) / 2, np.e**2 / 2]))


def test_so_many_mistakes_give_the_alarm():
    evidence, _ = replay(ONE_PERCENT, [Trials.of_counts(0, 400, 4)])
    level = alarm_level(1)
    needed = evidence.mistakes_to(level, ONE_PERCENT)
    there, short = (
        evidence.after(ONE_PERCENT, Trials(0, ((1.0, count),))).value for count in (needed, needed - 1)
    )
    assert short < level <= there
    assert evidence.after(ONE_PERCENT, Trials(0, ((1.0, needed),))).mistakes_to(level, ONE_PERCENT) == 0


def test_levels_share_alpha_among_classes_and_later_runs():
    assert alarm_level(1) == pytest.approx(20.0)
    assert alarm_level(1000, 0.1) == pytest.approx(10_000.0)
    later = sum(1.0 / alarm_level(1, 0.05, run) for run in range(2, 5000))
    assert later == pytest.approx(0.05 * (1 - 6 / np.pi**2), rel=1e-2)


def test_evidence_beyond_float64_is_infinite():
    evidence, _ = replay(ONE_PERCENT, [Trials.of_counts(0, 1000, 1000)])
    assert evidence.value == evidence.peak == np.inf
    assert evidence.log_value > 1000.0


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: SequentialTest.of_false_positives(0.5, 2.0), "limit"),
        (lambda: SequentialTest.of_precision(1.0), "limit"),
        (lambda: SequentialTest.of_recall(0.5, 0.5), "largest_weight"),
        (lambda: Trials(-1), "period"),
        (lambda: Trials(0, ((0.5, 1),)), "weight"),
        (lambda: Trials.of_counts(0, 3, 4), "count"),
        (lambda: replay(ONE_PERCENT, [Trials(0, ((2.0, 1),))]), "weight"),
        (lambda: Evidence((0.0, 0.0)).after(ONE_PERCENT, Trials(0)), "log_wealth"),
        (lambda: alarm_level(0), "classes"),
        (lambda: alarm_level(1, 1.0), "alpha"),
    ],
)
def test_impossible_trials_are_refused(call, field: str):
    with at_fault(InvalidProblem, field=field):
        call()


def test_trials_come_in_the_order_of_their_periods():
    with at_fault(InvalidProblem, "wrong_order", field="period"):
        replay(ONE_PERCENT, [Trials(3), Trials(2)])
