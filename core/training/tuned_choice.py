"""Chooses the settings of a job that is tuned as a whole: those of ``automatic``, or better ones.

For texts, ``automatic`` also compares C with three times as much (``with_heavier_loss``).

1. ``automatic`` chooses, including the family. If it chooses trees, there is nothing to search: they are
kept. 2. A third of the rows of each class is held out (``contest_rows``). The search sees about 2000 of the
   other rows (``model_selection.setting_search``).
3. Students of both settings are trained on the rows that the search saw; ``automatic`` chooses again from
   these alone. Both are measured on the held-out rows. The result of the search is taken if its mean F over
   the classes is larger by more than one paired standard error of the difference. So no row that decides was
   used to choose either setting.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np
from joblib import Parallel, delayed

from core.data.dataset import LabelledData
from core.data.fold_assignment import fold_assignment
from core.model_selection.contest import FOLDS, Contest, Entry, is_better, mean_f1
from core.model_selection.family_choice import can_have_trees, choose_family
from core.model_selection.metrics import paired_error
from core.model_selection.quick_choice import QuickChoice, best_of_maps, choose_quickly, measure_maps
from core.model_selection.row_samples import some_rows
from core.model_selection.setting_points import some_targets
from core.model_selection.setting_search import ROWS, Setting, of_some_classes, search_setting
from core.model_selection.setting_time import expected_seconds
from core.model_selection.time_budget import TimeBudget
from core.run import Run
from core.solvers.threads import one_blas_thread
from core.teachers.base import Teacher
from core.training.budgeted_choice import choose_within
from core.training.config import TrainingConfig
from core.training.preparation import prepare_as_given
from core.training.stages import Stages
from core.training.student_training import train_student
from core.types import BoolArray, FloatArray, IntArray

MOST_HELD_OUT: Final = 6000
"""Approximate number of held-out rows on which both settings are measured."""
LOSS_ROWS: Final = 10_000
"""Approximate number of rows of texts on which two values of C are compared."""
ENOUGH_LOSS_ROWS: Final = 3000
"""With this many rows, one held-out third is enough; with fewer, each row is held out once."""
HEAVIER: Final = 3.0
_PARTS: Final = 3
_FEWEST: Final = 6
"""Of classes with fewer rows none are held out, because two thirds would be too few to learn from."""


@dataclass(frozen=True, slots=True)
class FinalContest:
    """Mean F, in [0, 1], of students of ``automatic`` and of a search, on rows that neither was chosen from.

    rows: number of these rows. standard_error: of the paired difference. learnt_from: number of rows that
    both were trained on.
    """

    rows: int
    learnt_from: int
    automatic_f1: float
    searched_f1: float
    standard_error: float

    @property
    def is_won(self) -> bool:
        """Whether the result of the search is better by more than one standard error."""
        return self.searched_f1 - self.automatic_f1 > self.standard_error

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self) | {"taken": "search" if self.is_won else "automatic"}


def choose_tuned(
    data: LabelledData, config: TrainingConfig, stages: Stages
) -> tuple[QuickChoice | Setting, Teacher | None]:
    """The choice, and the teacher if it was fitted during the comparison. All rows must have a label.

    Reports stages ``"choice"``, ``"families"``, ``"setting"``, ``"points"`` and ``"contest"``. The same data
    and configuration give the same choice. Raises InvalidProblem, Cancelled.
    """
    choice, fitted = choose_automatically(data, config, stages)
    if choice.teacher is not None:
        return replace(choice, tuning={}), fitted
    run = stages.run
    students = tuple(spec.suited(config.teacher) for spec in config.students)
    some = of_some_classes(data, run.seed)
    learnt, held_out = contest_rows(some.y, run.seed)
    if not len(held_out):
        return replace(choice, tuning={}), None
    seen, measured = some.take(learnt), some.take(held_out)
    stages.begin("setting", 1, expected_seconds(seen, students, run))
    found = search_setting(seen, config.features, students, run, rule=config.threshold)
    stages.begin("contest", 2)
    contest = hold_final(seen, measured, config, found, run)
    found = replace(found.for_all_rows(data, seen.n), contest=contest.as_dict())
    return (found, None) if contest.is_won else (replace(choice, tuning=found.search()), None)


def choose_automatically(
    data: LabelledData, config: TrainingConfig, stages: Stages
) -> tuple[QuickChoice, Teacher | None]:
    """The choice of ``automatic``, within its budget, and the teacher if it was fitted during the comparison.

    Reports stages ``"choice"`` and ``"families"``. Raises InvalidProblem, Cancelled.
    """
    if config.automatic_seconds is not None:
        return choose_within(data, config, stages, TimeBudget(config.automatic_seconds))
    stages.begin("choice", 1)
    compared = measure_maps(config.features, data.X, data.y, data.K, stages.run)
    choice = best_of_maps(compared.measured, data.X, compared.rows)
    fitted: Teacher | None = None
    if config.compares_families and can_have_trees(data):
        stages.begin("families", 1)
        choice, fitted = choose_family(data, choice, stages.run, compared.scores)
    if compares_losses(data, choice):
        stages.begin("families", 1)
    return with_heavier_loss(data, choice, stages.run), fitted


def compares_losses(data: LabelledData, choice: QuickChoice) -> bool:
    """Whether ``with_heavier_loss`` compares: for texts of more than two classes with linear students."""
    features = choice.features
    return features.has_terms and features.kind == "linear" and choice.teacher is None and data.K > 2


def with_heavier_loss(data: LabelledData, choice: QuickChoice, run: Run) -> QuickChoice:
    """The choice for rows of texts, with three times its C if structural SVMs in folds are better with it.

    Least squares choose λ, and hence C, from about 2000 rows. With many classes these are few rows of each,
    and the resulting C is too small for all rows: with three times C, 77 intents gain three points of
    held-out F, while few classes (news, reviews) lose one. The larger C is taken if the mean F on held-out
    rows (a third of them if there are many) is larger by two standard errors of the difference. Only linear
    features are tried, because fits of others take long. Raises Cancelled.
    """
    if not compares_losses(data, choice):
        return choice
    part = data.take(some_rows(data.y, LOSS_ROWS, run.seed))
    given = Entry(choice.features, choice.C_per_row, choice.ridge)
    usual, heavier = Contest(part, run, 1 if part.n >= ENOUGH_LOSS_ROWS else FOLDS).rate(
        given, (1.0, HEAVIER)
    )
    if is_better(heavier.f1, heavier.shares, usual.f1, usual.shares):
        return replace(choice, C_per_row=heavier.entry.C_per_row)
    return choice


def contest_rows(labels: IntArray, seed: int) -> tuple[IntArray, IntArray]:
    """About 2000 rows to learn from and about 6000 rows to measure on, both rising; they are disjoint."""
    if len(labels) < _PARTS:
        return np.arange(len(labels)), np.arange(0)
    dealt = fold_assignment(labels, _PARTS, seed)
    is_held_out = (dealt == 0) & (np.bincount(labels)[labels] >= _FEWEST)
    learnt, held_out = np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)
    return (
        learnt[some_rows(labels[learnt], ROWS, seed)],
        held_out[some_rows(labels[held_out], MOST_HELD_OUT, seed)],
    )


def hold_final(
    learnt: LabelledData, measured: LabelledData, config: TrainingConfig, found: Setting, run: Run
) -> FinalContest:
    """Compare the result of a search with the choice of ``automatic`` from the same rows, on other rows.

    Raises InvalidProblem, Cancelled.
    """
    config = replace(config, students=config.students[:1])
    choice = choose_quickly(config.features, learnt.X, learnt.y, learnt.K, run)
    choice = with_heavier_loss(learnt, choice, run)
    targets = [code for code in some_targets(learnt, run.seed) if (measured.y == code).any()]
    automatic_f1, automatic = _f1_of(config.with_choice(choice, learnt.n), learnt, measured, targets, run)
    run.report("contest", 1, 2)
    searched_f1, searched = _f1_of(config.with_setting(found), learnt, measured, targets, run)
    run.report("contest", 2, 2)
    error = paired_error(searched, automatic)
    return FinalContest(measured.n, learnt.n, automatic_f1, searched_f1, error)


def _f1_of(
    config: TrainingConfig, learnt: LabelledData, measured: LabelledData, targets: list[int], run: Run
) -> tuple[float, FloatArray]:
    """Mean F of the first students of ``targets`` on the measured rows, and each row's share in it, (n,)."""
    spec, silent = config.students[0], run.silent()
    made = prepare_as_given(learnt, replace(config, automatic=False), silent)
    folds = made.folds(targets, silent) if config.holds_out(spec) else None
    with one_blas_thread():
        examples = made.examples_of(measured)

    def accepted(target: int) -> BoolArray:
        run.check_cancel()
        student = train_student(made, target, spec, folds=folds, run=replace(silent, n_threads=1))
        return student.fitted.scores(examples) >= student.packed.threshold

    pool = Parallel(n_jobs=run.threads, prefer="threads")
    answers = pool(delayed(accepted)(target) for target in targets)
    return mean_f1(measured.y, np.array(answers), targets)
