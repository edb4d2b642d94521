"""Sequential tests of a promised rate, which may be evaluated as often as one likes.

A promise limits a share of mistakes: among all queries (false positives), among the yes answers
(1 − precision), or among the rows of the class (1 − recall). Every query is a trial with a payoff z >= −B,
for which the promise says E[z | past] <= 0: weighted mistakes minus the limit times the base of their share.
Bets λ <= 1/2B on it give

    E_t = Σ_j w_j · mean_λ Π_{s = j..t} (1 + λ z_s) + Σ_{j > t} w_j,        w_j = 1/((j + 1)(j + 2)),

with a new start in each period j. While the promise is kept, E ever exceeds a level v with probability 1/v at
most, however often it is evaluated (Ville 1939; bets: Waudby-Smith and Ramdas, Estimating means of bounded
random variables by betting, JRSS B 86, 2024; starts: Shin, Ramdas and Rinaldo, E-detectors, 2024; deployed
models: Podkopaev and Ramdas, Tracking the risk of a deployed model, 2022).

Feedback may come late, for a known share of queries, or never; answers without feedback count as right. So
further feedback can only increase the payoffs, and E with them, and false alarms stay as rare. Therefore E is
computed over the trials in the order of the queries, with the feedback known now (``replay``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import exp, inf, log, pi
from typing import Any, Final

import numpy as np

from core.data.validation import not_whole, out_of_bounds, refuse
from core.errors import Fault, InvalidProblem
from core.monitoring.intervals import MOST
from core.types import FloatArray

RATIOS: Final = (1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
"""Each bet grows fastest if the share of mistakes is this multiple of the limit."""
_MOST_LOST: Final = 0.5
"""Largest share of the bet wealth that one trial can lose."""
_LARGEST_WEIGHT: Final = 1e6

Weighted = tuple[tuple[float, int], ...]
"""Weights (the inverse sampling probabilities of queries) and the number of queries with each weight."""


@dataclass(frozen=True, slots=True)
class SequentialTest:
    """A limit for a share of mistakes. Raises InvalidProblem.

    limit: the largest share that keeps the promise, in (0, 1). of_all: whether it is a share of all trials,
    or of those with feedback. largest_weight: of any trial, at least 1.
    """

    limit: float
    of_all: bool
    largest_weight: float = 1.0

    def __post_init__(self) -> None:
        refuse(
            out_of_bounds("limit", self.limit, 0.0, 1.0, open_low=True, open_high=True),
            out_of_bounds("largest_weight", self.largest_weight, 1.0, _LARGEST_WEIGHT),
        )

    @classmethod
    def of_false_positives(
        cls, promised: float, tolerance: float = 1.0, largest_weight: float = 1.0
    ) -> SequentialTest:
        """The test that the false-positive rate is at most ``tolerance`` times the promised one.

        Trials: all queries of the class. Mistakes: yes answers that are reported wrong. Their share among all
        queries is at most the false-positive rate, so feedback on yes answers alone suffices.
        """
        return cls(promised * tolerance, True, largest_weight)

    @classmethod
    def of_precision(cls, least: float, largest_weight: float = 1.0) -> SequentialTest:
        """The test that the precision is at least this, in (0, 1).

        Trials: sampled yes answers. Mistakes: wrong ones; those without feedback count as right.
        """
        return cls(1.0 - least, False, largest_weight)

    @classmethod
    def of_recall(cls, least: float, largest_weight: float = 1.0) -> SequentialTest:
        """The test that the recall is at least this, in (0, 1).

        Trials: sampled queries of the class. Mistakes: rows of the class with the answer no. Without
        feedback, a sampled yes counts as a row of the class, and a sampled no is not a trial.
        """
        return cls(1.0 - least, False, largest_weight)

    @property
    def bets(self) -> FloatArray:
        """The λ, at most six; if all weights are equal, the test is a likelihood-ratio test."""
        gain, loss = self._payoffs(self.largest_weight)
        ratios = np.array([ratio for ratio in RATIOS if ratio * self.limit < 1.0] or [RATIOS[0]])
        bets: FloatArray = np.minimum((ratios - 1.0) / gain, _MOST_LOST / -loss)
        return bets

    def log_factors(self, trials: Trials) -> FloatArray:
        """log Π (1 + λ z) over a batch, for each of the bets."""
        bets = self.bets
        total = np.zeros(len(bets))
        for is_wrong, weighted in ((True, trials.wrong), (False, trials.right)):
            for weight, count in weighted:
                if weight > self.largest_weight:
                    message = f"a weight of {weight:g} is above the largest, {self.largest_weight:g}"
                    raise InvalidProblem(Fault("weight", "out_of_bounds", message))
                gain, loss = self._payoffs(weight)
                total += count * np.log1p(bets * (gain if is_wrong else loss))
        return total

    def _payoffs(self, weight: float) -> tuple[float, float]:
        """The payoffs of a mistake with this weight, and of a trial without a mistake."""
        if self.of_all:
            return weight - self.limit, -self.limit
        return weight * (1.0 - self.limit), -weight * self.limit


@dataclass(frozen=True, slots=True)
class Trials:
    """A batch of trials of one period. Raises InvalidProblem.

    period: number of the period, for example of the week since the start, at least 0. wrong, right: numbers
    of mistakes and of other trials, by weight. For a share of all trials the weights of ``right`` are
    ignored.
    """

    period: int
    wrong: Weighted = ()
    right: Weighted = ()

    def __post_init__(self) -> None:
        refuse(
            not_whole("period", self.period, 0, MOST),
            *(
                fault
                for weight, count in (*self.wrong, *self.right)
                for fault in (
                    out_of_bounds("weight", weight, 1.0, _LARGEST_WEIGHT),
                    not_whole("count", count, 0, MOST),
                )
            ),
        )

    @classmethod
    def of_counts(cls, period: int, trials: int, wrong: int) -> Trials:
        """Trials that people were all asked about; ``wrong`` of them were mistakes."""
        return cls(period, ((1.0, wrong),), ((1.0, trials - wrong),))


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence against a promise after some trials, on which it depends only by these few numbers.

    log_wealth: log Σ_j w_j Π (1 + λ z) over the starts so far, for each bet; later factors are the same for
    all starts. periods: number of periods that have begun. log_peak: the largest log E so far.
    """

    log_wealth: tuple[float, ...]
    periods: int = 1
    log_peak: float = 0.0

    @classmethod
    def start(cls, test: SequentialTest) -> Evidence:
        """The evidence before the first trial: E = 1."""
        return cls((log(0.5),) * len(test.bets))

    @property
    def value(self) -> float:
        """E, at least 0; inf beyond float64."""
        return exp(self.log_value) if self.log_value < 700.0 else inf

    @property
    def peak(self) -> float:
        """The largest E after any batch; when it reaches the alarm level, the alarm is raised and stays."""
        return exp(self.log_peak) if self.log_peak < 700.0 else inf

    @property
    def log_value(self) -> float:
        """log E."""
        rest = -log(self.periods + 1.0)
        return float(np.logaddexp(np.logaddexp.reduce(self.log_wealth) - log(len(self.log_wealth)), rest))

    def after(self, test: SequentialTest, trials: Trials) -> Evidence:
        """The evidence after a further batch, which is of the latest period or a later one.

        Raises InvalidProblem for an earlier period, for weights beyond the test's largest, and for evidence
        of another number of bets.
        """
        if trials.period < self.periods - 1:
            message = f"trials of period {trials.period} come after those of {self.periods - 1}: replay all"
            raise InvalidProblem(Fault("period", "wrong_order", message))
        if len(self.log_wealth) != len(test.bets):
            raise InvalidProblem(Fault("log_wealth", "wrong_shape", "the evidence is that of another test"))
        begun = trials.period + 1
        wealth = np.array(self.log_wealth)
        if begun > self.periods:
            # Σ_{j = a..b − 1} 1/((j + 1)(j + 2)) = 1/(a + 1) − 1/(b + 1)
            wealth = np.logaddexp(wealth, log(1.0 / (self.periods + 1.0) - 1.0 / (begun + 1.0)))
        wealth = wealth + test.log_factors(trials)
        now = Evidence(tuple(wealth.tolist()), begun)
        return Evidence(now.log_wealth, begun, max(self.log_peak, now.log_value))

    def mistakes_to(self, level: float, test: SequentialTest) -> int:
        """Number of further mistakes, each with the largest weight, that would raise E to a level at once."""
        if self.log_value >= log(level):
            return 0
        each = test.log_factors(Trials(self.periods - 1, ((test.largest_weight, 1),)))
        wealth, count = np.array(self.log_wealth), 0
        rest, least = -log(self.periods + 1.0), log(level)
        while np.logaddexp(np.logaddexp.reduce(wealth) - log(len(wealth)), rest) < least:
            wealth, count = wealth + each, count + 1
        return count

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready, for ``from_dict``."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Evidence:
        """The evidence that ``as_dict`` gave."""
        return cls(tuple(stored["log_wealth"]), stored["periods"], stored["log_peak"])


