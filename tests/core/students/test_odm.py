"""Students of the optimal margin distribution machine: with and without gate, tuned, calibrated, packed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core.errors import InvalidProblem
from core.features.spec import FeatureSpec
from core.run import Run
from core.students.odm import ODM
from core.teachers.ssvm import SSVM
from core.training.config import TrainingConfig
from core.training.pipeline import prepare
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


def test_a_gate_takes_a_teacher_that_is_linear_in_the_features(prepared):
    problem = replace(prepared.problem(0), gate_weights=None)
    with at_fault(InvalidProblem, "no_gate", match="linear in the features"):
        ODM().fit(problem, Run())
    ODM(gate="none").fit(problem, Run())
    assert ODM().needs == {"gate_weights"}
    assert ODM(gate="none").needs == frozenset()
