"""One point for all classes: the search against scores computed by scikit-learn on every point."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

from core.errors import Cancelled, InvalidProblem
from core.model_selection import joint
from core.model_selection.folds import make_folds, task_of_features
from core.model_selection.joint import _FINE as FINE
from core.model_selection.joint import tune_jointly
from core.run import Run
from core.students.gated import GATED
from core.students.grid import Grid
from core.teachers.ssvm import SSVM

METHODS = ("gsvm", "gsvm0", "svm")
POINTS = GATED["gsvm0"]().grid(Grid(C=(10.0,), margins=(0.5,)))


def by_hand(folds, method, points):
    """1 - geometric mean of the errors of accuracy, F and AUC, each a mean over folds and classes."""
    K = 3  # the rare class is missing from some folds
    totals = np.zeros((3, len(points)))
    for target in range(K):
        for fold in range(folds.n_folds):
            one = folds.fold(fold, target)
            scores = GATED[method].walk(points, one, FINE, Run(0)).scores
            truth = folds.labels[one.held_out] == target
            for place, score in enumerate(scores):
                says = score >= 0
                totals[:, place] += (
                    accuracy_score(truth, says),
                    f1_score(truth, says, zero_division=0.0),
                    roc_auc_score(truth, score),
                )
    return 1.0 - np.cbrt((1.0 - totals / (K * folds.n_folds)).prod(axis=0))


@pytest.mark.parametrize("method", METHODS)
def test_a_grid_that_is_small_is_searched_wholly_and_the_best_point_is_chosen(folds, method):
    grid = Grid(C=(1.0, 100.0), margins=(0.0, 1.0), floors=(0.3,))
    tuned = tune_jointly(folds, (0, 1, 2), GATED[method]().grid(grid))
    expected = by_hand(folds, method, GATED[method]().grid(grid))
    assert [point.score for point in tuned.trace] == pytest.approx(expected, abs=1e-6)
    assert tuned.score == pytest.approx(expected.max(), abs=1e-6)
    assert all(point.folds == folds.n_folds and point.standard_error >= 0.0 for point in tuned.trace)


@pytest.mark.long
def test_most_points_of_a_large_grid_are_dropped_on_a_few_folds(folds, monkeypatch):
    monkeypatch.setattr(joint, "_SCREENING_FOLDS", 2)
    grid = Grid(C=(0.1, 1.0, 10.0, 100.0, 1e3), margins=(0.0, 0.5, 1.0), floors=(0.2, 0.5))
    tuned = tune_jointly(folds, (0, 1, 2), GATED["gsvm"]().grid(grid))
    assert [point.folds for point in tuned.trace].count(2) == 26
    whole = by_hand(folds, "gsvm", GATED["gsvm"]().grid(grid))
    assert tuned.score >= whole.max() - 2.0 * tuned.standard_error


def test_the_held_out_scores_are_those_of_students_that_have_not_seen_the_row(folds):
    tuned = tune_jointly(folds, (2, 0), POINTS)
    assert tuned.targets == (2, 0)
    for place, target in enumerate(tuned.targets):
        for fold in range(folds.n_folds):
            one = folds.fold(fold, target)
            alone = GATED["gsvm0"].walk(POINTS, one, FINE, Run(0))
            np.testing.assert_allclose(tuned.held_out_scores[place, one.held_out], alone.scores[0], rtol=1e-6)


def test_threads_do_not_show_in_the_result(folds, small_grid):
    one = tune_jointly(folds, (0, 1, 2), GATED["gsvm"]().grid(small_grid), run=Run(n_threads=1))
    two = tune_jointly(folds, (0, 1, 2), GATED["gsvm"]().grid(small_grid), run=Run(n_threads=2))
    assert one.spec == two.spec
    assert one.score == two.score
    np.testing.assert_array_equal(one.held_out_scores, two.held_out_scores)
    assert one.as_dict()["C"] == one.spec.C
    assert len(one.as_dict()["trace"]) == len(GATED["gsvm"]().grid(small_grid))


def test_progress_ends_at_its_total_and_a_cancel_is_heard(folds, small_grid):
    told = []
    tune_jointly(folds, (0, 1), GATED["gsvm"]().grid(small_grid), run=Run(progress=told.append))
    assert [step.done for step in told] == sorted(step.done for step in told)
    assert told[-1].done == told[-1].total
    assert {step.stage for step in told} == {"tuning"}
    with pytest.raises(Cancelled):
        tune_jointly(folds, (0, 1), GATED["gsvm"]().grid(small_grid), run=Run(should_cancel=lambda: True))


@pytest.mark.parametrize(
    "targets",
    [(), (7,)],
)
def test_arguments_out_of_bounds_are_refused_by_name(folds, targets):
    with pytest.raises(InvalidProblem) as error:
        tune_jointly(folds, targets, POINTS)
    assert "targets" in str(error.value)


def test_a_rare_class_is_measured_where_it_is(folds):
    """The rare class lies in three of five folds; points are dropped on two that hold it."""
    grid = Grid(C=(1.0, 10.0, 100.0), margins=(0.0, 1.0), floors=(0.3,))
    tuned = tune_jointly(folds, (3,), GATED["gsvm"]().grid(grid))
    assert 0.0 < tuned.score <= 1.0
    assert np.isfinite(tuned.held_out_scores).all()


def test_points_are_dropped_on_folds_that_hold_the_class():
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], [60, 6, 6])
    fold_of = np.r_[np.arange(60) % 6, [0, 1, 0, 1, 0, 1], [2, 3, 2, 3, 2, 3]]
    features = np.column_stack([rng.normal(size=(72, 3)), np.ones(72)])
    folds = make_folds(task_of_features(features, labels, 3), ("a", "b", "c"), [SSVM(10.0)], fold_of=fold_of)
    grid = Grid(C=(1.0, 10.0, 100.0, 1e3, 1e4), margins=(0.0, 1.0), floors=(0.3,))
    assert tune_jointly(folds, (2,), GATED["gsvm"]().grid(grid)).score > 0.0
