"""Searches the setting of a job: features, C of the teacher, and one point for the students of all classes.

1. Leave-one-out least squares on about 800 rows measure every map, as in ``automatic`` (``quick_choice``).
   The choice of ``automatic`` is the first entry of a contest.
2. Cross-validation on about 2000 rows compares teachers (``contest``): on the best maps, on the best one with
   learnt factors of its columns, and with further widths and values of C while these help.
3. The winner replaces the first entry if it is also better on other folds, by more than two standard errors
   of the difference, because the best of many entries is partly the best by chance.
4. The students' point is the best on average over the classes with the chosen features and teacher
   (``joint``), if it is better than the teacher's C by two standard errors; further values of C are tried
   while the largest or smallest value wins.
5. One threshold for all classes replaces one for each class, if it is better by two standard errors
   (``class_thresholds``).

The loss weight of a row is C/n. So comparisons on a part of the rows choose C/n.
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
"""Approximate number of rows for comparing teachers and students; each class has up to 60 at least."""
MOST_CLASSES: Final = 40
"""With more classes than this, so many random ones represent all."""
FINALISTS: Final = 4
"""Number of maps for which teachers are compared."""
MOST_FREQUENT: Final = 1.5
"""Thresholds are compared only if no class is more than this many times as frequent in the compared rows."""
_OTHER_FOLDS: Final = 1000
"""Added to the seed for the folds of the last comparison."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The choice of a search for n training rows, and what the search tried.

    features: the map. teacher_C: of the teacher of all rows. students: hyper-parameters by name of student;
    students without a grid are missing. points: their scores, see ``SharedPoint``. score: mean F of the
    teacher in cross-validation, in [0, 1]. gain: how much it exceeds that of ``automatic``, in [0, 1]; 0 if
    nothing was clearly better. rows: number of rows for comparing teachers and students.
    tried: JSON-ready lists by what was compared: ``maps``, ``teachers``, ``thresholds`` and names of
    students.
    contest: comparison with students of ``automatic`` on further rows, JSON-ready; empty before it is held.
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
        """One or two sentences."""
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
        """The choice, JSON-ready, without what was tried."""
        return self.features.summary() | {"teacher_C": self.teacher_C, "reason": self.reason}

    def for_all_rows(self, data: LabelledData, seen: int) -> Setting:
        """The same setting for all rows of the data. seen: number of rows that it was chosen on."""
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
        """How the setting was chosen, JSON-ready: the students' points, and everything that was tried."""
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

    spec: only its number format is used. students: those with a grid are searched; fields that are not in it
    keep their values. rule: for the threshold of each class; unless it is "zero" or "fpr", it is compared
    with one threshold for all classes. run: its threads fit the folds; reports stages ``"setting"`` (in
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
    """Rate the best-looking maps, learnt factors, and widths and values of C near the best of these.

    Returns the rating of the choice of ``automatic``, which is rated first.
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
    """Whether an entry is clearly better than another, on folds that chose neither."""
    again = Contest(part, run.with_seed((run.seed + _OTHER_FOLDS) % 2**32))
    (better,), (known,) = again.rate(new), again.rate(old)
    return is_better(better.f1, better.shares, known.f1, known.shares)


def _walk(contest: Contest, step: Callable[[Entry], Entry | None]) -> None:
    """Repeatedly rate the entry one step from the best one, as long as it is better."""
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
    """About 2000 rows of at most 40 classes, with codes of these classes."""
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
    """Whether a part has all classes, at similar frequencies, because the best threshold depends on these."""
    if part.K != data.K:
        return False
    shares, whole = (np.bincount(one.y, minlength=one.K) / one.n for one in (part, data))
    return bool((shares <= MOST_FREQUENT * whole).all())


def _values(spec: StudentSpec, share: float) -> dict[str, Any]:
    """All hyper-parameters of a student; its C is that for ``share`` times as many rows."""
    values = {one.name: getattr(spec, one.name) for one in parameters_of(type(spec))}
    return values | {"C": within(values["C"] * share)}


def _for_more_rows(point: dict[str, Any], share: float) -> dict[str, Any]:
    """The fields of a ``SharedPoint``; its C is that for ``share`` times as many rows."""
    return point | {"point": point["point"] | {"C": within(point["point"]["C"] * share)}}


def _map_as_dict(one: MeasuredMap) -> dict[str, Any]:
    spec = one.features
    width = {} if spec.gamma is None else {"gamma": spec.gamma}
    return {"kind": spec.kind, "scaling": str(spec.scaling), **width, "f1": one.f1}
