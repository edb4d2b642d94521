"""Cross-validation folds with one teacher per fold, shared by all classes and methods of a run.

The feature map does not depend on labels and is fitted once; only sparse columns scaled by their standard
deviation are mapped for each fold (``core.features.maps.refitted``). The teacher is fitted for each fold, so
that gate and difficulty of a held-out row come from a teacher that was not fitted to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from joblib import Parallel, delayed

from core.data.fold_assignment import fold_assignment
from core.data.validation import not_whole, refuse
from core.errors import Fault, InvalidProblem
from core.features.examples import Examples
from core.features.maps import refitted
from core.run import Run
from core.solvers.jit import as_rows, row_norms2
from core.solvers.threads import one_blas_thread
from core.students.base import Budget, Fold, FoldResult, Problem, StudentSpec
from core.students.difficulty import ScoreRanks
from core.teachers.base import Task, Teacher, TeacherSpec
from core.teachers.distilled import scores_and_weights
from core.types import FloatArray, IntArray, Matrix


@dataclass(frozen=True, slots=True)
class TeacherPoint:
    """A teacher's hyper-parameters, its accuracy on held-out rows in [0, 1], and its standard error."""

    params: dict[str, Any]
    accuracy: float
    standard_error: float


@dataclass(frozen=True, slots=True, eq=False)
class TunedTeacher:
    """The best specification, its teachers (one per fold), and the results of all specifications."""

    spec: TeacherSpec
    teachers: tuple[Teacher, ...]
    trace: tuple[TeacherPoint, ...]


@dataclass(frozen=True, slots=True, eq=False)
class FoldRows:
    """All rows, mapped. single: Φ in float32, (n, m), for less memory traffic. norms: ‖φ_i‖², (n,)."""

    examples: Examples
    single: Matrix
    norms: FloatArray

    @classmethod
    def of(cls, examples: Examples) -> FoldRows:
        """The rows with features in float32; sums over these are computed in float64."""
        single = examples.features.astype(np.float32, copy=False)
        return cls(examples, single, row_norms2(as_rows(single), examples.n))


