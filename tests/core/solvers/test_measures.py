"""Cutting planes for performance measures: the most violated vector by brute force, the SVM, the bounds."""

from __future__ import annotations

from itertools import combinations, product
from typing import get_args

import numpy as np
import pytest

from core.errors import Cancelled, InvalidProblem
from core.run import Run
from core.solvers.dual_cd import solve_dual_cd
from core.solvers.gated_hinge import GatedHingeProblem
from core.solvers.measures.cutting_planes import MeasureProblem, solve_measure
from core.solvers.measures.violation import Measure, best_cut, most_violated
from core.solvers.solution import Status

MEASURES = get_args(Measure)
EXACT = 1e-12


def loss(measure: str, truth: np.ndarray, labels: np.ndarray) -> float:
    """1 minus the measure, as textbooks define it."""
    hits = int((truth & labels).sum())
    if measure == "error":
        return float((truth != labels).mean())
    if measure == "f1":
        return 1.0 - 2.0 * hits / int(truth.sum() + labels.sum())
    return 1.0 - hits / int((truth if measure == "recall_at_k" else labels).sum())


def by_brute_force(measure: str, truth: np.ndarray, scores: np.ndarray, k: int) -> float:
    """The largest V over all 2ⁿ label vectors, or over all labels of pairs."""
    n = len(truth)
    if measure == "roc_area":
        pairs = product(scores[truth], scores[~truth])
        hinges = [1.0 - own + other for own, other in pairs]
        return max(sum(np.array(swapped) * hinges) for swapped in product((0, 1), repeat=len(hinges))) / len(
            hinges
        )
    vectors = np.array(list(product((False, True), repeat=n)))
    if measure not in ("error", "f1"):
        rows = {"prbep": truth.sum(), "precision_at_k": max(k, truth.sum())}.get(measure, k)
        vectors = vectors[vectors.sum(axis=1) == rows]
    if measure.endswith("_at_k"):
        margins = [mean_swap(truth, labels, scores) / n for labels in vectors]
    else:
        margins = (vectors != truth) @ (np.where(truth, 1.0, -1.0) * scores) / n
    losses = [loss(measure, truth, labels) for labels in vectors]
    if measure == "precision_at_k":  # of k rows at worst, where P > k are accepted
        losses = [int((labels & ~truth).sum()) / k for labels in vectors]
    return max(one - part for one, part in zip(losses, margins, strict=True))


def mean_swap(truth: np.ndarray, labels: np.ndarray, scores: np.ndarray) -> float:
    """How much the sum of scores of the rows accepted rises, on average over all largest swaps."""
    rejected, false = scores[truth & ~labels], scores[labels & ~truth]
    count = min(len(rejected), len(false))
    rises = [
        sum(better) - sum(worse)
        for better in combinations(rejected, count)
        for worse in combinations(false, count)
    ]
    return float(np.mean(rises))


def random_case(seed: int, n: int):
    rng = np.random.default_rng([seed, n])
    truth = rng.random(n) < rng.uniform(0.1, 0.9)
    truth[:2] = True, False
    scores = rng.normal(size=n) * 10.0 ** rng.uniform(-1, 1)
    return truth, np.round(scores) if seed % 4 == 0 else scores, int(rng.integers(1, n + 1))


@pytest.mark.parametrize("measure", MEASURES)
def test_the_most_violated_vector_is_that_of_brute_force(measure):
    for seed in range(25):
        truth, scores, k = random_case(seed, 2 + seed % (5 if measure == "roc_area" else 7))
        found = most_violated(measure, truth, scores, k)
        assert found.value(scores) == pytest.approx(by_brute_force(measure, truth, scores, k), abs=EXACT)
        assert 0.0 <= found.loss <= (max(1.0, truth.sum() / k) if measure == "precision_at_k" else 1.0)


@pytest.mark.parametrize("measure", MEASURES)
def test_the_largest_violation_is_at_least_the_loss_of_the_scores(measure):
    for seed in range(40):
        truth, scores, k = random_case(seed, 4 + seed % 9)
        k = int(truth.sum()) if measure == "prbep" else k
        if measure == "roc_area":
            actual = np.mean(scores[truth][:, None] < scores[~truth])
        else:
            ranked = np.zeros(len(truth), dtype=bool)
            ranked[np.argsort(-scores, kind="stable")[:k]] = True
            actual = loss(measure, truth, scores >= 0.0 if measure in ("error", "f1") else ranked)
        assert most_violated(measure, truth, scores, k).value(scores) >= actual - EXACT


@pytest.mark.parametrize(("measure", "k", "least"), [("precision_at_k", 3, 2.0), ("recall_at_k", 12, 1.0)])
@pytest.mark.parametrize("shift", [-100.0, 0.0, 100.0])
def test_equal_scores_have_a_loss_at_any_k_whatever_their_size(measure, k, least, shift):
    truth, scores = np.arange(20) < 6, np.full(20, shift)
    assert most_violated(measure, truth, scores, k).value(scores) == pytest.approx(least)


