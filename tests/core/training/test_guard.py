"""The guard: a student that is clearly worse than its teacher is replaced, or named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core.data.dataset import LabelledData
from core.errors import Cancelled
from core.features.spec import FeatureSpec
from core.model_selection.guard import (
    ALWAYS,
    MISSES,
    NEVER,
    RANKS_WORSE,
    WORSE,
    OwnRows,
    Verdict,
    alternatives,
    compare,
    judge,
)
from core.model_selection.held_out import HeldOut, hold_out
from core.model_selection.ranking import RankingComparison
from core.model_selection.threshold import NOT_PROMISED
from core.run import Run
from core.students.gated import GSVM, SVM
from core.students.polytope import Polytope
from core.students.rivals import Rivals
from core.teachers.interpolation import KernelInterpolation
from core.training import student_training
from core.training.config import TrainingConfig
from core.training.pipeline import Preparation, prepare, train, train_student

CHECK = TrainingConfig(guard="check")
REPAIR = TrainingConfig(guard="repair")


def blobs(n: int, seed: int) -> LabelledData:
    """Three Gaussian blobs in a row, and one column of noise; the classes are as often as each other."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    X = np.hstack([labels[:, None] * [2.0, -2.0], np.zeros((n, 1))]) + rng.normal(size=(n, 3))
    return LabelledData.from_arrays(X, np.array(["left", "middle", "right"])[labels])


@pytest.fixture(scope="module")
def rows() -> LabelledData:
    return blobs(300, 0)


def two_of(rows: LabelledData) -> LabelledData:
    """The rows of two of the three classes."""
    some = np.flatnonzero(rows.y < 2)
    return LabelledData.from_arrays(rows.X[some], np.array(rows.classes)[rows.y[some]])


def f1_of(model, method: str) -> np.ndarray:
    return np.array([one.metrics.f1 for one in model.evaluation.results if one.method == method])


def test_every_class_of_three_blobs_is_as_good_as_its_teacher(rows):
    model = train(rows, REPAIR, test=blobs(3000, 1))
    assert (f1_of(model, "teacher") - f1_of(model, "gsvm") <= 0.02).all()
    middle = model.trained[1]
    assert (middle.method, middle.spec.name, middle.verdict.replaced) == ("gsvm", "polytope", "gsvm")
    assert middle.verdict.warning is None
    assert model.students["middle"].metadata["method"] == "polytope"


def test_a_student_that_is_only_checked_is_the_same_and_is_named(rows):
    plain, checked = train(rows, TrainingConfig()), train(rows, CHECK)
    for label, student in plain.students.items():
        assert checked.students[label].to_bytes() == student.to_bytes()
    verdict = checked.trained[1].verdict
    assert verdict.warning in {WORSE, NEVER}
    assert verdict.message.startswith("On 100 held-out rows, ")
    assert [one.verdict.warning for one in checked.trained[::2]] == [None, None]


def test_students_that_pass_are_the_same_with_a_guard(rows):
    plain, guarded = train(rows, TrainingConfig()), train(rows, REPAIR)
    for label in ("left", "right"):
        assert guarded.students[label].to_bytes() == plain.students[label].to_bytes()


@pytest.mark.parametrize("threshold", ["zero", "f1"])
def test_a_stored_preparation_gives_the_same_verdicts(rows, threshold):
    config = replace(REPAIR, threshold=threshold)
    first = prepare(rows, config)
    again = Preparation.from_bytes(first.to_bytes(), rows, config)
    one, other = (train_student(preparation, 1) for preparation in (first, again))
    assert one.verdict == other.verdict
    assert one.packed.to_bytes() == other.packed.to_bytes()


def test_the_guard_alone_fits_one_teacher_to_two_thirds_of_the_rows(rows):
    preparation = prepare(rows, CHECK)
    assert len(preparation.fold_teachers) == 1
    folds = preparation.folds()
    assert (np.count_nonzero(folds.fold_of == 0), np.count_nonzero(folds.fold_of < 0)) == (100, 200)


def test_no_held_out_row_has_a_say_in_the_teacher_that_it_is_judged_by(rows):
    config = replace(CHECK, features=FeatureSpec(scaling="none"))
    before = prepare(rows, config)
    held_out = before.folds().fold_of == 0
    after = prepare(replace(rows, X=np.where(held_out[:, None], 5.0 - rows.X, rows.X)), config)
    np.testing.assert_array_equal(before.fold_teachers[0].weights, after.fold_teachers[0].weights)
    assert (before.teacher.weights != after.teacher.weights).any()


def test_baselines_are_not_guarded(rows):
    model = train(rows, replace(CHECK, students=(GSVM(), SVM())))
    assert [one.verdict is None for one in model.trained] == [False, True] * 3


