"""Joint search: one grid point for the students of all classes, the best on average over the classes.

A class has a few dozen held-out positives, so noise largely decides the best point of one class. The classes
of one problem prefer similar points, so the mean over classes varies far less, and a few classes are enough
to discard most of the points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.data.validation import not_whole, refuse
from core.errors import Fault
from core.model_selection.folds import Folds
from core.model_selection.results import SearchResults, TracePoint
from core.model_selection.scoring import HeldOutRows, Measure
from core.model_selection.search import COARSE
from core.run import Run
from core.solvers.threads import one_blas_thread
from core.students.base import Budget, StudentSpec
from core.types import BoolArray, FloatArray, IntArray

_MEASURES = (Measure("accuracy"), Measure("f1"), Measure("auc"))
# Classes and folds of the screening; the final comparison uses all. If each fold is a speaker, two folds are
# too few: noise chose the survivors, and they depended on rounding.
_SCREENING_CLASSES = 8
_SCREENING_FOLDS = 5
_SURVIVORS = 16
# The best points differ by less than the effect of a duality gap of 1e-3.
_FINE = Budget(tolerance=1e-4)
# Lower limit of an error rate in the geometric mean.
_PERFECT = 1e-6
_FEWEST = 4


@dataclass(frozen=True, slots=True, eq=False)
class JointlyTuned:
    """Result of a joint search.

    spec: the chosen point. targets: class codes, (T,). held_out_scores: scores of every training row by
        students that were not fitted to it, (T, n).
    score, standard_error: cross-validated score of the chosen point, see ``tune_jointly``. trace: all
        evaluated points in the order of the grid.
    """

    spec: StudentSpec
    targets: tuple[int, ...]
    held_out_scores: FloatArray
    score: float
    standard_error: float
    trace: tuple[TracePoint, ...]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready, without the held-out scores."""
        return {
            "method": self.spec.name,
            **self.spec.params(),
            "score": self.score,
            "standard_error": self.standard_error,
            "trace": [point.as_dict() for point in self.trace],
        }


def tune_jointly(
    folds: Folds,
    targets: Sequence[int],
    points: Sequence[StudentSpec],
    run: Run = Run(),
) -> JointlyTuned:
    """The point with the best cross-validated score on average over the classes ``targets``.

    The score of a point is the ``overall_score`` of accuracy, F and AUC, each the mean over the classes.

    Screening evaluates all points on up to five folds and eight classes with a coarse tolerance. The best
    sixteenth, at least four, is then evaluated on all folds and classes with a fine tolerance. Ties are
    resolved in favour of the first point. run: reports stage ``"tuning"`` in fits.

    Raises InvalidProblem for arguments out of bounds or a class that is in one fold only; Cancelled.
    """
    refuse(
        *(not_whole("targets", target, 0, len(folds.classes) - 1) for target in targets),
        None if targets else Fault("targets", "empty", "targets must name at least one class"),
    )
    search = _JointSearch(folds, tuple(targets), tuple(points), run)
    return search.outcome()


def overall_score(means: FloatArray) -> FloatArray:
    """1 − (Π_k (1 − m_k))^(1/q) for q measures in [0, 1], (q, …): one minus the geometric mean of the errors.

    Reducing the error of any measure by a tenth has the same effect, although errors of AUC are small and
    errors of F are large.
    """
    score: FloatArray = 1.0 - np.maximum(1.0 - means, _PERFECT).prod(axis=0) ** (1.0 / len(means))
    return score


