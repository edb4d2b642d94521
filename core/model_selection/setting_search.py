"""The search of a job: features, C of the teacher, and one point for the students of all classes.

1. Every map is measured by leave-one-out least squares on some 800 rows (``quick_choice``), which costs one
   eigenvalue decomposition a map; further widths are tried while an end of them wins.
2. The best maps are compared by teachers in cross-validation on some 2000 rows, each with C rising until it
   does not help (``setting``).
3. The students' point is the one that is best on average over the classes, on the same rows and with the
   chosen features and teacher (``joint``); further values of C are tried while an end of them wins.

The loss of a row weighs C/n. What is compared on a part of the rows, and chosen, is therefore C/n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from core.data.dataset import LabelledData
from core.features.examples import Examples
from core.features.maps import fit_feature_map
from core.features.spec import FeatureSpec
from core.model_selection.folds import Folds, fold_assignment, make_folds
from core.model_selection.joint import JointlyTuned, tune_jointly
from core.model_selection.quick_choice import MeasuredMap, measure_maps, sized
from core.model_selection.setting import Candidate, best_of, judge, some_rows
from core.parameters import parameters_of
from core.run import Run
from core.students.base import MetadataValue, StudentSpec
from core.students.grid import MAX_C, MIN_C, near_grid
from core.students.polytope import Polytope
from core.teachers.base import Task
from core.teachers.ssvm import SSVM

ROWS: Final = 2000
"""Rows that teachers and students are compared on, about; at least 60 of each class, if it has them."""
MOST_CLASSES: Final = 40
"""Of more classes than this, so many drawn at random stand for all."""
FINALISTS: Final = 4
"""Maps that are compared by teachers."""
FOLDS: Final = 3
LANDMARKS: Final = 500
"""Of the RBF maps that are compared; the chosen one has as many as suit all rows."""
TARGETS: Final = 12
"""Classes whose students are compared, at most."""
_C_FACTORS: Final = tuple(10.0 ** (power / 2) for power in range(-2, 6))
_STEP: Final = 10.0**0.5
_MOST_STEPS: Final = 4


@dataclass(frozen=True, slots=True)
class SharedPoint:
    """The point that the students of all classes share: a ``Report`` of each of them.

    point: its hyper-parameters. score, standard_error: ``overall_score`` in cross-validation, the mean over
    classes. What was tried stands once in the ``Setting``, not with every student.
    """

    point: dict[str, Any]
    score: float
    standard_error: float

    def summary(self) -> dict[str, Any]:
        """The point and its score, JSON-ready."""
        return {**self.point, "score": self.score, "standard_error": self.standard_error, "folds": FOLDS}

    def trace(self) -> list[dict[str, Any]]:
        """Nothing."""
        return []

    def metadata(self) -> dict[str, MetadataValue]:
        """Entries for the metadata of the packed student."""
        return {"tuning_score": self.score, "tuning_standard_error": self.standard_error}


@dataclass(frozen=True, slots=True)
class Setting:
    """What a search has chosen for n training rows, and what it tried.

    features: the map. teacher_C: of the teacher of all rows. students: hyper-parameters by name of student,
    none for a student without a grid. points: their scores, see ``SharedPoint``. score: ``overall_score`` of
    the teacher in cross-validation, in [0, 1]. rows: that teachers and students were compared on.
    tried: JSON-ready lists by what was compared, ``maps``, ``teachers`` and the names of the students.
    """

    features: FeatureSpec
    teacher_C: float  # noqa: N815
    students: dict[str, dict[str, Any]]
    points: dict[str, dict[str, Any]]
    score: float
    rows: int
    tried: dict[str, list[dict[str, Any]]]

    @property
    def reason(self) -> str:
        """One sentence."""
        return (
            f"The best of {len(self.tried['maps'])} maps by leave-one-out least squares and of"
            f" {len(self.tried['teachers'])} teachers on the best of these by {FOLDS} folds of {self.rows}"
            f" rows: accuracy, F and AUC give {100 * self.score:.1f} %."
        )

    def as_dict(self) -> dict[str, Any]:
        """What was chosen, JSON-ready, without what was tried."""
        return self.features.summary() | {"teacher_C": self.teacher_C, "reason": self.reason}

    def report_of(self, name: str) -> SharedPoint | None:
        """The point of the students of that name; None if it was not searched."""
        return SharedPoint(**self.points[name]) if name in self.points else None

    def search(self) -> dict[str, Any]:
        """How it was chosen, JSON-ready: the students' points, and everything that was tried."""
        return {
            "teacher_C": self.teacher_C,
            "students": {name: SharedPoint(**point).summary() for name, point in self.points.items()},
            "score": self.score,
            "rows": self.rows,
            "folds": FOLDS,
            "tried": self.tried,
        }


