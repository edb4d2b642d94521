"""The search of a job: features, C of the teacher, and one point for the students of all classes.

1. Every map is measured by leave-one-out least squares on some 800 rows, as ``automatic`` does
   (``quick_choice``). What that takes is the first entry of a contest.
2. Teachers are compared in cross-validation on some 2000 rows (``contest``): those on the best maps, on the
   best one with learnt factors of its columns, and with further widths and values of C while they help.
3. The winner is taken instead of the first entry if it is better on other folds, too, by more than two
   standard errors of the difference: of many entries the best is partly so by chance.
4. The students' point is the one that is best on average over the classes, with the chosen features and
   teacher (``joint``), if it is better than the teacher's C by two standard errors; further values of
   C are tried while an end of them wins.
5. One threshold takes the place of one for each class, if it is better by two standard errors
   (``class_thresholds``).

The loss of a row weighs C/n. What is compared on a part of the rows, and chosen, is therefore C/n.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from core.data.dataset import LabelledData
from core.features.spec import MAX_GAMMA, FeatureSpec
from core.model_selection.class_thresholds import OWN_RULES
from core.model_selection.contest import FOLDS, Contest, Entry, Rated, is_better
from core.model_selection.options import ThresholdRule
from core.model_selection.quick_choice import MeasuredMap, contest_text, measure_maps, sized
from core.model_selection.row_samples import some_rows
from core.model_selection.setting_points import (
    MOST_STEPS,
    STEP,
    SharedPoint,
    StudentPoints,
    point_of,
    within,
)
from core.parameters import parameters_of
from core.run import Run
from core.students.base import StudentSpec

ROWS: Final = 2000
"""Rows that teachers and students are compared on, about; at least 60 of each class, if it has them."""
MOST_CLASSES: Final = 40
"""Of more classes than this, so many drawn at random stand for all."""
FINALISTS: Final = 4
"""Maps that are compared by teachers."""
MOST_FREQUENT: Final = 1.5
"""A class may be so many times as frequent in the rows that are compared, where thresholds are."""
_OTHER_FOLDS: Final = 1000
"""Added to the seed for the folds of the last comparison."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a search has chosen for n training rows, and what it tried.

    features: the map. teacher_C: of the teacher of all rows. students: hyper-parameters by name of student,
    none for a student without a grid. points: their scores, see ``SharedPoint``. score: mean F of the teacher
    in cross-validation, in [0, 1]. gain: how much that is above what ``automatic`` would take, in [0, 1]; 0
    if nothing was clearly better. rows: that teachers and students were compared on.
    tried: JSON-ready lists by what was compared, ``maps``, ``teachers``, ``thresholds`` and the names of the
    students. contest: the students beside those of ``automatic`` on further rows, JSON-ready; empty before.
    """

    features: FeatureSpec
    teacher_C: float  # noqa: N815
    students: dict[str, dict[str, Any]]
    points: dict[str, dict[str, Any]]
    score: float
    gain: float
    rows: int
    tried: dict[str, list[dict[str, Any]]]
    contest: dict[str, Any] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        """One sentence, or two."""
        if not self.contest:
            return self._of_search
        told = contest_text(self.contest)
        return f"{self._of_search} It is taken: {told}."

    @property
    def _of_search(self) -> str:
        compared = (
            f"{len(self.tried['teachers'])} teachers on the best of {len(self.tried['maps'])} maps and on"
            f" variations of them, by {FOLDS} folds of {self.rows} rows"
        )
        if not self.gain:
            return f"None of {compared}, is clearly better than what automatic takes."
        return f"The best of {compared}: mean F {self.score:.3f}, {self.gain:.3f} above that of automatic."

    def as_dict(self) -> dict[str, Any]:
        """What was chosen, JSON-ready, without what was tried."""
        return self.features.summary() | {"teacher_C": self.teacher_C, "reason": self.reason}

    def for_all_rows(self, data: LabelledData, seen: int) -> Setting:
        """The same for all rows of the data, where it was found for ``seen`` of them."""
        share = data.n / seen
        return replace(
            self,
            features=sized(self.features, data.X, richer=True),
            teacher_C=within(self.teacher_C * share),
            students={
                name: values | {"C": within(values["C"] * share)} for name, values in self.students.items()
            },
            points={name: _for_more_rows(one, share) for name, one in self.points.items()},
        )

    def report_of(self, name: str) -> SharedPoint | None:
        """The point of the students of that name; None if it was not searched."""
        return SharedPoint(**self.points[name]) if name in self.points else None

    def search(self) -> dict[str, Any]:
        """How it was chosen, JSON-ready: the students' points, and everything that was tried."""
        return {
            "teacher_C": self.teacher_C,
            "students": {name: SharedPoint(**point).summary() for name, point in self.points.items()},
            "score": self.score,
            "gain": self.gain,
            "rows": self.rows,
            "folds": FOLDS,
            "tried": self.tried,
            **({"contest": self.contest} if self.contest else {}),
        }


