"""Chooses the decision threshold: 0 as in the paper, or by held-out scores; computes a budget's promise."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import ceil, log, log1p
from typing import Any, Final, Self, get_args

import numpy as np
from scipy.special import bdtr, betainccinv

from core.data.validation import out_of_bounds, refuse, unknown_choice
from core.errors import Fault, InvalidProblem
from core.model_selection.options import ThresholdRule
from core.students.sigmoid import expected_f1_threshold
from core.types import BoolArray, FloatArray, IntArray

NOT_PROMISED: Final = "false_positive_budget_not_promised"


def choose_threshold(
    truth: BoolArray,
    scores: FloatArray,
    rule: ThresholdRule,
    budget: float | None = None,
    confidence: float | None = None,
) -> float:
    """The threshold t that is best for "yes where score >= t" on the given examples.

    rule: ``"zero"`` gives 0. ``"accuracy"`` and ``"f1"`` maximise that measure. ``"fpr"`` finds the most true
    positives with an expected false-positive rate of at most ``budget``, in [0, 1), see ``expected_rate``.
    With a ``confidence``, in (0, 1), the rate is at most the budget for this share of students, see
    ``keeps_budget``. If there are too few negatives for that, no negative is accepted, see ``Promise``.
    ``"expected_f1"`` maximises the F that the probabilities of a sigmoid expect, see
    ``expected_f1_threshold``.

    Candidates lie in the middle between two neighbouring scores. Among equally good ones, the one in the
    widest gap is chosen, then the highest, because new examples are least likely to cross it. A threshold
    that rejects all examples is the next number above the largest score; one that accepts all is the smallest
    score.

    truth, scores: (n,). Raises InvalidProblem for an unknown rule, a missing budget, unequal lengths, scores
    that are not finite, and a truth with only one class.
    """
    refuse(
        unknown_choice("threshold.rule", rule, get_args(ThresholdRule)),
        out_of_bounds("threshold.budget", budget, 0.0, 1.0, open_high=True) if rule == "fpr" else None,
        None if confidence is None else _fault_of(confidence),
    )
    if rule == "zero":
        return 0.0
    _check_scores(truth, scores)
    if rule == "expected_f1":
        return expected_f1_threshold(truth, scores)
    cuts = _Cuts.of(truth, scores)
    value = cuts.values(rule, budget or 0.0, confidence)
    best = np.flatnonzero(value == value.max())
    return cuts.threshold(int(best[np.argmax(cuts.gaps[best])]))


@dataclass(frozen=True, slots=True, eq=False)
class _Cuts:
    """All distinct thresholds, from "reject all" to "accept all".

    levels: the q distinct scores, falling. Cut c in 0..q accepts levels[:c].
    true_positives, false_positives: at each cut, (q + 1,). gaps: width of the gap that the cut lies in,
        (q + 1,); 0 for the first and the last cut.
    """

    levels: FloatArray
    true_positives: IntArray
    false_positives: IntArray
    gaps: FloatArray

    @classmethod
    def of(cls, truth: BoolArray, scores: FloatArray) -> _Cuts:
        levels, level_of = np.unique(-scores, return_inverse=True)
        positives = np.bincount(level_of, weights=truth, minlength=len(levels)).astype(np.int64)
        examples = np.bincount(level_of, minlength=len(levels))
        return cls(
            levels=-levels,
            true_positives=np.concatenate(([0], np.cumsum(positives))),
            false_positives=np.concatenate(([0], np.cumsum(examples - positives))),
            gaps=np.concatenate(([0.0], np.diff(levels), [0.0])),
        )

    def values(self, rule: ThresholdRule, budget: float, confidence: float | None) -> FloatArray:
        """Objective of the rule at each cut, (q + 1,); computed from integers, so that ties are exact."""
        tp, fp = self.true_positives, self.false_positives
        positives, negatives = int(tp[-1]), int(fp[-1])
        if rule == "accuracy":
            return (tp - fp).astype(np.float64)
        if rule == "f1":
            return 2.0 * tp / (tp + fp + positives)
        # Among the cuts with the most true positives, the first has the fewest false positives.
        allowed = (fp == 0) | keeps_budget(fp, negatives, budget, confidence)
        return np.where(allowed, tp - fp / (negatives + 1.0), -1.0)

    def threshold(self, cut: int) -> float:
        """A number t with levels[cut − 1] >= t > levels[cut]."""
        if cut == 0:
            return float(np.nextafter(self.levels[0], np.inf))
        above = float(self.levels[cut - 1])
        if cut == len(self.levels):
            return above
        below = float(self.levels[cut])
        middle = below + (above - below) / 2.0
        # Between adjacent floats the middle rounds to one of them; it must not round to the lower one.
        return middle if middle > below else above


@dataclass(frozen=True, slots=True)
class Promise:
    """The false-positive rate that held-out negatives promise for a threshold.

    budget: the requested rate, in [0, 1). negatives: number of held-out examples of other classes. accepted:
    how many of them reach the threshold. confidence: probability that the rate of this student is within the
    budget, in (0, 1); None: the rate is within the budget on average over training parts.
    """

    budget: float
    negatives: int
    accepted: int
    confidence: float | None = None

    @classmethod
    def of(
        cls,
        truth: BoolArray,
        scores: FloatArray,
        threshold: float,
        budget: float,
        confidence: float | None = None,
    ) -> Self:
        """The promise of a threshold, from held-out scores (n,) and their truth (n,)."""
        negatives = scores[~truth]
        return cls(budget, len(negatives), int((negatives >= threshold).sum()), confidence)

    @property
    def expected(self) -> float:
        """Upper limit of the rate that is expected on further examples, see ``expected_rate``."""
        return float(expected_rate(self.accepted, self.negatives))

    @property
    def bound(self) -> float:
        """Upper limit of the rate at the confidence, see ``keeps_budget``; without one, ``expected``."""
        if self.confidence is None:
            return self.expected
        if self.accepted == self.negatives:
            return 1.0
        misses = self.negatives - self.accepted
        return float(betainccinv(self.accepted + 1, misses, 1.0 - self.confidence))

    @property
    def warning(self) -> str | None:
        """The code of the promise's problem, or None. There are too few negatives to keep the budget."""
        is_kept = keeps_budget(self.accepted, self.negatives, self.budget, self.confidence)
        return None if is_kept else NOT_PROMISED

    @property
    def _enough(self) -> int:
        """Number of negatives with which a threshold that rejects all of them keeps a budget above 0."""
        if self.confidence is None:
            return ceil(1.0 / self.budget) - 1
        return ceil(log(1.0 - self.confidence) / log1p(-self.budget))

    @property
    def message(self) -> str:
        """One sentence with the figures."""
        enough = "no number would do" if self.budget == 0.0 else f"it takes {self._enough}"
        surely = "" if self.confidence is None else f" {100 * self.confidence:g} % surely"
        return (
            f"A false-positive rate of {100 * self.budget:g} % cannot be promised{surely} with"
            f" {self.negatives} training rows of other classes ({enough}): the threshold rejects all of them,"
            f" and up to {100 * self.bound:.2g} % of further rows may be accepted."
        )

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; has ``confidence`` and ``bound`` if there is a confidence, and ``warning`` and
        ``message`` if the budget cannot be kept.
        """
        values = asdict(self) | {"expected": self.expected}
        if self.confidence is None:
            del values["confidence"]
        else:
            values["bound"] = self.bound
        return values | ({} if self.warning is None else {"warning": self.warning, "message": self.message})


def expected_rate(accepted: Any, negatives: int) -> Any:
    """(a + 1)/(n + 1), the largest expected false-positive rate if a of n negatives reach the threshold.

    A further negative that is accepted scores higher than the (a + 1)-th highest of the n. If it is
    exchangeable with them, all n + 1 ranks are equally likely for it, so this has probability (a + 1)/(n + 1)
    at most, for every distribution of the scores (Vovk et al., Algorithmic Learning in a Random World, 2005).
    a/n would be too low, because it is the rate on the examples that the threshold was chosen on.

    accepted: a number or an array.
    """
    return (accepted + 1) / (negatives + 1)


def keeps_budget(accepted: Any, negatives: int, budget: float, confidence: float | None = None) -> Any:
    """Whether a threshold that a of n held-out negatives reach keeps a budget of false positives.

    Without a confidence: ``expected_rate`` is at most the budget, on average over training parts; nearly
    every second student exceeds it. With a confidence: a further negative that is accepted scores higher than
    the (a + 1)-th highest of the n, which for continuous scores has probability Beta(a + 1, n − a). This must
    be at most the budget with probability ``confidence`` or more. That probability is P(B > a) for
    B ~ binomial(n, budget), so the upper limit of Clopper and Pearson (1934) must be at most the budget
    (Vovk, Conditional validity of inductive conformal predictors, 2012, proposition 2a; Bates et al. 2021).

    accepted: a number or an array.
    """
    if confidence is None:
        return expected_rate(accepted, negatives) <= budget
    return bdtr(accepted, negatives, budget) <= 1.0 - confidence


def _fault_of(confidence: float) -> Fault | None:
    return out_of_bounds("threshold.confidence", confidence, 0.0, 1.0, open_low=True, open_high=True)


def _check_scores(truth: BoolArray, scores: FloatArray) -> None:
    if not (truth.ndim == 1 and truth.shape == scores.shape):
        message = (
            f"truth and scores must be vectors of one length, got shapes {truth.shape} and {scores.shape}"
        )
        raise InvalidProblem(Fault("scores", "wrong_shape", message))
    if not np.isfinite(scores).all():
        row = int(np.flatnonzero(~np.isfinite(scores))[0])
        raise InvalidProblem(Fault("scores", "not_finite", f"scores must be finite; row {row} is not", row))
    if truth.all() or not truth.any():
        message = "a threshold can only be chosen on examples of the class and of the rest"
        raise InvalidProblem(Fault("truth", "single_class", message))