def search_setting(
    data: LabelledData, spec: FeatureSpec, students: Sequence[StudentSpec], run: Run = Run()
) -> Setting:
    """Features, C of the teacher and the point of each student, for checked data.

    spec: gives the number format only. students: those with a grid are searched; fields that are not in it
    keep their values. run: folds are fitted in its threads; reports stages ``"setting"`` (in maps) and
    ``"points"`` (in fits). The same data and seed give the same choice. Raises InvalidProblem, Cancelled.
    """
    measured, _ = measure_maps(spec, data.X, data.y, data.K, run, extend=True)
    finalists = sorted(measured, key=lambda one: -one.f1)[:FINALISTS]
    run.report("setting", 1, len(finalists) + 1)
    part = comparison_part(data, run.seed)
    compared = _compared_teachers(part, finalists, run)
    best = best_of(compared)
    chosen = sized(
        next(one for one in finalists if _comparable(one.features) == best.features).features, data.X
    )
    share = data.n / part.n
    compared_on_part = _Points(part, best, data.n, run)
    found = {one.name: compared_on_part.of(one) for one in students}
    tuned = {name: one for name, (one, _) in found.items() if one is not None}
    return Setting(
        features=chosen,
        teacher_C=_within(best.teacher_C * share),
        students={name: _values(one.spec, share) for name, one in tuned.items()},
        points={name: _point(one, share) for name, one in tuned.items()},
        score=best.score,
        rows=part.n,
        tried={
            "maps": [_map_as_dict(one) for one in measured],
            "teachers": [_teacher_as_dict(one, share) for one in compared],
            **{name: trace for name, (_, trace) in found.items() if trace},
        },
    )


def _compared_teachers(part: LabelledData, maps: Sequence[MeasuredMap], run: Run) -> list[Candidate]:
    """Teachers on each map with C rising from a tenth of what its ridge corresponds to.

    If the best of all has the smallest C, its map gets smaller ones, too, until they do not help.
    """
    fold_of = fold_assignment(part.y, FOLDS, run.seed)
    compared: list[Candidate] = []
    for done, one in enumerate(maps, 2):
        run.check_cancel()
        Cs = [_within(one.C_per_row * factor * part.n) for factor in _C_FACTORS]
        compared += judge(part, fold_of, _comparable(one.features), sorted(set(Cs)), run.silent())
        run.report("setting", done, len(maps) + 1)
    best = best_of(compared)
    if best.teacher_C == min(one.teacher_C for one in compared if one.features == best.features):
        Cs = [_within(best.teacher_C / _STEP**step) for step in range(1, _MOST_STEPS + 1)]
        compared += judge(part, fold_of, best.features, sorted(set(Cs), reverse=True), run.silent())
    return compared


def comparison_part(data: LabelledData, seed: int) -> LabelledData:
    """Some 2000 rows of at most 40 classes, with codes of these classes."""
    if data.K > MOST_CLASSES:
        kept = np.sort(np.random.default_rng(seed).choice(data.K, MOST_CLASSES, replace=False))
        rows = np.flatnonzero(np.isin(data.y, kept))
        codes = np.searchsorted(kept, data.y[rows]).astype(data.y.dtype)
        data = replace(data, X=data.X[rows], y=codes, classes=tuple(data.classes[code] for code in kept))
    some = some_rows(data.y, ROWS, seed)
    return replace(data, X=data.X[some], y=data.y[some])


