"""A small problem with overlapping classes, one of them rare, and its folds."""

from __future__ import annotations

import numpy as np
import pytest

from core.model_selection.folds import TuningFolds, make_folds
from core.model_selection.grid import Grid


def overlapping(n: int = 160, d: int = 5, *, seed: int = 0):
    """Features with the constant 1 last, and codes of four classes; the last has three rows."""
    rng = np.random.default_rng(seed)
    codes = np.concatenate([np.arange(n - 3) % 3, np.full(3, 3)])
    centres = rng.normal(size=(4, d))
    features = centres[codes] + rng.normal(size=(n, d))
    return np.hstack([features, np.ones((n, 1))]), codes


@pytest.fixture(scope="session")
def folds() -> TuningFolds:
    features, codes = overlapping()
    return make_folds(
        features, codes, ("a", "b", "c", "rare"), teacher_Cs=(1.0, 100.0), n_folds=5, tolerance=1e-6
    )


@pytest.fixture(scope="session")
def small_grid() -> Grid:
    return Grid(C=(0.1, 10.0, 1000.0), margins=(0.0, 0.5, 1.0), floors=(0.2, 0.5))
