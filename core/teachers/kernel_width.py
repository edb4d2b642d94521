"""Chooses scalings and width of an interpolating kernel by leave-one-out errors on a sample of the rows.

Let f solve (K + jI) α = Y. Fitted without row i, it has at this row the value Y_i − α_i / (K + jI)⁻¹_ii
(Rasmussen and Williams, Eq. 5.12). So one inverse gives the held-out scores of all rows of the sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from scipy.linalg import lapack

from core.data.row_scaling import RowScaling, scale_rows
from core.data.scaling import Standardisation
from core.data.scaling_kind import Scaling
from core.errors import Fault, InvalidProblem
from core.features.base import kernel_standardisation
from core.features.spec import FeatureSpec
from core.run import Run
from core.solvers.kernel.rows import KernelRows
from core.types import BoolArray, FloatArray, IntArray

_ROWS: Final = 1200
_FACTORS: Final = tuple(2.0**power for power in range(-3, 5))
"""Multiples of γ = 1 / Σ_j var(x'_j) to try."""
_SCALINGS: Final = (Scaling.ZSCORE, Scaling.MINMAX, Scaling.NONE)


@dataclass(frozen=True, slots=True, eq=False)
class KernelChoice:
    """The kernel: ``standardisation`` of scaled rows, whose scale includes √γ, names of the scalings, and γ.

    error: share of the sample's rows with a wrong leave-one-out answer; None if nothing had to be chosen.
    """

    row_scaling: RowScaling
    standardisation: Standardisation
    scaling: str
    gamma: float
    error: float | None = None

    def apply(self, X: FloatArray) -> FloatArray:
        """The rows ``X`` (n, d) in the space in which the kernel is exp(−‖z − z'‖²), (n, d)."""
        return self.standardisation.apply(scale_rows(X, self.row_scaling))


def choose_kernel(
    X: FloatArray,
    labels: IntArray,
    n_classes: int,
    *,
    gamma: float | None,
    scaling: str,
    row_scaling: str,
    jitter: float,
    run: Run,
) -> KernelChoice:
    """The kernel with the fewest leave-one-out errors; among equal ones, that with the least squared error.

    X: (n, d). labels: (n,). gamma, scaling, row_scaling, jitter: those of ``KernelInterpolation``. Columns
    are scaled by statistics of all rows; errors are those of at most 1200 rows, drawn with the run's seed.
    Rows stay unscaled unless scaling them avoids more errors than one paired standard error.
    Raises Cancelled, and InvalidProblem for Hellinger scaling of negative values.
    """
    candidates = list(_candidates(X, gamma, scaling, row_scaling, run))
    if len(candidates) == 1:
        return candidates[0]
    n = len(labels)
    some = np.sort(np.random.default_rng(run.seed).permutation(n)[:_ROWS])
    one_hot = np.eye(n_classes)[labels[some]]
    best: dict[RowScaling, tuple[LeftOut, KernelChoice]] = {}
    for candidate in candidates:
        run.check_cancel()
        found = left_out_errors(candidate.apply(X[some]), one_hot, jitter)
        known = best.get(candidate.row_scaling)
        if known is None or found.rank < known[0].rank:
            best[candidate.row_scaling] = found, candidate
    errors, chosen = min(best.values(), key=lambda each: each[0].rank)
    plain = best.get(RowScaling.NONE, (errors, chosen))
    if not errors.is_clearly_below(plain[0]):
        errors, chosen = plain
    return replace(chosen, error=float(errors.wrong.mean()))


@dataclass(frozen=True, slots=True, eq=False)
class LeftOut:
    """Leave-one-out errors. wrong: of each row, (n,). squared: mean squared error of the scores."""

    wrong: BoolArray
    squared: float

    @property
    def rank(self) -> tuple[int, float]:
        """Smaller is better."""
        return int(self.wrong.sum()), self.squared

    def is_clearly_below(self, other: LeftOut) -> bool:
        """Whether these errors are fewer by more than one paired standard error."""
        difference = other.wrong.astype(np.int64) - self.wrong
        return bool(difference.sum() > np.sqrt(len(difference)) * difference.std())


def left_out_errors(rows: FloatArray, one_hot: FloatArray, jitter: float) -> LeftOut:
    """The leave-one-out errors of the rows; all are wrong if the matrix is not positive definite.

    rows: z, (n, d). one_hot: Y, (n, K).
    """
    n = len(rows)
    kernel = KernelRows(np.ascontiguousarray(rows, dtype=np.float64)).block(slice(0, n), slice(0, n))
    kernel[np.diag_indices(n)] += jitter
    factor, failed = lapack.dpotrf(kernel, lower=1)
    if failed:
        return LeftOut(np.ones(n, dtype=bool), np.inf)
    inverse, _ = lapack.dpotri(factor, lower=1)
    alpha, _ = lapack.dpotrs(factor, one_hot, lower=1)
    scores = one_hot - alpha / np.diag(inverse)[:, None]
    wrong = scores.argmax(axis=1) != one_hot.argmax(axis=1)
    return LeftOut(wrong, float(np.mean((scores - one_hot) ** 2)))


def _candidates(
    X: FloatArray, gamma: float | None, scaling: str, row_scaling: str, run: Run
) -> Iterator[KernelChoice]:
    """Each scaling of rows and columns, with the given γ or with those to try."""
    for of_rows in _row_scalings(X, row_scaling, has_width=gamma is not None):
        run.check_cancel()
        rows = scale_rows(X, of_rows)
        for of_columns in _scalings(scaling, of_rows):
            spec = FeatureSpec(kind="kernel", scaling=of_columns)
            standardisation, usual = kernel_standardisation(rows, spec)
            for width in [usual * factor for factor in _FACTORS] if gamma is None else [gamma]:
                scale = standardisation.scale * np.sqrt(width)
                with_width = Standardisation(standardisation.shift, scale)
                yield KernelChoice(of_rows, with_width, str(of_columns), width)


def _row_scalings(X: FloatArray, asked: str, *, has_width: bool) -> tuple[RowScaling, ...]:
    negative = bool(X.min() < 0.0)
    if asked == "hellinger" and negative:
        raise InvalidProblem(Fault("X", "negative", "Hellinger scaling needs values that are not negative."))
    if asked != "auto":
        return (RowScaling(asked),)
    if has_width:
        return (RowScaling.NONE,)  # A width that is given is one for the rows as they are.
    return tuple(method for method in RowScaling if not (negative and method is RowScaling.HELLINGER))


def _scalings(asked: str, row_scaling: RowScaling) -> tuple[Scaling, ...]:
    if asked != "auto":
        return (Scaling(asked),)
    return _SCALINGS if row_scaling is RowScaling.NONE else (Scaling.NONE,)
