"""Students of the optimal margin distribution machine: with and without gate, tuned, calibrated, packed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core.data.dataset import LabelledData
from core.errors import InvalidProblem
from core.features.spec import FeatureSpec
from core.model_selection.tuning_spec import TuningSpec
from core.packed import PackedStudent
from core.run import Run
from core.students.grid import Grid
from core.students.odm import BANDS, EXCESSES, ODM, Gate
from core.teachers.ssvm import SSVM
from core.training.config import TrainingConfig
from core.training.evaluation import Evaluator
from core.training.pipeline import prepare, train
from tests.refusals import at_fault

CONFIG = TrainingConfig(features=FeatureSpec("nystroem", 20), teacher=SSVM(C=1e3), students=(ODM(),))


@pytest.fixture(scope="module")
def prepared(training_part):
    return prepare(training_part, CONFIG)


def test_a_tiny_loss_weight_leaves_the_teacher_s_hyperplane_or_zero(prepared):
    problem = prepared.problem(1)
    gated, plain = (ODM(C=1e-6, gate=gate).fit(problem, Run()) for gate in ("teacher", "none"))
    np.testing.assert_allclose(gated.decision, problem.gate_weights, atol=1e-4)
    np.testing.assert_allclose(plain.decision, 0.0, atol=1e-4)
    np.testing.assert_array_equal(plain.gate_weights, 0.0)


@pytest.mark.parametrize("gate", ["teacher", "none"])
def test_students_find_their_classes_and_their_packages_answer_alike(
    training_part: LabelledData, test_part: LabelledData, gate: Gate
):
    model = train(training_part, replace(CONFIG, students=(ODM(gate=gate),)), test=test_part)
    evaluator = Evaluator.of(model.preparation, test_part)
    for target, trained in enumerate(model.trained):
        packed = model.students[trained.label]
        fitted = trained.fitted.scores(evaluator.examples)
        np.testing.assert_allclose(packed.scores(test_part.X), fitted, rtol=1e-9, atol=1e-9)
        scores = evaluator.scores[:, target] if gate == "teacher" else np.zeros(test_part.n)
        np.testing.assert_allclose(packed.gate(test_part.X), scores, rtol=1e-9, atol=1e-9)
        assert PackedStudent.from_bytes(packed.to_bytes()).digest == packed.digest
        assert packed.metadata["status"] == "converged"
        assert packed.metadata["relative_gap"] <= 1e-3
    assert model.evaluation.mean("odm").f1 > 0.75


def test_it_is_tuned_and_calibrated(training_part, test_part):
    tuned = replace(
        CONFIG,
        tuning=TuningSpec(grid=Grid(C=(1.0, 1e3)), folds=3),
        threshold="f1",
        calibration="sigmoid",
    )
    model = train(training_part, tuned, test=test_part)
    for trained in model.trained:
        assert trained.chosen["C"] in (1.0, 1e3)
        assert trained.chosen["points"] == 2 * len(BANDS) * len(EXCESSES)
        assert trained.packed.calibration is not None
        assert {point["gate"] for point in trained.trace["points"]} == {"teacher"}


def test_a_gate_takes_a_teacher_that_is_linear_in_the_features(prepared):
    problem = replace(prepared.problem(0), gate_weights=None)
    with at_fault(InvalidProblem, "no_gate", match="linear in the features"):
        ODM().fit(problem, Run())
    ODM(gate="none").fit(problem, Run())
    assert ODM().needs == {"gate_weights"}
    assert ODM(gate="none").needs == frozenset()


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"band": 1.0}, "student.band"),
        ({"excess": 0.0}, "student.excess"),
        ({"gate": "both"}, "student.gate"),
    ],
)
def test_a_wrong_hyper_parameter_is_named(values, field):
    with pytest.raises(InvalidProblem) as caught:
        ODM(**values)
    assert [fault.field for fault in caught.value.faults] == [field]
