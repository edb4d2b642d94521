"""A head from outside scores standardised features as it scores raw columns."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from core.data.dataset import LabelledData
from core.data.scaling_kind import Scaling
from core.errors import InvalidProblem
from core.features.maps import fit_feature_map
from core.features.spec import FeatureSpec
from core.teachers.linear_head import ImportedHead, LinearHead
from core.training.config import TrainingConfig
from core.training.pipeline import prepare
from core.training.preparation import Preparation
from tests.refusals import at_fault

RNG = np.random.default_rng(4)
WEIGHTS, BIAS = RNG.standard_normal((6, 3)), RNG.standard_normal(6)
X = RNG.standard_normal((50, 3)) * [1.0, 100.0, 0.01] + [5.0, -300.0, 0.0]

HEAD = ImportedHead("net@3", LinearHead(WEIGHTS, BIAS))


@pytest.mark.parametrize("scaling", list(Scaling))
@pytest.mark.parametrize("make", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
def test_the_scores_are_those_of_the_raw_columns(scaling, make):
    feature_map = fit_feature_map(make(X), FeatureSpec(kind="linear", scaling=scaling), 0)
    teacher = LinearHead(WEIGHTS, BIAS).on(feature_map)
    np.testing.assert_allclose(
        teacher.feature_scores(feature_map.transform(make(X))), X @ WEIGHTS.T + BIAS, rtol=1e-9, atol=1e-9
    )
    basis, coef, intercept = feature_map.fold(teacher.weights)
    np.testing.assert_allclose(basis.basis(X) @ coef.T + intercept, X @ WEIGHTS.T + BIAS, rtol=1e-9)


def test_features_that_are_not_linear_are_refused():
    feature_map = fit_feature_map(X, FeatureSpec(kind="fourier", n_components=4), 0)
    with at_fault(InvalidProblem, "not_linear"):
        LinearHead(WEIGHTS, BIAS).on(feature_map)


def test_another_number_of_columns_is_refused():
    feature_map = fit_feature_map(X[:, :2], FeatureSpec(kind="linear"), 0)
    with at_fault(InvalidProblem, "wrong_columns"):
        LinearHead(WEIGHTS, BIAS).on(feature_map)


@pytest.mark.parametrize(
    ("weights", "bias"), [(WEIGHTS, BIAS[:5]), (WEIGHTS[0], BIAS), (WEIGHTS * np.nan, BIAS)]
)
def test_parts_that_do_not_fit_are_refused(weights, bias):
    with pytest.raises(InvalidProblem):
        LinearHead(weights, bias)


def labelled(K=6):
    return LabelledData.from_arrays(X, np.arange(50) % K)


def test_a_given_teacher_is_not_trained_and_scores_as_given():
    config = TrainingConfig(features=FeatureSpec(kind="linear"), teacher=HEAD)
    preparation = prepare(labelled(), config)
    np.testing.assert_allclose(preparation.scores, X @ WEIGHTS.T + BIAS, rtol=1e-9, atol=1e-9)
    assert preparation.teacher.summary is None
    assert preparation.packed_teacher().metadata["method"] == "net@3"
    assert preparation.packed_teacher().metadata["seen_rows"] == "unknown"
    assert config.recipe()["teacher"] == {"name": "imported", "reference": "net@3"}
    assert TrainingConfig().recipe()["teacher"]["name"] == "ssvm"


def test_an_imported_teacher_is_the_teacher_of_every_fold_and_needs_no_weights_to_be_restored():
    config = TrainingConfig(features=FeatureSpec(kind="linear"), teacher=HEAD, threshold="f1", folds=3)
    preparation = prepare(labelled(), config)
    assert len(preparation.fold_teachers) == 3
    for teacher in preparation.fold_teachers:
        np.testing.assert_array_equal(teacher.weights, preparation.teacher.weights)
    without = TrainingConfig(
        features=FeatureSpec(kind="linear"), teacher=ImportedHead("net@3"), threshold="f1", folds=3
    )
    again = Preparation.from_bytes(preparation.to_bytes(), labelled(), without)
    np.testing.assert_array_equal(again.scores, preparation.scores)


def test_a_named_head_without_weights_cannot_be_prepared():
    config = TrainingConfig(features=FeatureSpec(kind="linear"), teacher=ImportedHead("net@3"))
    with at_fault(InvalidProblem, "no_head"):
        prepare(labelled(), config)


def test_a_teacher_of_other_classes_than_the_data_is_refused():
    config = TrainingConfig(features=FeatureSpec(kind="linear"), teacher=HEAD)
    with at_fault(InvalidProblem, "wrong_classes"):
        prepare(labelled(5), config)
