"""Compares two scores of the same held-out rows by ROC area, with the standard error of the difference.

The area is the share of pairs of a positive and a negative in which the positive has the higher score; a tie
counts one half. Only pairs within a fold are compared, because students and teachers of different folds have
different scales. The standard error is paired: it uses the contribution of each row to the difference
(DeLong, DeLong and Clarke-Pearson, Biometrics 1988).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.types import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class RankingComparison:
    """ROC areas of teacher and student, in [0, 1]. standard_error: of their paired difference."""

    teacher_auc: float
    student_auc: float
    standard_error: float

    def as_dict(self) -> dict[str, float]:
        """JSON-ready; the error has another name than the error of F."""
        return {
            "teacher_auc": self.teacher_auc,
            "student_auc": self.student_auc,
            "auc_standard_error": self.standard_error,
        }


def compare_rankings(
    truth: BoolArray, teacher: FloatArray, student: FloatArray, fold_of: IntArray
) -> RankingComparison | None:
    """Compare scores of teacher and student with the truth within folds, all (n,); None without pairs."""
    pairs, areas, variances = [], [], []
    for fold in np.unique(fold_of):
        inside = fold_of == fold
        positive = truth[inside]
        m, n = int(positive.sum()), int((~positive).sum())
        if not m * n:
            continue
        of_teacher, of_student = (_shares_won(positive, one[inside]) for one in (teacher, student))
        pairs.append(m * n)
        areas.append([one[positive].mean() for one in (of_teacher, of_student)])
        difference = of_teacher - of_student
        variances.append(_variance(difference[positive]) + _variance(difference[~positive]))
    if not pairs:
        return None
    weights = np.array(pairs) / sum(pairs)
    teacher_auc, student_auc = (weights @ np.array(areas)).tolist()
    return RankingComparison(teacher_auc, student_auc, float(np.sqrt(weights**2 @ np.array(variances))))


def _shares_won(positive: BoolArray, scores: FloatArray) -> FloatArray:
    """For each row, the share of the rows of the other side that are ordered correctly against it, (n,)."""
    won = np.empty(len(scores))
    above, below = np.sort(scores[positive]), np.sort(scores[~positive])
    won[positive] = _share_below(below, scores[positive])
    won[~positive] = 1.0 - _share_below(above, scores[~positive])
    return won


def _share_below(rising: FloatArray, scores: FloatArray) -> FloatArray:
    """The share of the rising values that lie below each score, (q,); a tie counts one half."""
    found: FloatArray = (np.searchsorted(rising, scores) + np.searchsorted(rising, scores, "right")) / 2.0
    return found / len(rising)


def _variance(shares: FloatArray) -> float:
    """Variance of the mean of shares (r,); with a single one its square, as no spread can be estimated."""
    return float(shares.var(ddof=1)) / len(shares) if len(shares) > 1 else float(shares[0] ** 2)
