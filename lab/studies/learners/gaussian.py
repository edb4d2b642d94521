"""GPC, GPC+ and SVM+ against SVM and calibrated gSVM on rows that have privileged data.

Each task is split at random into 200 training rows and the rest, which is measured; all rows are of the
training part of its set, the test parts are not read. cwru_lupi: privileged columns as published; only every
second window of a recording, since neighbouring windows overlap by half. mfeat: one view is privileged for
another, with students of its first five classes alone, since a split takes a minute. Methods answer one class
against the rest, at threshold 0, and the figures of a split are means over these classes:

    svc       RBF SVM of scikit-learn, C and γ by 3-fold cross-validation, with probabilities of its sigmoid
    svm, gsvm on the exact kernel, C by 3-fold cross-validation, calibrated by a sigmoid on these folds
    svm+      the same with the privileged columns
    gpc, gpc+ as they are; gpc+noise has normal noise as privileged columns

Intervals are 95 % of the mean over the splits (1.96 standard errors); differences are paired. Training sets
of different splits share rows, so that the intervals are somewhat too narrow. ``seconds_a_class`` is the
processor time of the longest fit of GPC or GPC+ to the rows of the first split.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from core.data.dataset import LabelledData
from core.data.extras import RawExtras
from core.features.spec import FeatureSpec
from core.model_selection.tuning_spec import TuningSpec
from core.run import Run
from core.solvers.threads import one_blas_thread
from core.students.base import StudentSpec
from core.students.gated import GSVM, SVM
from core.students.gaussian import GPC, GPCPlus
from core.students.grid import Grid
from core.students.sigmoid import fit_sigmoid
from core.students.svm_plus import SVMPlus
from core.teachers.ssvm import SSVM
from core.training.config import TrainingConfig
from core.training.pipeline import prepare, train
from tests.system.data import arrays_of, present

ROWS: Final = 200
SPLITS: Final = 20
QUICK_SPLITS: Final = 2
VIEWS: Final = (("fou", "fac"),)
"""Views of mfeat: the rows, and what is privileged."""
CLASSES: Final = 5
"""So many classes of a task have students."""
GRID: Final = Grid(C=(1e0, 1e1, 1e2, 1e3, 1e4, 1e5))
CONFIG: Final = TrainingConfig(
    features=FeatureSpec("kernel"), teacher=SSVM(C=1e3), tuning=TuningSpec(grid=GRID, folds=3)
)
_FLOOR: Final = 1e-12
"""Least probability in a log-loss."""


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Rows (n, d), labels (n,) and privileged columns (n, p)."""

    name: str
    X: Any
    y: Any
    privileged: Any


@dataclass(frozen=True, slots=True)
class Figures:
    """Error and log-loss of one method on one split, means over the classes."""

    error: float
    log_loss: float


def measure(quick: bool) -> dict[str, Any]:
    """Figures by task and method, JSON-ready; quick: 2 splits instead of 20."""
    found: dict[str, Any] = {}
    longest = 0.0
    for task in tasks():
        seeds = range(QUICK_SPLITS if quick else SPLITS)
        splits = [measure_split(task, seed) for seed in seeds]
        found[task.name] = summary(splits)
        show(task.name, found[task.name])
        longest = max(longest, longest_fit(task))
    return {"gaussian": found, "gaussian_seconds_a_class": round(longest, 2)}


def tasks() -> Iterator[Task]:
    """The tasks whose files are there; the others are named on standard error."""
    tasks_of = {"cwru_lupi": _bearings, "mfeat": _digits}
    for name in present([*tasks_of]):
        with arrays_of(name) as arrays:
            yield from tasks_of[name](arrays)


def _bearings(arrays: Any) -> Iterator[Task]:
    files = arrays["file_train"]
    kept = np.sort(np.concatenate([np.flatnonzero(files == file)[::2] for file in np.unique(files)]))
    yield Task("cwru_lupi", arrays["X_train"][kept], arrays["y_train"][kept], arrays["Xpriv_train"][kept])


def _digits(arrays: Any) -> Iterator[Task]:
    names, offsets = arrays["view_names"].tolist(), arrays["view_offsets"]

    def view(name: str) -> Any:
        k = names.index(name)
        return arrays["X_train"][:, offsets[k] : offsets[k + 1]]

    for rows, privileged in VIEWS:
        yield Task(f"mfeat {rows}|{privileged}", view(rows), arrays["y_train"], view(privileged))


def drawn(task: Task, seed: int) -> tuple[LabelledData, Any]:
    """200 rows drawn by this seed, and the numbers of the others."""
    order = np.random.default_rng(seed).permutation(len(task.y))
    learnt, rest = order[:ROWS], order[ROWS:]
    extras = RawExtras(privileged=task.privileged[learnt])
    X = np.asarray(task.X[learnt], dtype=np.float64)
    return LabelledData.from_arrays(X, task.y[learnt], extras=extras), rest


