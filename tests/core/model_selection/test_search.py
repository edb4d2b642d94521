import json
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import f1_score

from core.errors import Cancelled, InvalidProblem
from core.model_selection.search import tune_student
from core.run import Run
from core.students.gated import GATED
from core.students.grid import Grid
from tests.core.model_selection.conftest import folds_of, overlapping, with_features

PAPER = GATED["gsvm"]().grid("paper")


@pytest.fixture(scope="module")
def exhaustive(folds):
    return {target: tune_student(folds, target, PAPER, strategy="exhaustive") for target in (0, 3)}


def test_exhaustive_takes_the_best_of_all_points(folds, exhaustive):
    tuned = exhaustive[0]
    assert len(tuned.trace) == 560
    assert all(point.folds == folds.n_folds for point in tuned.trace)
    assert tuned.score == max(point.score for point in tuned.trace)
    chosen = tuned.spec.params()
    at = next(point for point in tuned.trace if point.params == chosen)
    assert (at.score, at.standard_error) == (tuned.score, tuned.standard_error)
    assert all(point.gap <= 1e-3 for point in tuned.trace)
    assert tuned.seconds > 0.0


def test_the_score_is_that_of_the_held_out_scores(folds, exhaustive):
    tuned, truth = exhaustive[0], folds.labels == 0
    each = [
        f1_score(truth[folds.fold_of == fold], tuned.held_out_scores[folds.fold_of == fold] >= 0.0)
        for fold in range(folds.n_folds)
    ]
    assert tuned.score == pytest.approx(np.mean(each))


@pytest.mark.long
def test_halving_comes_within_one_standard_error_of_the_best():
    # Of 160 rows the first rung sees too few for that to be sure.
    features, codes = overlapping(n=400)
    folds = folds_of(features, codes, (1.0, 100.0), n_folds=5)
    for target in (0, 1, 3):
        best = tune_student(folds, target, PAPER, strategy="exhaustive")
        tuned = tune_student(folds, target, PAPER, strategy="halving")
        chosen = tuned.spec.params()
        found = next(p for p in best.trace if p.params == chosen)
        assert found.score >= best.score - best.standard_error
        assert sum(p.folds for p in tuned.trace) < 0.9 * sum(p.folds for p in best.trace)


def test_halving_drops_points_and_measures_the_last_like_exhaustive(folds, exhaustive):
    tuned = tune_student(folds, 0, PAPER, strategy="halving")
    seen = np.bincount([point.folds for point in tuned.trace], minlength=folds.n_folds + 1)
    # 3 folds, which hold 25 positives, then 4, then all 5: a quarter goes on each time
    assert seen[3] == 560 - 140
    assert seen[4] == 140 - 35
    assert seen[5] == 35
    exact = {str(point.params): point.score for point in exhaustive[0].trace}
    # A row next to the boundary moves F of its fold, so the points are compared on average.
    apart = [abs(point.score - exact[str(point.params)]) for point in tuned.trace if point.folds == 5]
    assert np.mean(apart) < 0.02


@pytest.mark.parametrize("strategy", ["exhaustive", "halving"])
def test_the_result_does_not_depend_on_the_threads(folds, small_grid, strategy):
    one, two = (
        tune_student(
            folds, 1, GATED["gsvm"]().grid(small_grid), strategy=strategy, run=Run(n_threads=threads)
        )
        for threads in (1, 2)
    )
    assert one.spec == two.spec
    assert (one.held_out_scores == two.held_out_scores).all()
    assert [replace(p, seconds=0.0) for p in one.trace] == [replace(p, seconds=0.0) for p in two.trace]


def test_few_points_are_all_measured_on_all_folds(folds):
    tuned = tune_student(folds, 0, GATED["svm"]().grid(Grid(C=(1.0, 10.0, 100.0))), strategy="halving")
    assert [point.folds for point in tuned.trace] == [5, 5, 5]
    assert tuned.spec.name == "svm"


def test_of_equal_points_the_smallest_c_wins(folds):
    """Far apart classes: every point is perfect."""
    truth = folds.labels == 0
    features = np.where(truth[:, None], 10.0, -10.0) * np.eye(6)[0] + np.eye(6)[5]
    apart = replace(
        with_features(folds, features.astype(np.float32)),
        scores=np.repeat(np.where(truth, 1.0, -1.0)[None, :, None], 4, axis=2)
        * np.array([1.0, 0, 0, 0])
        * np.ones((folds.n_folds, 1, 1)),
    )
    tuned = tune_student(
        apart, 0, GATED["gsvm0"]().grid(Grid(C=(100.0, 1.0, 10.0), margins=(0.5,))), strategy="exhaustive"
    )
    assert tuned.score == 1.0
    assert tuned.spec.C == 1.0


