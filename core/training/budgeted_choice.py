"""Chooses features, teacher and students of an automatic job within a budget of seconds.

The budget covers the choice, the teacher, the folds and the students of all classes. Candidates are compared
from cheap to expensive: maps of features (``quick_choice``), a forest, kernel and linear students, extra
trees, boosted trees (``family_choice``). Before a candidate is compared, the time of the comparison, and of
the job that would take the candidate, is estimated from a small measurement: a forest of a few trees or
boosting of a few iterations, whose times are proportional to these numbers, or a whole training of one class
on about 600 rows, whose time grows with rows and features. A candidate whose time, plus a reserve of half as
much, exceeds the budget is left out and reported.

No fit is cut short: a fit that has begun ends as it would without a budget. The cheapest candidate is always
kept, even if it takes longer than the budget: a forest of as many trees as fit, at least 10, or linear
students for data that trees cannot learn from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, cast

import numpy as np

from core.data.dataset import LabelledData
from core.model_selection.family_choice import (
    KERNEL,
    LINEAR,
    Family,
    can_have_trees,
    candidates,
    chosen,
    compared_part,
    family_name,
    of_trees,
    with_family,
    with_trees,
    without_trees,
)
from core.model_selection.quick_choice import (
    MapComparison,
    QuickChoice,
    best_of_maps,
    measure_maps,
)
from core.model_selection.row_samples import comparison_rows
from core.model_selection.setting_search import of_some_classes
from core.model_selection.time_budget import CAUTION, TimeBudget
from core.students.trees import RIVALS_OF_A_FOREST
from core.teachers.base import Teacher, TeacherSpec
from core.teachers.boosting import Boosting
from core.teachers.forest import Forest
from core.training.config import TrainingConfig
from core.training.preparation import prepare_as_given
from core.training.stages import Stages
from core.training.student_training import train_student

SHARE_OF_MAPS: Final = 0.2
"""Share of the budget for the comparison of maps; the first map is always measured."""
SHARE_OF_FOREST: Final = 0.7
"""Share of the remaining budget for the first forest, which gets fewer trees if not all of them fit."""
FEWEST_TREES: Final = 10
PROBE_ROWS: Final = 600
"""Approximate number of rows on which a whole training of one class is timed."""
_MAPS_OF_PROBE: Final = 3.0
"""Approximate time of that training, as a multiple of the time of a map's comparison."""
_PROBE_TREES: Final = (2, 8)
_PROBE_ITERATIONS: Final = (1, 4)
"""Two sizes of small tree teachers; a line through their times predicts the times of larger ones."""
_LEAST_SLOPE: Final = 0.25
"""At least this share of the time of the larger size is assumed to be proportional to the size."""
_LARGER: Final = 1.5
"""Extra trees have about this many times the nodes of other trees, and copying them takes as much longer."""


@dataclass(frozen=True, slots=True, eq=False)
class _Compared:
    """A family, the choice that it belongs to, and the expected seconds of the job that takes it."""

    family: Family
    choice: QuickChoice
    rest: float


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds that grow with a size: ``fixed`` + size · ``each``."""

    fixed: float
    each: float

    @classmethod
    def through(cls, sizes: tuple[int, int], seconds: tuple[float, float]) -> Line:
        """The line through two measured sizes.

        Its slope is at least a share of the larger one's seconds per unit.
        """
        (small, large), (first, second) = sizes, seconds
        each = max((second - first) / (large - small), _LEAST_SLOPE * second / large)
        return cls(max(0.0, second - large * each), each)

    def at(self, size: float) -> float:
        """The seconds of a size."""
        return self.fixed + size * self.each


def choose_within(
    data: LabelledData, config: TrainingConfig, stages: Stages, budget: TimeBudget
) -> tuple[QuickChoice, Teacher | None]:
    """The choice, and the teacher if it was fitted during the comparison. All rows must have a label.

    Reports stages ``"choice"`` and ``"families"``, with the remaining seconds as their expected duration.
    Raises InvalidProblem, Cancelled.
    """
    stages.begin("choice", 1, budget.left)
    walk = _Walk(data, config, stages, budget, _maps(data, config, stages, budget))
    stages.begin("families", 1, budget.left)
    walk.compare()
    choice, fitted = walk.taken()
    return replace(choice, budget=budget.as_dict()), fitted


def _maps(data: LabelledData, config: TrainingConfig, stages: Stages, budget: TimeBudget) -> MapComparison:
    """Measure maps, linear ones first, while a further map fits into the maps' share of the budget."""
    kept, longest, before = (1.0 - SHARE_OF_MAPS) * budget.seconds, 0.0, budget.used

    def admits() -> bool:
        nonlocal longest, before
        now = budget.used
        longest, before = max(longest, now - before), now
        return budget.admits("further maps of features", longest, kept)

    return measure_maps(config.features, data.X, data.y, data.K, stages.run, admits)


