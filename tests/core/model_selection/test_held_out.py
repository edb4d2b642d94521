"""Held-out scores: of rows that neither the student nor its teacher was fitted to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core.data.fold_assignment import fold_assignment
from core.errors import Cancelled, InvalidProblem
from core.features.examples import Examples
from core.model_selection.folds import make_folds, task_of_features
from core.model_selection.held_out import HeldOut, HeldOutF1, cautious_threshold, held_out_scores, hold_out
from core.model_selection.scoring import Measure
from core.model_selection.threshold import choose_threshold
from core.run import Run
from core.students.difficulty import ScoreRanks
from core.students.gated import GSVM
from core.teachers.ssvm import SSVM
from tests.core.model_selection.conftest import folds_of, overlapping
from tests.refusals import at_fault

SPEC = GSVM(C=10.0)


def test_each_row_is_scored_by_the_student_of_the_other_folds(folds):
    scores = held_out_scores(folds, 0, SPEC)
    for number in range(folds.n_folds):
        fold = folds.fold(number, 0)
        rows = np.flatnonzero(fold.is_training)
        student = SPEC.fit(fold.problem.take(rows), Run())
        np.testing.assert_array_equal(
            scores[fold.held_out], student.scores(fold.problem.examples.take(fold.held_out))
        )


def test_labels_of_held_out_rows_change_neither_their_scores_nor_what_is_chosen_by_them():
    """The score of a row is what thresholds, calibrations and budgets are chosen by."""
    features, codes = overlapping()
    fold_of = fold_assignment(codes, 5)
    held_out = np.flatnonzero(fold_of == 1)
    permuted = codes.copy()
    permuted[held_out] = np.random.default_rng(1).permutation(codes[held_out])
    assert (permuted != codes).any()
    before, after = (
        held_out_scores(folds_of(features, labels, (100.0,), fold_of=fold_of), 0, SPEC)
        for labels in (codes, permuted)
    )
    np.testing.assert_array_equal(before[held_out], after[held_out])


def test_held_out_scores_of_a_class_in_one_fold_are_refused(folds):
    labels = np.where(folds.labels == 3, 2, folds.labels)
    labels[np.flatnonzero(folds.fold_of == 0)[:2]] = 3
    with at_fault(InvalidProblem, "class_too_small", match="at least two folds"):
        held_out_scores(replace(folds, task=replace(folds.task, labels=labels)), 3, SPEC)


def test_holding_out_can_be_cancelled(folds):
    with pytest.raises(Cancelled):
        held_out_scores(folds, 0, SPEC, Run(should_cancel=lambda: True))


def test_f_is_taken_at_the_threshold_of_the_rule(folds):
    at_zero = HeldOutF1(folds, 0, Measure(rule="zero"), Run())
    scores = at_zero.scores(SPEC)
    assert HeldOutF1(folds, 0, Measure(rule="f1"), Run()).f1(scores) >= at_zero.f1(scores)


def test_held_out_rows_are_scored_on_the_scale_of_another_student(folds):
    """If its scores are an affine function of those of a fold's student, then so are those of the rows."""
    held_out = hold_out(folds, 0, SPEC)
    np.testing.assert_array_equal(held_out.scores, held_out_scores(folds, 0, SPEC))
    for number in range(folds.n_folds):
        fold = folds.fold(number, 0)
        scores, rows = fold.fit(SPEC, Run()).scores(fold.problem.examples), fold.held_out
        other = held_out.as_scored_by(
            3.0 * scores[fold.is_training] - 7.0, (folds.labels == 0)[fold.is_training]
        )
        np.testing.assert_allclose(other[rows], 3.0 * scores[rows] - 7.0)


def test_scores_without_a_scale_stay_as_they_are(folds):
    held_out, positive = hold_out(folds, 0, SPEC), folds.labels == 0
    constant = held_out.as_scored_by(np.zeros(len(positive)), positive)
    np.testing.assert_array_equal(constant, held_out.scores)
    alone = HeldOut(held_out.scores)
    np.testing.assert_array_equal(alone.as_scored_by(5.0 * held_out.scores, positive), held_out.scores)


def test_a_budget_is_kept_where_few_rows_and_many_columns_change_the_scale_of_students():
    """Scores of the folds' students as they are would let 10 % of the negatives through."""
    rates, unscaled = [], []
    for seed in range(3):
        features, codes = many_columns(240, seed)
        fresh, truth = many_columns(2000, 100)
        task = task_of_features(features, codes, 3)
        folds = make_folds(task, ("a", "b", "c"), (SSVM(),), n_folds=3)
        teacher = SSVM().fit(task, Run())
        scores, positive = teacher.scores(task.examples), codes == 0
        problem = replace(
            folds.fold(0, 0).problem,
            gate=np.ascontiguousarray(scores[:, 0]),
            gate_weights=teacher.class_weights[0],
            rival=ScoreRanks.of(scores).rival(0),
        )
        student, held_out = SPEC.fit(problem, Run()), hold_out(folds, 0, SPEC)
        own, answers = (student.scores(one) for one in (task.examples, Examples.of_features(fresh)))
        cautious = cautious_threshold(held_out, own, positive, 0.01)
        rates.append(np.mean(answers[truth != 0] >= cautious))
        plain = choose_threshold(positive, held_out.scores, "fpr", 0.01)
        unscaled.append(np.mean(answers[truth != 0] >= plain))
        assert cautious >= plain
    assert np.mean(rates) <= 0.01
    assert np.mean(unscaled) > 0.05


def many_columns(n: int, seed: int):
    """Three classes that overlap, with 57 columns of noise and the constant."""
    rng = np.random.default_rng(seed)
    codes = np.arange(n) % 3
    features = np.hstack([rng.normal(size=(n, 60)), np.ones((n, 1))])
    features[:, :3] += 1.5 * np.eye(3)[codes]
    return features, codes