def longest_fit(task: Task) -> float:
    """Processor time, in seconds, of the longest fit of GPC or GPC+ to the rows of the first split."""
    data, _ = drawn(task, 0)
    preparation = prepare(data, TrainingConfig(features=FeatureSpec("linear")))
    longest = 0.0
    for target in range(data.K)[:CLASSES]:
        for spec in (GPC(), GPCPlus()):
            started = time.process_time()
            spec.fit(preparation.problem(target), Run())
            longest = max(longest, time.process_time() - started)
    return longest


def measure_split(task: Task, seed: int) -> dict[str, Figures]:
    """Every method, trained on 200 rows drawn by this seed and measured on the others."""
    data, rest = drawn(task, seed)
    noise_columns = np.random.default_rng([seed, 1]).normal(size=(ROWS, 5))
    noise = replace(data, extras=replace(data.extras, privileged=noise_columns))
    truth = [task.y[rest].astype(str) == label for label in data.classes[:CLASSES]]
    asked = np.asarray(task.X[rest], dtype=np.float64)
    specs: list[StudentSpec] = [SVM(), GSVM(), SVMPlus(), GPC(), GPCPlus()]
    figures = {"svc": svc_figures(data, asked, truth)}
    figures |= student_figures(data, {spec.name: spec for spec in specs}, asked, truth)
    return figures | student_figures(noise, {"gpc+noise": GPCPlus()}, asked, truth)


def student_figures(
    data: LabelledData, named: dict[str, StudentSpec], asked: Any, truth: list[Any]
) -> dict[str, Figures]:
    """Of students that are trained together, with tuning where there is a grid."""
    config = replace(CONFIG, students=tuple(named.values()), seed=0)
    trained = train(data, config, classes=data.classes[:CLASSES], run=Run(n_threads=1)).trained
    found = {}
    for name, spec in named.items():
        ours = sorted((one for one in trained if one.method == spec.name), key=lambda one: one.target)
        probabilities = [one.packed.probabilities(asked) for one in ours]
        decisions = [one.packed.scores(asked) >= 0.0 for one in ours]
        found[name] = _figures(decisions, probabilities, truth)
    return found


def svc_figures(data: LabelledData, asked: Any, truth: list[Any]) -> Figures:
    """Of scikit-learn's SVM, one against the rest; its sigmoid is fitted to decisions of other folds."""
    decisions, probabilities, folds = [], [], StratifiedKFold(3)
    X = np.asarray(data.X)
    grid = {"svc__C": np.logspace(-1, 3, 4), "svc__gamma": np.logspace(-2, 1, 4) / data.d}
    for target in range(len(truth)):
        positive = data.y == target
        with one_blas_thread():
            search = GridSearchCV(make_pipeline(StandardScaler(), SVC()), grid, cv=folds).fit(X, positive)
            model = search.best_estimator_
            held_out = np.empty(data.n)
            for fitted, left_out in folds.split(X, positive):
                held_out[left_out] = model.fit(X[fitted], positive[fitted]).decision_function(X[left_out])
            model.fit(X, positive)
            scores = model.decision_function(asked)
        decisions.append(scores >= 0.0)
        probabilities.append(fit_sigmoid(positive, held_out).probabilities(scores))
    return _figures(decisions, probabilities, truth)


def _figures(decisions: list[Any], probabilities: list[Any], truth: list[Any]) -> Figures:
    errors = [np.mean(decision != yes) for decision, yes in zip(decisions, truth, strict=True)]
    losses = [
        -np.log(np.maximum(np.where(yes, p, 1.0 - p), _FLOOR)).mean()
        for p, yes in zip(probabilities, truth, strict=True)
    ]
    return Figures(float(np.mean(errors)), float(np.mean(losses)))


def summary(splits: list[dict[str, Figures]]) -> dict[str, Any]:
    """By method: error in per cent, log-loss, and their paired differences, with intervals."""
    found: dict[str, Any] = {}
    for name in splits[0]:
        errors = np.array([100.0 * split[name].error for split in splits])
        losses = np.array([split[name].log_loss for split in splits])
        found[name] = {"error": _interval(errors), "log_loss": _interval(losses)}
        for other in ("svm", "gpc"):
            theirs = np.array([100.0 * split[other].error for split in splits])
            found[name][f"error_less_{other}"] = _interval(errors - theirs)
        gated = np.array([split["gsvm"].log_loss for split in splits])
        found[name]["log_loss_less_gsvm"] = _interval(losses - gated)
    return found


def _interval(values: Any) -> list[float]:
    """Mean and 1.96 standard errors."""
    half = 1.96 * float(np.std(values, ddof=1)) / np.sqrt(len(values))
    return [round(float(np.mean(values)), 5), round(half, 5)]


def show(name: str, figures: dict[str, Any]) -> None:
    """One task as a table."""
    columns = ("error", "error_less_svm", "error_less_gpc", "log_loss", "log_loss_less_gsvm")
    print(f"\n{name:22}" + "".join(f"{column:>22}" for column in columns))
    for method, entry in figures.items():
        cells = "".join(f"{entry[column][0]:13.4f} ±{entry[column][1]:7.4f}" for column in columns)
        print(f"{method:22}{cells}", flush=True)


if __name__ == "__main__":
    print(json.dumps(measure("--quick" in sys.argv[1:])))
