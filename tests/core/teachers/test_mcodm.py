"""mcODM as a teacher: it trains, starts warm, packs and is restored as the structural SVM."""

from __future__ import annotations

import numpy as np
import pytest

from core.data.dataset import LabelledData
from core.errors import InvalidProblem
from core.features.spec import FeatureSpec
from core.model_selection.folds import task_of_features
from core.packed import PackedTeacher
from core.run import Run
from core.students.gated import GSVM
from core.teachers.linear import LinearTeacher
from core.teachers.mcodm import McODM
from core.teachers.ssvm import SSVM
from core.training.config import TrainingConfig
from core.training.pipeline import train
from core.training.preparation import Preparation
from tests.refusals import at_fault


def blobs(n: int = 200, seed: int = 0) -> LabelledData:
    rng = np.random.default_rng(seed)
    codes = np.arange(n) % 4
    return LabelledData.from_arrays(
        np.array([[0, 0], [3, 0], [0, 3], [3, 3]])[codes] + rng.normal(size=(n, 2)), codes
    )


def task(data: LabelledData):
    return task_of_features(np.column_stack([data.X, np.ones(data.n)]), data.y, data.K)


def test_margins_are_drawn_into_the_band():
    data = blobs()
    found, other = McODM(C=100.0).fit(task(data), Run()), SSVM(C=100.0).fit(task(data), Run())
    features = task(data).examples.features

    def spread(teacher: LinearTeacher) -> float:
        scores = teacher.feature_scores(features)
        own = scores[np.arange(data.n), data.y].copy()
        scores[np.arange(data.n), data.y] = -np.inf
        margins = own - scores.max(axis=1)
        return float(margins.std() / margins.mean())

    assert spread(found) < spread(other)
    assert found.summary is not None
    assert found.summary.status == "converged"


@pytest.mark.long
def test_a_neighbour_is_a_warm_start_and_another_teacher_none():
    data = blobs()
    cold = McODM(C=1e3, tolerance=1e-6).fit(task(data), Run())
    for start in (McODM(C=1.2e3, tolerance=1e-6).fit(task(data), Run()), SSVM().fit(task(data), Run())):
        warm = McODM(C=1e3, tolerance=1e-6).fit(task(data), Run(), start)
        # What all classes share changes no margin, and its fixed points are many.
        differences = [one.weights - one.weights.mean(axis=0) for one in (warm, cold)]
        np.testing.assert_allclose(*differences, atol=1e-2 * np.abs(cold.weights).max())


def test_it_trains_packs_and_is_restored():
    data, fresh = blobs(), blobs(400, 1)
    config = TrainingConfig(
        features=FeatureSpec("nystroem", n_components=30),
        teacher=McODM(C=1e3),
        students=(GSVM(C=100.0),),
        threshold="f1",
        folds=3,
    )
    model = train(data, config, test=fresh)
    assert model.evaluation is not None
    assert model.evaluation.mean("teacher").f1 > 0.8
    assert model.evaluation.mean("gsvm").f1 > 0.8
    packed = PackedTeacher.from_bytes(model.teacher.to_bytes())
    assert packed.metadata["method"] == "mcodm"
    assert (packed.predict(fresh.X) == fresh.y).mean() > 0.8
    again = Preparation.from_bytes(model.preparation.to_bytes(), data, config)
    np.testing.assert_array_equal(again.scores, model.preparation.scores)


@pytest.mark.parametrize("wrong", [{"C": 0.0}, {"band": 1.0}, {"excess": 0.0}, {"max_outer": 0}])
def test_wrong_hyper_parameters_are_named(wrong):
    with at_fault(InvalidProblem, field=f"teacher.{next(iter(wrong))}"):
        McODM(**wrong)