def test_a_class_of_one_row_is_trained_without_a_verdict():
    rng = np.random.default_rng(0)
    data = LabelledData.from_arrays(rng.normal(size=(32, 2)), np.array([0, 1] * 15 + [2, 2]))
    lone = replace(data, X=data.X[:-1], y=data.y[:-1])
    assert train(lone, REPAIR).trained[2].verdict is None


def test_noise_does_not_make_a_student_worse():
    """Student and teacher err independently, equally often, on 2000 rows of which 100 are of the class."""
    truth = np.arange(2000) < 100
    warned = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        teacher, student = (truth ^ (rng.random(2000) < 0.03) for _ in range(2))
        warned += compare(truth, teacher, student).warning is not None
    assert warned <= 4, "one of a thousand is expected"


def test_the_standard_error_is_that_of_resampled_rows():
    rng = np.random.default_rng(3)
    truth = np.arange(1500) < 300
    teacher, student = truth ^ (rng.random(1500) < 0.05), truth ^ (rng.random(1500) < 0.1)
    verdict = compare(truth, teacher, student)
    losses = []
    for _ in range(600):
        some = rng.integers(1500, size=1500)
        one = compare(truth[some], teacher[some], student[some])
        losses.append(one.teacher_f1 - one.student_f1)
    assert verdict.standard_error == pytest.approx(np.std(losses), rel=0.15)


def test_a_student_that_never_answers_yes_is_named_even_beside_a_poor_teacher():
    truth = np.array([True, False, False, False])
    no = np.zeros(4, dtype=bool)
    assert compare(truth, no, no).warning == NEVER
    assert compare(truth, truth, no).warning == WORSE
    assert compare(no, no, no) is None


def test_alternatives_have_more_rejections_than_the_student_up_to_one_a_rival():
    assert [one.pieces for one in alternatives(GSVM(C=7.0), 5, can_copy=False)] == [2, 3, 4, 5]
    assert {one.C for one in alternatives(GSVM(C=7.0), 5, can_copy=False)} == {7.0}
    assert [one.pieces for one in alternatives(Polytope(pieces=4), 25, can_copy=False)] == [8, 25]
    assert list(alternatives(SVM(), 5, can_copy=True)) == []
    assert list(alternatives(GSVM(), 1, can_copy=True)) == [Rivals()]


@pytest.fixture
def poor_students(monkeypatch):
    """Held-out scores of trained students are noise."""

    def noise(folds, target, spec, run):
        del target, spec, run
        return HeldOut(np.random.default_rng(0).normal(size=len(folds.labels)))

    monkeypatch.setattr(student_training, "hold_out", noise)


@pytest.mark.long
@pytest.mark.parametrize("threshold", ["zero", "f1"])
def test_a_copy_of_the_teacher_takes_the_place_of_a_poor_student_of_two_classes(
    rows, threshold, poor_students
):
    """Of two classes no student can have more rejections than one."""
    config = replace(REPAIR, threshold=threshold)
    preparation = prepare(two_of(rows), config)
    poor = train_student(prepare(two_of(rows), replace(config, guard="check")), 0)
    copy = train_student(preparation, 0)
    assert (poor.verdict.warning is None, copy.verdict.warning) == (False, None)
    assert (copy.spec.name, copy.method, copy.verdict.replaced) == ("rivals", "gsvm", "gsvm")
    margin = preparation.scores[:, 0] - preparation.scores[:, 1]
    scores = copy.fitted.scores(preparation.labelled.examples)
    assert (np.diff(scores[np.argsort(margin)]) >= -1e-9).all()


def test_a_copy_is_tried_neither_for_a_budget_nor_of_a_teacher_that_is_not_linear(rows, poor_students):
    budget = replace(REPAIR, threshold="fpr", budget=0.05)
    kernel = replace(REPAIR, teacher=KernelInterpolation(gamma=0.5))
    for config in (budget, kernel):
        poor = train_student(prepare(two_of(rows), config), 0)
        assert (poor.spec.name, poor.verdict.warning is None) == ("gsvm", False)


def test_a_cancel_stops_the_guard(rows):
    preparation = prepare(rows, REPAIR)
    with pytest.raises(Cancelled):
        train_student(preparation, 1, run=Run(should_cancel=lambda: True))


def test_a_budget_is_given_to_the_teacher_too():
    """A student with a small budget, which costs F, is not worse than a teacher that has none."""
    data = blobs(600, 0)
    config = replace(CHECK, threshold="fpr", budget=0.005, students=(Polytope(pieces=2),))
    preparation = prepare(data, config)
    trained = train_student(preparation, 1)
    verdict, folds = trained.verdict, preparation.folds()
    scores = hold_out(folds, 1, trained.spec).scores
    unequal = judge(folds, 1, scores, trained.packed.threshold)
    assert verdict.warning is None
    assert unequal.warning == WORSE
    assert verdict.student_f1 == unequal.student_f1
    assert verdict.teacher_f1 < unequal.teacher_f1 - 0.1


