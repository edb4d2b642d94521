"""Tuning, calibration and compact students as parts of a training run."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from core.data.dataset import LabelledData
from core.errors import Cancelled, InvalidPackage, InvalidProblem
from core.features.spec import FeatureSpec
from core.model_selection.calibration import fit_calibration, reliability
from core.model_selection.folds import make_folds, tune_teacher
from core.model_selection.held_out import held_out_scores
from core.model_selection.search import tune_student
from core.model_selection.threshold import choose_threshold
from core.model_selection.tuning_spec import TuningSpec
from core.packed import PackedStudent
from core.packed.codec import decode, encode
from core.run import Run
from core.students.compact import Compact
from core.students.gated import GSVM, SVM
from core.students.grid import Grid
from core.teachers.ssvm import SSVM
from core.training.evaluation import Evaluator
from core.training.pipeline import Preparation, TrainingConfig, evaluate, prepare, train, train_student
from core.training.student_training import class_batches

GRID = Grid(C=(1.0, 100.0, 1e4), margins=(0.3, 1.0), floors=(0.3,))
CONFIG = TrainingConfig(
    features=FeatureSpec("nystroem", 30),
    teacher=SSVM(1e3),
    students=(GSVM(C=1e3), SVM(C=1e3)),
    tuning=TuningSpec(GRID, folds=4),
    threshold="f1",
    calibration="sigmoid",
    seed=3,
)
PLAIN = replace(CONFIG, tuning=None, students=(GSVM(C=1e3),))
COMPACT = replace(PLAIN, students=(Compact(n_landmarks=8, steps=150),), threshold="zero", folds=3)


@pytest.fixture(scope="module")
def preparation(training_part) -> Preparation:
    return prepare(training_part, CONFIG)


@pytest.fixture(scope="module")
def model(training_part, test_part):
    return train(training_part, CONFIG, test=test_part, run=Run(n_threads=2))


@pytest.fixture(scope="module")
def by_hand(preparation):
    """The search as the library does it without a training run."""
    folds = make_folds(preparation.task, preparation.classes, (CONFIG.teacher,), n_folds=4, run=Run(3))
    return {
        target: tune_student(folds, target, GSVM(C=1e3).grid(GRID), threshold_rule="f1", run=Run(3))
        for target in range(len(preparation.classes))
    }


def digests(model) -> dict[tuple[str, str], str]:
    return {(one.label, one.method): one.packed.digest for one in model.trained}


# Tuning


def test_a_run_chooses_what_a_search_by_hand_chooses(model, by_hand):
    for one in model.trained:
        if one.method == "gsvm":
            tuned = by_hand[one.target]
            assert one.spec == tuned.spec
            assert one.search.chosen == tuned.spec.params()
            assert (one.search.score, one.search.standard_error) == (tuned.score, tuned.standard_error)
            truth = model.preparation.labels == one.target
            assert one.packed.threshold == choose_threshold(truth, tuned.held_out_scores, "f1")
            shown = [replace(point, seconds=0.0) for point in one.search.points]
            assert shown == [replace(point, seconds=0.0) for point in tuned.trace]


def test_a_tuned_student_is_the_one_trained_at_the_chosen_point(model, training_part):
    one = next(one for one in model.trained if (one.target, one.method) == (1, "gsvm"))
    given = replace(PLAIN, students=(one.spec,), threshold="zero")
    alone = train_student(prepare(training_part, given), 1)
    assert (alone.packed.form.coef == one.packed.form.coef).all()
    assert alone.packed.form.intercept == one.packed.form.intercept
    assert one.packed.metadata["C"] == one.spec.C
    assert one.packed.metadata["tuning_points"] == 6
    assert one.packed.metadata["tuning_score"] == one.search.score


def test_methods_search_the_points_that_they_have(model):
    points = {one.method: len(one.search.points) for one in model.trained}
    assert points == {"gsvm": 6, "svm": 3}
    report = json.loads(json.dumps(model.report(), allow_nan=False))
    assert report["students"][0]["chosen"]["points"] == 6
    assert report["students"][0]["calibration"] == "sigmoid"
    assert "tuning_teacher" in report["seconds"]


def test_threads_change_nothing(model, training_part):
    assert digests(train(training_part, CONFIG, run=Run(n_threads=1))) == digests(model)
    assert digests(train(training_part, CONFIG, run=Run(n_threads=5), classes=["class 2"])) == {
        key: digest for key, digest in digests(model).items() if key[0] == "class 2"
    }


def test_a_student_alone_is_the_one_of_the_whole_run(model, preparation):
    alone = train_student(preparation, 2, run=Run(n_threads=1))
    assert alone.packed.digest == digests(model)["class 2", "gsvm"]
    shared = train_student(preparation, 2, folds=preparation.folds())
    assert shared.packed.digest == alone.packed.digest


def test_fold_scores_are_held_for_some_classes_at_a_time(model, training_part, preparation, monkeypatch):
    n = training_part.n
    monkeypatch.setattr("core.training.student_training._FOLD_SCORE_BYTES", 8 * 4 * n * 3)
    assert class_batches(preparation, [0, 1, 2, 3]) == [[0, 1, 2], [3]]
    assert preparation.folds([2, 0]).scores.shape == (4, n, 2)
    assert digests(train(training_part, CONFIG, run=Run(n_threads=2))) == digests(model)


def test_folds_know_the_classes_that_they_serve(preparation):
    folds = preparation.folds([1])
    whole = preparation.folds()
    assert (folds.class_scores(2, 1) == whole.class_scores(2, 1)).all()
    with pytest.raises(InvalidProblem, match="made without class 'class 0'"):
        train_student(preparation, 0, folds=folds)


def test_labels_of_held_out_rows_do_not_reach_the_teacher_of_their_fold(preparation, training_part):
    fold_of = preparation.folds().fold_of
    rows = np.flatnonzero(fold_of == 2)
    labels = training_part.y.copy()
    # Swapped within the fold: counts of classes, and with them the folds, stay as they are.
    labels[rows] = labels[rows][::-1]
    assert (labels != training_part.y).any()
    task = replace(preparation.task, labels=labels)
    again = tune_teacher(task, (CONFIG.teacher,), fold_of, Run(3)).teachers
    np.testing.assert_array_equal(again[2].weights, preparation.fold_teachers[2].weights)
    assert (again[1].weights != preparation.fold_teachers[1].weights).any()


def test_stages_are_told_one_at_a_time_and_to_the_end(training_part):
    told = []
    train(training_part, CONFIG, run=Run(n_threads=3, progress=told.append))
    stages = list(dict.fromkeys(step.stage for step in told))
    assert stages[:5] == ["features", "teacher", "scores", "tuning_teacher", "tuning"]
    tuning = [(step.done, step.total) for step in told if step.stage == "tuning"]
    assert tuning == sorted(tuning)
    assert tuning[-1] == (800, 800)
    assert [step.done for step in told if step.stage == "student"] == [1, 2, 3, 4]


@pytest.mark.parametrize("stage", ["tuning_teacher", "tuning"])
def test_a_run_is_cancelled_in_its_search(training_part, stage):
    reached = []
    with pytest.raises(Cancelled):
        train(
            training_part,
            CONFIG,
            run=Run(
                n_threads=2,
                progress=lambda step: reached.append(step.stage),
                should_cancel=lambda: stage in reached,
            ),
        )
    assert "student" not in reached


def test_a_class_of_one_row_is_named_before_anything_is_fitted(training_part):
    rows = np.concatenate([np.flatnonzero(training_part.y != 0), np.flatnonzero(training_part.y == 0)[:1]])
    lone = replace(training_part, X=training_part.X[rows], y=training_part.y[rows])
    with pytest.raises(InvalidProblem, match="class 'class 0' has one training row only"):
        prepare(lone, CONFIG)


def test_more_folds_than_rows_are_refused(training_part):
    config = replace(CONFIG, tuning=TuningSpec(GRID, folds=20))
    rows = np.concatenate([np.flatnonzero(training_part.y == code)[:4] for code in range(training_part.K)])
    few = replace(training_part, X=training_part.X[rows], y=training_part.y[rows])
    with pytest.raises(InvalidProblem, match=f"folds must be an integer in .2, {len(rows)}."):
        prepare(few, config)


def test_a_preparation_without_tuning_has_no_folds(training_part):
    plain = prepare(training_part, replace(PLAIN, threshold="zero", calibration="auto"))
    assert plain.fold_teachers == ()
    with pytest.raises(InvalidProblem, match="without folds"):
        plain.folds()


@pytest.mark.parametrize(
    ("field", "value"),
    [("strategy", "guess"), ("folds", 1), ("folds", 1001), ("metric", "recall")],
)
def test_a_search_that_cannot_be_is_refused_by_name(field, value):
    with pytest.raises(InvalidProblem, match=field):
        TuningSpec(**{field: value})


def test_a_grid_that_does_not_fit_into_memory_is_refused(preparation, monkeypatch):
    monkeypatch.setattr("core.model_selection.search._MOST_SCORES", 1000)
    with pytest.raises(InvalidProblem, match="take a coarser grid"):
        train_student(preparation, 0)


# A stored preparation


def test_a_stored_preparation_gives_the_same_tuned_students(model, preparation, training_part):
    stored = preparation.to_bytes()
    again = Preparation.from_bytes(stored, training_part, CONFIG)
    assert train_student(again, 1).packed.digest == digests(model)["class 1", "gsvm"]
    for other in (replace(CONFIG, tuning=TuningSpec(GRID, folds=5)),):
        with pytest.raises(InvalidProblem, match="other features, teacher, folds or seed"):
            Preparation.from_bytes(stored, training_part, other)
    # Grid, strategy and metric are the students' affair.
    Preparation.from_bytes(stored, training_part, replace(CONFIG, tuning=TuningSpec(folds=4, metric="auc")))


def test_a_preparation_whose_fold_teachers_are_missing_or_misshapen_is_refused(preparation, training_part):
    header, arrays = decode(preparation.to_bytes(), "stms.preparation.3")
    wrong = [
        {name: array for name, array in arrays.items() if name != "fold3.weights"},
        {**arrays, "fold1.weights": arrays["fold1.weights"][:2]},
    ]
    for damaged in wrong:
        with pytest.raises(InvalidPackage):
            Preparation.from_bytes(encode(header, damaged), training_part, CONFIG)


# Calibration


def test_a_tuned_student_is_calibrated_on_the_held_out_scores_of_its_choice(model, by_hand, training_part):
    for target, tuned in by_hand.items():
        packed = model.students[training_part.classes[target]]
        assert packed.calibration == fit_calibration(training_part.y == target, tuned.held_out_scores)
        assert PackedStudent.from_bytes(packed.to_bytes()).calibration == packed.calibration


def test_without_a_search_the_calibration_has_held_out_scores_of_its_own(training_part):
    plain = prepare(training_part, replace(PLAIN, threshold="zero", calibration="isotonic"))
    held_out = held_out_scores(plain.folds(), 3, PLAIN.students[0], Run(3))
    expected = fit_calibration(plain.labels == 3, held_out, "isotonic")
    packed = train_student(plain, 3).packed
    assert (packed.calibration.knots == expected.knots).all()
    assert (packed.calibration.values == expected.values).all()
    assert packed.threshold == 0.0
    assert packed.metadata["calibration"] == "isotonic"
    assert packed.metadata["threshold_folds"] == 5


@pytest.mark.long
@pytest.mark.parametrize(
    ("threshold", "rule", "kind"),
    [
        ("zero", "auto", "none"),
        ("f1", "auto", "sigmoid"),
        ("f1", "none", "none"),
        ("f1", "isotonic", "isotonic"),
    ],
)
def test_auto_is_a_sigmoid_where_it_costs_nothing(training_part, threshold, rule, kind):
    config = replace(PLAIN, threshold=threshold, calibration=rule)
    packed = train_student(prepare(training_part, config), 3).packed
    assert packed.metadata["calibration"] == kind
    assert (packed.calibration is None) == (kind == "none")


def test_an_unknown_calibration_is_refused():
    with pytest.raises(InvalidProblem, match="calibration must be one of"):
        TrainingConfig(calibration="beta")


def test_probabilities_are_measured_on_the_test_part(model, test_part):
    X = np.asarray(test_part.X)
    for result in model.evaluation.results:
        if result.method == "gsvm":
            truth = test_part.y == test_part.classes.index(result.label)
            expected = reliability(truth, model.students[result.label].probabilities(X))
            assert result.reliability.brier == pytest.approx(expected.brier, abs=1e-6)
            assert result.as_dict()["reliability"]["base_brier"] == expected.base_brier
            assert result.reliability.brier < expected.base_brier
        if result.method == "teacher":
            assert result.reliability is None
            assert "reliability" not in result.as_dict()


# Compact students


@pytest.fixture(scope="module")
def compact_model(training_part, test_part):
    return train(
        training_part,
        replace(COMPACT, students=(*COMPACT.students, GSVM(C=1e3))),
        test=test_part,
        run=Run(n_threads=2),
    )


def test_compact_students_are_shipped_and_the_full_ones_measured_beside_them(compact_model, training_part):
    assert [one.method for one in compact_model.trained] == ["compact", "gsvm"] * training_part.K
    for packed in compact_model.students.values():
        assert packed.map.n_basis <= 8
        assert packed.metadata["method"] == "compact"
    assert set(compact_model.evaluation.methods) == {"teacher", "compact", "gsvm"}
    report = json.loads(json.dumps(compact_model.report(), allow_nan=False))
    assert report["students"][0]["calibration"] == "sigmoid"


def test_a_compact_student_of_a_run_is_the_one_trained_alone(compact_model, training_part):
    alone = train_student(compact_model.preparation, 2, COMPACT.students[0])
    assert compact_model.students["class 2"].digest == alone.packed.digest


def test_compact_students_are_calibrated_on_held_out_folds(compact_model, training_part):
    held_out = held_out_scores(compact_model.preparation.folds(), 3, COMPACT.students[0], Run(3))
    expected = fit_calibration(training_part.y == 3, held_out)
    packed = compact_model.students["class 3"]
    assert packed.calibration == expected
    assert packed.metadata["calibration"] == "sigmoid"
    assert packed.metadata["threshold_folds"] == 3


def test_compact_students_are_measured_as_they_answer(compact_model, test_part):
    X = np.asarray(test_part.X)
    examination = Evaluator.of(compact_model.preparation, test_part)
    compact = [one for one in compact_model.trained if one.method == "compact"]
    for one, result in zip(compact, evaluate(examination, compact).results[-len(compact) :], strict=True):
        truth = test_part.y == one.target
        assert result.metrics.tp == int((one.packed.decide(X) & truth).sum())
        assert result.reliability.brier == reliability(truth, one.packed.probabilities(X)).brier


def test_one_set_of_held_out_scores_serves_threshold_and_calibration(training_part):
    config = replace(COMPACT, students=(Compact(max_f1_loss=100.0, steps=60),), threshold="f1")
    preparation = prepare(training_part, config)
    chosen = train_student(preparation, 3)
    assert chosen.search.n_landmarks == chosen.search.points[-1].n_landmarks == 12
    held_out = held_out_scores(preparation.folds(), 3, Compact(n_landmarks=12, steps=60), Run(3))
    truth = training_part.y == 3
    assert chosen.packed.calibration == fit_calibration(truth, held_out)
    assert chosen.packed.threshold == choose_threshold(truth, held_out, "f1")


@pytest.mark.long
def test_compact_runs_are_told_and_threads_change_nothing(compact_model, training_part):
    told = []
    again = train(training_part, COMPACT, run=Run(n_threads=1, progress=told.append))
    assert again.students["class 1"].digest == compact_model.students["class 1"].digest
    assert [step.done for step in told if step.stage == "student"] == [1, 2, 3, 4]
    assert "compact_rows" in {step.stage for step in told}


def test_full_students_beside_compact_ones_are_tuned(training_part):
    config = replace(COMPACT, students=(*COMPACT.students, SVM(C=1e3)), tuning=TuningSpec(GRID, folds=3))
    model = train(training_part, config, classes=["class 3"], run=Run(n_threads=2))
    compact, full = model.trained
    assert compact.method == "compact"
    assert compact.search is None
    assert len(full.search.points) == 3


def test_compact_students_need_dense_rows(training_part):
    dense = np.asarray(training_part.X)
    sparse = LabelledData(sp.csr_array(dense), training_part.y, training_part.classes)
    config = replace(COMPACT, features=FeatureSpec("linear"))
    with pytest.raises(InvalidProblem, match="compact need dense rows"):
        train(sparse, config)