@dataclass(frozen=True, slots=True, eq=False)
class Folds:
    """Data and teachers of a cross-validation, shared by the students of all classes.

    task: the training rows. classes: K names. fold_of: the fold that each row is held out in, (n,), −1 for
        rows that are never held out.
    teacher: the teachers, one per fold, each fitted to the rows of the other folds.
    scores: S of all rows by each teacher, (folds, n, K); if ``targets`` is given, of these classes only,
        (folds, n, len(targets)).
    weights: W of each teacher, (K, m); if it is not linear, distilled from its scores of the training rows.
    ranks: the two largest scores of each row among all classes, one ScoreRanks per fold.
    rows: all rows as each fold maps them, one FoldRows per fold; folds that share a map share the object.
    teacher_cost: multiplications of a query to the packed teacher.
    """

    task: Task
    classes: tuple[str, ...]
    fold_of: IntArray
    teacher: TunedTeacher
    scores: FloatArray
    weights: tuple[FloatArray, ...]
    ranks: tuple[ScoreRanks, ...]
    rows: tuple[FoldRows, ...]
    targets: tuple[int, ...] | None = None
    teacher_cost: int = 0

    @classmethod
    def of(
        cls,
        task: Task,
        classes: tuple[str, ...],
        fold_of: IntArray,
        teacher: TunedTeacher,
        *,
        targets: Sequence[int] | None = None,
        teacher_cost: int = 0,
        run: Run = Run(),
    ) -> Folds:
        """Score every row with the teacher of each fold.

        targets: keep only the scores of these class codes; by default of all. Raises Cancelled.
        """
        kept = None if targets is None else sorted(set(targets))
        width = len(classes) if kept is None else len(kept)
        scores = np.empty((len(teacher.teachers), len(task.labels), width))
        weights, ranks = [], []
        rows: list[FoldRows] = []
        with one_blas_thread():
            for fold, one in enumerate(teacher.teachers):
                training = np.flatnonzero(fold_of != fold)
                examples = refitted(task.examples, training)
                is_same = bool(rows) and rows[-1].examples is examples
                rows.append(rows[-1] if is_same else FoldRows.of(examples))
                of_all, linear = scores_and_weights(one, examples, run, training)
                weights.append(linear)
                ranks.append(ScoreRanks.of(of_all))
                scores[fold] = of_all if kept is None else of_all[:, kept]
        return cls(
            task=task,
            classes=classes,
            fold_of=fold_of,
            teacher=teacher,
            scores=scores,
            weights=tuple(weights),
            ranks=tuple(ranks),
            rows=tuple(rows),
            targets=None if kept is None else tuple(kept),
            teacher_cost=teacher_cost,
        )

    @property
    def labels(self) -> IntArray:
        """Class codes, (n,)."""
        return self.task.labels

    @property
    def n_folds(self) -> int:
        """Number of folds."""
        return len(self.ranks)

    def fold(self, number: int, target: int) -> Fold:
        """One fold for class code ``target``. Raises InvalidProblem if the folds do not have this class."""
        rows = self.rows[number]
        problem = Problem(
            positive=self.labels == target,
            examples=rows.examples,
            gate=self.class_scores(number, target),
            gate_weights=self.weights[number][target],
            rival=self.ranks[number].rival(target),
            codes=self.labels,
            class_weights=self.weights[number],
            teacher_cost=self.teacher_cost,
            is_distilled=self.teacher.teachers[number].class_weights is None,
            trees=self.teacher.teachers[number].trees,
        )
        return Fold(number, target, problem, self.fold_of != number, rows.single, rows.norms)

    def walk(
        self, points: Sequence[StudentSpec], places: Sequence[tuple[int, int]], budget: Budget, run: Run
    ) -> Iterator[tuple[IntArray, FoldResult]]:
        """Fit all points in each place (a fold number and a class code) in the threads of ``run``.

        Yields the held-out rows of each place and the result of ``StudentSpec.walk``, in the order of places.
        Raises InvalidProblem, Cancelled.
        """

        def walked(number: int, target: int) -> tuple[IntArray, FoldResult]:
            fold = self.fold(number, target)
            return fold.held_out, type(points[0]).walk(points, fold, budget, run)

        pool = Parallel(n_jobs=run.threads, prefer="threads", return_as="generator")
        yield from pool(delayed(walked)(*place) for place in places)

    def class_scores(self, fold: int, target: int) -> FloatArray:
        """S^y of all rows by the teacher of ``fold``, (n,).

        Raises InvalidProblem if ``targets`` excludes it.
        """
        if self.targets is not None and target not in self.targets:
            message = f"the folds were made without class {self.classes[target]!r}"
            raise InvalidProblem(Fault("target", "unknown_class", message))
        column = target if self.targets is None else self.targets.index(target)
        return np.ascontiguousarray(self.scores[fold, :, column])

    def check_class(self, target: int) -> tuple[IntArray, IntArray]:
        """Numbers of examples of the class, and of other classes, in each fold, both (folds,).

        Raises InvalidProblem unless both occur in at least two folds, because each student needs both.
        """
        truth = self.labels == target
        positives = np.bincount(self.fold_of[truth], minlength=self.n_folds)
        negatives = np.bincount(self.fold_of[~truth], minlength=self.n_folds)
        if min(np.count_nonzero(positives), np.count_nonzero(negatives)) < 2:
            name = self.classes[target]
            message = f"class {name!r} needs examples of it, and of the rest, in at least two folds"
            raise InvalidProblem(Fault("labels", "class_too_small", message))
        return positives, negatives

    def is_learnable(self, target: int) -> bool:
        """Whether the training rows of every fold include rows of class code ``target`` and other rows."""
        truth = self.labels == target
        training = [truth[self.fold_of != number] for number in range(self.n_folds)]
        return all(rows.any() and not rows.all() for rows in training)

    @property
    def rare_classes(self) -> tuple[str, ...]:
        """Classes that some folds lack, measured on the pooled folds, see ``model_selection.scoring``."""
        counts = _class_counts(self.labels, self.fold_of, len(self.classes), self.n_folds)
        return tuple(name for name, row in zip(self.classes, counts, strict=True) if (row == 0).any())


def refuse_lone_rows(labels: IntArray, classes: Sequence[str]) -> None:
    """Raise InvalidProblem naming a class with a single row; folds need two rows of each class."""
    lone = np.flatnonzero(np.bincount(labels) == 1)
    if lone.size:
        message = f"class {classes[int(lone[0])]!r} has one training row only; folds need two of each class"
        raise InvalidProblem(Fault("labels", "class_too_small", message))