def test_too_few_rows_for_a_budget_are_told_with_the_student(rows):
    few, enough = (
        train_student(prepare(rows, TrainingConfig(threshold="fpr", budget=budget)), 0)
        for budget in (0.001, 0.01)
    )
    assert (few.promise.warning, few.promise.accepted, few.promise.negatives) == (NOT_PROMISED, 0, 200)
    assert few.as_dict()["false_positives"]["message"].startswith("A false-positive rate of 0.1 % cannot")
    assert (enough.promise.warning, enough.promise.expected) == (None, 2 / 201)
    assert train_student(prepare(rows, TrainingConfig(threshold="f1")), 0).promise is None


def test_a_student_that_errs_once_and_finds_nothing_is_named_too():
    """One accidental yes hid that none of the class is found; the teacher is no better."""
    truth = np.arange(300) < 2
    accidental = np.arange(300) == 200
    verdict = compare(truth, np.zeros(300, bool), accidental)
    assert verdict.warning == MISSES
    assert "F 0.000" in verdict.message
    one_found = compare(truth, np.zeros(300, bool), np.arange(300) == 0)
    assert one_found.warning is None


@pytest.mark.parametrize(
    ("answers", "warning"),
    [
        ([False, False, False, False], NEVER),
        ([True, True, True, True], ALWAYS),
        ([False, False, True, False], MISSES),
        ([True, False, True, False], None),
    ],
)
def test_answers_on_its_own_rows_show_a_useless_student(answers, warning):
    own = OwnRows.of(np.array([True, True, False, False]), np.array(answers))
    assert own.warning == warning
    assert ("message" in own.as_dict()) == (warning is not None)
    everything = OwnRows.of(np.ones(4, bool), np.ones(4, bool))
    assert everything.warning is None


@pytest.mark.parametrize("column", [np.ones(60), np.full(60, 5e-321) * (np.arange(60) % 7)])
def test_students_without_a_usable_column_are_named_without_a_guard(column):
    labels = np.array(["a", "b", "c"])[np.arange(60) % 3]
    data = LabelledData.from_arrays(column[:, np.newaxis], labels)
    model = train(data, TrainingConfig(guard="off", automatic=False, features=FeatureSpec(kind="linear")))
    assert all(one.verdict is None and one.own_rows.warning in {NEVER, ALWAYS} for one in model.trained)
    useful = train(blobs(90, 0), TrainingConfig(guard="off", automatic=False), classes=["left", "right"])
    assert [one.own_rows.warning for one in useful.trained] == [None] * 2


def verdict(f1: float, auc: float, error: float = 0.01, accepted: int = 10) -> Verdict:
    return Verdict(100, 20, 0.9, f1, 0.01, accepted, RankingComparison(0.95, auc, error))


def test_a_student_whose_ranking_is_clearly_worse_is_named_with_its_areas():
    assert [verdict(0.9, auc).warning for auc in (0.95, 0.94, 0.9)] == [None, None, RANKS_WORSE]
    assert verdict(0.9, 0.9, error=0.06).warning is None, "a loss within one standard error"
    assert verdict(0.5, 0.9).warning == WORSE
    assert verdict(0.9, 0.9, accepted=0).warning == NEVER
    assert verdict(0.9, 0.9).message.endswith("Its ROC area is 0.900, the teacher's 0.950.")
    assert verdict(0.9, 0.9).as_dict()["student_auc"] == 0.9


def test_a_better_ranking_is_taken_at_no_clear_loss_of_f():
    poor = verdict(0.9, 0.85)
    assert verdict(0.89, 0.93).is_better_than(poor)
    assert not verdict(0.87, 0.93).is_better_than(poor), "F is more than the margin lower"
    assert not verdict(0.95, 0.84).is_better_than(poor), "it ranks no better"
    worse = verdict(0.5, 0.85)
    assert verdict(0.6, 0.8).is_better_than(worse)
    assert not verdict(0.5, 0.95).is_better_than(worse)


def test_scores_with_ties_rank_worse_than_the_teacher_at_the_same_answers(rows):
    """Scores that are rounded to their sign give the same answers and a worse ranking."""
    folds = prepare(rows, CHECK).folds()
    scores = hold_out(folds, 0, GSVM()).scores
    rounded = np.where(np.isnan(scores), np.nan, np.sign(scores))
    fine, coarse = judge(folds, 0, scores, 0.0), judge(folds, 0, rounded, 0.0)
    assert (fine.warning, coarse.warning) == (None, RANKS_WORSE)
    assert coarse.student_f1 == fine.student_f1
