"""Tells whether a student is clearly worse than its teacher on rows that neither was fitted to.

Both are compared by F as binary classifiers of the student's class, on the same rows; if the student has a
false-positive budget, the teacher gets the same budget. The standard error of the difference of two F values
comes from the differences of the rows' contributions to them (``metrics.f1_shares``, the delta method). It is
paired: rows that both answer in the same way add little to it. Their rankings are also compared by ROC area;
the teacher's ranking is that of its margin over the best rival (``ranking.compare_rankings``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from core.model_selection.folds import Folds
from core.model_selection.metrics import f1_shares, paired_error
from core.model_selection.ranking import RankingComparison, compare_rankings
from core.model_selection.threshold import choose_threshold
from core.students.base import StudentSpec
from core.students.gated import GatedSpec
from core.students.polytope import MAX_PIECES, PIECES, Polytope
from core.students.rivals import Rivals
from core.types import BoolArray, FloatArray

MARGIN: Final = 0.02
"""A student that loses at most this much F is good enough."""
STANDARD_ERRORS: Final = 3.0
"""A loss within this many standard errors may be chance: one in a thousand equal students exceeds it."""

RANKING_ERRORS: Final = 1.0
"""The same for a loss of ROC area, which must also exceed ``MARGIN``."""

WORSE: Final = "student_worse_than_teacher"
RANKS_WORSE: Final = "student_ranks_worse_than_teacher"
NEVER: Final = "student_never_answers_yes"
MISSES: Final = "student_misses_its_class"
ALWAYS: Final = "student_always_answers_yes"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Comparison of a student with its teacher on held-out rows.

    rows, positives: number of held-out rows, and how many of them are of the class. teacher_f1, student_f1:
    in [0, 1]. standard_error: of their paired difference. accepted: number of rows that the student accepts.
    ranking: their ROC areas; None if only answers are known, or if all rows are on one side.
    replaced: the method of the student that was clearly worse, if this student replaced it.
    """

    rows: int
    positives: int
    teacher_f1: float
    student_f1: float
    standard_error: float
    accepted: int
    ranking: RankingComparison | None = None
    replaced: str | None = None

    @property
    def is_worse(self) -> bool:
        """Whether the student loses more F than the margin, and more than chance explains."""
        loss = self.teacher_f1 - self.student_f1
        return loss > MARGIN and loss > STANDARD_ERRORS * self.standard_error

    @property
    def ranks_worse(self) -> bool:
        """Whether the student loses more ROC area than the margin, and more than one standard error."""
        if self.ranking is None:
            return False
        loss = self.ranking.teacher_auc - self.ranking.student_auc
        return loss > MARGIN and loss > RANKING_ERRORS * self.ranking.standard_error

    @property
    def warning(self) -> str | None:
        """The code of the student's problem, or None."""
        if self.is_worse:
            return WORSE
        if self.accepted == 0 or self.student_f1 == 0.0:
            return NEVER if self.accepted == 0 else MISSES
        return RANKS_WORSE if self.ranks_worse else None

    def is_better_than(self, other: Verdict) -> bool:
        """Whether this student may replace one that has a warning.

        A student that only ranks worse than its teacher is replaced if the other ranks better and its F is
        not clearly lower.
        """
        if other.warning != RANKS_WORSE or self.ranking is None or other.ranking is None:
            return self.student_f1 > other.student_f1
        ranks_better = self.ranking.student_auc > other.ranking.student_auc
        return ranks_better and not self.is_worse and self.student_f1 > other.student_f1 - MARGIN

    @property
    def message(self) -> str:
        """One sentence with the figures."""
        what = "never answers yes" if self.accepted == 0 else f"has F {self.student_f1:.3f}"
        told = (
            f"On {self.rows} held-out rows, {self.positives} of them of the class, the student {what};"
            f" its teacher has F {self.teacher_f1:.3f}."
        )
        if self.ranking is None or not self.ranks_worse:
            return told
        areas = self.ranking.student_auc, self.ranking.teacher_auc
        return f"{told} Its ROC area is {areas[0]:.3f}, the teacher's {areas[1]:.3f}."

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; ``warning`` and ``message`` if there is a problem, ``replaced`` after a replacement."""
        values: dict[str, Any] = {
            "rows": self.rows,
            "positives": self.positives,
            "teacher_f1": self.teacher_f1,
            "student_f1": self.student_f1,
            "standard_error": self.standard_error,
        }
        values |= {} if self.ranking is None else self.ranking.as_dict()
        values |= {} if self.replaced is None else {"replaced": self.replaced}
        return values | ({} if self.warning is None else {"warning": self.warning, "message": self.message})


@dataclass(frozen=True, slots=True)
class OwnRows:
    """A student's answers on the labelled rows it was trained on, which need no folds and no teacher.

    rows, positives: number of rows, and how many of them are of the class. accepted, found: number of rows
    that the student accepts, and how many of them are of the class.
    """

    rows: int
    positives: int
    accepted: int
    found: int

    @classmethod
    def of(cls, truth: BoolArray, student: BoolArray) -> OwnRows:
        """The counts, from truth (n,) and answers (n,)."""
        return cls(len(truth), int(truth.sum()), int(student.sum()), int((truth & student).sum()))

    @property
    def warning(self) -> str | None:
        """The code of the student's problem, or None: F is 0, or all rows get the same answer."""
        if self.accepted == 0:
            return NEVER
        if self.accepted == self.rows > self.positives:
            return ALWAYS
        return MISSES if self.found == 0 else None

    @property
    def message(self) -> str:
        """One sentence with the figures."""
        return (
            f"Of the {self.rows} rows that the student was trained on, {self.positives} of them of the class,"
            f" it accepts {self.accepted}, {self.found} of them of the class."
        )

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; has ``warning`` and ``message`` if there is a problem."""
        values: dict[str, Any] = {
            "rows": self.rows,
            "positives": self.positives,
            "accepted": self.accepted,
            "found": self.found,
        }
        return values | ({} if self.warning is None else {"warning": self.warning, "message": self.message})


def compare(truth: BoolArray, teacher: BoolArray, student: BoolArray) -> Verdict | None:
    """The verdict from truth and answers, (n,) each; None if no row is of the class."""
    positives = int(truth.sum())
    if positives == 0:
        return None
    teacher_f1, of_teacher = f1_shares(truth, teacher)
    student_f1, of_student = f1_shares(truth, student)
    error = paired_error(of_teacher, of_student)
    return Verdict(len(truth), positives, teacher_f1, student_f1, error, int(student.sum()))


def judge(
    folds: Folds,
    target: int,
    scores: FloatArray,
    threshold: float,
    budget: float | None = None,
    confidence: float | None = None,
) -> Verdict | None:
    """Compare the student of class code ``target`` with its folds' teachers.

    scores: the student's held-out scores, (n,); NaN for rows that no fold holds out. budget, confidence: of
    the false-positive rate that the student's threshold keeps, if it was chosen for one
    (``choose_threshold``). The teacher then answers yes if its margin over the best rival reaches the
    threshold of the same budget; otherwise, if its class has the largest score. None if no held-out row is of
    the class.
    """
    rows = ~np.isnan(scores)
    truth = folds.labels == target
    accepted_by_teacher = np.zeros(len(scores), dtype=np.bool_)
    margin = np.zeros(len(scores))
    for number, ranks in enumerate(folds.ranks):
        held_out = folds.fold_of == number
        accepted_by_teacher[held_out] = ranks.predicted[held_out] == target
        margin[held_out] = (folds.class_scores(number, target) - ranks.rival(target))[held_out]
    if budget is not None and truth[rows].any():
        accepted_by_teacher = margin >= choose_threshold(truth[rows], margin[rows], "fpr", budget, confidence)
    verdict = compare(truth[rows], accepted_by_teacher[rows], scores[rows] >= threshold)
    if verdict is None:
        return None
    ranking = compare_rankings(truth[rows], margin[rows], scores[rows], folds.fold_of[rows])
    return replace(verdict, ranking=ranking)


def alternatives(spec: StudentSpec, n_rivals: int, *, can_copy: bool) -> Sequence[StudentSpec]:
    """Replacements to try for a student that is worse than its teacher, simplest first.

    First come students with more rejections than ``spec``, up to one for each of ``n_rivals`` other classes,
    with which a student can equal its teacher. Then, if the teacher's scores can be copied, a copy of them,
    which ranks rows like the teacher, even with two classes. Empty for students of other families.
    """
    most = min(n_rivals, MAX_PIECES)
    if isinstance(spec, Polytope):
        base, present = spec, spec.pieces
    elif isinstance(spec, GatedSpec) and spec.uses_gate:
        C, margin, floor, _ = spec.point
        base = Polytope(
            C=C, margin=margin, difficulty_floor=floor, tolerance=spec.tolerance, max_epochs=spec.max_epochs
        )
        present = 1
    else:
        return ()
    sizes = sorted({min(pieces, most) for pieces in (*PIECES, most)})
    more = tuple(replace(base, pieces=pieces) for pieces in sizes if pieces > present)
    return (*more, Rivals()) if can_copy else more
