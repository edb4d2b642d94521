"""Students of trees: time of a query, size, and F beside forests of scikit-learn.

Two thirds of the training part of each set are learnt, a third is measured. Quick: two sets.

    trees_query_vs_rbf_0, _3     time of one row in process over that of an RBF student with 300 landmarks,
                                 for students with 0 and 3 rivals; the largest over sets and kinds of splits
    trees_many_rows_vs_scikit    time of 10 000 rows over that of the forest's ``predict_proba``, the largest
    trees_f1_loss_0, _3, _all    points of mean F that students with so many rivals lose to their teacher
    trees_f1_vs_scikit           points of mean F by which the teacher is above scikit-learn's forest
    trees_size_0, _3             nodes of a student over the teacher's
    trees_sets                   all figures by set and kind of splits, with seconds and microseconds
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import fmean, median
from typing import Any, Final, Literal

import numpy as np
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.metrics import f1_score

from core.data.dataset import LabelledData
from core.data.fold_assignment import fold_assignment
from core.packed import LinearForm, PackedStudent, RbfBasis
from core.packed.student import row_scorer
from core.run import Run
from core.students.trees import Trees
from core.teachers.forest import Forest
from core.training.config import TrainingConfig
from core.training.pipeline import TrainedModel, train
from lab.experiments.data import load
from tests.system.data import data_folder

SETS: Final = ("vowel", "satimage", "yeast", "segment", "letter")
PEERS: Final = {"best": RandomForestClassifier, "random": ExtraTreesClassifier}
TREES: Final = 100
RIVALS: Final = {"0": 0, "3": 3, "all": 10_000}
LANDMARKS: Final = 300
ROUNDS: Final = 15
_ROWS, _MANY_ROWS = 200, 10_000


def measure(quick: bool) -> dict[str, Any]:
    """The figures above, JSON-ready."""
    found: dict[str, dict[str, float]] = {}
    for name in SETS[:2] if quick else SETS:
        data = load(name, data_folder()).train
        part = fold_assignment(data.y, 3, 0) == 0
        learnt, measured = data.take(np.flatnonzero(~part)), data.take(np.flatnonzero(part))
        for splits in ("best", "random"):
            found[f"{name}_{splits}"] = _figures(learnt, measured, splits)

    def over(key: str, summary: Callable[[list[float]], float]) -> float:
        return summary([figures[key] for figures in found.values()])

    largest = ("query_vs_rbf_0", "query_vs_rbf_3", "many_rows_vs_scikit")
    means = ("f1_loss_0", "f1_loss_3", "f1_loss_all", "f1_vs_scikit", "size_0", "size_3")
    return {
        **{f"trees_{key}": over(key, max) for key in largest},
        **{f"trees_{key}": over(key, fmean) for key in means},
        "trees_sets": found,
    }


def _figures(data: LabelledData, test: LabelledData, splits: Literal["best", "random"]) -> dict[str, float]:
    models = {name: _trained(data, test, splits, rivals) for name, rivals in RIVALS.items()}
    started = time.perf_counter()
    peer = PEERS[splits](TREES, random_state=0).fit(data.X, data.y)
    seconds = time.perf_counter() - started
    X = np.ascontiguousarray(test.X, dtype=np.float64)
    any_model = models["3"]
    teacher_f1 = _f1(any_model, "teacher")
    peer_f1 = 100.0 * f1_score(test.y, peer.predict(test.X), average="macro")
    figures = {
        "f1_teacher": teacher_f1,
        "f1_vs_scikit": teacher_f1 - peer_f1,
        "seconds": sum(any_model.seconds.values()),
        "seconds_scikit": seconds,
        "many_rows_vs_scikit": _many_rows_quotient(any_model, peer, X),
    }
    for name, model in models.items():
        figures[f"f1_loss_{name}"] = teacher_f1 - _f1(model, "trees")
        figures[f"size_{name}"] = fmean(map(_nodes, _maps(model))) / _nodes(any_model.teacher.map)
        figures |= {f"{key}_{name}": value for key, value in _query_figures(model, X).items()}
    return figures


def _trained(data: LabelledData, test: LabelledData, splits: Any, rivals: int) -> TrainedModel:
    config = TrainingConfig(
        teacher=Forest(trees=TREES, splits=splits),
        students=(Trees(rivals=rivals),),
        threshold="expected_f1",
        calibration="sigmoid",
    )
    return train(data, config, test=test, run=Run(n_threads=1))


def _f1(model: TrainedModel, method: str) -> float:
    f1 = None if model.evaluation is None else model.evaluation.mean(method).f1
    return float("nan") if f1 is None else 100.0 * f1


def _maps(model: TrainedModel) -> list[Any]:
    return [student.map for student in model.students.values()]


def _nodes(trees: Any) -> int:
    """Inner nodes and leaves."""
    return 2 * len(trees.test) + len(trees.roots)


def _query_figures(model: TrainedModel, X: np.ndarray) -> Mapping[str, float]:
    """Median microseconds of a row of the first student, and the median quotient with the landmarks'."""
    rows: list[list[float]] = X[:_ROWS].tolist()
    student = next(iter(model.students.values()))
    trees, landmarks = row_scorer(student), row_scorer(_landmarks(X))
    times = [(_microseconds(trees, rows), _microseconds(landmarks, rows)) for _ in range(ROUNDS + 1)][1:]
    return {
        "microseconds": median(first for first, _ in times),
        "query_vs_rbf": median(first / second for first, second in times),
    }


def _landmarks(X: np.ndarray) -> PackedStudent:
    """An RBF student, whose time does not depend on its weights."""
    mean, scale = X.mean(axis=0), 0.3 / np.maximum(X.std(axis=0), 1e-9)
    ones = np.ones(LANDMARKS)
    basis = RbfBasis(mean, scale, (np.resize(X, (LANDMARKS, X.shape[1])) - mean) * scale)
    return PackedStudent(basis, LinearForm(ones, 0.0, ones, 0.0), 0.0, "landmarks")


def _microseconds(ask: Callable[[list[float]], float], rows: list[list[float]]) -> float:
    started = time.perf_counter()
    for x in rows:
        ask(x)
    return (time.perf_counter() - started) / len(rows) * 1e6


def _many_rows_quotient(model: TrainedModel, peer: Any, X: np.ndarray) -> float:
    """Time of the first student's scores over that of all classes' probabilities, the median of three."""
    rows = np.resize(X, (_MANY_ROWS, X.shape[1]))
    student = next(iter(model.students.values()))
    quotients = []
    for _ in range(3):
        started = time.perf_counter()
        student.scores(rows)
        between = time.perf_counter()
        peer.predict_proba(rows)
        quotients.append((between - started) / (time.perf_counter() - between))
    return median(quotients)