def replay(test: SequentialTest, batches: Iterable[Trials]) -> tuple[Evidence, FloatArray]:
    """The evidence after all batches in order, and log E after each of them, (batches,).

    The same batches give the same bits, which are also those of repeated ``Evidence.after``.
    """
    evidence, path = Evidence.start(test), []
    for trials in batches:
        evidence = evidence.after(test, trials)
        path.append(evidence.log_value)
    return evidence, np.array(path)


def mixed(*paths: FloatArray) -> FloatArray:
    """log of the mean of several E, evaluated at the same times; the mean is also an E. paths: log E, (t,).

    So reports by volunteers, each with weight 1, are used together with samples of known probability, and are
    not counted twice.
    """
    mean: FloatArray = np.logaddexp.reduce(np.array(paths), axis=0) - log(len(paths))
    return mean


def alarm_level(classes: int, alpha: float = 0.05, run: int = 1) -> float:
    """The E that raises an alarm: K/α, which is Bonferroni's correction for K classes.

    run: number of the test, from 1. A test after an acknowledged alarm has α · 6/(π²k²) as the k-th, so that
    all tests after the first have less than 0.4 α together. Raises InvalidProblem.
    """
    refuse(
        not_whole("classes", classes, 1, MOST),
        not_whole("run", run, 1, MOST),
        out_of_bounds("alpha", alpha, 0.0, 1.0, open_low=True, open_high=True),
    )
    share = 1.0 if run == 1 else 6.0 / (pi * run) ** 2
    return classes / (alpha * share)
