"""Tells whether a candidate is worse than a baseline on the same rows, class by class.

For rows of a class the right answer is yes (recall), for all others it is no (false positives). Only rows
that exactly one of both answers right distinguish them: under equal rates each of these is the baseline's
with probability 1/2 (McNemar 1947). For K classes there are 2K such tests, with Holm's correction (1979).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from scipy.special import betainc

from core.data.validation import not_whole, out_of_bounds, refuse
from core.errors import Fault, InvalidProblem
from core.monitoring.intervals import MOST, exact_ends
from core.types import BoolArray, FloatArray

Verdict: TypeAlias = Literal["not_worse", "worse", "undecided"]
TOLERANCE: Final = 0.01
ALPHA: Final = 0.05
_MOST_ROWS: Final = 10**9
"""The number of rows for a decision is not predicted beyond this."""


@dataclass(frozen=True, slots=True)
class PairedCounts:
    """Answers of two versions on the same rows, on one side of a class.

    rows: number of rows. only_baseline_right, only_candidate_right: number of rows that exactly this one
    answers right. Raises InvalidProblem for impossible counts.
    """

    rows: int
    only_baseline_right: int
    only_candidate_right: int

    def __post_init__(self) -> None:
        refuse(not_whole("rows", self.rows, 0, MOST))
        refuse(not_whole("only_baseline_right", self.only_baseline_right, 0, self.rows))
        refuse(
            not_whole(
                "only_candidate_right", self.only_candidate_right, 0, self.rows - self.only_baseline_right
            )
        )

    @classmethod
    def of(cls, truth: bool, baseline: BoolArray, candidate: BoolArray) -> PairedCounts:
        """The counts from answers (n,) on rows that are all of the class (``truth``), or all not."""
        right, also = baseline == truth, candidate == truth
        return cls(len(right), int((right & ~also).sum()), int((also & ~right).sum()))


@dataclass(frozen=True, slots=True)
class SideComparison:
    """Recall, or the share of rightly rejected rows, of a candidate compared with a baseline's.

    p_worse: P(B >= only_baseline_right) for B ~ binomial(discordant rows, 1/2), exact; small if the candidate
    is worse. p_adjusted: after Holm's correction over all sides of all classes. difference: candidate −
    baseline, in [−1, 1]. low, high: difference of the Clopper-Pearson limits of both shares; each of the two
    holds for all sides of all classes together with probability 1 − α. rows_to_decide: number of rows of this
    side that would give a decision if the shares stay the same; None if it is decided, or if that cannot be
    told.
    """

    counts: PairedCounts
    p_worse: float
    p_adjusted: float
    difference: float | None
    low: float
    high: float
    verdict: Verdict
    rows_to_decide: int | None

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; the counts are fields of the same dictionary."""
        values = asdict(self)
        counts: dict[str, Any] = values.pop("counts")
        return counts | values


@dataclass(frozen=True, slots=True)
class ClassComparison:
    """Both sides of one class, and their verdict together."""

    recall: SideComparison
    false_positives: SideComparison

    @property
    def verdict(self) -> Verdict:
        """See ``overall``."""
        return overall((self.recall.verdict, self.false_positives.verdict))

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "recall": self.recall.as_dict(),
            "false_positives": self.false_positives.as_dict(),
            "verdict": self.verdict,
        }


def overall(verdicts: Sequence[Verdict]) -> Verdict:
    """``"worse"`` if one is worse, ``"not_worse"`` if all are, otherwise, or without any, ``"undecided"``."""
    if "worse" in verdicts:
        return "worse"
    return "not_worse" if verdicts and set(verdicts) == {"not_worse"} else "undecided"


def compare_answers(
    truth: BoolArray, baseline: BoolArray, candidate: BoolArray
) -> tuple[PairedCounts, PairedCounts]:
    """The counts for the rows of a class and for all others, from truth and answers (n,).

    Raises InvalidProblem.
    """
    if not truth.shape == baseline.shape == candidate.shape or truth.ndim != 1:
        message = (
            "truth and answers must be vectors of one length,"
            f" got shapes {truth.shape}, {baseline.shape} and {candidate.shape}"
        )
        raise InvalidProblem(Fault("truth", "wrong_shape", message))
    recall, others = (
        PairedCounts.of(side, baseline[truth == side], candidate[truth == side]) for side in (True, False)
    )
    return recall, others