class _Points:
    """The students' points, compared on a part of the data with one map and teacher."""

    def __init__(self, part: LabelledData, best: Candidate, n: int, run: Run) -> None:
        self._part, self._best, self._n, self._run = part, best, n, run
        self._folds: Folds | None = None

    def of(self, student: StudentSpec) -> tuple[JointlyTuned | None, list[dict[str, Any]]]:
        """The best point for the part, and all that were tried; None for a student without a grid.

        The values of C in the list are those for all rows.
        """
        points: Sequence[Any] = points_near(student, self._best.teacher_C)
        if not points:
            return None, []
        tuned, trace = self._tuned(points)
        tried = {one.C for one in points}
        for _ in range(_MOST_STEPS):
            chosen: Any = tuned.spec
            steps = {min(tried): 1.0 / _STEP, max(tried): _STEP}
            further = _within(chosen.C * steps.get(chosen.C, 1.0))
            if further in tried:
                break
            beyond, more = self._tuned([replace(chosen, C=further)])
            tried.add(further)
            trace += more
            if beyond.score <= tuned.score:
                break
            tuned = beyond
        return tuned, trace

    def _tuned(self, points: Sequence[StudentSpec]) -> tuple[JointlyTuned, list[dict[str, Any]]]:
        folds = self._made_folds()
        rng = np.random.default_rng(self._run.seed)
        targets = np.sort(rng.permutation(len(folds.classes))[:TARGETS]).tolist()
        tuned = tune_jointly(folds, targets, points, self._run.stage("points"))
        share = self._n / self._part.n
        trace = [one.as_dict() for one in tuned.trace]
        return tuned, [_without_time(one) | {"C": _within(one["C"] * share)} for one in trace]

    def _made_folds(self) -> Folds:
        if self._folds is None:
            part, best, run = self._part, self._best, self._run.silent()
            fitted = fit_feature_map(part.X, best.features, run.seed)
            examples = Examples(part.X, fitted.transform(part.X), fitted, best.features)
            task = Task(examples, part.y, part.K)
            self._folds = make_folds(task, part.classes, (SSVM(best.teacher_C),), n_folds=FOLDS, run=run)
        return self._folds


def _comparable(spec: FeatureSpec) -> FeatureSpec:
    """A map with few landmarks, for a comparison on a part of the rows."""
    return spec if spec.kind == "linear" else replace(spec, kind="nystroem", n_components=LANDMARKS)


def points_near(student: StudentSpec, C: float) -> Sequence[StudentSpec]:
    """What is tried of a student near a C that is about right; none if it has no grid.

    A student with several rejections keeps their number, which is the cost of a query.
    """
    grid = near_grid(C)
    if not isinstance(student, Polytope):
        return student.grid(grid)
    return tuple(dict.fromkeys(replace(one, pieces=student.pieces) for one in student.grid(grid)))


def _within(C: float) -> float:
    return float(min(max(C, MIN_C), MAX_C))


def _point(tuned: JointlyTuned, share: float) -> dict[str, Any]:
    """The fields of a ``SharedPoint``, its C for ``share`` times as many rows."""
    point = tuned.spec.params()
    point |= {"C": _within(point["C"] * share)}
    return {"point": point, "score": tuned.score, "standard_error": tuned.standard_error}


def _values(spec: StudentSpec, share: float) -> dict[str, Any]:
    """All hyper-parameters of a student, its C for ``share`` times as many rows."""
    values = {one.name: getattr(spec, one.name) for one in parameters_of(type(spec))}
    return values | {"C": _within(values["C"] * share)}


def _map_as_dict(one: MeasuredMap) -> dict[str, Any]:
    spec = one.features
    width = {} if spec.gamma is None else {"gamma": spec.gamma}
    return {"kind": spec.kind, "scaling": str(spec.scaling), **width, "f1": one.f1}


def _teacher_as_dict(one: Candidate, share: float) -> dict[str, Any]:
    spec = asdict(one.features)
    shown = {name: spec[name] for name in ("kind", "gamma") if spec[name] is not None}
    return {**shown, "scaling": str(spec["scaling"]), "C": _within(one.teacher_C * share), "score": one.score}


def _without_time(values: dict[str, Any]) -> dict[str, Any]:
    """A trace without wall times, which no repetition would give again."""
    return {name: value for name, value in values.items() if name != "seconds"}
