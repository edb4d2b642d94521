"""The whole training: data → features → teacher → scores → students → packed model.

``train`` does it all in one process. A service that spreads the classes over processes uses single steps
instead: ``prepare``, ``Preparation.to_bytes`` and ``from_bytes``, ``train_student``, ``evaluate``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from joblib import Parallel, delayed

from core.data.dataset import LabelledData
from core.data.digest import data_digest
from core.errors import Fault, InvalidProblem
from core.model_selection.quick_choice import QuickChoice
from core.model_selection.setting_search import Setting
from core.packed import PackedStudent, PackedTeacher
from core.run import Run
from core.solvers.threads import one_blas_thread
from core.teachers.base import Teacher
from core.teachers.ssvm import SSVM
from core.training.config import TrainingConfig
from core.training.evaluation import ClassResult, Evaluation, Evaluator
from core.training.preparation import Preparation, checked_config, fit_preparation, with_rest
from core.training.stages import Stages
from core.training.student_kinds import with_student_kinds
from core.training.student_training import TrainedStudent, class_batches, train_student
from core.training.tuned_choice import choose_automatically, choose_tuned
from core.types import Progress, ProgressCallback

__all__ = [
    "Evaluation",
    "Evaluator",
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
    """The result of ``train``.

    teacher, students: packed models; students are keyed by the name of their class.
    trained: every fitted student, including those that were trained only for comparison.
    evaluation: results on the test part; None without a test part.
    seconds: wall time of the stages ``"features"``, ``"teacher"``, ``"scores"``, ``"students"``.
    """

    teacher: PackedTeacher
    students: dict[str, PackedStudent]
    preparation: Preparation
    trained: tuple[TrainedStudent, ...]
    evaluation: Evaluation | None
    seconds: dict[str, float]

    def report(self) -> dict[str, Any]:
        """JSON-ready: how every fit ended, the evaluation, and the seconds of each stage."""
        summary = self.preparation.teacher.summary
        return {
            "teacher": None if summary is None else summary.as_dict(),
            "students": [student.as_dict() for student in self.trained],
            "evaluation": None if self.evaluation is None else self.evaluation.as_dict(),
            "seconds": self.seconds,
        }


def prepare(data: LabelledData, config: TrainingConfig | None = None, run: Run = Run()) -> Preparation:
    """Fit the feature map and the teacher, and score the training rows (Algorithm 2, line 1).

    Whatever the configuration leaves open is chosen first, see ``core.training.tuned_choice``. Rows without a
    label are used as ``with_unlabelled`` says. If the configuration needs held-out scores, a teacher is also
    fitted for each fold.
    run: fold teachers are fitted in its threads; reports the stages of ``core.training.tuned_choice``,
        ``"features"``, ``"teacher"``, ``"scores"``, ``"tuning_teacher"`` (in folds) and ``"student_kinds"``
        (in classes). The seed is the configuration's.

    Raises InvalidProblem, also if a class has one row only and the configuration tunes, or if data or teacher
    do not offer what a student needs; Cancelled.
    """
    config = TrainingConfig() if config is None else config
    run = run.with_seed(config.seed)
    known = data.labelled()
    if not known.n:
        raise InvalidProblem(Fault("y", "no_labels", "No row has a label; some are needed."))
    stages, config = Stages(run), checked_config(known, config)
    choice: QuickChoice | Setting | None = None
    fitted: Teacher | None = None
    if config.searches_job:
        if not isinstance(config.teacher, SSVM):
            message = (
                f"a search of scope job has no values to try for a teacher of kind {config.teacher.name}"
            )
            raise InvalidProblem(Fault("tuning.scope", "no_grid", message))
        choice, fitted = choose_tuned(known, config, stages)
    elif config.automatic:
        choice, fitted = choose_automatically(known, config, stages)
    if isinstance(choice, Setting):
        config = config.with_setting(choice)
    elif choice is not None:
        config = config.with_choice(choice, known.n)
    made = with_student_kinds(fit_preparation(known, config, stages, choice, fitted), stages)
    return made if known is data else with_rest(made, data, data_digest(data), run)


def measure(evaluator: Evaluator, student: TrainedStudent) -> ClassResult:
    """Measure one student on a test part."""
    packed = student.packed
    return evaluator.student(
        student.target, student.method, student.fitted, packed.threshold, packed.calibration
    )


def evaluate(evaluator: Evaluator, students: Iterable[TrainedStudent]) -> Evaluation:
    """Measure students and, for each of their classes, the teacher as a binary classifier, on a test part.

    For a class without examples in the test part, F and AUC are None, with the reason.
    """
    trained = list(students)
    targets = dict.fromkeys(student.target for student in trained)
    return Evaluation(
        tuple(evaluator.teacher(target) for target in targets)
        + tuple(measure(evaluator, one) for one in trained)
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
    run: classes are trained in its threads. It reports, from one thread at a time, the stages of ``prepare``,
        ``"compact_rows"``, ``"tuning"`` (in hundredths of a student's search) and ``"student"`` (in finished
        classes). The seed is the configuration's.

    Raises InvalidProblem, Cancelled.
    """
    config = TrainingConfig() if config is None else config
    targets = _targets(data.classes, classes)
    preparation = prepare(data, config, run)
    config = preparation.config
    started = time.perf_counter()
    trained = _train_all(preparation, targets, run)
    seconds = {**preparation.seconds, "students": time.perf_counter() - started}
    evaluation = None if test is None else evaluate(Evaluator.of(preparation, test), trained)
    shipped = config.students[0].name
    return TrainedModel(
        teacher=preparation.packed_teacher(),
        students={one.label: one.packed for one in trained if one.method == shipped},
        preparation=preparation,
        trained=tuple(trained),
        evaluation=evaluation,
        seconds=seconds,
    )