def test_the_cut_is_where_the_measure_of_the_rows_is_best():
    truth = np.array([True, False, True, False, False])
    scores = np.array([5.0, 1.0, 3.0, 2.0, -4.0])
    cuts = {"error": 0.0, "roc_area": 0.0, "f1": 2.5, "prbep": 2.5, "precision_at_k": 4.0}
    for measure, cut in cuts.items():
        assert best_cut(measure, truth, scores, 1) == cut
    assert best_cut("recall_at_k", truth, scores, 5) == -8.5
    assert best_cut("f1", truth, np.zeros(5), 1) == 0.0
    tied = np.array([2.0, 2.0, 2.0, 2.0, 0.0])
    assert best_cut("f1", truth, tied, 1) == 1.0, "rows of one score stay together"


def problem(measure="f1", *, n=120, C=50.0, consistency=0.1, seed=0, **changed) -> MeasureProblem:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, 7))
    features[:, [3, 6]] = 1.0
    positive = features[:, 0] + features[:, 4] + 0.7 * rng.normal(size=n) > 1.2
    fields = {"features": features, "widths": (4, 3), "positive": positive, "k": 10} | changed
    return MeasureProblem(**fields, measure=measure, C=C, consistency=consistency)


@pytest.mark.parametrize("C", [1.0, 100.0, 1e4])
def test_one_view_and_the_error_rate_is_an_ordinary_svm(C):
    stated = problem("error", C=C, widths=(7,))
    ours = solve_measure(stated, tolerance=1e-7, max_iterations=5000)
    signs = np.where(stated.positive, 1.0, -1.0)
    svm = solve_dual_cd(GatedHingeProblem.svm(stated.features, signs, C=C), tolerance=1e-9)
    assert ours.objective == pytest.approx(svm.objective, rel=1e-6)
    np.testing.assert_allclose(ours.value, -svm.value, atol=1e-2 * np.abs(svm.value).max())


@pytest.mark.parametrize("measure", MEASURES)
def test_objective_and_bound_only_get_better_and_enclose_the_optimum(measure):
    stated = problem(measure)
    exact = solve_measure(stated, tolerance=1e-7, max_iterations=5000)
    assert exact.status is Status.CONVERGED
    assert (np.diff(exact.trace) <= 0.0).all()
    assert stated.objective(exact.value) == pytest.approx(exact.objective, rel=1e-9)
    reports = []
    loose = solve_measure(stated, tolerance=0.2, run=Run(progress=reports.append))
    assert loose.dual_objective <= exact.objective * (1.0 + 1e-9)
    assert exact.dual_objective <= loose.objective
    assert {report.stage for report in reports} == {"cutting_planes"}
    rng = np.random.default_rng(1)
    for size in (1e-3, 1e-2, 0.1, 1.0):
        other = exact.value + size * rng.normal(size=7)
        assert stated.objective(other) >= exact.dual_objective


def test_views_agree_the_more_the_larger_the_penalty():
    differences = []
    for consistency in (0.0, 1.0, 100.0):
        stated = problem(consistency=consistency, C=1e3)
        w = solve_measure(stated, tolerance=1e-5, max_iterations=5000).value
        one, other = stated.features[:, :4] @ w[:4], stated.features[:, 4:] @ w[4:]
        differences.append(np.mean((one - other) ** 2))
    assert differences == sorted(differences, reverse=True)
    assert differences[-1] < 0.5 * differences[0]


def test_the_quadratic_part_is_that_of_the_equation():
    stated = problem(widths=(4, 2, 1), consistency=0.3, C=7.0)
    w = np.random.default_rng(3).normal(size=7)
    parts = [stated.features[:, :4] @ w[:4], stated.features[:, 4:6] @ w[4:6], stated.features[:, 6] * w[6]]
    pairs = sum(np.sum((parts[i] - parts[j]) ** 2) for i in range(3) for j in range(i))
    expected = 0.5 * w @ w + 7.0 * 0.3 / (2 * 120) * pairs
    assert 0.5 * w @ stated.quadratic() @ w == pytest.approx(expected)


def test_optimising_f1_finds_a_rare_class_that_the_error_rate_gives_up():
    rng = np.random.default_rng(0)
    features = np.hstack([rng.normal(size=(600, 3)), np.ones((600, 1))])
    positive = features[:, 0] + 0.8 * rng.normal(size=600) > 1.6
    found = {}
    for measure in ("error", "f1"):
        w = solve_measure(
            MeasureProblem(features, (4,), positive, measure, C=1e4, consistency=0.0), tolerance=1e-3
        ).value
        found[measure] = 1.0 - loss("f1", positive, features @ w >= 0.0)
    assert found["f1"] > found["error"] + 0.1


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"C": 0.0}, "C"),
        ({"consistency": -1.0}, "consistency"),
        ({"widths": (4, 4)}, "widths"),
        ({"widths": (7, 0)}, "widths"),
        ({"positive": np.ones(120, dtype=bool)}, "positive"),
        ({"k": 0}, "k"),
        ({"features": np.full((120, 7), np.nan)}, "features"),
    ],
)
def test_what_does_not_fit_is_named(changed, field):
    with pytest.raises(InvalidProblem) as caught:
        problem(**changed)
    assert [fault.field for fault in caught.value.faults] == [field]


def test_a_cancelled_fit_stops():
    with pytest.raises(Cancelled):
        solve_measure(problem(), run=Run(should_cancel=lambda: True))