class _Walk:
    """The families that were compared so far, from cheap to dear."""

    def __init__(
        self,
        data: LabelledData,
        config: TrainingConfig,
        stages: Stages,
        budget: TimeBudget,
        maps: MapComparison,
    ) -> None:
        self._data, self._run, self._budget = data, stages.run, budget
        self._config = replace(config, automatic=False, automatic_seconds=None)
        measured, n_rows = maps.measured, maps.rows
        self._best, self._scores = best_of_maps(measured, data.X, n_rows), maps.scores
        linear = best_of_maps([one for one in measured if one.features.kind == "linear"], data.X, n_rows)
        self._linear = self._without_trees = replace(linear, maps=len(measured))
        self._per_map = budget.used / len(measured)
        self._part = compared_part(data, self._run.seed)
        self._share = data.n / self._part.n
        self._compared: list[_Compared] = []

    def compare(self) -> None:
        """Compare the families that fit into the budget. Raises InvalidProblem, Cancelled."""
        specs = candidates(self._part) if can_have_trees(self._data) else ()
        if not specs:
            self._kernels()
            return
        first, *others = specs
        took, trees = self._first_forest(first)
        self._kernels()
        for spec in others:
            if isinstance(spec, Forest):
                self._extra_trees(replace(spec, trees=trees), took)
            else:
                self._boosting(spec, took / trees)

    def taken(self) -> tuple[QuickChoice, Teacher | None]:
        """The best family that can still be trained in time, and its teacher if it was already fitted."""
        left = self._budget.left
        if not self._compared:
            return self._without_trees, None
        fitting = [one for one in self._compared if one.rest <= left]
        if not fitting:
            fitting = [min(self._compared, key=lambda one: one.rest)]
        for one in self._compared:
            if one not in fitting:
                self._budget.note(f"training of {one.family.name}", one.rest, left)
        family = chosen([one.family for one in fitting])
        choice = next(one.choice for one in fitting if one.family is family)
        compared = tuple(one.family.as_dict() | {"taken": one.family is family} for one in self._compared)
        return with_family(replace(choice, families=compared), family, self._data.n)

    def _first_forest(self, spec: TeacherSpec) -> tuple[float, int]:
        """Compare a forest of as many trees as fit. Returns its seconds and its number of trees."""
        forest = cast(Forest, spec)
        small, larger = (replace(forest, trees=number) for number in _PROBE_TREES)
        fit, rest = self._timed_trees(small, larger, _PROBE_TREES)
        within = SHARE_OF_FOREST * self._budget.left / CAUTION
        fitting = int((within - fit.fixed - rest.fixed) / max(fit.each + rest.each, 1e-9))
        trees = min(max(FEWEST_TREES, fitting), forest.trees)
        if trees < forest.trees:
            what = f"{forest.trees - trees} of {forest.trees} trees of a forest"
            self._budget.note(what, (forest.trees - trees) * (fit.each + rest.each), self._budget.left)
        return self._add_trees(replace(forest, trees=trees), rest.at(trees)), trees

    def _extra_trees(self, spec: Forest, took: float) -> None:
        """Compare trees with random splits. took: seconds of a forest with the same number of trees."""
        fit = took * (1 + spec.folds)
        rest = _LARGER * self._compared[0].rest + (fit * self._share if self._share > 1.0 else 0.0)
        if self._fits(family_name(spec), fit, rest):
            self._add_trees(spec, rest)

    def _boosting(self, spec: TeacherSpec, per_tree: float) -> None:
        """Compare boosted trees. per_tree: seconds of one tree of a forest, which is a larger tree."""
        boosting = cast(Boosting, spec)
        K, sizes = self._data.K, _PROBE_ITERATIONS
        trees = (sizes[0] + sum(sizes)) * (K if K > 2 else 1) * (1 + boosting.folds)
        if not self._fits(f"timing of {spec.name}", trees * per_tree, 0.0):
            return
        small, larger = (replace(boosting, iterations=number) for number in sizes)
        fit, rest = (line.at(boosting.iterations) for line in self._timed_trees(small, larger, sizes))
        if self._fits(spec.name, fit, rest):
            self._add_trees(spec, rest)

    def _kernels(self) -> None:
        """Compare students on the best map or, if these take too long, on the best linear map.

        Without trees to compare with, nothing is compared; linear students are taken if no others fit.
        """
        for choice in (self._best, self._linear):
            if choice.features.kind == "linear" and not self._compared:
                return
            if self._compare_kernels(choice) or choice.features.kind == "linear":
                return

    def _compare_kernels(self, choice: QuickChoice) -> bool:
        """Compare students on the features of the choice with trees. Returns whether they fit the budget."""
        name = f"{LINEAR if choice.features.kind == 'linear' else KERNEL} students"
        if not self._fits(f"timing of {name}", _MAPS_OF_PROBE * self._per_map, 0.0):
            return False
        fit, rest = self._timed_kernels(choice)
        if not self._fits(name, fit if self._compared else 0.0, rest):
            return False
        if not self._compared:
            self._without_trees = choice
            return True
        scores = self._scores if choice is self._best else None
        family = without_trees(self._part, choice, self._run.silent(), scores)
        self._compared.append(_Compared(family, choice, rest))
        return True

    def _fits(self, what: str, fit: float, rest: float) -> bool:
        """Whether a comparison fits, and then also the slowest job among this family and those compared."""
        longest = max([rest, *(one.rest for one in self._compared)])
        return self._budget.admits(what, fit + longest)

    def _add_trees(self, spec: TeacherSpec, rest: float) -> float:
        began = self._budget.used
        family = of_trees(self._part, spec, self._run)
        self._compared.append(_Compared(family, self._best, rest))
        return self._budget.used - began

    def _timed_trees(
        self, small: TeacherSpec, larger: TeacherSpec, sizes: tuple[int, int]
    ) -> tuple[Line, Line]:
        """Seconds of comparing a tree teacher, and of the job that takes it, as lines over its size."""
        # The first fit is not timed, because it loads libraries.
        self._timed(self._part, with_trees(self._best, small))
        fits, rests = [], []
        for spec in (small, larger):
            prepared, shared, student = self._timed(self._part, with_trees(self._best, spec))
            # For a copy of many trees, several numbers of rivals are tried.
            students = len(RIVALS_OF_A_FOREST) * student * self._data.K / self._run.threads
            again = prepared if self._share > 1.0 else 0.0
            fits.append(prepared)
            rests.append(self._share * (again + shared + students))
        first, second = (Line.through(sizes, (one[0], one[1])) for one in (fits, rests))
        return first, second

    def _timed_kernels(self, choice: QuickChoice) -> tuple[float, float]:
        """Expected seconds of comparing kernel or linear students, and of the job that would take them."""
        data, seed = self._data, self._run.seed
        some = of_some_classes(data, seed)
        few = [some.take(comparison_rows(some.y, some.K, seed, n)) for n in (PROBE_ROWS // 2, PROBE_ROWS)]
        # The smaller sample comes first, so that no library is loaded while the second one is timed.
        self._timed(few[0], choice)
        prepared, shared, student = self._timed(few[1], choice)
        began = self._budget.used
        without_trees(few[1], choice, self._run.silent())
        fit = self._budget.used - began
        rows, columns = data.n / few[1].n, 1.0
        if choice.features.kind != "linear":
            most = data.n if choice.features.kind == "kernel" else min(choice.features.n_components, data.n)
            columns = most / min(most, few[1].n)
        rest = shared + prepared * data.K / some.K + student * data.K / self._run.threads
        return fit * self._part.n / few[1].n * columns**2, rest * rows * columns

    def _timed(self, data: LabelledData, choice: QuickChoice) -> tuple[float, float, float]:
        """Seconds of training the student of the most frequent class, in three parts.

        These are: features and teachers; the first student, which also computes what all students share; and
        a second student.
        """
        config, silent = self._config.with_choice(choice, data.n), self._run.silent()
        target, times = int(np.bincount(data.y).argmax()), [self._budget.used]
        made = prepare_as_given(data, config, silent)
        folds = made.folds([target], silent) if config.holds_out(config.students[0]) else None
        for _ in range(2):
            times.append(self._budget.used)
            train_student(made, target, folds=folds, run=replace(silent, n_threads=1))
        times.append(self._budget.used)
        prepared, shared, student = np.diff(times).tolist()
        return prepared, shared, student
