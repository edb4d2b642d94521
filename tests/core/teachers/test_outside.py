"""Scores from outside as teacher: students follow them, folds distil on their own, nothing else is needed."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier

from core.data.dataset import LabelledData
from core.data.extras import RawExtras
from core.errors import InvalidProblem
from core.features.spec import FeatureSpec
from core.run import Run
from core.students.compact import Compact
from core.students.gated import GSVM
from core.students.polytope import Polytope
from core.teachers.distilled import distilled_weights
from core.teachers.linear_head import ImportedHead, LinearHead
from core.teachers.outside import OutsideScores
from core.training.config import TrainingConfig
from core.training.evaluation import Evaluator
from core.training.pipeline import prepare, train

RNG = np.random.default_rng(5)
CODES = np.arange(150) % 3
X = RNG.normal(size=(150, 4)) + 2.0 * np.eye(3, 4)[CODES]
HEAD = LinearHead(RNG.normal(size=(3, 4)) + np.eye(3, 4) * 3.0, RNG.normal(size=3))
LINEAR = FeatureSpec("linear")


def with_scores(scores, rows=slice(None)) -> LabelledData:
    return LabelledData.from_arrays(X[rows], CODES[rows], extras=RawExtras(teacher_scores=scores))


def head_scores() -> np.ndarray:
    return X @ HEAD.weights.T + HEAD.bias


@pytest.mark.parametrize(
    "student", [GSVM(C=300.0, tolerance=1e-8), Polytope(pieces=2, C=300.0, tolerance=1e-8)]
)
def test_a_head_as_weights_and_as_its_scores_gives_the_same_students(student):
    common = {"features": LINEAR, "students": (student,), "threshold": "f1", "folds": 3}
    by_scores = train(with_scores(head_scores()), TrainingConfig(teacher=OutsideScores(), **common))
    by_weights = train(with_scores(None), TrainingConfig(teacher=ImportedHead("head", HEAD), **common))

    for label, one in by_scores.students.items():
        expected = by_weights.students[label].scores(X)
        np.testing.assert_allclose(one.scores(X), expected, atol=1e-3 * np.abs(expected).max())
        np.testing.assert_allclose(one.threshold, by_weights.students[label].threshold, atol=0.02)
    np.testing.assert_allclose(by_scores.teacher.scores(X), head_scores(), rtol=1e-3, atol=1e-3)
    assert by_scores.teacher.metadata["stand_in"] == "distilled"
    assert by_scores.teacher.metadata["seen_rows"] == "unknown"


def test_students_of_a_forest_s_scores_on_kernel_features():
    learnt = np.random.default_rng(1).permutation(150)[:75]
    others = np.setdiff1d(np.arange(150), learnt)
    forest = RandomForestClassifier(50, random_state=0).fit(X[learnt], CODES[learnt])
    scores = np.log(np.maximum(forest.predict_proba(X[others]), 1e-3))
    config = TrainingConfig(
        features=FeatureSpec("nystroem", 40),
        teacher=OutsideScores(),
        students=(GSVM(C=300.0), Polytope(C=300.0), Compact(n_landmarks=20, steps=50)),
        threshold="f1",
        folds=3,
    )
    data = with_scores(scores, others)
    model = train(data, config, test=data)

    np.testing.assert_array_equal(model.preparation.scores, scores)
    assert model.evaluation is not None
    for method in ("teacher", "gsvm", "polytope", "compact"):
        assert (model.evaluation.mean(method).f1 or 0.0) > 0.75


def test_a_fold_distils_on_its_training_rows_only():
    scores = RNG.normal(size=(150, 3))
    data = with_scores(scores)
    config = TrainingConfig(features=LINEAR, teacher=OutsideScores(), threshold="f1", folds=3)
    folds = prepare(data, config).folds()
    features = np.asarray(folds.task.examples.features)
    for number in range(3):
        fold = folds.fold(number, 1)
        rows = np.flatnonzero(fold.is_training)
        weights = distilled_weights(features[rows], scores[rows], Run())
        np.testing.assert_allclose(fold.problem.gate_weights, weights[1], rtol=1e-9)
        np.testing.assert_array_equal(fold.problem.gate, scores[:, 1])
        np.testing.assert_allclose(fold.problem.linear_gate, features @ weights[1], rtol=1e-9)


def test_a_test_part_is_measured_by_its_own_scores_or_by_the_distilled_weights():
    scores = np.where(np.arange(3) == CODES[:, None], 1.0, 0.0)
    preparation = prepare(with_scores(scores), TrainingConfig(features=LINEAR, teacher=OutsideScores()))
    with_own = Evaluator.of(preparation, with_scores(np.roll(scores, 1, axis=1)))
    without = Evaluator.of(preparation, with_scores(None))

    assert with_own.teacher(0).metrics.f1 == 0.0
    np.testing.assert_allclose(without.scores, preparation.packed_teacher().scores(X), rtol=1e-9, atol=1e-12)
    assert (without.teacher(0).metrics.f1 or 0.0) > 0.7


def test_data_without_scores_are_refused_by_name():
    with pytest.raises(InvalidProblem, match="scores of a teacher") as caught:
        prepare(with_scores(None), TrainingConfig(features=LINEAR, teacher=OutsideScores()))
    assert [fault.field for fault in caught.value.faults] == ["teacher_scores"]
