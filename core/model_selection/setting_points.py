"""Chooses one point for the students of all classes of a job, and measures F of a setting's students."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from core.data.dataset import LabelledData
from core.features.examples import Examples
from core.features.maps import fit_feature_map
from core.model_selection.class_thresholds import ThresholdComparison, compare_thresholds
from core.model_selection.contest import FOLDS, LOOSE, LOOSE_EPOCHS, Entry, comparable, is_better, mean_f1
from core.model_selection.folds import Folds, make_folds
from core.model_selection.joint import JointlyTuned, tune_jointly
from core.model_selection.options import ThresholdRule
from core.run import Run
from core.students.base import MetadataValue, StudentSpec
from core.students.grid import MAX_C, MIN_C, near_grid
from core.students.polytope import Polytope
from core.teachers.base import Task
from core.teachers.ssvm import SSVM
from core.types import FloatArray

TARGETS: Final = 12
"""Largest number of classes whose students are compared."""
STEP: Final = 10.0**0.5
MOST_STEPS: Final = 4


@dataclass(frozen=True, slots=True)
class SharedPoint:
    """The point that the students of all classes share; serves as ``Report`` of each student.

    point: its hyper-parameters. score, standard_error: cross-validated ``overall_score``, mean over the
    classes. threshold: shared by the students of all classes; None if each has its own. The points that were
    tried are stored once in the ``Setting``, not with every student.
    """

    point: dict[str, Any]
    score: float
    standard_error: float
    threshold: float | None = None

    def summary(self) -> dict[str, Any]:
        """The point, the shared threshold if there is one, and the score, JSON-ready."""
        shared = {} if self.threshold is None else {"shared_threshold": self.threshold}
        scores = {"score": self.score, "standard_error": self.standard_error}
        return {**self.point, **shared, **scores, "folds": FOLDS}

    def trace(self) -> list[dict[str, Any]]:
        """Empty: the ``Setting`` stores the points that were tried."""
        return []

    def metadata(self) -> dict[str, MetadataValue]:
        """Entries for the metadata of the packed student."""
        return {"tuning_score": self.score, "tuning_standard_error": self.standard_error}


class StudentPoints:
    """Compares the students' points on a part of the data with one map and teacher."""

    def __init__(self, part: LabelledData, entry: Entry, run: Run) -> None:
        self._part, self._entry, self._run = part, entry, run
        self._folds: Folds | None = None

    def of(self, student: StudentSpec, share: float) -> tuple[JointlyTuned | None, list[dict[str, Any]]]:
        """The best point for the part, and all that were tried; None for a student without a grid.

        It is the student with the teacher's C unless another point has a clearly larger mean F. Values of C
        in the list are those for ``share`` times as many rows.
        """
        C = self._entry.C_per_row * self._part.n
        points: Sequence[Any] = points_near(loose(student), C)
        if not points:
            return None, []
        first = _with_C(loose(student), C)
        known, trace = self._tuned([first], share)
        tuned, more = self._tuned(points, share)
        trace += more
        tried = {one.C for one in points}
        for _ in range(MOST_STEPS):
            chosen: Any = tuned.spec
            steps = {min(tried): 1.0 / STEP, max(tried): STEP}
            further = within(chosen.C * steps.get(chosen.C, 1.0))
            if further in tried:
                break
            beyond, more = self._tuned([replace(chosen, C=further)], share)
            tried.add(further)
            trace += more
            if beyond.score <= tuned.score:
                break
            tuned = beyond
        best = tuned if is_better(*self._f1_of(tuned), *self._f1_of(known)) else known
        return replace(best, spec=_as_exact(best.spec, student)), trace

    def thresholds(self, tuned: JointlyTuned, rule: ThresholdRule) -> ThresholdComparison:
        """Compare one threshold for the students of all classes with one for each."""
        folds = self._made_folds()
        return compare_thresholds(folds.labels, tuned.targets, tuned.held_out_scores, folds.fold_of, rule)

    def _f1_of(self, tuned: JointlyTuned) -> tuple[float, FloatArray]:
        return mean_f1(self._part.y, tuned.held_out_scores >= 0.0, tuned.targets)

    def _tuned(
        self, points: Sequence[StudentSpec], share: float
    ) -> tuple[JointlyTuned, list[dict[str, Any]]]:
        folds = self._made_folds()
        tuned = tune_jointly(
            folds, some_targets(self._part, self._run.seed), points, self._run.stage("points")
        )
        trace = [one.as_dict() for one in tuned.trace]
        return tuned, [_without_time(one) | {"C": within(one["C"] * share)} for one in trace]

    def _made_folds(self) -> Folds:
        if self._folds is None:
            part, run = self._part, self._run.silent()
            spec = comparable(self._entry.with_factors(part, run))
            fitted = fit_feature_map(part.X, spec, run.seed)
            features = fitted.transform(part.X)
            examples = Examples(part.X, features, fitted, spec, all_extras=part.extras)
            teacher = SSVM(within(self._entry.C_per_row * part.n), LOOSE, LOOSE_EPOCHS)
            task = Task(examples, part.y, part.K)
            self._folds = make_folds(task, part.classes, (teacher,), n_folds=FOLDS, run=run)
        return self._folds


def some_targets(part: LabelledData, seed: int) -> list[int]:
    """Codes of the classes whose students are compared."""
    targets: list[int] = np.sort(np.random.default_rng(seed).permutation(part.K)[:TARGETS]).tolist()
    return targets


def points_near(student: StudentSpec, C: float) -> Sequence[StudentSpec]:
    """The points of a student near C, which should be about right; empty if it has no grid.

    A student with several rejections keeps their number, which determines the cost of a query.
    """
    grid = near_grid(C)
    if not isinstance(student, Polytope):
        return student.grid(grid)
    return tuple(dict.fromkeys(replace(one, pieces=student.pieces) for one in student.grid(grid)))


def within(C: float) -> float:
    return float(min(max(C, MIN_C), MAX_C))


def loose(student: StudentSpec) -> StudentSpec:
    """The same student with a comparison's tolerance; students fitted as a path have their own budget."""
    return (
        replace(student, tolerance=LOOSE, max_epochs=LOOSE_EPOCHS)
        if isinstance(student, Polytope)
        else student
    )


def _as_exact(found: StudentSpec, student: StudentSpec) -> StudentSpec:
    """The point ``found``, with the tolerance of ``student``."""
    if not (isinstance(found, Polytope) and isinstance(student, Polytope)):
        return found
    return replace(found, tolerance=student.tolerance, max_epochs=student.max_epochs)


def _with_C(student: StudentSpec, C: float) -> StudentSpec:  # noqa: N802
    """A student that has a grid, with this C."""
    return replace(student, C=within(C))  # type: ignore[type-var]


def point_of(tuned: JointlyTuned, share: float, threshold: float | None) -> dict[str, Any]:
    """The fields of a ``SharedPoint``; its C is that for ``share`` times as many rows."""
    point = tuned.spec.params()
    point |= {"C": within(point["C"] * share)}
    return asdict(SharedPoint(point, tuned.score, tuned.standard_error, threshold))


def _without_time(values: dict[str, Any]) -> dict[str, Any]:
    """A trace without wall times, because these differ in every repetition."""
    return {name: value for name, value in values.items() if name != "seconds"}
