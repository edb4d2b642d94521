"""Thresholds by aim: no other point of the curve serves it better, and what is promised is kept on new
rows.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import confusion_matrix

from core.errors import InvalidProblem
from core.model_selection.calibration import fit_calibration
from core.model_selection.curves import score_curve
from core.model_selection.threshold import choose_threshold
from core.monitoring.thresholds import (
    Capacity,
    Costs,
    LeastRecall,
    MostFalsePositives,
    Traffic,
    choose_point,
    choose_points,
    probable_point,
)
from core.packed.calibration import SigmoidCalibration
from tests.refusals import at_fault

EVERY_POINT = 10**6


def scored(n: int, share: float = 0.2, seed: int = 0, digits: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Truth and scores (n,) whose log odds are 2 s − 2 for a share of one half."""
    rng = np.random.default_rng(seed)
    truth = rng.random(n) < share
    return truth, np.round(rng.normal(size=n) + 2.0 * truth, digits)


def curve_of(truth, scores):
    return score_curve(truth, scores, 0.0, EVERY_POINT)


def costs_at(truth, scores, threshold, costs: Costs) -> float:
    """Of 1000 queries, from scikit-learn's counts."""
    (tn, fp), (fn, tp) = confusion_matrix(truth, scores >= threshold)
    wrong_yes, missed = fp / (fp + tn) * (1 - costs.share), fn / (fn + tp) * costs.share
    return 1000.0 * (costs.false_yes * wrong_yes + costs.missed_yes * missed)


@pytest.mark.parametrize(
    "costs", [Costs(1, 20, 0.002), Costs(1, 1, 0.2), Costs(5, 1, 0.5), Costs(1, 1e9, 0.5)]
)
def test_no_threshold_costs_less(costs: Costs):
    truth, scores = scored(800, digits=1)
    point = choose_point(curve_of(truth, scores), costs)
    thresholds = [*np.unique(scores), scores.max() + 1.0]
    least = min(costs_at(truth, scores, threshold, costs) for threshold in thresholds)
    assert point.cost.estimate == pytest.approx(least, rel=1e-12)
    assert costs_at(truth, scores, point.threshold, costs) == pytest.approx(least, rel=1e-12)
    assert point.cost.low <= point.cost.estimate <= point.cost.high
    assert point.threshold_range[0] <= point.threshold <= point.threshold_range[1]
    json.dumps(point.as_dict())


def test_the_cheapest_threshold_is_elkans_where_probabilities_are_right():
    truth, scores = scored(200_000, share=0.5)
    costs = Costs(1.0, 4.0, 0.1)
    curve, right = curve_of(truth, scores), SigmoidCalibration(2.0, -2.0)
    cheapest, probable = choose_point(curve, costs), probable_point(curve, costs, right)
    # 2 t − 2 + log(0.1/0.9) = log(1/4)
    exact = (np.log(0.25) + np.log(9.0) + 2.0) / 2.0
    assert probable.threshold == pytest.approx(exact, abs=0.01)
    assert cheapest.threshold == pytest.approx(exact, abs=0.15)
    assert probable.cost.estimate == pytest.approx(cheapest.cost.estimate, rel=0.02)
    assert probable.cost.estimate >= cheapest.cost.estimate
    never = probable_point(curve, Costs(1.0, 1e-9, 0.1), right)
    assert (never.recall.estimate, never.yes_rate) == (0.0, 0.0)


def test_the_ends_of_the_cost_cover_the_true_cost():
    """Binormal rows: the true cost of a chosen threshold follows from the normal distribution."""
    costs, covered = Costs(1.0, 3.0, 0.3), 0
    for seed in range(100):
        point = choose_point(curve_of(*scored(1000, 0.3, seed)), costs)
        rates = stats.norm.cdf(point.threshold - 2.0), stats.norm.sf(point.threshold)
        true = 1000.0 * (3.0 * 0.3 * rates[0] + 0.7 * rates[1])
        covered += point.cost.low <= true <= point.cost.high
    assert 0.88 <= covered / 100 <= 1.0


@pytest.mark.parametrize("confidence", [None, 0.9])
@pytest.mark.parametrize("budget", [0.02, 0.2])
def test_false_positives_are_counted_as_in_training(budget: float, confidence: float | None):
    truth, scores = scored(1000, digits=1)
    point = choose_point(curve_of(truth, scores), MostFalsePositives(budget, confidence))
    trained = choose_threshold(truth, scores, "fpr", budget, confidence)
    assert ((scores >= point.threshold) == (scores >= trained)).all()
    assert point.yes_rate is None


