"""Folds made once for all classes, methods and points, with a teacher for each fold.

The feature map is not fitted anew in each fold: it does not look at labels. The teacher is, so that gate and
difficulty of a held-out row come from a teacher that has not seen it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from joblib import Parallel, delayed

from core.data.bounds import not_whole, out_of_bounds, refuse
from core.errors import Fault, InvalidProblem
from core.run import Run
from core.solvers.jit import as_rows, row_norms2
from core.solvers.threads import one_blas_thread
from core.students.difficulty import ScoreRanks
from core.teachers.ssvm import LinearTeacher, fit_ssvm
from core.types import FloatArray, IntArray, Matrix


@dataclass(frozen=True, slots=True)
class TeacherPoint:
    """A teacher's C, its accuracy on held-out rows in [0, 1], and the standard error of it over the folds."""

    C: float
    accuracy: float
    standard_error: float


@dataclass(frozen=True, slots=True, eq=False)
class TunedTeacher:
    """The best C, its teachers (one a fold, without dual variables), and how every C did."""

    C: float
    teachers: tuple[LinearTeacher, ...]
    trace: tuple[TeacherPoint, ...]


@dataclass(frozen=True, slots=True, eq=False)
class TuningFolds:
    """All that the searches for every class share.

    features: Φ, (n, m), float32: half the memory traffic, and sums stay float64. norms: ‖φ_i‖², (n,).
    labels: codes, (n,). classes: K names. fold_of: the fold that each row is held out in, (n,).
    teacher: the tuned C with one teacher a fold. scores: S of all rows by each of them, (folds, n, K), or of
        the classes ``targets`` only, (folds, n, len(targets)).
    ranks: the two largest of each row, one a fold, of all classes.
    """

    features: Matrix
    norms: FloatArray
    labels: IntArray
    classes: tuple[str, ...]
    fold_of: IntArray
    teacher: TunedTeacher
    scores: FloatArray
    ranks: tuple[ScoreRanks, ...]
    targets: tuple[int, ...] | None = None

    @classmethod
    def of(
        cls,
        features: Matrix,
        labels: IntArray,
        classes: tuple[str, ...],
        fold_of: IntArray,
        teacher: TunedTeacher,
        *,
        targets: Sequence[int] | None = None,
        run: Run = Run(),
    ) -> TuningFolds:
        """Score every row with the teacher of each fold.

        targets: keep the scores of these class codes only; by default of all. Raises Cancelled.
        """
        kept = None if targets is None else sorted(set(targets))
        width = len(classes) if kept is None else len(kept)
        scores = np.empty((len(teacher.teachers), len(labels), width))
        ranks = []
        with one_blas_thread():
            for fold, one in enumerate(teacher.teachers):
                of_all = one.scores(features, run)
                ranks.append(ScoreRanks.of(of_all))
                scores[fold] = of_all if kept is None else of_all[:, kept]
        slim = features.astype(np.float32, copy=False)
        norms = row_norms2(as_rows(slim), len(labels))
        shown = None if kept is None else tuple(kept)
        return cls(slim, norms, labels, classes, fold_of, teacher, scores, tuple(ranks), shown)

    def class_scores(self, fold: int, target: int) -> FloatArray:
        """S^y of all rows by the teacher of ``fold``, (n,). Raises InvalidProblem for a class left out."""
        if self.targets is not None and target not in self.targets:
            message = f"the folds were made without class {self.classes[target]!r}"
            raise InvalidProblem(Fault("target", "unknown_class", message))
        column = target if self.targets is None else self.targets.index(target)
        return np.ascontiguousarray(self.scores[fold, :, column])

    @property
    def n_folds(self) -> int:
        """How many folds there are."""
        return len(self.ranks)

    @property
    def rare_classes(self) -> tuple[str, ...]:
        """Classes missing from some fold: measured on the pooled folds, see ``model_selection.scoring``."""
        counts = _class_counts(self.labels, self.fold_of, len(self.classes), self.n_folds)
        return tuple(name for name, row in zip(self.classes, counts, strict=True) if (row == 0).any())


def fold_assignment(labels: IntArray, n_folds: int, seed: int = 0) -> IntArray:
    """The fold of each row, (n,), in [0, n_folds): shuffled, stratified, sizes equal to within one row.

    The rows of a class are dealt out in turn, so their numbers in the folds differ by at most one, and a
    class with fewer rows than folds has them in as many folds. Raises InvalidProblem: folds out of [2, n], or
    a class with a single row, which a fold would leave without any to train on.
    """
    refuse(not_whole("folds", n_folds, 2, len(labels)), not_whole("seed", seed, 0, 2**32 - 1))
    refuse_lone_rows(labels)
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    dealt = shuffled[np.argsort(labels[shuffled], kind="stable")]
    fold_of = np.empty(len(labels), dtype=np.int64)
    fold_of[dealt] = np.arange(len(labels)) % n_folds
    return fold_of


