"""Compact students: F-measure against the time of a query.

    python -m lab.studies.compact [letter] [satimage] [mnist] [wide]

A teacher on the training part, then for each number of landmarks a compact student of each class, measured on
the test part at threshold 0. Sets are read from $STMS_DATA or ../shared/data; mnist is a part: 10 000 of its
training rows for three classes, and half the usual steps; wide is made here: 1040 rows of 26 classes in 617
columns, and as many for the test. Training is reported in wall and processor seconds, since other work on
the machine changes mostly the former; what the kernels take to compile is left out. The time of a query is
that of one row through a packed model, in turns; the teacher's is the faster of its two ways to answer (all
scores at once, or one by one until another class wins). The last line is JSON:
{"letter": {"100": {"f1": …, "relative_query_time": …}, …, "teacher": …, "full_student": …}, …},
percentages and ratios to the teacher, and of 100 landmarks for all classes "compact_letter_s",
"compact_letter_f1" and "compact_wide_s". Exit code 1 if a target is missed or no set is there.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, cpu_count, delayed

from core.data.dataset import LabelledData
from core.data.scaling_kind import Scaling
from core.features.spec import FeatureSpec
from core.model_selection.metrics import binary_metrics
from core.packed import PackedStudent, PackedTeacher
from core.run import Run
from core.solvers.threads import one_blas_thread
from core.students.compact import Compact
from core.training.config import TrainingConfig
from core.training.evaluation import Evaluator
from core.training.pipeline import TrainedStudent, prepare, train_student
from tests.system.data import data_folder, wide

SIZES = (25, 50, 100, 200, 400)
TARGETS = {"letter": {"100": 97.0, "200": 93.0}}
LONGEST = {"letter": 10.0, "wide": 10.0}
"""Seconds that training 100 landmarks for all classes may take."""

WIDE = "wide"
QUERIES = 200
TURNS = 5


@dataclass(frozen=True, slots=True)
class Task:
    """Settings of one data set. classes: names; None for all. divisor: raw values are divided by it."""

    features: FeatureSpec
    classes: tuple[str, ...] | None = None
    rows: int | None = None
    divisor: float = 1.0
    steps: int = 3000


TASKS = {
    "letter": Task(FeatureSpec("nystroem", 1000, gamma=0.1)),
    "satimage": Task(FeatureSpec("nystroem", 600, gamma=0.05)),
    "mnist": Task(
        FeatureSpec("nystroem", 1000, gamma=0.03, scaling=Scaling.NONE), ("3", "5", "8"), 10_000, 255.0, 1500
    ),
    WIDE: Task(FeatureSpec("linear")),
}


def read(path: Path, task: Task) -> tuple[LabelledData, LabelledData]:
    """Training and test part."""
    with np.load(path, allow_pickle=False) as arrays:
        X, y = arrays["X_train"] / task.divisor, arrays["y_train"]
        if task.rows is not None:
            chosen = np.sort(np.random.default_rng(0).permutation(len(X))[: task.rows])
            X, y = X[chosen], y[chosen]
        data = LabelledData.from_arrays(X, y)
        return data, LabelledData.with_codes(arrays["X_test"] / task.divisor, arrays["y_test"], data.classes)


def query_seconds(teacher: PackedTeacher, students: dict[str, PackedStudent], X: Any) -> dict[str, float]:
    """Median seconds of one row with the teacher (``"teacher"``) and each student, measured alternately."""
    target = teacher.classes.index(next(iter(students.values())).label)
    ways: dict[str, Callable[[Any], Any]] = {
        "predict": lambda x: teacher.predict(x[np.newaxis]),
        "is_class": lambda x: teacher.is_class(x, target),
        **{name: student.score for name, student in students.items()},
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    rows = X[np.random.default_rng(0).permutation(len(X))[:QUERIES]].astype(np.float64)
    for _ in range(TURNS):
        for name, ask in ways.items():
            for x in rows:
                started = time.perf_counter()
                ask(x)
                seconds[name].append(time.perf_counter() - started)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {**medians, "teacher": min(medians["predict"], medians["is_class"])}


def measure(name: str, task: Task) -> dict[str, dict[str, float]]:
    """Measure one data set: compact students of each size, the teacher and the full student."""
    data, test = wide() if name == WIDE else read(data_folder() / f"{name}.npz", task)
    targets = [data.classes.index(label) for label in task.classes or data.classes]
    started = time.monotonic()
    preparation = prepare(data, TrainingConfig(features=task.features))
    Compact().prepare(preparation.examples, Run())
    print(f"{name}: {data.n} rows, {len(targets)} classes, teacher in {time.monotonic() - started:.0f} s")
    examination = Evaluator.of(preparation, test)

    def each(fit: Callable[[int], Any]) -> list[Any]:
        with one_blas_thread():
            return list(Parallel(n_jobs=cpu_count(), prefer="threads")(delayed(fit)(one) for one in targets))

    full: list[TrainedStudent] = each(lambda target: train_student(preparation, target))
    train_student(preparation, targets[0], Compact(n_landmarks=2, steps=1))  # compiles the kernels
    compact: dict[int, list[TrainedStudent]] = {}
    training: dict[int, float] = {}
    processor: dict[int, float] = {}
    for size in SIZES:
        started, before = time.monotonic(), time.process_time()
        spec = Compact(n_landmarks=size, steps=task.steps)
        compact[size] = each(lambda target, spec=spec: train_student(preparation, target, spec))
        training[size], processor[size] = time.monotonic() - started, time.process_time() - before
        print(
            f"  {size} landmarks in {training[size]:.1f} s, {processor[size]:.1f} s of processors", flush=True
        )
    seconds = query_seconds(
        preparation.packed_teacher(),
        {"full_student": full[0].packed, **{str(size): some[0].packed for size, some in compact.items()}},
        test.X,
    )
    figures = {
        "teacher": _figure([examination.teacher(target).metrics.f1 for target in targets], 1.0),
        "full_student": _figure(
            [
                examination.student(one.target, one.method, one.fitted, one.packed.threshold).metrics.f1
                for one in full
            ],
            seconds["full_student"] / seconds["teacher"],
        ),
    }
    for size, some in compact.items():
        found = _figure([_f1(one, test) for one in some], seconds[str(size)] / seconds["teacher"])
        found["relative_cost"] = round(some[0].fitted.facts()["relative_cost"], 4)
        found["gate_r2"] = round(statistics.mean(one.packed.metadata["gate_r2"] for one in some), 3)
        found["training_seconds"] = round(training[size], 2)
        found["training_cpu_seconds"] = round(processor[size], 2)
        figures[str(size)] = found
    show(figures, seconds["teacher"])
    return figures


def _f1(trained: TrainedStudent, test: LabelledData) -> float | None:
    scores = trained.packed.scores(test.X)
    return binary_metrics(test.y == trained.target, scores >= trained.packed.threshold, scores).f1


def _figure(f1: list[float | None], relative_query_time: float) -> dict[str, float]:
    mean = statistics.mean(value for value in f1 if value is not None)
    return {"f1": round(100.0 * mean, 2), "relative_query_time": round(relative_query_time, 4)}


def show(figures: dict[str, dict[str, float]], teacher_seconds: float) -> None:
    """Print the table of one set."""
    print(f"  {'':14}{'F, %':>8}{'query':>9}{'counted':>9}{'gate R²':>9}")
    print(f"  (query: 1 is {teacher_seconds * 1e6:.0f} µs; counted: multiplications; mean over classes)")
    for name, one in figures.items():
        rest = "".join(f"{one[key]:9.3f}" for key in ("relative_cost", "gate_r2") if key in one)
        print(f"  {name:14}{one['f1']:8.2f}{one['relative_query_time']:9.3f}{rest}", flush=True)


def headline(figures: dict[str, dict[str, dict[str, float]]]) -> dict[str, float]:
    """What 100 landmarks of all classes take and give, of the sets that were measured."""
    keys = {
        "compact_letter_s": ("letter", "training_seconds"),
        "compact_letter_f1": ("letter", "f1"),
        "compact_wide_s": (WIDE, "training_seconds"),
    }
    return {key: figures[name]["100"][what] for key, (name, what) in keys.items() if name in figures}


def main(names: list[str]) -> int:
    """Exit code: 0 when every target is reached."""
    unknown = [name for name in names if name not in TASKS]
    if unknown:
        print(f"There is no task for {', '.join(unknown)}; known are {', '.join(TASKS)}.", file=sys.stderr)
        return 2
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for name in names or list(TASKS):
        path = data_folder() / f"{name}.npz"
        if name == WIDE or path.exists():
            figures[name] = measure(name, TASKS[name])
        else:
            print(f"{path} is not there; set STMS_DATA to the folder of the sets.", file=sys.stderr)
    missed = [
        f"{name}: mean F with {size} landmarks is {figures[name][size]['f1']} %, below {least} %"
        for name, targets in TARGETS.items()
        if name in figures
        for size, least in targets.items()
        if figures[name][size]["f1"] < least
    ]
    missed += [
        f"{name}: 100 landmarks take {figures[name]['100']['training_seconds']} s, more than {most:g} s"
        for name, most in LONGEST.items()
        if name in figures and figures[name]["100"]["training_seconds"] > most
    ]
    for line in missed:
        print(line, file=sys.stderr)
    print(json.dumps({**figures, **headline(figures)}))
    return 1 if missed or not figures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
