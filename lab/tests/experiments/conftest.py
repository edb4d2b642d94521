"""Small data sets in files, and hand-made results."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.features.spec import FeatureSpec
from core.students.grid import Grid
from lab.experiments import parts
from lab.experiments.compact import TEACHER, point_name, run_of
from lab.experiments.paper import METHODS
from lab.experiments.plans import CURVES, Effort, Plan, plan_for
from lab.experiments.probabilities import NAME
from lab.experiments.protocol import student_name
from lab.experiments.report.results import Results, read, update
from lab.experiments.store import Run, Store, body


def clusters(seed: int, sizes: tuple[int, ...] = (30, 20, 14)) -> tuple[np.ndarray, np.ndarray]:
    """Overlapping groups of points in the plane, one a class; labels 1, 2, ..."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(1, len(sizes) + 1), sizes)
    angles = 2.0 * np.pi * labels / len(sizes)
    X = np.c_[np.cos(angles), np.sin(angles)] + 0.45 * rng.standard_normal((len(labels), 2))
    order = rng.permutation(len(labels))
    return X[order].astype(np.float32), labels[order].astype(np.int32)


EFFORT = Effort(seed=0, n_threads=1, replicates=5)


def small(data_set: str, grid: str) -> Plan:
    """The plan of a data set, with few points, folds and features."""
    plan = plan_for(data_set, grid)  # type: ignore[arg-type]
    linear = plan.search.features.kind == "linear"
    search = replace(
        plan.search,
        features=plan.search.features if linear else FeatureSpec("nystroem", n_components=12),
        teacher_C=(1e1, 1e2),
        scalings=plan.search.scalings[:1],
        gamma_factors=plan.search.gamma_factors[:2],
        folds=3,
        rows=120,
    )
    few = Grid(C=(1e1, 1e3), margins=(0.5, 1.0), floors=(0.3,))
    return replace(plan, search=search, grid=few, folds=3, splits=min(plan.splits, 2))


@pytest.fixture
def _small_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "plan_for", small)


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


CHOSEN = {"C": 10.0, "margin": 0.5, "floor": 0.3, "threshold": 0.0, "cv_score": 0.65, "points": 12}


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
        "chosen": CHOSEN,
        "solution": {"status": "converged"},
        "seconds": 30.0,
    }


def gather(store: Store, effort: Effort = EFFORT, kept: Store | None = None) -> Results:
    """What a report of a work folder shows."""
    kept = Store(store.path.with_name("kept.jsonl")) if kept is None else kept
    update(kept, store, effort)
    return read(kept, effort)


def rewrite(store: Store, run: Run, name: str, **changed: Any) -> None:
    """Store a record of a run again with other values."""
    record = store.read(run.key(name))
    assert record is not None
    recipe = changed.pop("recipe", record["recipe"])
    store.write(run.key(name), recipe, {**body(record), **changed})


def fill(store: Store, run: Run, f1_of: dict[str, list[float | None]], *, shift: float = 0.0) -> None:
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
    store.write(run.key("setting"), "r", setting)
    for method in METHODS:
        for code, label in enumerate(labels):
            made = record(label, f1_of[method][code], shift=shift)
            if method == "teacher":
                del made["chosen"], made["solution"]
            store.write(run.key(student_name(code, method)), "r", made)
    whole = {"teacher": 4e-5, "remark_2": 3e-5, "student": 2e-5}
    scoring = {"teacher": 2e-6, "student": 1e-6}
    timed = {"seconds_per_query": whole, "seconds_for_scoring": scoring, "classes_evaluated": 2.5}
    store.write(run.key("inference"), "r", {**timed, "classes": len(labels), "basis": 9, "seconds": 1.0})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Vowel on both grids, one split; gSVM is good on the open grid and in the wrong order on the paper's."""
    made = Store(tmp_path / "work.jsonl")
    good: dict[str, list[float | None]] = {
        "teacher": [0.7, 0.8, 0.9],
        "svm": [0.2, 0.3, 0.4],
        "gsvm0": [0.5, 0.6, 0.7],
        "gsvm": [0.6, 0.7, None],
    }
    fill(made, Run("vowel", "open", 0), good)
    fill(made, Run("vowel", "paper", 0), {**good, "gsvm": [0.4, 0.5, 0.6]})
    return made


def fill_probabilities(store: Store, run: Run) -> None:
    """Probabilities of three classes: Brier 0.04 against 0.2, two bins each; isotonic for the first one."""
    scores = {"brier": 0.04, "base_brier": 0.2, "error": 0.05}
    bins = [
        {"low": 0.0, "high": 0.1, "count": 30, "probability": 0.05, "observed": 0.1},
        {"low": 0.9, "high": 1.0, "count": 10, "probability": 0.95, "observed": 1.0},
    ]
    classes = [{"label": f"c{code}", "positives": 40, **scores} for code in range(3)]
    kinds = {
        kind: {"kind": kind, **scores, "pooled_error": 0.05, "classes": of_kind, "bins": bins}
        for kind, of_kind in (("sigmoid", classes), ("isotonic", classes[:1]))
    }
    made = {"protocol": "r", "n_classes": 3, "other_students": ["c2"], "kinds": kinds, "seconds": 18.0}
    store.write(run.key(NAME), "p", made)


def fill_curve(store: Store, data_set: str, f1_of_sizes: dict[int, float]) -> None:
    """A curve over two classes with the mean F given by number of landmarks."""
    run, plan = run_of(data_set), asdict(CURVES[data_set])
    teacher = {"plan": plan, "classes": 2, "rows": 100, "test_rows": 50, "teacher_f1": 95.0}
    store.write(run.key(TEACHER), "c", {**teacher, "teacher_auc": 99.0, "seconds": 12.0})
    for size, f1 in f1_of_sizes.items():
        point = {
            "landmarks": size,
            "f1": 100.0 * f1,
            "f1_low": 100.0 * f1 - 0.9,
            "f1_high": 100.0 * f1 + 1.0,
            "auc": 98.0,
            "relative_time": 0.125,
            "relative_to_remark_2": 0.25,
            "seconds_per_query": 2.5e-6,
            "teacher_seconds_per_query": 2e-5,
            "relative_cost": size / 2500,
            "gate_r2": 0.9,
            "training_seconds": 16.0,
            "seconds": 8.0,
        }
        store.write(run.key(point_name(size)), "c", point)
