"""mcODM as a teacher: it trains, starts warm, packs and is restored as the structural SVM."""

from __future__ import annotations

import numpy as np
import pytest

from core.data.dataset import LabelledData
from core.model_selection.folds import task_of_features
from core.run import Run
from core.teachers.linear import LinearTeacher
from core.teachers.mcodm import McODM
from core.teachers.ssvm import SSVM


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
