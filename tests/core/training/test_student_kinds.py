"""Students of many classes copy the teacher's scores unless polytopes are better on held-out rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core.data.dataset import LabelledData
from core.errors import Cancelled
from core.model_selection.quick_choice import QuickChoice, StudentKinds
from core.run import Run
from core.students.polytope import PolytopeStudent
from core.students.rivals import RivalStudent
from core.training import student_kinds
from core.training.config import AUTOMATIC_STUDENT, TrainingConfig
from core.training.pipeline import Preparation, prepare, train, train_student
from core.types import Progress

CONFIG = TrainingConfig(
    students=(AUTOMATIC_STUDENT,),
    automatic=True,
    threshold="expected_f1",
    calibration="sigmoid",
    folds=3,
    guard="repair",
)


def clouds(classes: int, rows: int = 15) -> LabelledData:
    """A cloud of rows for each class, in 40 columns: kernels tell them apart better than trees."""
    rng = np.random.default_rng(0)
    codes = np.repeat(np.arange(classes), rows)
    return LabelledData.from_arrays(
        rng.standard_normal((classes, 40))[codes] + 1.2 * rng.standard_normal((len(codes), 40)), codes
    )


def kinds_of(made: Preparation) -> StudentKinds | None:
    assert isinstance(made.choice, QuickChoice)
    return made.choice.student_kinds


def test_many_classes_have_copies_of_eight_rivals_and_the_reason_has_the_figures():
    stages: list[Progress] = []
    model = train(clouds(12), CONFIG, run=Run(progress=stages.append))
    assert all(isinstance(one.fitted, RivalStudent) for one in model.trained)
    assert {one.fitted.facts()["rivals"] for one in model.trained} == {8}
    kinds = kinds_of(model.preparation)
    assert kinds is not None
    assert kinds.classes == student_kinds.COMPARED
    assert model.preparation.choice is not None
    assert (
        f"copies of the teacher's scores, with a mean F of {kinds.copy_f1:.3f}"
        in (model.preparation.choice.as_dict()["reason"])
    )
    assert "student_kinds" in {step.stage for step in stages}
    assert "student_kinds" in model.seconds


def test_polytopes_stay_where_they_are_better_by_a_standard_error(monkeypatch: pytest.MonkeyPatch):
    measured: list[np.ndarray] = []

    def worse_copies(
        labels: np.ndarray, accepted: np.ndarray, targets: list[int]
    ) -> tuple[float, np.ndarray]:
        measured.append(accepted)
        return (0.9, np.zeros(len(labels))) if len(measured) == 1 else (0.8, np.full(len(labels), 1e-4))

    monkeypatch.setattr(student_kinds, "mean_f1", worse_copies)
    model = train(clouds(10), CONFIG)
    assert all(isinstance(one.fitted, PolytopeStudent) for one in model.trained)
    kinds = kinds_of(model.preparation)
    assert kinds is not None
    assert not kinds.are_copies
    assert "Students are polytopes, with 0.900 on held-out rows of 8 classes (copies" in kinds.text
    truth = np.unique(model.preparation.labels)
    assert all(accepted.shape == (8, 150) for accepted in measured)
    assert len(truth) == 10


def test_of_very_many_rows_students_of_few_classes_are_compared_on_a_part(monkeypatch: pytest.MonkeyPatch):
    data = clouds(4, rows=60)
    monkeypatch.setattr(student_kinds, "MANY_ROWS", data.n + 1)
    assert kinds_of(prepare(data, CONFIG)) is None
    compared: list[Preparation] = []

    def remembered(made: Preparation, run: Run) -> StudentKinds:
        compared.append(made)
        return compare(made, run)

    compare = student_kinds._compared
    monkeypatch.setattr(student_kinds, "MANY_ROWS", data.n)
    monkeypatch.setattr(student_kinds, "some_rows", lambda labels, limit, seed: np.arange(0, len(labels), 2))
    monkeypatch.setattr(student_kinds, "_compared", remembered)
    made = prepare(data, CONFIG)
    kinds = kinds_of(made)
    assert kinds is not None
    assert kinds.classes == 4
    [some] = compared
    np.testing.assert_array_equal(some.labels, made.labels[::2])
    assert some.config.teacher.C / some.labelled.examples.n == pytest.approx(made.config.teacher.C / data.n)
    assert some.config.features == made.config.features


def test_where_no_class_has_a_row_in_each_fold_students_are_copies_and_the_reason_says_so():
    made = prepare(clouds(12, rows=2), CONFIG)
    kinds = kinds_of(made)
    assert kinds is not None
    assert kinds.are_copies
    assert "copies of the teacher's scores: no class has as many rows as there are folds." in kinds.text


@pytest.mark.parametrize(
    ("classes", "config"),
    [
        (9, CONFIG),
        (10, replace(CONFIG, threshold="fpr")),
        (10, replace(CONFIG, students=(AUTOMATIC_STUDENT.copying(3),))),
        (10, replace(CONFIG, students=(AUTOMATIC_STUDENT.suited(CONFIG.teacher),))),
    ],
    ids=["few classes", "a budget of false positives", "copies already", "a named student"],
)
def test_nothing_is_compared_where_nothing_is_open(classes: int, config: TrainingConfig):
    assert kinds_of(prepare(clouds(classes), config)) is None


def test_a_restored_preparation_has_the_same_students():
    data = clouds(11)
    made = prepare(data, CONFIG)
    restored = Preparation.from_bytes(made.to_bytes(), data, CONFIG)
    assert kinds_of(restored) == kinds_of(made)
    assert restored.config == made.config
    for target in (0, 10):
        assert train_student(restored, target).packed.digest == train_student(made, target).packed.digest


def test_the_comparison_can_be_cancelled():
    def cancel(step: Progress) -> None:
        if step.stage == "student_kinds":
            cancelled.append(True)

    cancelled: list[bool] = []
    with pytest.raises(Cancelled):
        prepare(clouds(10), CONFIG, Run(progress=cancel, should_cancel=lambda: bool(cancelled)))
