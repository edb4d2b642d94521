"""What a job takes that is tuned as a whole: what ``automatic`` takes, or a setting that is better.

Of texts ``automatic`` compares C with three times as much (``with_heavier_loss``).

1. ``automatic`` chooses, families included. Copies of trees have nothing that is searched: they are kept.
2. Of the rows, thirds of the classes are held out (``contest_rows``). The search sees the others only, some
   2000 of them (``model_selection.setting_search``).
3. Students of both are trained on the rows that the search saw, ``automatic`` choosing from these alone, and
   measured on the rows that were held out. What was found is taken if its mean F over the classes is larger
   by more than one standard error of the difference, which is paired: no row that decides has chosen either.
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
"""Held-out rows that both are measured on, about."""
LOSS_ROWS: Final = 10_000
"""Rows of texts that two values of C are compared on, about."""
ENOUGH_LOSS_ROWS: Final = 3000
"""Of which a third tells the difference; of fewer rows each is held out once."""
HEAVIER: Final = 3.0
_PARTS: Final = 3
_FEWEST: Final = 6
"""Classes with fewer rows have none of them held out, since two thirds would be too few to learn from."""


@dataclass(frozen=True, slots=True)
class FinalContest:
    """Mean F of the students of ``automatic`` and of a search on ``rows`` rows that chose neither, in [0, 1].

    standard_error: of the difference, paired. learnt_from: rows that both were trained on.
    """

    rows: int
    learnt_from: int
    automatic_f1: float
    searched_f1: float
    standard_error: float

    @property
    def is_won(self) -> bool:
        """Whether what was found is better by more than one standard error."""
        return self.searched_f1 - self.automatic_f1 > self.standard_error

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self) | {"taken": "search" if self.is_won else "automatic"}


def choose_tuned(
    data: LabelledData, config: TrainingConfig, stages: Stages
) -> tuple[QuickChoice | Setting, Teacher | None]:
    """The choice for checked rows that all have a label, and the teacher if it was fitted on the way.

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
    """What ``automatic`` takes, within its budget, and the teacher if it was fitted on the way.

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
    """Whether ``with_heavier_loss`` compares anything: texts of several classes, with linear students."""
    features = choice.features
    return features.has_terms and features.kind == "linear" and choice.teacher is None and data.K > 2


def with_heavier_loss(data: LabelledData, choice: QuickChoice, run: Run) -> QuickChoice:
    """The choice for rows of texts with three times its C where structural SVMs of folds say so.

    Least squares choose λ, and hence C, from some 2000 rows. Of many classes these are few rows of each, and
    the C that follows is too small for all rows: 77 intents gain three points of held-out F by three times as
    much, while of few classes (news, reviews) it costs one. It is taken where the mean F on held-out
    rows, a third of them where rows are many, is larger by two standard errors of the difference. Linear
    features only: each fit of others takes long. Raises Cancelled.
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
    """Rows to learn from, some 2000, and rows to measure on, some 6000, both rising; they share none."""
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
    """Compare what was found from some rows with what ``automatic`` takes of them, on other rows.

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
    """Mean F of the first students of ``targets`` on the measured rows, and the rows' shares in it, (n,)."""
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