def refuse_lone_rows(labels: IntArray, classes: Sequence[str] | None = None) -> None:
    """Raises InvalidProblem that names a class with a single row: folds need two of each."""
    lone = np.flatnonzero(np.bincount(labels) == 1)
    if lone.size:
        code = int(lone[0])
        name = f"class code {code}" if classes is None else f"class {classes[code]!r}"
        message = f"{name} has one training row only; folds need two of each class"
        raise InvalidProblem(Fault("labels", "class_too_small", message))


def tune_teacher(
    features: Matrix,
    labels: IntArray,
    n_classes: int,
    fold_of: IntArray,
    Cs: Sequence[float],
    *,
    tolerance: float = 1e-3,
    max_epochs: int = 5000,
    warm_start: LinearTeacher | None = None,
    run: Run = Run(),
) -> TunedTeacher:
    """The C with the best multi-class accuracy on held-out rows; of equal ones the smallest.

    In each fold the teachers are fitted along rising C, each from the dual of the one before; the first from
    ``warm_start``, a teacher fitted to all rows, whose dual is cut down to the fold's.
    run: reports stage ``"tuning_teacher"`` in folds. Raises InvalidProblem, Cancelled.
    """
    if len(Cs) == 0:
        raise InvalidProblem(Fault("teacher_C", "empty", "at least one C of the teacher is needed"))
    refuse(*(out_of_bounds("teacher_C", C, 0.0, 1e12, open_low=True) for C in Cs))
    rising = sorted({float(C) for C in Cs})
    n_folds = int(fold_of.max()) + 1

    def path(fold: int) -> tuple[list[LinearTeacher], list[float]]:
        run.check_cancel()
        train, held_out = np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold)
        rows, last = features[train], _restricted(warm_start, train)
        teachers, accuracies = [], []
        for C in rising:
            last = fit_ssvm(
                rows,
                labels[train],
                n_classes,
                C=C,
                tolerance=tolerance,
                max_epochs=max_epochs,
                warm_start=last,
                run=run.silent(),
            )
            teachers.append(replace(last, dual=None))
            predicted = last.scores(features[held_out], run).argmax(axis=1)
            accuracies.append(float(np.mean(predicted == labels[held_out])))
        return teachers, accuracies

    paths = []
    with one_blas_thread():
        pool = Parallel(n_jobs=run.threads, prefer="threads", return_as="generator")
        for done, found in enumerate(pool(delayed(path)(fold) for fold in range(n_folds)), 1):
            paths.append(found)
            run.report("tuning_teacher", done, n_folds)
    accuracy = np.array([accuracies for _, accuracies in paths])
    means, errors = accuracy.mean(axis=0), accuracy.std(axis=0, ddof=1) / np.sqrt(n_folds)
    best = int(np.argmax(means))
    trace = tuple(
        TeacherPoint(C, float(mean), float(error))
        for C, mean, error in zip(rising, means, errors, strict=True)
    )
    return TunedTeacher(rising[best], tuple(teachers[best] for teachers, _ in paths), trace)


def make_folds(
    features: Matrix,
    labels: IntArray,
    classes: tuple[str, ...],
    *,
    teacher_Cs: Sequence[float],
    n_folds: int = 10,
    fold_of: IntArray | None = None,
    tolerance: float = 1e-3,
    max_epochs: int = 5000,
    warm_start: LinearTeacher | None = None,
    run: Run = Run(),
) -> TuningFolds:
    """Deal out the rows, fit the folds' teachers and score every row with each.

    features: Φ of the training rows, (n, m). teacher_Cs: values to choose the teacher's C from, or the one C
    that it shall have. fold_of: the caller's own folds, (n,), numbered from 0, e.g. one a speaker; by default
    ``n_folds`` stratified ones. The other arguments as in ``tune_teacher``.

    Raises InvalidProblem, also when a class is in one fold only; Cancelled.
    """
    if fold_of is None:
        fold_of = fold_assignment(labels, n_folds, run.seed)
    else:
        _check_folds(labels, classes, fold_of)
    teacher = tune_teacher(
        features,
        labels,
        len(classes),
        fold_of,
        teacher_Cs,
        tolerance=tolerance,
        max_epochs=max_epochs,
        warm_start=warm_start,
        run=run,
    )
    return TuningFolds.of(features, labels, classes, fold_of, teacher, run=run)


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


def _restricted(teacher: LinearTeacher | None, train: IntArray) -> LinearTeacher | None:
    """The teacher's dual on some of the rows, rescaled from the box [.., C/n] of all rows to theirs."""
    if teacher is None or teacher.dual is None:
        return None
    return replace(teacher, dual=teacher.dual[train] * (len(teacher.dual) / len(train)))
