"""SVM+ students: privileged columns or the teacher, tuned, calibrated, packed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core.data.dataset import LabelledData
from core.data.extras import Extras
from core.errors import InvalidProblem
from core.features.spec import FeatureSpec
from core.run import Run
from core.students.svm_plus import SVMPlus
from core.teachers.ssvm import SSVM
from core.training.config import TrainingConfig
from core.training.pipeline import prepare

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


def test_privileged_columns_that_are_asked_for_by_name_are_needed(training_part):
    with pytest.raises(InvalidProblem, match="privileged columns"):
        prepare(training_part, replace(CONFIG, students=(SVMPlus(privileged="columns"),)))


def test_the_columns_are_taken_if_there_are_any_otherwise_the_teacher(training_part, privileged_part):
    for data, meant in ((training_part, "teacher"), (privileged_part, "columns")):
        problem = prepare(data, CONFIG).problem(1)
        automatic, named = (SVMPlus(privileged=one).fit(problem, Run()) for one in ("auto", meant))
        np.testing.assert_array_equal(automatic.decision, named.decision)
