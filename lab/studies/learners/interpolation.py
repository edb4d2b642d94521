"""Kernel interpolation on MNIST as a teacher, and compact students of it.

In full, the teacher learns all 60 000 rows of the training part, and both are measured on the test part.
Quick: 5000 rows of the training part, measured on 2500 others of it; the test part is not read. Width and
scaling are chosen by the teacher itself, on leave-one-out errors of training rows.

    mnist_error             share of wrong answers of the teacher
    mnist_minutes           wall time of its fit and of scoring the measured rows, on two threads
    mnist_peak_gib          largest resident memory of the process
    mnist_students_f1_loss  points of mean F by which students with 400 landmarks are below the teacher
    mnist_student_time_ratio  time of one query to a student, over that of one to the packed teacher
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from core.data.dataset import LabelledData
from core.features.examples import Examples
from core.features.spec import FeatureSpec
from core.run import Run
from core.students.compact import Compact
from core.teachers.interpolation import KernelInterpolation
from core.training.config import TrainingConfig
from core.training.pipeline import TrainedModel, train
from tests.system.data import arrays_of

LANDMARKS: Final = 400
QUICK_ROWS: Final = (5000, 2500)
CONFIG: Final = TrainingConfig(
    # The students have landmarks of their own: the map is for the distilled gate only, and small.
    features=FeatureSpec("nystroem", n_components=100, scaling="none", dtype="float32"),
    teacher=KernelInterpolation(memory_gib=8.0),
    students=(Compact(n_landmarks=LANDMARKS),),
)
_QUERIES: Final = 50


def measure(quick: bool) -> dict[str, Any]:
    """The figures above, and what the teacher chose, JSON-ready."""
    data, test = parts(quick)
    run = Run(n_threads=2)
    model = train(data, CONFIG, test=test, run=run)
    started = time.perf_counter()
    scores = model.preparation.teacher.scores(Examples.of_features(test.X), run)
    seconds = model.seconds["teacher"] + time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2.0**20
    evaluation = model.evaluation
    assert evaluation is not None  # a test part was given
    teacher_f1, student_f1 = (evaluation.mean(method).f1 for method in ("teacher", "compact"))
    assert teacher_f1 is not None  # every class has rows in the test part
    assert student_f1 is not None
    summary = model.preparation.teacher.summary
    return {
        "mnist_rows": data.n,
        "mnist_error": float(np.mean(scores.argmax(axis=1) != test.y)),
        "mnist_minutes": seconds / 60.0,
        "mnist_peak_gib": peak,
        "mnist_students_f1_loss": 100.0 * (teacher_f1 - student_f1),
        "mnist_student_time_ratio": time_ratio(model, test),
        "mnist_teacher_f1": 100.0 * teacher_f1,
        "mnist_students_f1": 100.0 * student_f1,
        "mnist_students_minutes": model.seconds["students"] / 60.0,
        "mnist_residual": None if summary is None else summary.relative_gap,
        "mnist_chosen": {
            name: model.teacher.metadata[name]
            for name in ("gamma", "scaling", "row_scaling", "jitter", "condition", "left_out_error")
            if name in model.teacher.metadata
        },
    }


def parts(quick: bool) -> tuple[LabelledData, LabelledData]:
    """Rows to learn and rows to measure. Raises FileNotFoundError where the data are missing."""
    with arrays_of("mnist") as arrays:
        X, y = arrays["X_train"], arrays["y_train"]
        if not quick:
            data = LabelledData.from_arrays(X, y)
            return data, LabelledData.with_codes(arrays["X_test"], arrays["y_test"], data.classes)
    learnt, measured = QUICK_ROWS
    drawn = np.random.default_rng(0).permutation(len(y))[: learnt + measured]
    data = LabelledData.from_arrays(X[drawn[:learnt]], y[drawn[:learnt]])
    return data, LabelledData.with_codes(X[drawn[learnt:]], y[drawn[learnt:]], data.classes)


def time_ratio(model: TrainedModel, test: LabelledData) -> float:
    """Median time of a query to a student over that of one to the packed teacher, the same rows."""
    rows = [np.asarray(row, dtype=np.float64) for row in test.X[:_QUERIES]]
    student = next(iter(model.students.values()))
    return median_time(student.score, rows) / median_time(lambda row: model.teacher.scores(row[None]), rows)


def median_time(ask: Callable[[Any], Any], rows: list[Any]) -> float:
    """Seconds of one call, the median over the rows."""
    seconds = []
    for row in rows:
        started = time.perf_counter()
        ask(row)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)
