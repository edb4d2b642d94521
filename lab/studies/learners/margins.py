"""ODM and SVM+ against SVM students at equal features, C of each chosen by 3 folds of the training rows.

ODM on random splits of the training parts of six sets: 300 rows to learn from, up to 900 to measure. SVM+ on
200 rows of cwru_lupi with its privileged columns, and of mfeat with the view ``fac`` privileged for ``zer``.
All with the exact RBF kernel and the threshold 0, SVM+ and its SVM with the threshold that the folds choose
for the accuracy.

``margins`` and ``privileged``: by set and method, the mean error over classes and splits in per cent; with
the name of the SVM behind it, the difference to its error, [mean, half of a 95 % interval over the splits].
``privileged_seconds``: the longest time of an SVM+ fit, of one class.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from core.data.dataset import LabelledData
from core.data.extras import Extras
from core.features.spec import FeatureSpec
from core.model_selection.tuning_spec import TuningSpec
from core.run import Run
from core.students.base import StudentSpec
from core.students.gated import GSVM0, SVM
from core.students.grid import Grid
from core.students.odm import ODM
from core.students.svm_plus import SVMPlus
from core.teachers.ssvm import SSVM
from core.training.config import TrainingConfig
from core.training.pipeline import prepare, train
from tests.system.data import arrays_of

SETS = ("mfeat", "pendigits", "satimage", "segment", "vowel", "yeast")
PLAIN = ((SVM(), ODM(gate="none")), (GSVM0(), ODM()))
"""Pairs without and with a gate; the first of each pair is the SVM."""
TUNING = TuningSpec(grid=Grid(C=(10.0, 1e2, 1e3, 1e4, 1e5)), folds=3, metric="accuracy")


def measure(quick: bool = False) -> dict[str, Any]:
    """The figures above. quick: 2 splits of two sets instead of 20 of all."""
    splits = 2 if quick else 20
    margins = {}
    for name in SETS[-2:] if quick else SETS:
        data = load(name)
        margins[name] = {
            key: value
            for students in PLAIN
            for key, value in compared(data, students, splits, 300, "zero").items()
        }
    privileged, seconds = {}, 0.0
    for name, data in (("cwru_lupi", load("cwru_lupi")), ("mfeat_zer_fac", mfeat_views())):
        privileged[name] = compared(data, (SVM(), SVMPlus()), splits, 200, "accuracy")
        seconds = max(seconds, seconds_of(data))
    return {"margins": margins, "privileged": privileged, "privileged_seconds": round(seconds, 2)}


def compared(
    data: LabelledData, students: tuple[StudentSpec, ...], splits: int, rows: int, rule: Any
) -> dict[str, Any]:
    """Errors of students in per cent, and those of all but the first minus the first's."""
    config = TrainingConfig(
        features=FeatureSpec("kernel"),
        teacher=SSVM(C=1e4),
        students=students,
        tuning=TUNING,
        threshold=rule,
    )
    errors = np.array([errors_of(data, config, rows, seed) for seed in range(splits)])
    figures: dict[str, Any] = {}
    for column, spec in enumerate(students):
        key = f"{spec.name}-gated" if isinstance(spec, ODM) and spec.gate == "teacher" else spec.name
        figures[key] = round(float(errors[:, column].mean()), 2)
        if column:
            difference = errors[:, column] - errors[:, 0]
            half = 1.96 * difference.std(ddof=1) / np.sqrt(splits)
            figures[f"{key}-{students[0].name}"] = [round(float(difference.mean()), 2), round(float(half), 2)]
    return figures


def errors_of(data: LabelledData, config: TrainingConfig, rows: int, seed: int) -> list[float]:
    """Mean error of each student over the classes of one split, in per cent."""
    learnt, measured = split(data, rows, seed)
    model = train(learnt, config, test=measured, run=Run(n_threads=1))
    assert model.evaluation is not None
    found = [model.evaluation.mean(spec.name).accuracy for spec in config.students]
    return [100.0 * (1.0 - (accuracy or 0.0)) for accuracy in found]


def split(data: LabelledData, rows: int, seed: int) -> tuple[LabelledData, LabelledData]:
    """So many rows to learn from, at least four of each class, and up to three times as many to measure."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(data.n)
    rank = np.empty(data.n, dtype=np.int64)
    for code in range(data.K):
        own = order[data.y[order] == code]
        rank[own] = np.arange(len(own))
    first = order[np.argsort(rank[order] >= 4, kind="stable")]
    learnt, measured = first[:rows], first[rows : 4 * rows]
    return taken(data, learnt), replace(taken(data, measured), extras=Extras())


def taken(data: LabelledData, rows: np.ndarray) -> LabelledData:
    """Some of the rows."""
    return replace(data, X=data.X[rows], y=data.y[rows], extras=data.extras.take(rows))


def seconds_of(data: LabelledData) -> float:
    """The longest time of an SVM+ fit with default hyper-parameters, of one class of 200 rows."""
    learnt, _ = split(data, 200, 0)
    prepared = prepare(learnt, TrainingConfig(features=FeatureSpec("kernel"), students=(SVMPlus(),)))
    longest = 0.0
    for target in range(learnt.K):
        started = time.perf_counter()
        SVMPlus().fit(prepared.problem(target), Run())
        longest = max(longest, time.perf_counter() - started)
    return longest


def load(name: str) -> LabelledData:
    """The training part of a set, with its privileged columns; classes with fewer than ten rows left out."""
    with arrays_of(name) as arrays:
        X, y = arrays["X_train"].astype(np.float64), arrays["y_train"]
        privileged = arrays["Xpriv_train"].astype(np.float64) if "Xpriv_train" in arrays else None
    kept = np.flatnonzero(np.isin(y, [code for code in np.unique(y) if (y == code).sum() >= 10]))
    data = LabelledData.from_arrays(X[kept], y[kept])
    return data if privileged is None else replace(data, extras=Extras(privileged=privileged[kept]))


def mfeat_views() -> LabelledData:
    """mfeat by its view ``zer``, with the view ``fac`` as privileged columns."""
    data = load("mfeat")
    with arrays_of("mfeat") as arrays:
        names, offsets = arrays["view_names"].tolist(), arrays["view_offsets"]
    columns = {name: slice(offsets[k], offsets[k + 1]) for k, name in enumerate(names)}
    privileged = np.ascontiguousarray(data.X[:, columns["fac"]])
    return replace(
        data, X=np.ascontiguousarray(data.X[:, columns["zer"]]), extras=Extras(privileged=privileged)
    )