def tune_teacher(
    task: Task,
    specs: Sequence[TeacherSpec],
    fold_of: IntArray,
    run: Run = Run(),
) -> TunedTeacher:
    """The specification with the best multi-class accuracy on held-out rows; among equal ones the first.

    In each fold the teachers are fitted in the order of ``specs``, each starting from the one before. The
    first starts from zero: the dual variables of a teacher of all rows depend on the labels of the held-out
    rows, so a fold's teacher that starts from them would depend on these labels, too, within the tolerance.
    run: folds are fitted in its threads; reports stage ``"tuning_teacher"`` in folds.

    Raises InvalidProblem, Cancelled.
    """
    if len(specs) == 0:
        raise InvalidProblem(Fault("teacher", "empty", "at least one specification of the teacher is needed"))
    n_folds = int(fold_of.max()) + 1

    def path(fold: int) -> tuple[list[Teacher], list[float]]:
        run.check_cancel()
        rows, held_out = np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold)
        mapped = fold_task(task, rows)
        training = mapped.take(rows)
        last: Teacher | None = None
        teachers, accuracies = [], []
        for spec in specs:
            last = spec.fit(training, run.silent(), last)
            teachers.append(last.without_solver_state())
            predicted = last.scores(mapped.examples.take(held_out), run).argmax(axis=1)
            accuracies.append(float(np.mean(predicted == task.labels[held_out])))
        return teachers, accuracies

    paths = []
    with one_blas_thread():
        pool = Parallel(n_jobs=run.threads, prefer="threads", return_as="generator")
        for done, one in enumerate(pool(delayed(path)(fold) for fold in range(n_folds)), 1):
            paths.append(one)
            run.report("tuning_teacher", done, n_folds)
    accuracy = np.array([accuracies for _, accuracies in paths])
    means, errors = accuracy.mean(axis=0), accuracy.std(axis=0, ddof=1) / np.sqrt(n_folds)
    best = int(np.argmax(means))
    trace = tuple(
        TeacherPoint(spec.params(), float(mean), float(error))
        for spec, mean, error in zip(specs, means, errors, strict=True)
    )
    return TunedTeacher(specs[best], tuple(teachers[best] for teachers, _ in paths), trace)


def make_folds(
    task: Task,
    classes: tuple[str, ...],
    specs: Sequence[TeacherSpec],
    *,
    n_folds: int = 10,
    fold_of: IntArray | None = None,
    run: Run = Run(),
) -> Folds:
    """Assign the rows to folds, fit the folds' teachers and score every row with each.

    specs: specifications to choose the teacher from; with one, nothing is chosen. fold_of: the caller's own
    folds, (n,), numbered from 0, e.g. one per speaker; by default ``n_folds`` stratified ones. The other
    arguments are as in ``tune_teacher``.

    Raises InvalidProblem, also if a class is in one fold only; Cancelled.
    """
    if fold_of is None:
        refuse_lone_rows(task.labels, classes)
        fold_of = fold_assignment(task.labels, n_folds, run.seed)
    else:
        _check_folds(task.labels, classes, fold_of)
    teacher = tune_teacher(task, specs, fold_of, run)
    return Folds.of(task, classes, fold_of, teacher, run=run)


def held_out_scores(
    task: Task, fold_of: IntArray, teachers: Sequence[Teacher], run: Run = Run()
) -> FloatArray:
    """S of each row by the teacher of the fold that it is held out in, (n, K). Raises Cancelled."""
    scores = np.full((len(task.labels), task.n_classes), np.nan)
    for fold, teacher in enumerate(teachers):
        run.check_cancel()
        held_out = np.flatnonzero(fold_of == fold)
        mapped = fold_task(task, np.flatnonzero(fold_of != fold))
        scores[held_out] = teacher.scores(mapped.examples.take(held_out), run)
    return scores


def fold_task(task: Task, training: IntArray) -> Task:
    """All rows, mapped as in the fold with the training rows ``training`` (their numbers)."""
    return replace(task, examples=refitted(task.examples, training))


def task_of_features(features: Matrix, labels: IntArray, n_classes: int) -> Task:
    """A task from features Φ (n, m), without raw rows and feature map."""
    return Task(Examples.of_features(features), labels, n_classes)


def _class_counts(labels: IntArray, fold_of: IntArray, n_classes: int, n_folds: int) -> IntArray:
    """Rows of each class in each fold, (K, folds)."""
    counts = np.zeros((n_classes, n_folds), dtype=np.int64)
    np.add.at(counts, (labels, fold_of), 1)
    return counts


def _check_folds(labels: IntArray, classes: tuple[str, ...], fold_of: IntArray) -> None:
    if fold_of.shape != labels.shape or fold_of.dtype.kind not in "iu" or fold_of.min() < 0:
        message = f"fold_of must hold a fold number from 0 for each of the {len(labels)} rows"
        raise InvalidProblem(Fault("fold_of", "wrong_shape", message))
    n_folds = int(fold_of.max()) + 1
    refuse(not_whole("folds", n_folds, 2, len(labels)))
    counts = _class_counts(labels, fold_of, len(classes), n_folds)
    if (counts.sum(axis=0) == 0).any():
        message = f"fold {int(np.argmin(counts.sum(axis=0)))} has no rows"
        raise InvalidProblem(Fault("fold_of", "empty", message))
    lone = np.flatnonzero(np.count_nonzero(counts, axis=1) < 2)
    if lone.size:
        message = f"class {classes[lone[0]]!r} must have rows in at least two folds"
        raise InvalidProblem(Fault("fold_of", "class_too_small", message))