def compare_classes(
    counts: Sequence[tuple[PairedCounts, PairedCounts]], tolerance: float = TOLERANCE, alpha: float = ALPHA
) -> tuple[ClassComparison, ...]:
    """Compare K classes together, from their counts as ``compare_answers`` gives them.

    tolerance: the loss of a share that does not matter, in [0, 1). alpha: probability of any wrong verdict,
    in (0, 1): at most α for all ``"worse"`` and at most α for all ``"not_worse"`` together.

    ``"not_worse"``: the loss is at most the tolerance, by Clopper-Pearson limits at α/4K each, because
    only_baseline_right/rows − only_candidate_right/rows is the loss of the share (union bound). ``"worse"``:
    it is not ``"not_worse"``, and p_adjusted <= α. So a loss within the tolerance is not worse, even if many
    rows prove it.
    Raises InvalidProblem.
    """
    refuse(
        None if counts else Fault("counts", "empty", "at least one class is needed"),
        out_of_bounds("tolerance", tolerance, 0.0, 1.0, open_high=True),
        out_of_bounds("alpha", alpha, 0.0, 1.0, open_low=True, open_high=True),
    )
    sides = [side for pair in counts for side in pair]
    rows, lost, won = np.array(
        [(one.rows, one.only_baseline_right, one.only_candidate_right) for one in sides], dtype=np.float64
    ).T
    p = _p_worse(lost, won)
    adjusted = holm(p)
    each = alpha / (2.0 * len(sides))
    low, high = _difference_ends(rows, lost, won, each)
    compared = []
    for i, side in enumerate(sides):
        verdict: Verdict = "undecided"
        if side.rows and low[i] >= -tolerance:
            verdict = "not_worse"
        elif side.rows and adjusted[i] <= alpha:
            verdict = "worse"
        more = _rows_to_decide(side, tolerance, alpha, len(sides)) if verdict == "undecided" else None
        difference = float((won[i] - lost[i]) / rows[i]) if side.rows else None
        compared.append(
            SideComparison(
                side,
                float(p[i]),
                float(adjusted[i]),
                difference,
                float(low[i]),
                float(high[i]),
                verdict,
                more,
            )
        )
    return tuple(ClassComparison(*pair) for pair in zip(compared[::2], compared[1::2], strict=True))


def holm(p: FloatArray) -> FloatArray:
    """Holm's adjusted p-values (m,): for rising p, p̃_(i) = max_{j <= i} min(1, (m − j + 1) p_(j)) (1979).

    Rejecting the hypotheses with adjusted p-values of at most α makes any error with probability α at most,
    for any dependence of the tests.
    """
    order = np.argsort(p, kind="stable")
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(np.arange(len(p), 0, -1) * p[order]))
    return adjusted


def _p_worse(lost: FloatArray, won: FloatArray) -> FloatArray:
    """P(B >= lost) for B ~ binomial(lost + won, 1/2), which is I_{1/2}(lost, won + 1).

    It is also defined between whole numbers.
    """
    return np.where(lost > 0.0, betainc(np.maximum(lost, 1e-300), won + 1.0, 0.5), 1.0)


def _difference_ends(
    rows: FloatArray, lost: FloatArray, won: FloatArray, alpha: float
) -> tuple[FloatArray, FloatArray]:
    """Limits of candidate − baseline. alpha: of each limit of each share. Without rows: −1 and 1."""
    (least_lost, most_lost), (least_won, most_won) = (exact_ends(one, rows, alpha) for one in (lost, won))
    low, high = least_won - most_lost, most_won - least_lost
    return np.where(rows > 0.0, low, -1.0), np.where(rows > 0.0, high, 1.0)


def _rows_to_decide(side: PairedCounts, tolerance: float, alpha: float, tests: int) -> int | None:
    """The least number of rows that decides with the same shares, by doubling and bisection.

    For ``"worse"`` Bonferroni's correction is used, because the p-values of the other tests are unknown.
    """
    if not side.rows:
        return None

    def decides(rows: int) -> bool:
        scale = rows / side.rows
        n, lost, won = (
            np.array(scale * count)
            for count in (side.rows, side.only_baseline_right, side.only_candidate_right)
        )
        low, _ = _difference_ends(n, lost, won, alpha / (2.0 * tests))
        return bool(low >= -tolerance or tests * _p_worse(lost, won) <= alpha)

    few, many = side.rows, 2 * side.rows
    while not decides(many):
        few, many = many, 2 * many
        if many > _MOST_ROWS:
            return None
    while many - few > max(1, many // 1000):
        middle = (few + many) // 2
        few, many = (few, middle) if decides(middle) else (middle, many)
    return many
