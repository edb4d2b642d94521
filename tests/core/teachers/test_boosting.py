"""Boosted trees: scores against scikit-learn's own, held-out scores, and what a fit depends on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier

from core.data.fold_assignment import fold_assignment
from core.errors import Cancelled, InvalidProblem
from core.features.examples import Examples
from core.run import Run
from core.teachers.binning import Bins
from core.teachers.boosting import Boosting
from core.types import Progress
from tests.core.teachers.test_forest import clouds, task_of

SPEC = Boosting(iterations=12, leaves=6, min_leaf=3, bins=30)
X, CODES = clouds()
FRESH = clouds(300, seed=1)[0]


def of_scikit_learn(X, codes, spec: Boosting = SPEC) -> tuple[HistGradientBoostingClassifier, Bins]:
    bins = Bins.of(X, spec.bins)
    classifier = HistGradientBoostingClassifier(
        max_iter=spec.iterations,
        max_leaf_nodes=spec.leaves,
        min_samples_leaf=spec.min_leaf,
        learning_rate=spec.learning_rate,
        early_stopping=False,
    )
    return classifier.fit(bins.codes(X).astype(float), codes), bins


def test_scores_are_those_of_scikit_learn_bit_for_bit():
    teacher = SPEC.fit(task_of(X, CODES), Run())
    classifier, bins = of_scikit_learn(X, CODES)
    expected = classifier.decision_function(bins.codes(FRESH))
    np.testing.assert_array_equal(teacher.scores(Examples.of_features(FRESH)), expected)
    np.testing.assert_array_equal([teacher.grown.row(x) for x in FRESH], expected)
    assert len(teacher.grown.roots) == 4 * 13


def test_two_classes_have_scores_of_opposite_sign():
    X, codes = clouds(classes=2)
    teacher = SPEC.fit(task_of(X, codes, 2), Run())
    classifier, bins = of_scikit_learn(X, codes)
    expected = classifier.decision_function(bins.codes(FRESH))
    scores = teacher.scores(Examples.of_features(FRESH))
    np.testing.assert_array_equal(scores, np.column_stack([-expected, expected]))
    assert not np.isnan(teacher.left_out).any()


def test_held_out_scores_are_of_fits_without_the_fold():
    teacher = SPEC.fit(task_of(X, CODES), Run(seed=5))
    fold_of = fold_assignment(CODES, 3, 5)
    for fold in range(3):
        rows = fold_of != fold
        bins = Bins.of(X, SPEC.bins)
        classifier = of_scikit_learn(X, CODES)[0].fit(bins.codes(X)[rows].astype(float), CODES[rows])
        expected = classifier.decision_function(bins.codes(X)[~rows])
        np.testing.assert_array_equal(teacher.left_out[~rows], expected)
    wrong = teacher.left_out.argmax(axis=1) != CODES
    assert teacher.summary.objective == wrong.mean()


def test_classes_without_rows_score_below_all_others():
    codes = np.where(CODES == 1, 5, CODES)
    codes[0] = 1  # in one fold only, so that the fit without it does not know the class
    teacher = SPEC.fit(task_of(X, codes, 6), Run())
    scores = teacher.scores(Examples.of_features(FRESH))
    assert (scores[:, 4] == -100.0).all()
    assert (scores[:, [0, 1, 2, 3, 5]] > -100.0).all()
    assert teacher.left_out[0, 1] == -100.0
    two = np.where(CODES == 0, 0, 2)
    scores = SPEC.fit(task_of(X, two, 3), Run()).scores(Examples.of_features(FRESH))
    assert (scores[:, 1] == -100.0).all()
    np.testing.assert_array_equal(scores[:, 0], -scores[:, 2])


def test_a_fold_of_one_class_gives_it_the_largest_score():
    codes = np.zeros(30, dtype=int)
    codes[0] = 1
    teacher = SPEC.fit(task_of(X[:30], codes, 2), Run())
    assert teacher.left_out[0].tolist() == [0.0, -100.0]


def test_a_single_class_is_refused():
    with pytest.raises(InvalidProblem, match="two classes"):
        SPEC.fit(task_of(X, np.zeros_like(CODES)), Run())


def test_the_fit_does_not_depend_on_threads():
    first = SPEC.fit(task_of(X, CODES), Run(n_threads=1))
    again = SPEC.fit(task_of(X, CODES), Run(n_threads=3))
    assert again.grown.digest == first.grown.digest
    np.testing.assert_array_equal(again.left_out, first.left_out)


def test_progress_is_reported_in_iterations_of_all_fits_and_a_cancel_stops_between_them():
    steps: list[Progress] = []
    spec = replace(SPEC, iterations=15)
    spec.fit(task_of(X, CODES), Run(progress=steps.append, n_threads=1))
    assert [step.done for step in steps] == [10, 15, 25, 30, 40, 45, 55, 60]
    assert {(step.stage, step.total) for step in steps} == {("trees", 60)}
    asked: list[None] = []

    def cancel() -> bool:
        asked.append(None)
        return len(asked) > 2

    with pytest.raises(Cancelled):
        spec.fit(task_of(X, CODES), Run(should_cancel=cancel, n_threads=1))
    assert len(asked) == 3


def test_fits_can_be_made_one_by_one():
    task = task_of(X, CODES)
    fits = SPEC.fits(task, 0)
    fits.score_fold(0, Run())
    assert not np.isnan(fits.left_out[fits.rows_of(0)]).any()
    assert np.isnan(fits.left_out[fits.rows_of(1)]).all()
    teacher, whole = fits.teacher(Run()), SPEC.fit(task, Run())
    np.testing.assert_array_equal(teacher.left_out, whole.left_out)
    for name, array in whole.arrays().items():
        np.testing.assert_array_equal(teacher.arrays()[name], array)
    assert fits.cost == pytest.approx(teacher.grown.cost, rel=0.2)
