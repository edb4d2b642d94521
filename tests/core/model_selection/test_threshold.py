"""Thresholds: the best of all cuts, in the middle of its gap, on scores that were held out."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score

from core.errors import Cancelled, InvalidProblem
from core.model_selection import threshold
from core.model_selection.threshold import choose_threshold, held_out_scores
from core.run import Run
from core.students.base import Lesson
from core.students.fitting import fit_student
from core.students.spec import StudentSpec


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


@pytest.fixture
def lesson_and_features():
    rng = np.random.default_rng(0)
    n, m = 60, 4
    features = np.column_stack([rng.normal(size=(n, m - 1)), np.ones(n)])
    gate_weights = rng.normal(size=m)
    gate = features @ gate_weights
    positive = gate + rng.normal(size=n) > 0
    return Lesson(positive, gate, gate_weights, rng.uniform(0.3, 1.0, size=n)), features


SPEC = StudentSpec(C=10.0, tolerance=1e-6)


def test_no_student_is_fitted_to_the_rows_that_it_scores(lesson_and_features, monkeypatch):
    lesson, features = lesson_and_features
    seen = []

    def spy(rows, part, spec, run):
        seen.append({row.tobytes() for row in rows})
        return fit_student(rows, part, spec, run)

    monkeypatch.setattr(threshold, "fit_student", spy)
    held_out = held_out_scores(features, lesson, SPEC, folds=4)
    assert held_out.folds == len(seen) == 4
    for row in features:
        assert sum(row.tobytes() not in rows for rows in seen) == 1


def test_held_out_scores_repeat_and_depend_on_the_seed(lesson_and_features):
    lesson, features = lesson_and_features
    first = held_out_scores(features, lesson, SPEC, run=Run(1)).scores
    assert (first == held_out_scores(features, lesson, SPEC, run=Run(1)).scores).all()
    assert (first != held_out_scores(features, lesson, SPEC, run=Run(2)).scores).any()


def test_a_class_smaller_than_the_folds_gets_as_many_folds_as_examples(lesson_and_features):
    lesson, features = lesson_and_features
    positive = np.zeros(60, dtype=bool)
    positive[[3, 40, 41]] = True
    rare = Lesson(positive, lesson.gate, lesson.gate_weights, lesson.difficulty)
    held_out = held_out_scores(features, rare, SPEC, folds=5)
    assert held_out.folds == 3
    assert np.isfinite(held_out.scores).all()


def test_a_class_of_one_example_cannot_be_held_out(lesson_and_features):
    lesson, features = lesson_and_features
    positive = np.arange(60) == 7
    with pytest.raises(InvalidProblem) as caught:
        held_out_scores(features, Lesson(positive, lesson.gate, lesson.gate_weights, lesson.difficulty), SPEC)
    assert caught.value.faults[0].code == "class_too_small"


def test_holding_out_can_be_cancelled(lesson_and_features):
    lesson, features = lesson_and_features
    with pytest.raises(Cancelled):
        held_out_scores(features, lesson, SPEC, run=Run(should_cancel=lambda: True))