class _JointSearch:
    def __init__(
        self,
        folds: Folds,
        targets: tuple[int, ...],
        points: tuple[StudentSpec, ...],
        run: Run,
    ) -> None:
        self.folds, self.targets, self.points = folds, targets, points
        self.run = run
        self.rng = np.random.default_rng(run.seed)
        self.results = SearchResults(self.points)
        self.done, self.total = 0, 0

    def outcome(self) -> JointlyTuned:
        everything = np.arange(len(self.points))
        finalists = min(len(everything), max(_FEWEST, -(-len(everything) // _SURVIVORS)))
        screening = tuple(sorted(self.rng.permutation(self.targets)[:_SCREENING_CLASSES].tolist()))
        few = min(_SCREENING_FOLDS, self.folds.n_folds)
        screened = finalists < len(everything)
        self.total = finalists * len(self.targets) * self.folds.n_folds
        if screened:
            self.total += len(everything) * len(screening) * few
            self._measure(everything, screening, self._fullest(screening)[:few], COARSE)
        alive = (
            np.sort(np.argsort(-self.results.score, kind="stable")[:finalists]) if screened else everything
        )
        values = self._measure(alive, self.targets, np.arange(self.folds.n_folds), _FINE)
        best = int(np.lexsort((alive, -self.results.score[alive]))[0])
        chosen = alive[best]
        return JointlyTuned(
            spec=self.points[chosen],
            targets=self.targets,
            held_out_scores=values[:, best].astype(np.float64),
            score=float(self.results.score[chosen]),
            standard_error=float(self.results.error[chosen]),
            trace=self.results.trace(),
        )

    def _fullest(self, targets: tuple[int, ...]) -> NDArray[np.intp]:
        """Fold numbers: folds with the most of the classes first, ties by number."""
        held = [
            len(np.intersect1d(self.folds.labels[self.folds.fold_of == fold], targets))
            for fold in range(self.folds.n_folds)
        ]
        return np.argsort(-np.array(held), kind="stable")

    def _measure(
        self,
        alive: NDArray[np.intp],
        targets: tuple[int, ...],
        some_folds: NDArray[np.intp],
        budget: Budget,
    ) -> NDArray[np.float32]:
        """Fit and score points on folds and classes. Returns held-out scores, (targets, points, n)."""
        points = [self.points[index] for index in alive]
        values = np.full((len(targets), len(alive), len(self.folds.labels)), np.nan, dtype=np.float32)
        places = [(int(fold), target) for target in targets for fold in some_folds]
        self.results.gap[alive] = 0.0
        with one_blas_thread():
            walked = self.folds.walk(points, places, budget, self.run)
            for number, (held_out, result) in enumerate(walked):
                values[number // len(some_folds)][:, held_out] = result.scores
                self.results.add_fits(alive, result.gaps, result.seconds)
                self.done += len(points)
                self.run.report("tuning", self.done, self.total)
        self._rate(alive, targets, values)
        self.results.folds[alive] = len(some_folds)
        return values

    def _rate(self, alive: NDArray[np.intp], targets: tuple[int, ...], values: NDArray[np.float32]) -> None:
        seen = np.flatnonzero(~np.isnan(values[0, 0]))
        fold_of = self.folds.fold_of[seen]
        means, errors = np.zeros((3, len(alive))), np.zeros((3, len(alive)))
        present = [place for place, target in enumerate(targets) if (self.folds.labels[seen] == target).any()]
        for place in present:
            truth = self.folds.labels[seen] == targets[place]
            rows = HeldOutRows(truth, fold_of, _missing_somewhere(truth, fold_of))
            for kind, measure in enumerate(_MEASURES):
                score, error = rows.scores_of(values[place][:, seen], measure)
                means[kind] += score / len(present)
                # Classes share their folds, so their errors are correlated and do not fall with √(classes).
                errors[kind] += error / len(present)
        self.results.score[alive] = overall_score(means)
        wrong = np.maximum(1.0 - means, _PERFECT)
        self.results.error[alive] = (1.0 - self.results.score[alive]) * (errors / wrong).mean(axis=0)


def _missing_somewhere(truth: BoolArray, fold_of: IntArray) -> bool:
    names = np.unique(fold_of)
    return any(truth[fold_of == fold].all() or not truth[fold_of == fold].any() for fold in names)
