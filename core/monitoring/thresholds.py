"""Chooses thresholds of trained students by the cost of wrong answers, capacity, recall or false positives.

All are chosen among the points of stored curves (``core.model_selection.curves``), for many classes at once
and without the rows; ``score_curve`` makes a curve of held-out scores. The rates of a curve are those of its
rows and promise nothing about rows from elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from core.data.validation import not_whole, out_of_bounds, refuse
from core.errors import Fault, InvalidProblem
from core.model_selection.curves import ScoreCurve
from core.model_selection.threshold import keeps_budget
from core.monitoring.interval import LEVEL, Interval
from core.monitoring.intervals import MOST, largest_mean, share_interval
from core.packed.calibration import Calibration
from core.types import FloatArray

RESAMPLES: Final = 200
_LARGEST_COST: Final = 1e12


@dataclass(frozen=True, slots=True)
class Costs:
    """The aim of the least expected cost. Raises InvalidProblem.

    false_yes, missed_yes: costs of a wrong yes and of a wrong no, in any unit, above 0. share: share of the
    class among production's queries, in (0, 1), which may differ from that among the rows of the curve.
    """

    false_yes: float
    missed_yes: float
    share: float

    def __post_init__(self) -> None:
        refuse(
            *(
                out_of_bounds(name, getattr(self, name), 0.0, _LARGEST_COST, open_low=True)
                for name in ("false_yes", "missed_yes")
            ),
            out_of_bounds("share", self.share, 0.0, 1.0, open_low=True, open_high=True),
        )

    def per_query(self, recall: FloatArray, false_positive_rate: FloatArray) -> FloatArray:
        """Expected cost of a query, in the shape of both rates."""
        wrong_yes = self.false_yes * (1.0 - self.share) * false_positive_rate
        return wrong_yes + self.missed_yes * self.share * (1.0 - recall)


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """The distribution of the class probability among production's queries.

    edges: of the bins, rising, (b + 1,), from 0 to 1. counts: queries in each bin, (b,), not all 0.
    calibration: gives the probabilities from scores. A threshold within a bin counts the whole bin, so small
    capacities need narrow bins near 1. Raises InvalidProblem.
    """

    edges: FloatArray
    counts: FloatArray
    calibration: Calibration

    def __post_init__(self) -> None:
        edges, counts = np.asarray(self.edges), np.asarray(self.counts)
        is_usable = edges.ndim == counts.ndim == 1 and len(edges) == len(counts) + 1 > 1
        if not (is_usable and (np.diff(edges) > 0).all() and edges[0] <= 0.0 and edges[-1] >= 1.0):
            message = "edges must rise from 0 to 1, one more than there are counts"
            raise InvalidProblem(Fault("edges", "wrong_shape", message))
        if not ((counts >= 0).all() and counts.sum() > 0):
            raise InvalidProblem(Fault("counts", "out_of_bounds", "counts must be at least 0, and not all 0"))

    def yes_rates(self, thresholds: FloatArray) -> FloatArray:
        """Upper limit of the share of queries that reaches each threshold, both (q,)."""
        bins = np.searchsorted(self.edges, self.calibration.probabilities(thresholds), side="right") - 1
        at_least = np.cumsum(self.counts[::-1])[::-1] / self.counts.sum()
        rates: FloatArray = at_least[np.clip(bins, 0, len(self.counts) - 1)]
        return rates


@dataclass(frozen=True, slots=True, eq=False)
class Capacity:
    """The aim of at most as many yes answers as people can review. Raises InvalidProblem.

    yes_per_day: limit that is exceeded on one day in twenty at most (Poisson). queries_per_day: on the
    busiest weekday. of: how often a threshold says yes: production's traffic, or the share of the class,
    which is used with the curve.
    """

    yes_per_day: int
    queries_per_day: float
    of: Traffic | float

    def __post_init__(self) -> None:
        is_share = not isinstance(self.of, Traffic)
        refuse(
            not_whole("yes_per_day", self.yes_per_day, 0, MOST),
            out_of_bounds("queries_per_day", self.queries_per_day, 0.0, float(MOST), open_low=True),
            out_of_bounds("share", self.of, 0.0, 1.0, open_low=True, open_high=True) if is_share else None,
        )


@dataclass(frozen=True, slots=True)
class LeastRecall:
    """The aim of the highest threshold with an expected recall of at least this, in (0, 1), on further rows.

    confidence: probability that the threshold's recall is at least this; None: it is on average, see
    ``core.model_selection.threshold.keeps_budget``, which is applied to the rows that are missed.
    ``core.model_selection.threshold.keeps_budget``, which is applied to the rows that are missed.
    Raises InvalidProblem.
    """

    recall: float
    confidence: float | None = None

    def __post_init__(self) -> None:
        refuse(
            out_of_bounds("recall", self.recall, 0.0, 1.0, open_low=True, open_high=True),
            _confidence_fault(self.confidence),
        )


@dataclass(frozen=True, slots=True)
class MostFalsePositives:
    """The aim of the most true positives within a budget of false positives, in [0, 1).

    The budget is used as in ``choose_threshold``. confidence: see
    ``core.model_selection.threshold.keeps_budget``. Raises InvalidProblem.
    """

    rate: float
    confidence: float | None = None

    def __post_init__(self) -> None:
        refuse(out_of_bounds("rate", self.rate, 0.0, 1.0, open_high=True), _confidence_fault(self.confidence))


Aim: TypeAlias = Costs | Capacity | LeastRecall | MostFalsePositives


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """A threshold and its measures on the rows of the curve.

    recall, false_positive_rate: measured on these rows. yes_rate: share of yes among production's queries;
    None if nothing is known of production. cost: expected for 1000 queries, with limits by resampling; None
    without costs. threshold_range: contains the cheapest threshold in 95 % of the resamples.
    """

    threshold: float
    recall: Interval
    false_positive_rate: Interval
    yes_rate: float | None = None
    cost: Interval | None = None
    threshold_range: tuple[float, float] | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def choose_points(aims: Mapping[str, tuple[ScoreCurve, Aim]]) -> dict[str, OperatingPoint]:
    """The point of each class for its curve and aim.

    Raises InvalidProblem with a fault for every class that has no such point; the field is the class name.
    """
    chosen: dict[str, OperatingPoint] = {}
    faults: list[Fault] = []
    for label, (curve, aim) in aims.items():
        try:
            chosen[label] = choose_point(curve, aim)
        except InvalidProblem as error:
            faults += [Fault(label, fault.code, fault.message) for fault in error.faults]
    refuse(*faults)
    return chosen


def choose_point(curve: ScoreCurve, aim: Aim) -> OperatingPoint:
    """The point of a curve that serves an aim best; among equal ones the highest threshold.

    Raises InvalidProblem: ``single_class`` if the curve has no rows of the class or no others,
    ``unreachable`` if no threshold of the curve serves the aim.
    """
    points = _Points.of(curve)
    if isinstance(aim, Costs):
        cost = aim.per_query(points.recall, points.false_positive_rate)
        return points.with_costs(int(np.argmin(cost)), aim)
    if isinstance(aim, Capacity):
        rates = points.yes_rates(aim.of)
        last = _last(rates <= largest_mean(aim.yes_per_day) / aim.queries_per_day)
        return points.at(last, float(rates[last]))
    if isinstance(aim, LeastRecall):
        missed = round(1.0 - aim.recall, 12)  # without the rounding of a difference
        kept = keeps_budget(curve.positives - points.tp, curve.positives, missed, aim.confidence)
        _require(kept, f"A recall of {100 * aim.recall:g} %", curve.positives, "of the class")
        return points.at(int(np.argmax(kept)))
    kept = keeps_budget(points.fp, curve.negatives, aim.rate, aim.confidence)
    _require(kept, f"A false-positive rate of {100 * aim.rate:g} %", curve.negatives, "of other classes")
    # Among the points with the most true positives, the first has the fewest false positives.
    return points.at(int(np.argmax(points.tp == points.tp[_last(kept)])))


def probable_point(curve: ScoreCurve, costs: Costs, calibration: Calibration) -> OperatingPoint:
    """The lowest threshold at which the probability is p >= false_yes/(false_yes + missed_yes).

    From there on a yes is worth its cost (Elkan, The foundations of cost-sensitive learning, 2001, theorem
    1). p is converted by theorem 2 from the class share of the curve's rows to that of production. If
    probabilities are right, the cost is that of ``choose_point``. Raises InvalidProblem.
    """
    points = _Points.of(curve)
    p = calibration.probabilities(points.thresholds)
    odds_then, odds_now = curve.positives / curve.negatives, costs.share / (1.0 - costs.share)
    # p/(1 − p) · odds_now / odds_then >= false_yes / missed_yes, without a division by 0
    worth = p * odds_now * costs.missed_yes >= (1.0 - p) * odds_then * costs.false_yes
    worth[0] = True
    return points.with_costs(_last(worth), costs)


@dataclass(frozen=True, slots=True, eq=False)
class _Points:
    """The points of a curve by falling threshold, preceded by one that rejects all rows; all (q,)."""

    curve: ScoreCurve
    thresholds: FloatArray
    tp: FloatArray
    fp: FloatArray

    @classmethod
    def of(cls, curve: ScoreCurve) -> _Points:
        if not (curve.positives and curve.negatives):
            message = "a threshold can only be chosen on a curve with rows of the class and of the rest"
            raise InvalidProblem(Fault("curve", "single_class", message))
        none = float(np.nextafter(curve.thresholds[0], np.inf))
        return cls(
            curve,
            np.array([none, *curve.thresholds]),
            np.array([0.0, *curve.tp]),
            np.array([0.0, *curve.fp]),
        )

    @property
    def recall(self) -> FloatArray:
        return self.tp / self.curve.positives

    @property
    def false_positive_rate(self) -> FloatArray:
        return self.fp / self.curve.negatives

    def yes_rates(self, of: Traffic | float) -> FloatArray:
        """Share of production's queries that each threshold answers yes."""
        if isinstance(of, Traffic):
            rates = of.yes_rates(self.thresholds)
            rates[0] = 0.0
            return rates
        return of * self.recall + (1.0 - of) * self.false_positive_rate

    def at(
        self,
        point: int,
        yes_rate: float | None = None,
        cost: Interval | None = None,
        threshold_range: tuple[float, float] | None = None,
    ) -> OperatingPoint:
        return OperatingPoint(
            float(self.thresholds[point]),
            share_interval(int(self.tp[point]), self.curve.positives),
            share_interval(int(self.fp[point]), self.curve.negatives),
            yes_rate,
            cost,
            threshold_range,
        )

    def with_costs(self, point: int, costs: Costs) -> OperatingPoint:
        """The point with its cost, and ranges of the cost and of the cheapest threshold by resampling."""
        rng = np.random.default_rng(0)
        recall, false_positives = (
            _resampled(rng, counts, total)
            for counts, total in ((self.tp, self.curve.positives), (self.fp, self.curve.negatives))
        )
        cost = 1000.0 * costs.per_query(recall, false_positives)
        own = 1000.0 * costs.per_query(self.recall[point], self.false_positive_rate[point])
        tails = ((1.0 - LEVEL) / 2.0, (1.0 + LEVEL) / 2.0)
        low, high = np.quantile(cost[:, point], tails)
        cheapest = self.thresholds[np.argmin(cost, axis=1)]
        first, last = np.quantile(cheapest, tails, method="inverted_cdf")
        yes_rate = float(self.yes_rates(costs.share)[point])
        interval = Interval(float(own), float(low), float(high), "bootstrap")
        return self.at(point, yes_rate, interval, (float(first), float(last)))


def _resampled(rng: np.random.Generator, counts: FloatArray, total: int) -> FloatArray:
    """Shares of accepted rows at each point, for ``total`` rows drawn with replacement, (RESAMPLES, q).

    counts: accepted rows at each point, rising, (q,). For each row only the interval between two points is
    known, which suffices.
    """
    shares = np.diff(counts, append=float(total)) / total
    drawn = rng.multinomial(total, shares, RESAMPLES)
    first = np.zeros((RESAMPLES, 1))
    rates: FloatArray = np.hstack([first, np.cumsum(drawn[:, :-1], axis=1)]) / total
    return rates


def _confidence_fault(confidence: float | None) -> Fault | None:
    if confidence is None:
        return None
    return out_of_bounds("confidence", confidence, 0.0, 1.0, open_low=True, open_high=True)


def _last(usable: Any) -> int:
    return int(np.flatnonzero(usable)[-1])


def _require(kept: Any, what: str, rows: int, of: str) -> None:
    if not np.any(kept):
        message = f"{what} cannot be promised with {rows} rows {of}"
        raise InvalidProblem(Fault("curve", "unreachable", message))
