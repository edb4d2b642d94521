"""The whole flow on one page: data → features → teacher → scores → difficulty → students → packed model.

``train`` does it all in one process. The same steps one by one, for a service that spreads the classes over
processes: ``prepare``, ``Preparation.to_bytes`` and ``from_bytes``, ``train_student``, ``evaluate``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from joblib import Parallel, cpu_count, delayed

from core.bounds import not_whole, refuse
from core.config import TrainingConfig
from core.dataset import LabelledData
from core.errors import Fault, InvalidProblem
from core.evaluation import Evaluation, Examination
from core.packed import PackedStudent, PackedTeacher
from core.preparation import Preparation, prepare
from core.selection import choose_threshold, held_out_scores
from core.solution import Summary
from core.stages import renamed
from core.students import FittedStudent, StudentSpec, fit_student
from core.threads import one_blas_thread
from core.types import CancelCheck, Progress, ProgressCallback

__all__ = [
    "Evaluation",
    "Examination",
    "Preparation",
    "TrainedModel",
    "TrainedStudent",
    "TrainingConfig",
    "evaluate",
    "prepare",
    "train",
    "train_student",
]


@dataclass(frozen=True, slots=True, eq=False)
class TrainedStudent:
    """One student: as it is shipped (``packed``), and in feature space (``fitted``) for measuring.

    target, label: code and name of its class. summary: how its solver ended. seconds: wall time, threshold
        included.
    """

    target: int
    label: str
    packed: PackedStudent
    fitted: FittedStudent
    summary: Summary
    seconds: float

    @property
    def method(self) -> str:
        """``"gsvm"``, ``"gsvm0"`` or ``"svm"``."""
        return self.fitted.spec.method

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready, without the arrays."""
        return {
            "label": self.label,
            "method": self.method,
            "threshold": self.packed.threshold,
            "digest": self.packed.digest,
            "training_seconds": self.seconds,
            **self.summary.as_dict(),
        }


@dataclass(frozen=True, slots=True, eq=False)
class TrainedModel:
    """What ``train`` gives.

    teacher, students: packed, the students by the names of their classes.
    trained: every student that was fitted, the compared methods too. evaluation: on the test part; None
        without one.
    seconds: wall time of the stages ``"features"``, ``"teacher"``, ``"scores"``, ``"students"``.
    """

    teacher: PackedTeacher
    students: dict[str, PackedStudent]
    preparation: Preparation
    trained: tuple[TrainedStudent, ...]
    evaluation: Evaluation | None
    seconds: dict[str, float]

    def report(self) -> dict[str, Any]:
        """JSON-ready: how every fit ended, what was measured, and how long it took."""
        summary = self.preparation.teacher.summary
        return {
            "teacher": None if summary is None else summary.as_dict(),
            "students": [student.as_dict() for student in self.trained],
            "evaluation": None if self.evaluation is None else self.evaluation.as_dict(),
            "seconds": self.seconds,
        }


def train_student(
    preparation: Preparation,
    target: int,
    spec: StudentSpec | None = None,
    *,
    progress: ProgressCallback | None = None,
    should_cancel: CancelCheck | None = None,
) -> TrainedStudent:
    """Train and pack the student of class code ``target``; the same arguments give the same bytes.

    spec: by default the configured student's. Threshold rule, budget, folds and seed are the configuration's.
    progress: told of the stage ``"student"``. Safe to call from several threads at once.

    Raises InvalidProblem, Cancelled.
    """
    config = preparation.config
    spec = config.student if spec is None else spec
    started = time.perf_counter()
    lesson = preparation.lesson(target, floor=spec.floor)
    threshold, folds = 0.0, 0
    with one_blas_thread():
        fitted = fit_student(
            preparation.features,
            lesson,
            spec,
            seed=config.seed,
            progress=renamed(progress, "student"),
            should_cancel=should_cancel,
        )
        if config.threshold != "zero":
            held_out = held_out_scores(
                preparation.features,
                lesson,
                spec,
                folds=config.folds,
                seed=config.seed,
                should_cancel=should_cancel,
            )
            folds = held_out.folds
            threshold = choose_threshold(lesson.positive, held_out.scores, config.threshold, config.budget)
        packed = _pack(preparation, target, fitted, threshold, folds)
    seconds = time.perf_counter() - started
    return TrainedStudent(target, packed.label, packed, fitted, fitted.solution.summary(), seconds)


