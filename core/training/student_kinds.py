"""Decides whether students of many classes are polytopes or copies of their teacher's scores.

A polytope is fitted once in each fold and once more to all rows, for every class. A copy of a teacher that is
linear in the features costs nothing: rivals and threshold follow from the held-out scores of the fold
teachers, which exist already. With many classes or very many rows, polytopes of `COMPARED` classes are fitted
in the folds. All classes get copies unless the polytopes have the larger mean F by one paired standard error
of the difference. With very many rows, a sample of `ROWS` of them is used for this comparison. Both kinds
answer a query at the cost of the same number of rejections.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from joblib import Parallel, delayed

from core.model_selection.contest import mean_f1
from core.model_selection.held_out import hold_out
from core.model_selection.metrics import paired_error
from core.model_selection.quick_choice import QuickChoice, StudentKinds
from core.model_selection.row_samples import some_rows
from core.run import Run
from core.solvers.threads import one_blas_thread
from core.students.automatic import Automatic
from core.students.rivals import Rivals
from core.training.preparation import Preparation, prepare_as_given
from core.training.stages import Stages
from core.types import BoolArray

FEWEST_CLASSES: Final = 10
"""With fewer classes nothing is compared, as training takes no longer, unless there are very many rows."""
COMPARED: Final = 8
MANY_ROWS: Final = 100_000
"""From this number of rows on, students are compared on a sample."""
ROWS: Final = 20_000
"""Approximate size of this sample."""


def with_student_kinds(made: Preparation, stages: Stages) -> Preparation:
    """The preparation whose students copy the teacher's scores, if these are as good as polytopes.

    Nothing changes if students are given, are copies already or have a budget of false positives, or if there
    are no folds. Reports stage ``"student_kinds"`` in classes. Raises Cancelled.
    """
    config, choice = made.config, made.choice
    spec = config.students[0]
    if not isinstance(choice, QuickChoice) or not isinstance(spec, Automatic) or spec.of_scores is not None:
        return made
    if len(config.students) > 1 or config.teacher.grows_trees or made.teacher.class_weights is None:
        return made
    if not config.needs_all_folds or config.tuning is not None or config.threshold == "fpr":
        return made
    has_many_rows = len(made.labelled.labels) >= MANY_ROWS
    if len(made.classes) < FEWEST_CLASSES and not has_many_rows:
        return made
    stages.begin("student_kinds", COMPARED)
    kinds = _compared(_of_some_rows(made, choice, stages.run) if has_many_rows else made, stages.run)
    made = replace(made, seconds=made.seconds | stages.end())
    choice = replace(choice, student_kinds=kinds)
    if not kinds.are_copies:
        return replace(made, choice=choice)
    copying = replace(config, students=(choice.student(spec),))
    return replace(made, choice=choice, config=copying).with_held_out(stages.run)


def _of_some_rows(made: Preparation, choice: QuickChoice, run: Run) -> Preparation:
    """A preparation made from a sample of the rows; the weight of each row's loss is adapted."""
    rows = some_rows(made.labelled.labels, ROWS, made.config.seed)
    config = made.config.with_choice(choice, len(rows))
    return prepare_as_given(made.labelled_data().take(rows), config, run.silent())


def _compared(made: Preparation, run: Run) -> StudentKinds:
    """Held-out F of both kinds of students for some classes."""
    labels, config = made.labelled.labels, made.config
    spec = config.students[0]
    assert isinstance(spec, Automatic)  # noqa: S101 - others are not compared
    counts = np.bincount(labels, minlength=len(made.classes))
    learnable = np.flatnonzero(counts >= config.n_folds)
    drawn = np.random.default_rng(config.seed).permutation(learnable)[:COMPARED]
    targets: list[int] = np.sort(drawn).tolist()
    if not targets:
        return StudentKinds(0, 0.0, 0.0, 0.0)
    silent = run.silent()
    folds = made.folds(targets, silent)
    scored = made.with_held_out(silent)
    polytope, copy = spec.suited(config.teacher), Rivals(spec.pieces)

    def answers(target: int) -> tuple[BoolArray, BoolArray]:
        run.check_cancel()
        assert scored.held_out is not None  # noqa: S101 - it has just been made
        held_out = hold_out(folds, target, polytope, silent).scores
        copied = copy.fit(scored.problem(target), silent).of_teacher(scored.held_out)
        truth = labels == target
        return held_out >= config.settle(truth, held_out)[0], copied >= config.settle(truth, copied)[0]

    with one_blas_thread():
        pool = Parallel(n_jobs=run.threads, prefer="threads")
        answered = pool(delayed(answers)(target) for target in targets)
    of_polytopes, of_copies = (
        mean_f1(labels, np.array(of_kind), targets) for of_kind in zip(*answered, strict=True)
    )
    error = paired_error(of_polytopes[1], of_copies[1])
    return StudentKinds(len(targets), of_polytopes[0], of_copies[0], error)