def search_setting(
    data: LabelledData,
    spec: FeatureSpec,
    students: Sequence[StudentSpec],
    run: Run = Run(),
    *,
    rule: ThresholdRule = "zero",
) -> Setting:
    """Features, C of the teacher and the point of each student, for checked data.

    spec: gives the number format only. students: those with a grid are searched; fields that are not in it
    keep their values. rule: for the threshold of each class; unless it is "zero" or "fpr", one threshold for
    all classes is compared with it. run: folds are fitted in its threads; reports stages ``"setting"`` (in
    steps) and ``"points"`` (in fits). The same data and seed give the same choice. Raises InvalidProblem,
    Cancelled.
    """
    measured = measure_maps(spec, data.X, data.y, data.K, run).measured
    run.report("setting", 1, FINALISTS + 3)
    part = comparison_part(data, run.seed)
    contest = Contest(part, run)
    first = hold_contest(contest, measured, run)
    best, share = contest.best, data.n / part.n
    if best is not first and not confirmed(part, best.entry, first.entry, run):
        best = first
    found = StudentPoints(part, best.entry, run)
    run.report("setting", FINALISTS + 3, FINALISTS + 3)
    searched = {one.name: found.of(one, share) for one in students}
    tuned = {name: one for name, (one, _) in searched.items() if one is not None}
    thresholds = {
        name: found.thresholds(one, rule)
        for name, one in tuned.items()
        if rule in OWN_RULES and has_same_shares(part, data)
    }
    shared = {name: one.threshold for name, one in thresholds.items()}
    tried: dict[str, list[dict[str, Any]]] = {
        "maps": [_map_as_dict(one) for one in measured],
        "teachers": [one.as_dict() for one in contest.rated],
        **{name: trace for name, (_, trace) in searched.items() if trace},
    }
    if thresholds:
        tried["thresholds"] = [{"student": name, **one.as_dict()} for name, one in thresholds.items()]
    return Setting(
        features=sized(best.entry.with_factors(data, run), data.X, richer=True),
        teacher_C=within(best.entry.C_per_row * data.n),
        students={name: _values(one.spec, share) for name, one in tuned.items()},
        points={name: point_of(one, share, shared.get(name)) for name, one in tuned.items()},
        score=best.f1,
        gain=best.f1 - first.f1,
        rows=part.n,
        tried=tried,
    )