def _train_all(preparation: Preparation, targets: Sequence[int], run: Run) -> list[TrainedStudent]:
    """Train every student of the targets, class by class, in the threads of ``run``."""
    config = preparation.config
    tuning = config.tuning
    searched = [] if tuning is None else [spec for spec in config.students if spec.grid(tuning.grid)]
    progress = _Progress(run, len(targets), len(targets) * len(searched))
    for spec in config.students:
        spec.prepare(preparation.examples, run.with_seed(config.seed))

    def train_batch(batch: Sequence[int]) -> Iterator[list[TrainedStudent]]:
        holds_out = any(config.holds_out(spec) for spec in config.students)
        folds = preparation.folds(batch, run.silent()) if holds_out else None

        def train_class(target: int) -> list[TrainedStudent]:
            return [
                train_student(
                    preparation,
                    target,
                    spec,
                    folds=folds,
                    # The folds of a search run in parallel only if there are fewer classes than threads.
                    run=replace(
                        run,
                        n_threads=max(1, run.threads // len(batch)),
                        progress=progress.of_search((target, spec.name)),
                    ),
                )
                for spec in config.students
            ]

        # Threads suffice because the solvers release the GIL; they share Φ and S without copies.
        pool = Parallel(n_jobs=run.threads, prefer="threads", return_as="generator")
        yield from pool(delayed(train_class)(target) for target in batch)

    trained: list[TrainedStudent] = []
    with one_blas_thread():
        for batch in class_batches(preparation, targets):
            for students in train_batch(batch):
                trained += students
                progress.class_done(students[0])
    return trained


class _Progress:
    """Progress of students that are trained in parallel; only one thread reports at a time."""

    def __init__(self, run: Run, n_classes: int, n_searches: int) -> None:
        self._run, self._n_classes, self._n_searches = run, n_classes, n_searches
        self._lock = threading.Lock()
        self._shares: dict[tuple[int, str], float] = {}
        self._done = 0

    def of_search(self, which: tuple[int, str]) -> ProgressCallback | None:
        """The progress callback for one student, which reports its search only."""
        if self._run.progress is None:
            return None

        def report(step: Progress) -> None:
            if step.stage == "tuning":
                with self._lock:
                    self._shares[which] = step.done / step.total
                    done = int(100.0 * sum(self._shares.values()))
                    self._run.report("tuning", done, 100 * self._n_searches)

        return report

    def class_done(self, first: TrainedStudent) -> None:
        """Count one more finished class; report objective and gap of its first student."""
        with self._lock:
            self._done += 1
            own = first.summary
            self._run.report("student", self._done, self._n_classes, own.objective, own.gap)


def _targets(known: tuple[str, ...], wanted: Sequence[str] | None) -> list[int]:
    if wanted is None:
        return list(range(len(known)))
    code_of = {label: code for code, label in enumerate(known)}
    unknown = [label for label in dict.fromkeys(wanted) if label not in code_of]
    if unknown or not wanted:
        faults = [Fault("classes", "unknown_class", f"there is no class {label!r}") for label in unknown[:10]]
        raise InvalidProblem(*(faults or [Fault("classes", "empty", "classes must name at least one class")]))
    return [code_of[label] for label in dict.fromkeys(wanted)]
