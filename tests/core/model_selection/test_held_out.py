"""Held-out scores: of rows that neither the student nor its teacher was fitted to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core.errors import Cancelled, InvalidProblem
from core.model_selection.folds import fold_assignment
from core.model_selection.held_out import HeldOutF1, held_out_scores
from core.run import Run
from core.students.gated import GSVM
from tests.core.model_selection.conftest import folds_of, overlapping

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
    with pytest.raises(InvalidProblem, match="at least two folds") as caught:
        held_out_scores(replace(folds, task=replace(folds.task, labels=labels)), 3, SPEC)
    assert caught.value.faults[0].code == "class_too_small"


def test_holding_out_can_be_cancelled(folds):
    with pytest.raises(Cancelled):
        held_out_scores(folds, 0, SPEC, Run(should_cancel=lambda: True))


def test_f_is_taken_at_the_threshold_of_the_rule(folds):
    at_zero = HeldOutF1(folds, 0, "zero", 0.01, Run())
    scores = at_zero.scores(SPEC)
    assert HeldOutF1(folds, 0, "f1", 0.01, Run()).f1(scores) >= at_zero.f1(scores)
