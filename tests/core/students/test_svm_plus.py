"""SVM+ students: privileged columns or the teacher, tuned, calibrated, packed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core.data.dataset import LabelledData
from core.data.extras import Extras
from core.errors import InvalidProblem
from core.features.spec import FeatureSpec
from core.model_selection.tuning_spec import TuningSpec
from core.packed import PackedStudent
from core.run import Run
from core.students.grid import Grid
from core.students.svm_plus import CORRECTIONS, SVMPlus
from core.teachers.ssvm import SSVM
from core.training.config import TrainingConfig
from core.training.evaluation import Evaluator
from core.training.pipeline import prepare, train

CONFIG = TrainingConfig(
    features=FeatureSpec("nystroem", 20),
    teacher=SSVM(C=1e3),
    students=(SVMPlus(),),
    threshold="f1",
    folds=3,
)


@pytest.fixture(scope="module")
def privileged_part(training_part) -> LabelledData:
    """The rows, and as privileged columns the same rows with less noise."""
    rng = np.random.default_rng(0)
    centres = np.stack([training_part.X[training_part.y == k].mean(axis=0) for k in range(training_part.K)])
    clean = centres[training_part.y] + 0.3 * rng.normal(size=training_part.X.shape)
    return replace(training_part, extras=Extras(privileged=clean))


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
@pytest.mark.parametrize("privileged", ["columns", "teacher"])
def test_students_find_their_classes_and_their_packages_answer_alike(
    privileged_part, test_part, privileged, kernel
):
    spec = SVMPlus(privileged=privileged, kernel=kernel)
    model = train(privileged_part, replace(CONFIG, students=(spec,)), test=test_part)
    evaluator = Evaluator.of(model.preparation, test_part)
    for trained in model.trained:
        packed = model.students[trained.label]
        fitted = trained.fitted.scores(evaluator.examples)
        np.testing.assert_allclose(packed.scores(test_part.X), fitted, rtol=1e-9, atol=1e-9)
        assert PackedStudent.from_bytes(packed.to_bytes()).digest == packed.digest
        assert packed.metadata["relative_gap"] <= 1e-3
    # Columns that give the class away leave the ranking good and the scores of a rare class all below 0.
    assert model.evaluation.mean("svm+").auc > 0.95


def test_it_is_tuned_and_calibrated(privileged_part, test_part):
    tuned = replace(
        CONFIG,
        tuning=TuningSpec(grid=Grid(C=(10.0, 1e3)), folds=3),
        calibration="sigmoid",
    )
    model = train(privileged_part, tuned, test=test_part)
    for trained in model.trained:
        assert trained.chosen["correction"] in CORRECTIONS
        assert trained.chosen["points"] == 2 * len(CORRECTIONS)
        assert trained.packed.calibration is not None


def test_privileged_columns_that_are_asked_for_by_name_are_needed(training_part):
    with pytest.raises(InvalidProblem, match="privileged columns"):
        prepare(training_part, replace(CONFIG, students=(SVMPlus(privileged="columns"),)))


def test_the_columns_are_taken_if_there_are_any_otherwise_the_teacher(training_part, privileged_part):
    for data, meant in ((training_part, "teacher"), (privileged_part, "columns")):
        problem = prepare(data, CONFIG).problem(1)
        automatic, named = (SVMPlus(privileged=one).fit(problem, Run()) for one in ("auto", meant))
        np.testing.assert_array_equal(automatic.decision, named.decision)


def test_the_same_seed_gives_the_same_bits(privileged_part):
    problem = prepare(privileged_part, CONFIG).problem(1)
    one, same = (SVMPlus().fit(problem, Run(3)) for _ in range(2))
    np.testing.assert_array_equal(one.decision, same.decision)


@pytest.mark.parametrize(
    ("values", "field"),
    [({"correction": 0.0}, "student.correction"), ({"kernel": "poly"}, "student.kernel")],
)
def test_a_wrong_hyper_parameter_is_named(values, field):
    with pytest.raises(InvalidProblem) as caught:
        SVMPlus(**values)
    assert [fault.field for fault in caught.value.faults] == [field]
