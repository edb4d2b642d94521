"""A small problem with overlapping classes, one of them rare, and its folds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core.model_selection.folds import FoldRows, Folds, make_folds, task_of_features
from core.solvers.jit import as_rows, row_norms2
from core.students.grid import Grid
from core.teachers.ssvm import SSVM

NAMES = ("a", "b", "c", "rare")


def overlapping(n: int = 160, d: int = 5, *, seed: int = 0):
    """Features with the constant 1 last, and codes of four classes; the last has three rows."""
    rng = np.random.default_rng(seed)
    codes = np.concatenate([np.arange(n - 3) % 3, np.full(3, 3)])
    centres = rng.normal(size=(4, d))
    features = centres[codes] + rng.normal(size=(n, d))
    return np.hstack([features, np.ones((n, 1))]), codes


@pytest.fixture(scope="session")
def folds() -> Folds:
    features, codes = overlapping()
    return folds_of(features, codes, (1.0, 100.0), n_folds=5, tolerance=1e-6)


def folds_of(features, codes, Cs, *, tolerance=1e-3, **arguments) -> Folds:
    """Folds of four classes; the teacher's C is one of ``Cs``."""
    specs = [SSVM(C, tolerance) for C in Cs]
    return make_folds(task_of_features(features, codes, 4), NAMES, specs, **arguments)


def with_features(folds: Folds, single) -> Folds:
    """The same folds, whose students are fitted to other features (n, m), float32."""
    rows = FoldRows(folds.rows[0].examples, single, row_norms2(as_rows(single), len(folds.labels)))
    return replace(folds, rows=(rows,) * folds.n_folds)


@pytest.fixture(scope="session")
def small_grid() -> Grid:
    return Grid(C=(0.1, 10.0, 1000.0), margins=(0.0, 0.5, 1.0), floors=(0.2, 0.5))