def _pack(
    preparation: Preparation, target: int, fitted: FittedStudent, threshold: float, folds: int
) -> PackedStudent:
    """Fold decision and gate into the map's basis. The metadata say how to make the same student again."""
    config, spec, solution = preparation.config, fitted.spec, fitted.solution
    basis, coef, intercept = preparation.feature_map.fold(np.stack([fitted.decision, fitted.gate_weights]))
    metadata: dict[str, str | float | int] = {
        "method": spec.method,
        "C": float(spec.C),
        "margin": float(spec.margin),
        "floor": float(spec.floor),
        "solver": spec.solver,
        "tolerance": float(spec.tolerance),
        "max_epochs": int(spec.max_epochs),
        "seed": int(config.seed),
        "threshold_rule": config.threshold,
        "threshold_folds": folds,
        "objective": solution.objective,
        "relative_gap": solution.relative_gap,
        "status": solution.status.value,
        "data_digest": preparation.data_digest,
    }
    return PackedStudent(
        map=basis,
        coef=coef[0],
        intercept=float(intercept[0]),
        gate_coef=coef[1],
        gate_intercept=float(intercept[1]),
        threshold=threshold,
        label=preparation.classes[target],
        metadata=metadata,
    )


def evaluate(examination: Examination, students: Iterable[TrainedStudent]) -> Evaluation:
    """Measure students and, for each of their classes, the teacher as a binary classifier, on a test part.

    A class without examples in the test part has None for F and AUC, and the reason.
    """
    trained = list(students)
    targets = dict.fromkeys(student.target for student in trained)
    return Evaluation(
        tuple(examination.teacher(target) for target in targets)
        + tuple(examination.student(one.target, one.fitted, one.packed.threshold) for one in trained)
    )


def train(
    data: LabelledData,
    config: TrainingConfig | None = None,
    *,
    test: LabelledData | None = None,
    classes: Sequence[str] | None = None,
    n_threads: int | None = None,
    progress: ProgressCallback | None = None,
    should_cancel: CancelCheck | None = None,
) -> TrainedModel:
    """Train a teacher and its students.

    test: rows to measure on, coded with the classes of ``data``. classes: train students for these names
        only.
    n_threads: classes trained at the same time; all processors by default. The result does not depend on it.
    progress: told of the stages ``"features"``, ``"teacher"``, ``"scores"`` and ``"student"`` (in classes
        done).

    Raises InvalidProblem, Cancelled.
    """
    config = TrainingConfig() if config is None else config
    refuse(None if n_threads is None else not_whole("n_threads", n_threads, 1, 4096))
    targets = _targets(data.classes, classes)
    preparation = prepare(data, config, progress=progress, should_cancel=should_cancel)
    started = time.perf_counter()

    def train_class(target: int) -> list[TrainedStudent]:
        return [
            train_student(preparation, target, spec, should_cancel=should_cancel) for spec in config.specs()
        ]

    trained: list[TrainedStudent] = []
    with one_blas_thread():
        # Threads: the solvers release the GIL, so that Φ and S are shared and never copied.
        pool = Parallel(n_jobs=n_threads or cpu_count(), prefer="threads", return_as="generator")
        for done, students in enumerate(pool(delayed(train_class)(target) for target in targets), 1):
            trained += students
            if progress is not None:
                own = students[0].summary
                progress(Progress("student", done, len(targets), own.objective, own.gap))
    seconds = {**preparation.seconds, "students": time.perf_counter() - started}
    evaluation = None if test is None else evaluate(Examination.of(preparation, test), trained)
    return TrainedModel(
        teacher=preparation.packed_teacher(),
        students={one.label: one.packed for one in trained if one.fitted.spec == config.student},
        preparation=preparation,
        trained=tuple(trained),
        evaluation=evaluation,
        seconds=seconds,
    )


def _targets(known: tuple[str, ...], wanted: Sequence[str] | None) -> list[int]:
    if wanted is None:
        return list(range(len(known)))
    code_of = {label: code for code, label in enumerate(known)}
    unknown = [label for label in dict.fromkeys(wanted) if label not in code_of]
    if unknown or not wanted:
        faults = [Fault("classes", "unknown_class", f"there is no class {label!r}") for label in unknown[:10]]
        raise InvalidProblem(*(faults or [Fault("classes", "empty", "classes must name at least one class")]))
    return [code_of[label] for label in dict.fromkeys(wanted)]