@pytest.mark.parametrize(("confidence", "least", "most"), [(None, 0.35, 0.55), (0.9, 0.03, 0.13)])
def test_a_recall_is_missed_as_rarely_as_asked(confidence: float | None, least: float, most: float):
    recalls = []
    for seed in range(300):
        point = choose_point(curve_of(*scored(1000, 0.2, seed)), LeastRecall(0.9, confidence))
        recalls.append(stats.norm.sf(point.threshold - 2.0))
    assert least <= np.mean(np.array(recalls) < 0.9) <= most
    if confidence is None:
        assert np.mean(recalls) == pytest.approx(0.9, abs=0.005)


def test_the_threshold_of_a_recall_is_the_highest():
    truth, scores = scored(2000)
    curve = curve_of(truth, scores)
    point = choose_point(curve, LeastRecall(0.9))
    higher = min(threshold for threshold in curve.thresholds if threshold > point.threshold)
    positives, missed = truth.sum(), [(truth & (scores < t)).sum() for t in (point.threshold, higher)]
    assert (missed[0] + 1) / (positives + 1) <= 0.1 < (missed[1] + 1) / (positives + 1)


def test_a_capacity_is_used_and_kept_on_nineteen_days_of_twenty():
    truth, scores = scored(100_000, 0.01)
    point = choose_point(curve_of(truth, scores), Capacity(20, 5000, 0.01))
    mean = 5000 * (scores >= point.threshold).mean()
    # The share of the class is that of the rows but for chance.
    assert mean == pytest.approx(14.07, rel=0.05)
    assert (
        stats.poisson.sf(20, 5000 * point.yes_rate)
        <= 0.05
        < stats.poisson.sf(20, 5005 * point.yes_rate + 0.2)
    )


def test_a_capacity_by_traffic_counts_whole_bins_of_probabilities():
    truth, scores = scored(20_000, 0.1, digits=4)
    calibration = fit_calibration(truth, scores)
    p = calibration.probabilities(scores)
    edges = np.concatenate([np.linspace(0.0, 0.9, 10), 1.0 - np.geomspace(0.1, 1e-4, 30)[1:], [1.0]])
    counts, _ = np.histogram(p, edges)
    point = choose_point(curve_of(truth, scores), Capacity(50, 2000, Traffic(edges, counts, calibration)))
    actual = (scores >= point.threshold).mean()
    assert actual <= point.yes_rate
    assert stats.poisson.sf(50, 2000 * point.yes_rate) <= 0.05
    # The next bin would be too many.
    lower = edges[edges < calibration.probability(point.threshold)].max() - 1e-12
    assert stats.poisson.sf(50, 2000 * (p >= edges[edges <= lower].max()).mean()) > 0.05


def test_no_capacity_means_no_yes():
    point = choose_point(curve_of(*scored(500)), Capacity(0, 1e6, 0.2))
    assert (point.recall.estimate, point.yes_rate) == (0.0, 0.0)


def test_many_classes_at_once_have_all_their_faults_named():
    good, few = curve_of(*scored(1000)), curve_of(*scored(30))
    empty = curve_of(np.zeros(5, dtype=bool), np.arange(5.0))
    found = choose_points({"a": (good, LeastRecall(0.5)), "b": (few, Costs(1, 1, 0.5))})
    assert list(found) == ["a", "b"]
    assert found["a"] == choose_point(good, LeastRecall(0.5))
    with pytest.raises(InvalidProblem) as caught:
        choose_points(
            {
                "a": (good, LeastRecall(0.5)),
                "b": (few, MostFalsePositives(0.001)),
                "c": (few, LeastRecall(0.99, 0.95)),
                "d": (empty, LeastRecall(0.5)),
            }
        )
    assert [(fault.field, fault.code) for fault in caught.value.faults] == [
        ("b", "unreachable"),
        ("c", "unreachable"),
        ("d", "single_class"),
    ]
    assert "0.1 % cannot be promised with 23 rows of other classes" in caught.value.faults[0].message


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Costs(0, 1, 0.5), "false_yes"),
        (lambda: Costs(1, -1, 0.5), "missed_yes"),
        (lambda: Costs(1, 1, 1.0), "share"),
        (lambda: Capacity(-1, 10, 0.5), "yes_per_day"),
        (lambda: Capacity(1, 0, 0.5), "queries_per_day"),
        (lambda: Capacity(1, 10, 0.0), "share"),
        (lambda: LeastRecall(1.0), "recall"),
        (lambda: LeastRecall(0.9, 1.0), "confidence"),
        (lambda: MostFalsePositives(1.0), "rate"),
        (lambda: Traffic(np.array([0.0, 1.0]), np.zeros(1), SigmoidCalibration(1.0, 0.0)), "counts"),
        (lambda: Traffic(np.array([0.0, 0.9]), np.ones(1), SigmoidCalibration(1.0, 0.0)), "edges"),
    ],
)
def test_impossible_aims_are_refused(make, field: str):
    with at_fault(InvalidProblem, field=field):
        make()