def hold_contest(contest: Contest, measured: Sequence[MeasuredMap], run: Run) -> Rated:
    """Rate the maps that look best, learnt factors, and widths and values of C near the best of these.

    Returns the rating of what ``automatic`` would take, which is the first of all.
    """
    entries = [
        Entry(one.features, one.C_per_row, one.ridge)
        for one in sorted(measured, key=lambda one: -one.f1)[:FINALISTS]
    ]
    first, *_ = contest.rate(entries[0], (1.0, STEP, STEP**2))
    for done, entry in enumerate(entries[1:], 2):
        run.report("setting", done, FINALISTS + 3)
        contest.rate(entry, (1.0, STEP))
    run.report("setting", FINALISTS + 1, FINALISTS + 3)
    maps = [one for one in contest.rated if one.entry.features.kind != "linear"]
    if maps:
        entry = max(maps, key=lambda one: one.f1).entry
        contest.rate(replace(entry, learnt_from=entry.features), (1.0, STEP, STEP**2))
    _walk(contest, lambda entry: _wider(entry, 2.0))
    _walk(contest, lambda entry: _wider(entry, 0.5))
    _walk(contest, lambda entry: _heavier(entry, STEP))
    _walk(contest, lambda entry: _heavier(entry, 1.0 / STEP))
    run.report("setting", FINALISTS + 2, FINALISTS + 3)
    return first


def confirmed(part: LabelledData, new: Entry, old: Entry, run: Run) -> bool:
    """Whether an entry is clearly better than another on folds that chose neither."""
    again = Contest(part, run.with_seed((run.seed + _OTHER_FOLDS) % 2**32))
    (better,), (known,) = again.rate(new), again.rate(old)
    return is_better(better.f1, better.shares, known.f1, known.shares)


def _walk(contest: Contest, step: Callable[[Entry], Entry | None]) -> None:
    """Rate the entry one step from the best one while that is better."""
    for _ in range(MOST_STEPS):
        best = contest.best.entry
        further = step(best)
        if further is None or any(further.is_like(one.entry) for one in contest.rated):
            break
        contest.rate(further)
        if contest.best.entry is best:
            break


def _wider(entry: Entry, factor: float) -> Entry | None:
    width = (entry.features.gamma or 0.0) * factor
    return replace(entry, features=replace(entry.features, gamma=width)) if 0.0 < width <= MAX_GAMMA else None


def _heavier(entry: Entry, factor: float) -> Entry | None:
    return replace(entry, C_per_row=entry.C_per_row * factor)


def comparison_part(data: LabelledData, seed: int) -> LabelledData:
    """Some 2000 rows of at most 40 classes, with codes of these classes."""
    some = of_some_classes(data, seed)
    return some.take(some_rows(some.y, ROWS, seed))


def of_some_classes(data: LabelledData, seed: int) -> LabelledData:
    """All rows of at most 40 classes, with codes of these classes."""
    if data.K <= MOST_CLASSES:
        return data
    kept = np.sort(np.random.default_rng(seed).choice(data.K, MOST_CLASSES, replace=False))
    rows = np.flatnonzero(np.isin(data.y, kept))
    codes = np.searchsorted(kept, data.y[rows]).astype(data.y.dtype)
    names = tuple(data.classes[code] for code in kept)
    some = data.take(rows)
    return replace(some, y=codes, classes=names, extras=some.extras.of_classes(kept))


def has_same_shares(part: LabelledData, data: LabelledData) -> bool:
    """Whether a part has all classes of the data, each about as often: the best threshold hangs on it."""
    if part.K != data.K:
        return False
    shares, whole = (np.bincount(one.y, minlength=one.K) / one.n for one in (part, data))
    return bool((shares <= MOST_FREQUENT * whole).all())


def _values(spec: StudentSpec, share: float) -> dict[str, Any]:
    """All hyper-parameters of a student, its C for ``share`` times as many rows."""
    values = {one.name: getattr(spec, one.name) for one in parameters_of(type(spec))}
    return values | {"C": within(values["C"] * share)}


def _for_more_rows(point: dict[str, Any], share: float) -> dict[str, Any]:
    """The fields of a ``SharedPoint``, its C for ``share`` times as many rows."""
    return point | {"point": point["point"] | {"C": within(point["point"]["C"] * share)}}


def _map_as_dict(one: MeasuredMap) -> dict[str, Any]:
    spec = one.features
    width = {} if spec.gamma is None else {"gamma": spec.gamma}
    return {"kind": spec.kind, "scaling": str(spec.scaling), **width, "f1": one.f1}
