"""Calibrations in the form that queries use: they convert a student's score to the probability of its class.

    sigmoid    p(s) = 1 / (1 + exp(−(slope · s + offset)))             Platt (1999)
    isotonic   p(s) linear between knots (s_j, p_j), both rising, and constant beyond them
    probit     p(s) = Φ(s), the normal distribution: for a score that is a probit by itself (GaussianForm)

None of them falls as the score rises, so the order of the scores stays.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import erfc, exp, isfinite, sqrt
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from core.errors import Fault, InvalidPackage, InvalidProblem
from core.packed.codec import Arrays, Header, take, take_array
from core.packed.maps import Floats, frozen_array


class Calibration(ABC):
    """A rising function from scores to probabilities."""

    kind: ClassVar[str]

    @abstractmethod
    def probabilities(self, scores: NDArray[np.floating]) -> Floats:
        """p(s), in [0, 1], of finite scores (n,), shape (n,)."""

    def probability(self, score: float) -> float:
        """p(s) of one score."""
        return float(self.probabilities(np.array([score]))[0])

    @abstractmethod
    def header(self) -> Header:
        """Its entry in a package's header, JSON-ready."""

    def arrays(self) -> Arrays:
        """Its arrays by their names in a package."""
        return {}


@final
@dataclass(frozen=True, slots=True)
class SigmoidCalibration(Calibration):
    """slope >= 0, in 1 / score; offset: the log odds at score 0. Raises InvalidProblem."""

    kind: ClassVar[str] = "sigmoid"
    slope: float
    offset: float

    def __post_init__(self) -> None:
        if not (isfinite(self.slope) and self.slope >= 0.0 and isfinite(self.offset)):
            message = "A sigmoid needs a finite slope of at least 0 and a finite offset."
            raise InvalidProblem(Fault("calibration", "out_of_range", message))

    def probabilities(self, scores: NDArray[np.floating]) -> Floats:
        with np.errstate(over="ignore", under="ignore"):
            odds = self.slope * np.asarray(scores, dtype=np.float64) + self.offset
            small = np.exp(-np.abs(odds))
            values: Floats = np.where(odds >= 0.0, 1.0, small) / (1.0 + small)
        return values

    def probability(self, score: float) -> float:
        odds = self.slope * score + self.offset
        if odds >= 0.0:
            return 1.0 / (1.0 + exp(-odds))
        small = exp(odds)
        return small / (1.0 + small)

    def header(self) -> Header:
        return {"kind": self.kind, "slope": float(self.slope), "offset": float(self.offset)}


@final
@dataclass(frozen=True, slots=True, eq=False)
class IsotonicCalibration(Calibration):
    """knots: scores, strictly rising, (q,). values: probabilities at the knots, never falling, (q,).

    Raises InvalidProblem.
    """

    kind: ClassVar[str] = "isotonic"
    knots: Floats
    values: Floats

    def __post_init__(self) -> None:
        knots = frozen_array(self.knots, "calibration.knots", (None,))
        values = frozen_array(self.values, "calibration.values", knots.shape)
        if not ((np.diff(knots) > 0.0).all() and (np.diff(values) >= 0.0).all()):
            message = "Knots of a calibration must rise, and its probabilities must not fall."
            raise InvalidProblem(Fault("calibration", "not_rising", message))
        if values[0] < 0.0 or values[-1] > 1.0:
            message = "Probabilities of a calibration must lie between 0 and 1."
            raise InvalidProblem(Fault("calibration", "out_of_range", message))
        object.__setattr__(self, "knots", knots)
        object.__setattr__(self, "values", values)

    def probabilities(self, scores: NDArray[np.floating]) -> Floats:
        values: Floats = np.interp(np.asarray(scores, dtype=np.float64), self.knots, self.values)
        return values

    def header(self) -> Header:
        return {"kind": self.kind}

    def arrays(self) -> Arrays:
        return {"calibration.knots": self.knots, "calibration.values": self.values}


@final
@dataclass(frozen=True, slots=True)
class ProbitCalibration(Calibration):
    """p(s) = Φ(s): nothing is fitted, because the student's score is the probit of the probability."""

    kind: ClassVar[str] = "probit"

    def probabilities(self, scores: NDArray[np.floating]) -> Floats:
        return np.array([self.probability(score) for score in np.asarray(scores, dtype=np.float64).tolist()])

    def probability(self, score: float) -> float:
        # erfc, not erf: it keeps small probabilities where 1 + erf would round to 0.
        return 0.5 * erfc(-score / sqrt(2.0))

    def header(self) -> Header:
        return {"kind": self.kind}


def calibration_header(calibration: Calibration | None) -> Header:
    """The calibration's entry in a package's header; empty without a calibration."""
    return {} if calibration is None else {"calibration": calibration.header()}


def calibration_from(header: Header, arrays: Arrays) -> Calibration | None:
    """The calibration of a package, or None; removes its arrays from ``arrays``.

    Raises InvalidPackage or InvalidProblem.
    """
    if "calibration" not in header:
        return None
    described: dict[str, Any] = take(header, "calibration", dict)
    kind = take(described, "kind", str)
    if kind == SigmoidCalibration.kind:
        return SigmoidCalibration(take(described, "slope", float), take(described, "offset", float))
    if kind == ProbitCalibration.kind:
        return ProbitCalibration()
    if kind == IsotonicCalibration.kind:
        calibration = IsotonicCalibration(
            take_array(arrays, "calibration.knots"), take_array(arrays, "calibration.values")
        )
        for name in calibration.arrays():
            del arrays[name]
        return calibration
    raise InvalidPackage(f"The package has a calibration of unknown kind {kind!r:.80}.")
