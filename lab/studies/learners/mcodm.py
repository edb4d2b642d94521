"""mcODM against the structural SVM as a teacher, on the same features, with the same number of points tried.

Of every set at most 2000 rows of the training part are drawn; two thirds are learnt, one third is measured.
The test parts are not read. Both choose among ten points by 3-fold cross-validation on the rows learnt, then
learn all of them at the point chosen. Intervals are 95 % of the mean over the splits (1.96 standard errors)
of the paired differences; the splits of a set share rows, so that they are somewhat too narrow.

    mcodm              by set: error of both in %, difference (SVM's less mcODM's) with its interval, seconds
    mcodm_gain         mean of the differences over the sets, with an interval over the sets
    mcodm_time_vs_ssvm mean over the sets of the ratio of training times at the points chosen
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from core.data.fold_assignment import fold_assignment
from core.features.examples import Examples
from core.features.maps import fit_feature_map
from core.features.spec import FeatureSpec
from core.model_selection.folds import tune_teacher
from core.run import Run
from core.solvers.threads import one_blas_thread
from core.teachers.base import Task, TeacherSpec
from core.teachers.mcodm import McODM
from core.teachers.ssvm import SSVM
from tests.system.data import present, training_part

SETS: Final = (
    "vowel",
    "segment",
    "satimage",
    "yeast",
    "pendigits",
    "letter",
    "usps",
    "dna",
    "mfeat",
    "scene15",
)
ROWS, QUICK_ROWS = 2000, 900
SPLITS, QUICK_SPLITS = 5, 2
FEATURES: Final = FeatureSpec("nystroem", n_components=300)
SVMS: Final = tuple(SSVM(C=10.0 ** (power / 2.0)) for power in range(2, 12))
ODMS: Final = tuple(McODM(C=10.0**power, band=band) for band in (0.2, 0.6) for power in range(1, 6))


def measure(quick: bool) -> dict[str, Any]:
    """The figures above, JSON-ready; quick: 900 rows and 2 splits of a set instead of 2000 and 5."""
    found: dict[str, Any] = {}
    for name, X, y in sets(QUICK_ROWS if quick else ROWS):
        splits = [measure_split(X, y, seed) for seed in range(QUICK_SPLITS if quick else SPLITS)]
        found[name] = summary(splits)
        print(f"{name:10}", "  ".join(f"{key} {value}" for key, value in found[name].items()), flush=True)
    gains = [one["gain"] for one in found.values()]
    return {
        "mcodm": found,
        "mcodm_gain": float(np.mean(gains)),
        "mcodm_gain_interval": interval(gains),
        "mcodm_time_vs_ssvm": float(np.mean([one["time_ratio"] for one in found.values()])),
    }


def sets(rows: int) -> Iterator[tuple[str, Any, Any]]:
    """Rows (n, d) and codes (n,) of each set whose file is there; the others are named on standard error."""
    for name in present(SETS):
        X, y = training_part(name)
        drawn = np.random.default_rng(0).permutation(len(y))[:rows]
        yield name, X[drawn], np.unique(y[drawn], return_inverse=True)[1]


def measure_split(X: Any, y: Any, seed: int) -> dict[str, tuple[float, float]]:
    """Error in % on a third of the rows, and seconds of training on the rest, of both teachers."""
    fold_of = fold_assignment(y, 3, seed)
    learnt, measured = np.flatnonzero(fold_of), np.flatnonzero(fold_of == 0)
    K = int(y.max()) + 1
    with one_blas_thread():
        feature_map = fit_feature_map(X[learnt], FEATURES, seed)
        task = Task(Examples.of_features(feature_map.transform(X[learnt])), y[learnt], K)
        asked = Examples.of_features(feature_map.transform(X[measured]))
        found = {}
        for name, points in (("ssvm", SVMS), ("mcodm", ODMS)):
            spec = chosen(task, points, seed)
            started = time.perf_counter()
            teacher = spec.fit(task, Run(seed=seed))
            seconds = time.perf_counter() - started
            wrong = teacher.scores(asked, Run()).argmax(axis=1) != y[measured]
            found[name] = (100.0 * float(wrong.mean()), seconds)
    return found


def chosen(task: Task, points: Sequence[TeacherSpec], seed: int) -> TeacherSpec:
    """The point with the best accuracy on held-out rows of three folds."""
    return tune_teacher(task, points, fold_assignment(task.labels, 3, seed), Run(seed=seed, n_threads=1)).spec


def summary(splits: Sequence[dict[str, tuple[float, float]]]) -> dict[str, Any]:
    """Means over the splits."""
    errors = {name: [split[name][0] for split in splits] for name in ("ssvm", "mcodm")}
    gains = [svm - odm for svm, odm in zip(errors["ssvm"], errors["mcodm"], strict=True)]
    seconds = {name: float(np.mean([split[name][1] for split in splits])) for name in ("ssvm", "mcodm")}
    return {
        "ssvm": round(float(np.mean(errors["ssvm"])), 2),
        "mcodm": round(float(np.mean(errors["mcodm"])), 2),
        "gain": round(float(np.mean(gains)), 3),
        "interval": interval(gains),
        "time_ratio": round(seconds["mcodm"] / seconds["ssvm"], 2),
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
    }


def interval(values: Sequence[float]) -> list[float]:
    """95 % interval of the mean."""
    half = 1.96 * float(np.std(values, ddof=1)) / np.sqrt(len(values)) if len(values) > 1 else float("nan")
    return [round(float(np.mean(values) - half), 3), round(float(np.mean(values) + half), 3)]
