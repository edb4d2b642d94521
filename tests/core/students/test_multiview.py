"""Students that optimise a measure over views: tuned, calibrated, packed, and one view."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from core.data.dataset import LabelledData
from core.data.extras import Extras, View
from core.features.spec import FeatureSpec
from core.packed import PackedStudent
from core.run import Run
from core.solvers.measures.violation import Measure
from core.students.gated import SVM
from core.students.multiview import MultiView
from core.teachers.ssvm import SSVM
from core.training.config import TrainingConfig
from core.training.evaluation import Evaluator
from core.training.pipeline import prepare, train

CONFIG = TrainingConfig(features=FeatureSpec("linear"), teacher=SSVM(C=1e3), students=(MultiView(),))


@pytest.fixture(scope="module")
def viewed(training_part) -> LabelledData:
    """Two views, of columns 0 and 1 and of columns 3 and 4; column 2 is in neither."""
    return replace(training_part, extras=Extras(views=(View("left", 0, 2), View("right", 3, 5))))


@pytest.mark.parametrize("kind", ["linear", "nystroem"])
def test_packages_answer_like_the_students_and_columns_outside_of_views_are_not_used(viewed, test_part, kind):
    config = replace(CONFIG, features=FeatureSpec(kind, 20))
    model = train(viewed, config, test=test_part)
    evaluator = Evaluator.of(model.preparation, test_part)
    changed = test_part.X.copy()
    changed[:, 2] += 100.0
    for trained in model.trained:
        packed = model.students[trained.label]
        fitted = trained.fitted.scores(evaluator.examples)
        np.testing.assert_allclose(packed.scores(test_part.X), fitted, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(packed.scores(changed), fitted, rtol=1e-9, atol=1e-9)
        np.testing.assert_array_equal(packed.gate(test_part.X), 0.0)
        assert PackedStudent.from_bytes(packed.to_bytes()).digest == packed.digest
        assert packed.metadata["status"] == "converged"
        assert packed.metadata["measure"] == "f1"


@pytest.mark.parametrize("measure", get_args(Measure))
def test_every_measure_gives_a_ranking_of_the_classes(viewed, test_part, measure):
    model = train(viewed, replace(CONFIG, students=(MultiView(measure=measure, C=1e4),)), test=test_part)
    assert model.evaluation.mean("multiview").auc > 0.8


def test_without_views_and_with_the_error_rate_it_is_the_linear_svm(training_part):
    problem = prepare(training_part, CONFIG).problem(1)
    ours = MultiView(measure="error", C=100.0, tolerance=1e-7).fit(problem, Run())
    svm = SVM(C=100.0, tolerance=1e-8).fit(problem, Run())
    assert ours.summary.objective == pytest.approx(svm.summary.objective, rel=1e-5)
    np.testing.assert_allclose(ours.decision, svm.decision, atol=2e-2 * np.abs(svm.decision).max())


def test_k_is_a_multiple_of_the_rows_of_the_class():
    assert MultiView(measure="precision_at_k").accepted(20, 100) == 10
    assert MultiView(measure="recall_at_k").accepted(20, 100) == 40
    assert MultiView(measure="recall_at_k", k=10).accepted(20, 100) == 100
    assert MultiView(k=0.01).accepted(20, 100) == 1
