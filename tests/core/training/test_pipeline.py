"""The whole flow: right, repeatable bit for bit, taken up elsewhere, watched and stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.metrics import f1_score

from core.data.dataset import LabelledData
from core.errors import Cancelled, InvalidPackage, InvalidProblem
from core.features.spec import FeatureSpec
from core.model_selection.metrics import CLASS_ABSENT
from core.packed import PackedStudent, PackedTeacher
from core.packed.codec import decode, encode
from core.run import Run
from core.students.gated import GSVM, GSVM0, SVM
from core.teachers.ssvm import SSVM
from core.training.evaluation import Evaluation, Evaluator
from core.training.pipeline import Preparation, TrainingConfig, evaluate, prepare, train, train_student
from tests.refusals import at_fault

ROOT = Path(__file__).parents[3]
CONFIG = TrainingConfig(
    features=FeatureSpec("nystroem", 40),
    students=(GSVM(C=1e3), SVM(C=1e3), GSVM0(C=1e3)),
    threshold="f1",
    folds=3,
    seed=7,
)


@pytest.fixture(scope="module")
def preparation(training_part):
    return prepare(training_part, CONFIG)


@pytest.fixture(scope="module")
def model(training_part, test_part):
    return train(training_part, CONFIG, test=test_part, run=Run(n_threads=2))


def digests(model) -> dict[str, str]:
    return {label: student.digest for label, student in model.students.items()}


@pytest.mark.parametrize("kind", ["linear", "nystroem", "fourier"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_packed_students_and_teacher_score_like_the_fitted_ones(training_part, test_part, kind, dtype):
    config = replace(CONFIG, features=FeatureSpec(kind, 30, dtype=dtype), threshold="zero")
    model = train(training_part, config, test=test_part)
    examination = Evaluator.of(model.preparation, test_part)
    tolerance = 1e-6 if dtype == "float64" else 1e-2
    X = np.asarray(test_part.X)
    np.testing.assert_allclose(model.teacher.scores(X), examination.scores, atol=tolerance)
    for one in model.trained:
        expected = one.fitted.scores(examination.examples)
        np.testing.assert_allclose(one.packed.scores(X), expected, atol=tolerance)
        gate = examination.scores[:, one.target] if one.method != "svm" else np.zeros(test_part.n)
        np.testing.assert_allclose(one.packed.gate(X), gate, atol=tolerance)


def test_a_model_has_every_student_and_keeps_its_settings(model, training_part):
    assert tuple(model.students) == training_part.classes
    for label, student in model.students.items():
        assert student.label == label
        assert student.metadata["method"] == "gsvm"
        assert student.metadata["C"] == 1e3
        assert student.metadata["seed"] == 7
        assert student.metadata["threshold_folds"] in (2, 3)
        assert PackedStudent.from_bytes(student.to_bytes()).digest == student.digest
    assert PackedTeacher.from_bytes(model.teacher.to_bytes()).classes == training_part.classes
    assert len(model.trained) == 3 * training_part.K


def test_students_of_a_plain_problem_are_about_as_good_as_their_teacher(model):
    teacher, student = model.evaluation.mean("teacher"), model.evaluation.mean("gsvm")
    assert teacher.f1 > 0.75
    assert student.f1 > teacher.f1 - 0.05
    assert student.auc > 0.9


def test_what_is_measured_is_what_the_packed_student_answers(model, test_part):
    X = np.asarray(test_part.X)
    measured = {(r.label, r.method): r.metrics for r in model.evaluation.results}
    for one in model.trained:
        truth = test_part.y == one.target
        assert measured[one.label, one.method].f1 == pytest.approx(f1_score(truth, one.packed.decide(X)))


def test_the_teacher_as_a_binary_classifier_says_yes_where_its_class_wins(model, test_part):
    X = np.asarray(test_part.X)
    for code, label in enumerate(test_part.classes):
        result = next(r for r in model.evaluation.results if (r.label, r.method) == (label, "teacher"))
        answers = [model.teacher.is_class(x, code) for x in X]
        truth = test_part.y == code
        assert result.metrics.f1 == pytest.approx(f1_score(truth, [yes for yes, _ in answers]))
        assert result.classes_evaluated == pytest.approx(np.mean([evaluated for _, evaluated in answers]))


def test_the_teachers_auc_ranks_by_the_margin_over_the_best_other_class(preparation, test_part):
    examination = Evaluator.of(preparation, test_part)
    S = examination.scores
    margin = S[:, 1] - np.delete(S, 1, axis=1).max(axis=1)
    truth = test_part.y == 1
    pairs = margin[truth][:, None] - margin[~truth][None, :]
    expected = np.mean((pairs > 0) + 0.5 * (pairs == 0))
    assert examination.teacher(1).metrics.auc == pytest.approx(expected)


def test_the_report_is_valid_json(model):
    report = json.loads(json.dumps(model.report(), allow_nan=False))
    assert set(report["seconds"]) == {"features", "teacher", "scores", "tuning_teacher", "students"}
    assert set(report["evaluation"]["means"]) == {"teacher", "gsvm", "svm", "gsvm0"}
    assert report["teacher"]["status"] == "converged"
    assert all(0.0 <= row["relative_gap"] <= 1e-3 for row in report["students"])


def test_a_class_missing_from_the_test_part_is_none_with_a_reason(model, test_part):
    rows = np.flatnonzero(test_part.y != 0)
    part = LabelledData.with_codes(
        test_part.X[rows], [test_part.classes[code] for code in test_part.y[rows]], test_part.classes
    )
    evaluation = evaluate(Evaluator.of(model.preparation, part), model.trained)
    absent = [result.metrics for result in evaluation.results if result.label == "class 0"]
    assert {(m.f1, m.auc, m.reason) for m in absent} == {(None, None, CLASS_ABSENT)}
    json.dumps(evaluation.as_dict(), allow_nan=False)
    assert evaluation.mean("gsvm").f1 is not None


def test_an_evaluation_of_nothing_is_empty(preparation, test_part):
    assert evaluate(Evaluator.of(preparation, test_part), []) == Evaluation(())


def test_the_number_of_threads_changes_no_bit(training_part, model):
    one = train(training_part, CONFIG, run=Run(n_threads=1))
    assert one.evaluation is None
    assert digests(one) == digests(model)
    assert one.teacher.digest == model.teacher.digest


def test_a_stored_preparation_trains_the_same_students(preparation, training_part, model):
    stored = preparation.to_bytes()
    restored = Preparation.from_bytes(stored, training_part, CONFIG)
    np.testing.assert_array_equal(restored.features, preparation.features)
    np.testing.assert_array_equal(restored.scores, preparation.scores)
    assert preparation.teacher.summary is not None
    assert restored.teacher.summary == replace(preparation.teacher.summary, seconds=0.0)
    assert restored.to_bytes() == prepare(training_part, CONFIG).to_bytes() == stored
    assert restored.packed_teacher().digest == model.teacher.digest
    for target in (3, 0):
        student = train_student(restored, target)
        assert student.packed.digest == model.students[student.label].digest


PROCESS = """
import json, sys
import numpy as np
from core.data.dataset import LabelledData
from core.run import Run
from core.training.pipeline import Preparation, train, train_student
sys.path.insert(0, {tests!r})
from test_pipeline import CONFIG
arrays = np.load({data!r}, allow_pickle=False)
data = LabelledData.from_arrays(arrays["X"], arrays["labels"])
if {stored!r}:
    with open({stored!r}, "rb") as file:
        preparation = Preparation.from_bytes(file.read(), data, CONFIG)
    students = [train_student(preparation, target) for target in reversed(range(data.K))]
    print(json.dumps({{one.label: one.packed.digest for one in students}}))
