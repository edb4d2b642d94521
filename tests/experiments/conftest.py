"""Small data sets in files, and hand-made results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.paper import METHODS
from experiments.results import ResultStore, Run, student_name


def clusters(seed: int, sizes: tuple[int, ...] = (30, 20, 14)) -> tuple[np.ndarray, np.ndarray]:
    """Overlapping groups of points in the plane, one a class; labels 1, 2, ..."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(1, len(sizes) + 1), sizes)
    angles = 2.0 * np.pi * labels / len(sizes)
    X = np.c_[np.cos(angles), np.sin(angles)] + 0.45 * rng.standard_normal((len(labels), 2))
    order = rng.permutation(len(labels))
    return X[order].astype(np.float32), labels[order].astype(np.int32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with vowel, yeast (clusters), protein_val_part (the same in chains), reuters_r8 (counts)."""
    place = tmp_path / "data"
    place.mkdir()
    (X, y), (Z, w) = clusters(0), clusters(1)
    np.savez(place / "vowel.npz", X_train=X, y_train=y, X_test=Z, y_test=w)
    chains = np.arange(len(y)) // 8
    np.savez(place / "protein_val_part.npz", X_train=X, y_train=y, X_test=Z, y_test=w, chain_train=chains)
    names = np.array(["-", "one", "two", "three"])
    np.savez(place / "yeast.npz", X_train=X, y_train=y, X_test=Z, y_test=w, class_names=names)
    counts = {}
    for part, labels, seed in (("train", y, 2), ("test", w, 3)):
        rng = np.random.default_rng(seed)
        table = rng.poisson(0.2, (len(labels), 12)) + 2 * (np.arange(12) % 3 == (labels - 1)[:, None])
        rows, columns = np.nonzero(table)
        counts |= {
            f"X_{part}_data": table[rows, columns].astype(np.float32),
            f"X_{part}_indices": columns.astype(np.int32),
            f"X_{part}_indptr": np.r_[0, np.cumsum((table > 0).sum(axis=1))].astype(np.int32),
            f"X_{part}_shape": np.array(table.shape),
            f"y_{part}": labels,
        }
    np.savez(place / "reuters_r8.npz", **counts)
    return place


def record(label: str, f1: float | None, *, shift: float = 0.0) -> dict[str, Any]:
    """A result with figures that can be checked by hand: accuracy 0.9, AUC 0.8, the F given."""
    value = np.nan if f1 is None else f1
    return {
        "label": label,
        "metrics": {"accuracy": 0.9 + shift, "f1": f1, "auc": 0.8, "tp": 3, "fn": 1, "fp": 0, "tn": 6},
        "replicates": {
            "accuracy": [0.88, 0.92],
            "f1": [None if np.isnan(value) else value - 0.1, None],
            "auc": [0.7, 0.9],
        },
        "roc": {"false_positive_rate": [0.0, 0.5, 1.0], "true_positive_rate": [0.0, 0.8, 1.0]},
        "classes_evaluated": 1.0,
        "seconds": 30.0,
    }


def fill(store: ResultStore, run: Run, f1_of: dict[str, list[float | None]], *, shift: float = 0.0) -> None:
    """A complete run with the F given by method and class."""
    labels = [f"c{code}" for code in range(len(f1_of["gsvm"]))]
    features = {"kind": "nystroem", "n_components": 500, "gamma": None, "scaling": "zscore"}
    setting = {
        "features": features,
        "teacher_C": 100.0,
        "trace": [],
        "classes": labels,
        "grouped": False,
        "seconds": 60.0,
    }
    store.write(run, "setting", "r", setting)
    for method in METHODS:
        for code, label in enumerate(labels):
            store.write(run, student_name(code, method), "r", record(label, f1_of[method][code], shift=shift))
    whole = {"teacher": 4e-5, "remark_2": 3e-5, "student": 2e-5}
    scoring = {"teacher": 2e-6, "student": 1e-6}
    timed = {"seconds_per_query": whole, "seconds_for_scoring": scoring, "classes_evaluated": 2.5}
    store.write(run, "inference", "r", {**timed, "classes": len(labels), "basis": 9, "seconds": 1.0})


@pytest.fixture
def store(tmp_path: Path) -> ResultStore:
    """Vowel on both grids, one split; gSVM is good on the open grid and in the wrong order on the paper's."""
    made = ResultStore(tmp_path / "work")
    good: dict[str, list[float | None]] = {
        "teacher": [0.7, 0.8, 0.9],
        "svm": [0.2, 0.3, 0.4],
        "gsvm0": [0.5, 0.6, 0.7],
        "gsvm": [0.6, 0.7, None],
    }
    fill(made, Run("vowel", "open", 0), good)
    fill(made, Run("vowel", "paper", 0), {**good, "gsvm": [0.4, 0.5, 0.6]})
    return made
