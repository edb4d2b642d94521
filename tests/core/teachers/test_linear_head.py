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
from core.teachers.linear_head import LinearHead
from core.training.config import TrainingConfig
from core.training.pipeline import prepare

RNG = np.random.default_rng(4)
WEIGHTS, BIAS = RNG.standard_normal((6, 3)), RNG.standard_normal(6)
X = RNG.standard_normal((50, 3)) * [1.0, 100.0, 0.01] + [5.0, -300.0, 0.0]


@pytest.mark.parametrize("scaling", list(Scaling))
@pytest.mark.parametrize("make", [np.asarray, sp.csr_array], ids=["dense", "sparse"])
def test_the_scores_are_those_of_the_raw_columns(scaling, make):
    feature_map = fit_feature_map(make(X), FeatureSpec(kind="linear", scaling=scaling), 0)
    teacher = LinearHead(WEIGHTS, BIAS).on(feature_map)
    np.testing.assert_allclose(
        teacher.scores(feature_map.transform(make(X))), X @ WEIGHTS.T + BIAS, rtol=1e-9, atol=1e-9
    )
    basis, coef, intercept = feature_map.fold(teacher.weights)
    np.testing.assert_allclose(basis.basis(X) @ coef.T + intercept, X @ WEIGHTS.T + BIAS, rtol=1e-9)


def test_features_that_are_not_linear_are_refused():
    feature_map = fit_feature_map(X, FeatureSpec(kind="fourier", n_components=4), 0)
    with pytest.raises(InvalidProblem) as caught:
        LinearHead(WEIGHTS, BIAS).on(feature_map)
    assert caught.value.faults[0].code == "not_linear"


def test_another_number_of_columns_is_refused():
    feature_map = fit_feature_map(X[:, :2], FeatureSpec(kind="linear"), 0)
    with pytest.raises(InvalidProblem) as caught:
        LinearHead(WEIGHTS, BIAS).on(feature_map)
    assert caught.value.faults[0].code == "wrong_columns"


@pytest.mark.parametrize(
    ("weights", "bias"), [(WEIGHTS, BIAS[:5]), (WEIGHTS[0], BIAS), (WEIGHTS * np.nan, BIAS)]
)
def test_parts_that_do_not_fit_are_refused(weights, bias):
    with pytest.raises(InvalidProblem):
        LinearHead(weights, bias)


def labelled(K=6):
    return LabelledData.from_arrays(X, np.arange(50) % K)


def test_a_given_teacher_is_not_trained_and_scores_as_given():
    config = TrainingConfig(features=FeatureSpec(kind="linear"), teacher="net@3")
    preparation = prepare(labelled(), config, head=LinearHead(WEIGHTS, BIAS))
    np.testing.assert_allclose(preparation.scores, X @ WEIGHTS.T + BIAS, rtol=1e-9, atol=1e-9)
    assert preparation.teacher.summary is None
    assert preparation.packed_teacher().metadata["method"] == "net@3"
    assert config.recipe()["teacher"] == "net@3"
    assert TrainingConfig().recipe()["teacher"] == "ssvm"


@pytest.mark.parametrize(
    ("teacher", "head"), [("ssvm", LinearHead(WEIGHTS, BIAS)), ("net@3", None)], ids=["extra", "missing"]
)
def test_a_teacher_from_outside_is_given_where_one_is_named_and_only_there(teacher, head):
    config = TrainingConfig(features=FeatureSpec(kind="linear"), teacher=teacher)
    with pytest.raises(InvalidProblem) as caught:
        prepare(labelled(), config, head=head)
    assert caught.value.faults[0].code == "other_teacher"


def test_a_teacher_of_other_classes_than_the_data_is_refused():
    config = TrainingConfig(features=FeatureSpec(kind="linear"), teacher="net@3")
    with pytest.raises(InvalidProblem) as caught:
        prepare(labelled(5), config, head=LinearHead(WEIGHTS, BIAS))
    assert caught.value.faults[0].code == "wrong_classes"