else:
    model = train(data, CONFIG, run=Run(n_threads={threads}))
    print(json.dumps({{label: one.digest for label, one in model.students.items()}}))
"""


@pytest.mark.long
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("restore", [False, True])
def test_another_process_makes_the_same_bits(tmp_path, training_part, preparation, model, restore, threads):
    labels = np.array(training_part.classes)[training_part.y]
    np.savez(tmp_path / "data.npz", X=training_part.X, labels=labels)
    (tmp_path / "stored").write_bytes(preparation.to_bytes())
    code = PROCESS.format(
        tests=str(Path(__file__).parent),
        data=str(tmp_path / "data.npz"),
        stored=str(tmp_path / "stored") if restore else "",
        threads=threads,
    )
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == digests(model)


def test_sparse_rows_train_and_measure_too(training_part, test_part):
    config = replace(CONFIG, features=FeatureSpec("linear", scaling="none"), threshold="zero")
    dense = train(training_part, config, test=test_part)
    part = replace(training_part, X=sp.csr_array(training_part.X))
    sparse = train(part, config, test=replace(test_part, X=sp.csr_array(test_part.X)))
    assert sp.issparse(sparse.preparation.features)
    assert sparse.preparation.data_digest != dense.preparation.data_digest
    assert sparse.evaluation.mean("gsvm").f1 == pytest.approx(dense.evaluation.mean("gsvm").f1, abs=0.05)


def test_the_same_seed_repeats_and_another_does_not(training_part, model):
    again = train(training_part, CONFIG, classes=["class 2"], run=Run(n_threads=1))
    other = train(training_part, replace(CONFIG, seed=8), classes=["class 2"], run=Run(n_threads=1))
    assert again.students["class 2"].digest == model.students["class 2"].digest
    assert other.students["class 2"].digest != model.students["class 2"].digest


def test_only_the_classes_asked_for_are_trained_in_the_order_asked(training_part):
    model = train(training_part, CONFIG, classes=["class 3", "class 1", "class 3"])
    assert list(model.students) == ["class 3", "class 1"]


@pytest.mark.parametrize(("classes", "code"), [([], "empty"), (["class 1", "dog"], "unknown_class")])
def test_unknown_or_no_classes_are_refused_before_any_work(training_part, classes, code):
    with pytest.raises(InvalidProblem) as caught:
        train(training_part, CONFIG, classes=classes)
    assert [fault.code for fault in caught.value.faults] == [code]


@pytest.mark.parametrize("n_threads", [0, 1.5])
def test_a_number_of_threads_out_of_bounds_is_refused(training_part, n_threads):
    with pytest.raises(InvalidProblem, match="n_threads"):
        train(training_part, CONFIG, run=Run(n_threads=n_threads))


def test_a_threshold_rule_shifts_the_threshold_and_zero_does_not(preparation, training_part):
    zero = train(training_part, replace(CONFIG, threshold="zero"), classes=["class 0"])
    assert zero.students["class 0"].threshold == 0.0
    assert train_student(preparation, 0).packed.threshold != 0.0


def test_a_false_positive_budget_is_roughly_kept_on_new_rows(training_part, test_part):
    config = replace(CONFIG, threshold="fpr", budget=0.02, students=CONFIG.students[:1])
    model = train(training_part, config, test=test_part)
    for result in model.evaluation.results:
        if result.method == "gsvm":
            assert result.metrics.fp <= 0.1 * (result.metrics.fp + result.metrics.tn)


def test_a_confidence_of_the_budget_belongs_to_the_promise_and_raises_the_threshold(training_part):
    config = replace(CONFIG, threshold="fpr", budget=0.1, students=CONFIG.students[:1])
    plain, sure = (prepare(training_part, replace(config, confidence=one)) for one in (None, 0.95))
    higher = []
    for target in range(training_part.K):
        average, surely = (train_student(one, target) for one in (plain, sure))
        assert "confidence" not in average.promise.as_dict()
        assert surely.promise.confidence == 0.95
        assert surely.promise.bound <= 0.1
        assert surely.promise.accepted <= average.promise.accepted
        higher.append(surely.packed.threshold > average.packed.threshold)
    assert any(higher)


def test_stages_are_reported_in_order(training_part):
    seen = []
    train(training_part, CONFIG, run=Run(progress=seen.append, n_threads=2))
    stages = list(dict.fromkeys(step.stage for step in seen))
    assert stages == ["features", "teacher", "scores", "tuning_teacher", "student"]
    students = [step for step in seen if step.stage == "student"]
    assert [step.done for step in students] == [1, 2, 3, 4]
    assert {step.total for step in students} == {4}
    assert any(step.stage == "teacher" and step.gap is not None for step in seen)


def test_one_student_reports_its_own_progress(preparation):
    seen = []
    train_student(preparation, 1, run=Run(progress=seen.append))
    assert {step.stage for step in seen} == {"student"}
    assert seen[-1].objective is not None


@pytest.mark.parametrize("stage", ["features", "teacher", "scores", "student"])
def test_a_cancel_is_heard_in_every_stage(training_part, stage: str):
    reached = threading.Event()

    def progress(step):
        if step.stage == stage:
            reached.set()

    def work():
        # "student" is reported when the first is done, with others still to come.
        train(training_part, CONFIG, run=Run(progress=progress, should_cancel=reached.is_set, n_threads=1))

    with pytest.raises(Cancelled):
        work()
    assert reached.is_set()


def test_restoring_can_be_cancelled(preparation, training_part):
    with pytest.raises(Cancelled):
        Preparation.from_bytes(
            preparation.to_bytes(), training_part, CONFIG, run=Run(should_cancel=lambda: True)
        )


def test_a_student_can_be_cancelled(preparation):
    with pytest.raises(Cancelled):
        train_student(preparation, 0, run=Run(should_cancel=lambda: True))


def test_a_stored_preparation_is_refused_with_other_data(preparation, training_part):
    X = np.array(training_part.X)
    X[3, 2] += 1e-9
    with at_fault(InvalidProblem, "other_data"):
        Preparation.from_bytes(preparation.to_bytes(), replace(training_part, X=X), CONFIG)


@pytest.mark.parametrize(
    "change",
    [{"seed": 8}, {"teacher": SSVM(1.0)}, {"features": FeatureSpec("nystroem", 41)}, {"folds": 4}],
)
def test_a_stored_preparation_is_refused_with_another_configuration(preparation, training_part, change):
    with at_fault(InvalidProblem, "other_config"):
        Preparation.from_bytes(preparation.to_bytes(), training_part, replace(CONFIG, **change))


def test_a_stored_preparation_serves_students_of_another_kind(preparation, training_part):
    config = replace(CONFIG, students=(GSVM0(C=10.0),))
    restored = Preparation.from_bytes(preparation.to_bytes(), training_part, config)
    assert train_student(restored, 0).packed.metadata["method"] == "gsvm0"


@pytest.mark.parametrize("part", ["weights", "feature_map", "summary", "extra"])
def test_a_damaged_preparation_is_refused(preparation, training_part, part: str):
    header, arrays = decode(preparation.to_bytes(), "stms.preparation.3")
    if part == "summary":
        header["summary"] = {"objective": "low"}
    elif part == "weights":
        arrays["teacher.weights"] = np.zeros((2, 2))
    elif part == "feature_map":
        arrays["feature_map"] = arrays["feature_map"][:100].copy()
    else:
        del arrays["teacher.weights"]
    with pytest.raises(InvalidPackage):
        Preparation.from_bytes(encode(header, arrays), training_part, CONFIG)


def test_a_test_part_with_other_classes_is_refused(preparation, test_part):
    other = replace(test_part, classes=("a", "b", "c", "d"))
    with at_fault(InvalidProblem, "other_classes"):
        Evaluator.of(preparation, other)


@pytest.mark.parametrize("target", [-1, 4])
def test_an_unknown_class_code_is_refused(preparation, target: int):
    with at_fault(InvalidProblem, "unknown_class"):
        train_student(preparation, target)


@pytest.mark.parametrize("label", [0, 1])
def test_a_problem_needs_both_sides(preparation, label: int):
    one_sided = replace(
        preparation, task=replace(preparation.task, labels=np.full_like(preparation.labels, label))
    )
    with at_fault(InvalidProblem, "single_class"):
        one_sided.problem(0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("students", ()),
        ("students", (GSVM(), GSVM(C=1.0))),
        ("threshold", "best"),
        ("budget", 1.0),
        ("folds", 1),
        ("seed", -1),
        ("seed", 2**32),
    ],
)
def test_a_setting_out_of_bounds_is_named(name: str, value):
    with pytest.raises(InvalidProblem) as caught:
        TrainingConfig(**{name: value})
    assert [fault.field for fault in caught.value.faults] == [name]