@pytest.mark.parametrize("metric", ["f1", "accuracy", "auc"])
def test_each_metric_is_maximised_for_a_rare_class_too(folds, small_grid, metric):
    tuned = tune_student(folds, 3, GATED["gsvm"]().grid(small_grid), strategy="exhaustive", metric=metric)
    assert tuned.score == max(point.score for point in tuned.trace)
    assert np.isfinite([point.score for point in tuned.trace]).all()
    assert np.isfinite([point.standard_error for point in tuned.trace]).all()


def test_the_outcome_is_ready_for_json(folds, small_grid):
    told = json.loads(json.dumps(tune_student(folds, 0, GATED["gsvm"]().grid(small_grid)).as_dict()))
    assert told["method"] == "gsvm"
    assert {"C", "margin", "floor", "folds", "score", "standard_error", "gap", "seconds"} == set(
        told["trace"][0]
    )


def test_progress_counts_fits_up_to_their_number(folds, small_grid):
    told = []
    tune_student(
        folds, 0, GATED["gsvm"]().grid(small_grid), strategy="exhaustive", run=Run(progress=told.append)
    )
    assert [step.done for step in told] == [18 * fold for fold in range(1, 6)]
    assert {(step.stage, step.total) for step in told} == {("tuning", 90)}


def test_a_search_can_be_cancelled(folds, small_grid):
    with pytest.raises(Cancelled):
        tune_student(folds, 0, GATED["gsvm"]().grid(small_grid), run=Run(should_cancel=lambda: True))


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"strategy": "guess"}, "strategy"),
        ({"metric": "speed"}, "metric"),
        ({"threshold_rule": "coin"}, "threshold"),
        ({"budget": 1.0}, "budget"),
        ({"target": 4}, "target"),
        ({"points": ()}, "points"),
    ],
)
def test_arguments_out_of_bounds_are_refused_by_name(folds, small_grid, arguments, field):
    with pytest.raises(InvalidProblem) as caught:
        tune_student(folds, **({"target": 0, "points": GATED["gsvm"]().grid(small_grid)} | arguments))
    assert [fault.field for fault in caught.value.faults] == [field]


def test_a_class_that_lies_in_one_fold_only_is_refused(folds, small_grid):
    labels = np.where(folds.labels == 3, 2, folds.labels)
    labels[np.flatnonzero(folds.fold_of == 0)[:2]] = 3
    with pytest.raises(InvalidProblem, match="two folds"):
        tune_student(
            replace(folds, task=replace(folds.task, labels=labels)), 3, GATED["gsvm"]().grid(small_grid)
        )


def test_points_rated_a_few_at_a_time_are_rated_the_same(folds, small_grid, monkeypatch):
    def searched() -> list[tuple[float, float]]:
        tuned = tune_student(
            folds, 2, GATED["gsvm"]().grid(small_grid), strategy="exhaustive", threshold_rule="f1"
        )
        return [(point.score, point.standard_error) for point in tuned.trace]

    whole = searched()
    monkeypatch.setattr("core.model_selection.search._RATED_AT_ONCE", 1)
    assert searched() == whole


def test_a_search_can_be_cancelled_while_it_rates(folds, small_grid):
    fitted = []
    with pytest.raises(Cancelled):
        tune_student(
            folds,
            0,
            GATED["gsvm"]().grid(small_grid),
            strategy="exhaustive",
            run=Run(progress=fitted.append, should_cancel=lambda: len(fitted) == folds.n_folds),
        )
    assert len(fitted) == folds.n_folds


@pytest.mark.parametrize("wins", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_start_is_kept_unless_a_point_wins_on_rows_that_chose_neither(folds, exhaustive, wins):
    by_params = {tuple(one.params().values()): one for one in PAPER}
    # Of the points with a small C, which are quickly trained, few are worse than the best on the rows of the
    # contest, too; which ones, depends on the processor.
    trace = sorted(exhaustive[0].trace, key=lambda point: point.score, reverse=not wins)
    for point in [point for point in trace if point.params["C"] == 10.0] if wins else trace[:1]:
        start = by_params[tuple(point.params.values())]
        tuned = tune_student(folds, 0, PAPER, strategy="halving", start=start)
        if tuned.contest.is_won:
            break
    contest, last = tuned.contest, folds.fold_of == np.argsort(-folds.check_class(0)[0], kind="stable")[-1]
    assert contest.is_won == wins == (contest.found_f1 - contest.start_f1 > contest.standard_error)
    assert contest.rows == last.sum()
    assert (tuned.spec == start) != wins
    of_taken = f1_score((folds.labels == 0)[last], tuned.held_out_scores[last] >= 0.0)
    assert of_taken == pytest.approx(contest.found_f1 if wins else contest.start_f1)
    measured = [point.folds for point in tuned.trace if point.params == start.params()]
    assert measured == [folds.n_folds], "halving does not drop the start"
