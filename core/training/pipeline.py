"""The whole flow on one page: data → features → teacher → scores → difficulty → students → packed model.

``train`` does it all in one process. The same steps one by one, for a service that spreads the classes over
processes: ``prepare``, ``Preparation.to_bytes`` and ``from_bytes``, ``train_student``, ``evaluate``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from joblib import Parallel, delayed

from core.compact import CompactRows, TrainedCompact, train_compact_student
from core.data.dataset import LabelledData
from core.errors import Fault, InvalidProblem
from core.packed import PackedStudent, PackedTeacher
from core.run import Run
from core.solvers.threads import one_blas_thread
from core.students.spec import StudentSpec
from core.training.config import TrainingConfig
from core.training.evaluation import ClassResult, Evaluation, Examination
from core.training.preparation import Preparation, prepare
from core.training.student_training import TrainedStudent, train_student, tuning_batches, tuning_folds
from core.types import Progress, ProgressCallback

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
class TrainedModel:
    """What ``train`` gives.

    teacher, students: packed, the students by the names of their classes.
    trained: every student that was fitted, full or compact, the compared methods too.
    evaluation: on the test part; None without one.
    seconds: wall time of the stages ``"features"``, ``"teacher"``, ``"scores"``, ``"students"``.
    """

    teacher: PackedTeacher
    students: dict[str, PackedStudent]
    preparation: Preparation
    trained: tuple[TrainedStudent | TrainedCompact, ...]
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


def measure(examination: Examination, student: TrainedStudent | TrainedCompact) -> ClassResult:
    """Measure one student: a full one in the features that are there, a compact one on its own landmarks."""
    packed = student.packed
    if isinstance(student, TrainedCompact):
        return examination.packed_student(student.target, packed, student.method)
    return examination.student(student.target, student.fitted, packed.threshold, packed.calibration)


def evaluate(examination: Examination, students: Iterable[TrainedStudent | TrainedCompact]) -> Evaluation:
    """Measure students and, for each of their classes, the teacher as a binary classifier, on a test part.

    A class without examples in the test part has None for F and AUC, and the reason.
    """
    trained = list(students)
    targets = dict.fromkeys(student.target for student in trained)
    return Evaluation(
        tuple(examination.teacher(target) for target in targets)
        + tuple(measure(examination, one) for one in trained)
    )


def train(
    data: LabelledData,
    config: TrainingConfig | None = None,
    *,
    test: LabelledData | None = None,
    classes: Sequence[str] | None = None,
    run: Run = Run(),
) -> TrainedModel:
    """Train a teacher and its students.

    test: rows to measure on, coded with the classes of ``data``. classes: train students for these names
        only.
    run: classes are trained in its threads; reports, from one thread at a time, the stages of ``prepare``,
        ``"compact_rows"``, ``"tuning"`` (in hundredths of a student's search) and ``"student"`` (in classes
        done). The seed is the configuration's.

    Raises InvalidProblem, Cancelled.
    """
    config = TrainingConfig() if config is None else config
    targets = _targets(data.classes, classes)
    preparation = prepare(data, config, run=run)
    started = time.perf_counter()
    trained = _train_all(preparation, data, targets, run)
    seconds = {**preparation.seconds, "students": time.perf_counter() - started}
    evaluation = None if test is None else evaluate(Examination.of(preparation, test), trained)
    shipped = config.specs()[0].method
    return TrainedModel(
        teacher=preparation.packed_teacher(),
        students={one.label: one.packed for one in trained if one.method == shipped},
        preparation=preparation,
        trained=tuple(trained),
        evaluation=evaluation,
        seconds=seconds,
    )


def _train_all(
    preparation: Preparation,
    data: LabelledData,
    targets: Sequence[int],
    run: Run,
) -> list[TrainedStudent | TrainedCompact]:
    """Every student of the targets, class by class, by as many threads as there may be."""
    config = preparation.config
    full = [spec for spec in config.specs() if isinstance(spec, StudentSpec)]
    told = _Told(run, len(targets), len(targets) * len(full))
    compact = None
    if config.compact is not None:
        rows = CompactRows.of(preparation, data, run)
        compact = partial(train_compact_student, rows, spec=config.compact, run=run.silent())

    def train_batch(batch: Sequence[int]) -> Iterator[list[TrainedStudent | TrainedCompact]]:
        folds = None
        if config.tuning is not None and full:
            folds = tuning_folds(preparation, batch, run)

        def train_class(target: int) -> list[TrainedStudent | TrainedCompact]:
            shipped_first: list[TrainedStudent | TrainedCompact] = [compact(target)] if compact else []
            return shipped_first + [
                train_student(
                    preparation,
                    target,
                    spec,
                    folds=folds,
                    # Folds of a search run in parallel only where there are fewer classes than threads.
                    run=replace(
                        run,
                        n_threads=max(1, run.threads // len(batch)),
                        progress=told.of_search((target, spec.method)),
                    ),
                )
                for spec in full
            ]

        # Threads: the solvers release the GIL, so that Φ and S are shared and never copied.
        pool = Parallel(n_jobs=run.threads, prefer="threads", return_as="generator")
        yield from pool(delayed(train_class)(target) for target in batch)

    trained: list[TrainedStudent | TrainedCompact] = []
    with one_blas_thread():
        for batch in tuning_batches(preparation, targets):
            for students in train_batch(batch):
                trained += students
                told.class_done(students[0])
    return trained


class _Told:
    """Progress of students that are trained at the same time, told by one of their threads at a time."""

    def __init__(self, run: Run, n_classes: int, n_searches: int) -> None:
        self._run, self._n_classes, self._n_searches = run, n_classes, n_searches
        self._lock = threading.Lock()
        self._shares: dict[tuple[int, str], float] = {}
        self._done = 0

    def of_search(self, which: tuple[int, str]) -> ProgressCallback | None:
        """The callback of one student, of which only the search is told on."""
        if self._run.progress is None:
            return None

        def report(step: Progress) -> None:
            if step.stage == "tuning":
                with self._lock:
                    self._shares[which] = step.done / step.total
                    done = int(100.0 * sum(self._shares.values()))
                    self._run.report("tuning", done, 100 * self._n_searches)

        return report

    def class_done(self, first: TrainedStudent | TrainedCompact) -> None:
        """One more class; with objective and gap of its first student, where that has any."""
        with self._lock:
            self._done += 1
            own = first.summary if isinstance(first, TrainedStudent) else None
            objective, gap = (None, None) if own is None else (own.objective, own.gap)
            self._run.report("student", self._done, self._n_classes, objective, gap)


def _targets(known: tuple[str, ...], wanted: Sequence[str] | None) -> list[int]:
    if wanted is None:
        return list(range(len(known)))
    code_of = {label: code for code, label in enumerate(known)}
    unknown = [label for label in dict.fromkeys(wanted) if label not in code_of]
    if unknown or not wanted:
        faults = [Fault("classes", "unknown_class", f"there is no class {label!r}") for label in unknown[:10]]
        raise InvalidProblem(*(faults or [Fault("classes", "empty", "classes must name at least one class")]))
    return [code_of[label] for label in dict.fromkeys(wanted)]
