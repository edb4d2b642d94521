"""Rates from sampled feedback: near the truth, with ends that cover it; samples without an answer;
volunteers.
"""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from core.errors import InvalidProblem
from core.monitoring.estimates import FEWEST, Samples, false_positive_rate, most_precise, precision, recall
from core.monitoring.intervals import exact_interval, wilson_interval
from core.monitoring.sampling import SamplingPlan
from tests.refusals import at_fault

RECALL, FALSE_POSITIVES, SHARE = 0.8, 0.01, 0.03


def traffic(rng, n: int = 20_000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Truth, answers and probabilities of queries to a binormal student, (n,) each."""
    distance = stats.norm.isf(FALSE_POSITIVES) - stats.norm.isf(RECALL)
    truth = rng.random(n) < SHARE
    scores = rng.standard_normal(n) + distance * truth
    odds = SHARE / (1 - SHARE) * np.exp(distance * scores - distance**2 / 2)
    return truth, scores >= stats.norm.isf(FALSE_POSITIVES), odds / (1 + odds)


def sampled(rng, plan: SamplingPlan, answered: float = 1.0) -> Samples:
    truth, accepted, p = traffic(rng)
    q = np.where(accepted, plan.yes, np.minimum(1.0, plan.floor + plan.slope * np.sqrt(p)))
    rows = rng.random(len(q)) < q
    known = rng.random(rows.sum()) < answered
    return Samples(accepted[rows], truth[rows], known, q[rows], p[rows])


@pytest.mark.parametrize("answered", [1.0, 0.95])
def test_weighted_recall_is_near_the_truth_and_its_ends_cover_it(answered: float):
    rng = np.random.default_rng(0)
    plan = SamplingPlan(0.5, 0.01, 0.35)
    found = [recall(sampled(rng, plan, answered)).interval for _ in range(300)]
    estimates = np.array([one.estimate for one in found])
    assert estimates.mean() == pytest.approx(RECALL, abs=3 * 0.06 / np.sqrt(300))
    assert estimates.std() < 0.06
    assert np.mean([one.low <= RECALL <= one.high for one in found]) > 0.93 - 2 * np.sqrt(0.06 / 300)
    assert np.mean([one.high - one.low for one in found]) < 0.25
    assert {one.method for one in found} == {"weighted_logit"}


def test_counted_without_weights_it_would_be_far_too_high():
    rng = np.random.default_rng(1)
    one = sampled(rng, SamplingPlan(0.5, 0.01, 0.35))
    assert one.accepted[one.truth].mean() > 0.88


def test_the_false_positive_rate_is_covered_too():
    rng = np.random.default_rng(2)
    found = [false_positive_rate(sampled(rng, SamplingPlan(0.5, 0.02, 0.2))).interval for _ in range(200)]
    assert np.mean([one.estimate for one in found]) == pytest.approx(FALSE_POSITIVES, rel=0.03)
    assert np.mean([one.low <= FALSE_POSITIVES <= one.high for one in found]) > 0.9


def test_answers_that_are_missing_more_often_for_some_probabilities_are_made_up_for():
    rng = np.random.default_rng(3)
    right, plain = [], []
    for _ in range(60):
        full = sampled(rng, SamplingPlan(0.5, 0.02, 0.35))
        known = rng.random(len(full.known)) < np.where(full.probability < 0.2, 0.4, 0.95)
        right.append(recall(Samples(full.accepted, full.truth, known, full.inclusion, full.probability)))
        rows = known & full.truth
        w = 1.0 / full.inclusion[rows]
        plain.append((w * full.accepted[rows]).sum() / w.sum())
    assert np.mean(plain) > 0.83
    assert np.mean([one.interval.estimate for one in right]) == pytest.approx(RECALL, abs=0.025)
    for one in right:
        assert one.answered < 0.9
        assert one.bounds[0] < one.interval.estimate < one.bounds[1]


def test_with_equal_weights_all_answers_known_it_is_a_share():
    rng = np.random.default_rng(4)
    truth, accepted = rng.random(4000) < 0.5, rng.random(4000) < 0.7
    one = Samples(accepted, truth, np.ones(4000, dtype=bool), np.full(4000, 0.25), rng.random(4000))
    n, hits = int(truth.sum()), int((accepted & truth).sum())
    found = recall(one)
    assert found.interval.estimate == pytest.approx(hits / n, rel=1e-12)
    assert (found.rows, found.answered, found.bounds) == (n, 1.0, None)
    # The logit interval of a share has the standard error 1/√(n p (1 − p)) there.
    half = 1.959963984540054 / np.sqrt(n * (hits / n) * (1 - hits / n))
    centre = np.log(hits / (n - hits))
    assert found.interval.low == pytest.approx(1 / (1 + np.exp(half - centre)), rel=1e-12)
    right = int((truth & accepted).sum())
    assert precision(one).interval == wilson_interval(right, int(accepted.sum()))
    json.dumps(found.as_dict())


def test_answers_that_are_all_the_same_have_exact_ends():
    yes = np.ones(50, dtype=bool)
    one = Samples(yes, yes, yes, np.full(50, 0.5), np.full(50, 0.9))
    found = recall(one).interval
    exact = exact_interval(50, 50)
    assert (found.estimate, found.high, found.method) == (1.0, 1.0, "weighted_exact")
    assert found.low == pytest.approx(exact.low, rel=1e-12)
    nothing = recall(Samples(~yes, yes, yes, np.full(50, 0.5), np.full(50, 0.1))).interval
    assert nothing.low == 0.0
    assert nothing.high == pytest.approx(1.0 - exact.low, rel=1e-12)


def test_a_cell_without_an_answer_is_made_up_for_by_the_others_of_its_side():
    p = np.array([0.05] * 10 + [0.95] * 20)
    known = p > 0.5
    no = np.zeros(30, dtype=bool)
    one = Samples(no, ~no, known, np.full(30, 0.5), p)
    assert one.weights()[known].sum() == pytest.approx(60.0)
    assert (one.weights()[~known] == 0.0).all()


def test_few_labelled_rows_have_no_rate():
    yes = np.ones(FEWEST - 1, dtype=bool)
    few = Samples(yes, yes, yes, np.full(len(yes), 0.5), np.full(len(yes), 0.9))
    for rate in (recall, precision):
        assert (rate(few).interval, rate(few).rows) == (None, FEWEST - 1)
    assert (false_positive_rate(few).interval, false_positive_rate(few).rows) == (None, 0)
    unanswered = Samples(yes, yes, ~yes, np.full(len(yes), 0.5), np.full(len(yes), 0.9))
    assert (precision(unanswered).answered, precision(unanswered).bounds) == (0.0, (0.0, 1.0))
    # No answer at all leaves no row that a recall could be a share of.
    assert recall(unanswered).bounds is None


def test_volunteers_bound_the_precision_from_above_only():
    assert most_precise(200, 30) == 0.85
    for yes, wrong in ((0, 0), (3, 4)):
        with at_fault(InvalidProblem, "out_of_bounds"):
            most_precise(yes, wrong)


def test_the_plan_keeps_the_number_of_labels_a_day():
    rng = np.random.default_rng(5)
    _, accepted, p = traffic(rng)
    counts, edges = np.histogram(p[~accepted], 400, (0.0, 1.0))
    plan = SamplingPlan(0.5, 0.01).within(600, accepted.sum(), (edges[1:] + edges[:-1]) / 2, counts)
    q = np.array([plan.probability(bool(a), float(b)) for a, b in zip(accepted, p, strict=True)])
    assert q.sum() == pytest.approx(600, rel=0.05)
    assert q.min() >= 0.01
    assert (q[accepted] == 0.5).all()
    assert plan.largest_weight == 100.0
    assert plan.within(10, accepted.sum(), np.array([0.1]), np.array([1e5])).slope == 0.0
    assert plan.within(1e9, 1.0, np.array([0.5]), np.array([10.0])).probability(False, 0.5) == 1.0


def test_a_query_that_asks_the_plan_loads_no_scipy():
    code = "import sys, core.monitoring.sampling; sys.exit('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: SamplingPlan(yes=0.0), "yes"),
        (lambda: SamplingPlan(floor=0.0), "floor"),
        (lambda: SamplingPlan(slope=-1.0), "slope"),
        (lambda: SamplingPlan().within(1, 1, np.array([1.5]), np.ones(1)), "p"),
        (lambda: SamplingPlan().within(1, 1, np.array([0.5]), -np.ones(1)), "counts"),
    ],
)
def test_impossible_plans_are_refused(call, field: str):
    with at_fault(InvalidProblem, field=field):
        call()


def test_unusable_samples_are_refused():
    yes, half = np.ones(3, dtype=bool), np.full(3, 0.5)
    for arrays, field in (
        ((yes, yes, yes[:2], half, half), "accepted"),
        ((yes, yes, yes, np.array([0.5, 0.0, 1.0]), half), "inclusion"),
        ((yes, yes, yes, half, np.array([0.5, 1.5, 1.0])), "probability"),
    ):
        with at_fault(InvalidProblem, field=field):
            Samples(*arrays)
    with at_fault(InvalidProblem, "unequal"):
        precision(Samples(yes, yes, yes, np.array([0.5, 0.4, 0.5]), half))
