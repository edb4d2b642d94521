"""Fits probabilities of a class to held-out scores, and measures how good the probabilities are.

The scores must be held out, like ``SearchResult.held_out_scores``: on its own training rows a student is
overconfident, and so would be a calibration that is fitted there.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, get_args

import numpy as np

from core.data.validation import not_whole, refuse, unknown_choice
from core.errors import Fault, InvalidProblem
from core.model_selection.options import CalibrationKind
from core.packed.calibration import Calibration, IsotonicCalibration
from core.students.sigmoid import fit_sigmoid
from core.types import BoolArray, FloatArray


def fit_calibration(truth: BoolArray, scores: FloatArray, kind: CalibrationKind = "sigmoid") -> Calibration:
    """The calibration that best fits held-out scores (n,) and their truth (n,).

    ``"sigmoid"``: maximum likelihood with Platt's targets (N₊ + 1)/(N₊ + 2) and 1/(N₋ + 2), which keep it
    finite when the scores separate the classes; the slope is 0 if the scores do not rise with the truth.
    ``"isotonic"``: the rising step function with the least squares (pool adjacent violators), linear between
    the steps; it needs some hundred examples of the class to be better than the sigmoid.

    Raises InvalidProblem: unknown kind, unequal lengths, scores not finite, a truth of one class.
    """
    refuse(unknown_choice("calibration", kind, get_args(CalibrationKind)))
    _check(truth, scores, "scores")
    if truth.all() or not truth.any():
        message = "a calibration needs examples of the class and of the rest"
        raise InvalidProblem(Fault("truth", "single_class", message))
    if kind == "sigmoid":
        return fit_sigmoid(truth, np.asarray(scores, dtype=np.float64))
    from sklearn.isotonic import IsotonicRegression  # takes a second, and most jobs do not need it

    fit = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip")
    fit.fit(np.asarray(scores, dtype=np.float64), truth.astype(np.float64))
    return IsotonicCalibration(fit.X_thresholds_, np.clip(fit.y_thresholds_, 0.0, 1.0))


def brier(truth: BoolArray, probability: FloatArray) -> float:
    """Mean squared difference of probability (n,) and truth (n,), in [0, 1]; lower is better."""
    _check(truth, probability, "probability")
    return float(np.mean((probability - truth) ** 2))


@dataclass(frozen=True, slots=True)
class Bin:
    """Examples with a probability in [low, high): their number, mean probability, and share of the class."""

    low: float
    high: float
    count: int
    probability: float
    observed: float


@dataclass(frozen=True, slots=True)
class Reliability:
    """How well predicted probabilities agree with observed frequencies.

    brier: see ``brier``. base_brier: Brier score of a constant prediction, the share of the class.
    error: mean over the examples of |mean probability − share of the class| in their bin.
    bins: the bins that hold examples, rising; the points of a reliability plot.
    """

    brier: float
    base_brier: float
    error: float
    bins: tuple[Bin, ...]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def reliability(truth: BoolArray, probability: FloatArray, *, n_bins: int = 10) -> Reliability:
    """Brier score and reliability curve of probabilities (n,), on rows that nothing was fitted to.

    n_bins: number of bins of equal width; the last bin includes 1. Raises InvalidProblem.
    """
    refuse(not_whole("n_bins", n_bins, 1, 1000))
    _check(truth, probability, "probability")
    if probability.min() < 0.0 or probability.max() > 1.0:
        raise InvalidProblem(Fault("probability", "out_of_range", "probabilities must lie between 0 and 1"))
    bin_of = np.minimum((probability * n_bins).astype(np.int64), n_bins - 1)
    counts = np.bincount(bin_of, minlength=n_bins)
    sums = np.bincount(bin_of, weights=probability, minlength=n_bins)
    yes = np.bincount(bin_of, weights=truth, minlength=n_bins)
    share = float(truth.mean())
    return Reliability(
        brier=brier(truth, probability),
        base_brier=share * (1.0 - share),
        error=float(np.abs(sums - yes).sum() / len(truth)),
        bins=tuple(
            Bin(
                low=b / n_bins,
                high=(b + 1) / n_bins,
                count=int(counts[b]),
                probability=float(sums[b] / counts[b]),
                observed=float(yes[b] / counts[b]),
            )
            for b in np.flatnonzero(counts).tolist()
        ),
    )


def _check(truth: BoolArray, values: FloatArray, name: str) -> None:
    if not (truth.ndim == 1 and truth.size > 0 and truth.shape == values.shape):
        message = f"truth and {name} must be vectors of one length, got {truth.shape} and {values.shape}"
        raise InvalidProblem(Fault(name, "wrong_shape", message))
    if not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values))[0])
        raise InvalidProblem(Fault(name, "not_finite", f"{name} must be finite; row {row} is not", row))
