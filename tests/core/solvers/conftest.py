from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from core.solvers.crammer_singer import CrammerSingerProblem
from core.solvers.gated_hinge import GatedHingeProblem


def gated_problem(
    n: int = 60, m: int = 8, C: float = 10.0, positives: int = 15, seed: int = 0, dtype: type = np.float64
) -> GatedHingeProblem:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, m))
    features[:, -1] = 1.0
    signs = np.where(np.arange(n) < positives, 1.0, -1.0)
    gate = signs * rng.normal(0.5, 1.0, n)
    difficulty = rng.uniform(0.3, 1.0, n)
    return GatedHingeProblem.gated(
        features.astype(dtype), signs, gate, C=C, margin=1.0, difficulty=difficulty
    )


def multiclass_problem(
    n: int = 60, m: int = 6, K: int = 4, bound: float = 0.5, seed: int = 0
) -> CrammerSingerProblem:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, K, n)
    features = rng.normal(size=(n, m)) + 0.7 * rng.normal(size=(K, m))[labels]
    features[:, -1] = 1.0
    return CrammerSingerProblem(features, labels, K, bound)


@pytest.fixture
def make_gated() -> Callable[..., GatedHingeProblem]:
    return gated_problem


@pytest.fixture
def make_multiclass() -> Callable[..., CrammerSingerProblem]:
    return multiclass_problem
