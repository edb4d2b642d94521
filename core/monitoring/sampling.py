"""Chooses with known probabilities the answers that people are asked about, so that rates can be estimated.

This module imports neither SciPy nor training code, because queries use it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import Final

import numpy as np

from core.data.validation import out_of_bounds, refuse
from core.errors import Fault, InvalidProblem
from core.types import FloatArray

FLOOR: Final = 0.01
_HALVINGS: Final = 60
_LARGEST_SLOPE: Final = 1e6


@dataclass(frozen=True, slots=True)
class SamplingPlan:
    """Probabilities q of asking about an answer, which is decided after the answer. Raises InvalidProblem.

    yes: q of a yes, in (0, 1]. floor, slope: a no for a row that is of the class with probability p has q =
    floor + slope · √p, at most 1; floor in (0, 1], slope at least 0. √p is Neyman's allocation for rows with
    truth Bernoulli(p) (Neyman 1934): the estimate of recall has the least variance for a number of labels.
    """

    yes: float = 0.5
    floor: float = FLOOR
    slope: float = 0.0

    def __post_init__(self) -> None:
        refuse(
            out_of_bounds("yes", self.yes, 0.0, 1.0, open_low=True),
            out_of_bounds("floor", self.floor, 0.0, 1.0, open_low=True),
            out_of_bounds("slope", self.slope, 0.0, _LARGEST_SLOPE),
        )

    def probability(self, accepted: bool, p: float) -> float:
        """q of an answer. accepted: whether it was yes. p: calibrated probability of the class, in [0, 1]."""
        return self.yes if accepted else min(1.0, self.floor + self.slope * sqrt(p))

    @property
    def largest_weight(self) -> float:
        """Largest 1/q of any answer."""
        return 1.0 / min(self.yes, self.floor)

    def expected(self, yes: float, p: FloatArray, counts: FloatArray) -> float:
        """Expected number of answers to ask about.

        yes: number of yes answers. p, counts: probabilities and counts of no answers, (b,) each.
        """
        asked = np.minimum(1.0, self.floor + self.slope * np.sqrt(p))
        return float(self.yes * yes + (asked * counts).sum())

    def within(self, most: float, yes: float, p: FloatArray, counts: FloatArray) -> SamplingPlan:
        """The plan with the slope for which ``expected``, for example for one day, is at most ``most``.

        The probability of yes answers and the floor stay: if these alone exceed ``most``, the slope is 0.
        Raises InvalidProblem for p outside [0, 1], negative counts and unequal lengths.
        """
        p, counts = np.asarray(p, dtype=np.float64), np.asarray(counts, dtype=np.float64)
        if not (p.ndim == 1 and p.shape == counts.shape and (p >= 0.0).all() and (p <= 1.0).all()):
            message = "p must be probabilities (b,), with as many counts"
            raise InvalidProblem(Fault("p", "wrong_shape", message))
        if not (counts >= 0.0).all():
            raise InvalidProblem(Fault("counts", "out_of_bounds", "counts must be at least 0"))
        low, high = 0.0, _LARGEST_SLOPE
        for _ in range(_HALVINGS):
            middle = (low + high) / 2.0
            fits = replace(self, slope=middle).expected(yes, p, counts) <= most
            low, high = (middle, high) if fits else (low, middle)
        return replace(self, slope=low)
