"""Scaling and width of an interpolating kernel, by the leave-one-out errors of a sample of the rows.

A function f with (K + jI) α = Y, fitted without row i, has at this row the value Y_i − α_i / (K + jI)⁻¹_ii
(Rasmussen and Williams, Eq. 5.12), so that one inverse gives the held-out scores of all rows of the sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from scipy.linalg import lapack

from core.data.scaling import Standardisation
from core.data.scaling_kind import Scaling
from core.features.base import kernel_standardisation
from core.features.spec import FeatureSpec
from core.run import Run
from core.solvers.kernel.rows import KernelRows
from core.types import FloatArray, IntArray

if TYPE_CHECKING:
    from core.teachers.interpolation import KernelInterpolation

_ROWS: Final = 1200
_FACTORS: Final = tuple(2.0**power for power in range(-3, 5))
"""Multiples of γ = 1 / Σ_j var(x'_j) that are tried."""
_SCALINGS: Final = (Scaling.ZSCORE, Scaling.MINMAX, Scaling.NONE)


@dataclass(frozen=True, slots=True, eq=False)
class KernelChoice:
    """The kernel: ``standardisation`` with √γ in its scale, the name of the scaling, and γ.

    error: share of the sample's rows that are wrong when left out; None where nothing was left open.
    """

    standardisation: Standardisation
    scaling: str
    gamma: float
    error: float | None


def choose_kernel(
    X: FloatArray, labels: IntArray, n_classes: int, spec: KernelInterpolation, run: Run
) -> KernelChoice:
    """The kernel with the fewest leave-one-out errors, of equal ones that with the least squared error.

    X: (n, d). labels: (n,). Columns are scaled by all rows, errors are those of at most 1200, drawn by the
    run's seed. Raises Cancelled.
    """
    scalings = _SCALINGS if spec.scaling == "auto" else (Scaling(spec.scaling),)
    candidates = [
        (scaling, standardisation, gamma)
        for scaling in scalings
        for standardisation, gamma in _widths(X, scaling, spec.gamma)
    ]
    if len(candidates) == 1:
        scaling, standardisation, gamma = candidates[0]
        return KernelChoice(_with_width(standardisation, gamma), str(scaling), gamma, None)
    n = len(labels)
    some = np.sort(np.random.default_rng(run.seed).permutation(n)[:_ROWS])
    one_hot = np.eye(n_classes)[labels[some]]
    measured: list[tuple[tuple[float, float], int]] = []
    for _, standardisation, gamma in candidates:
        run.check_cancel()
        rows = _with_width(standardisation, gamma).apply(X[some])
        measured.append((left_out_errors(rows, one_hot, spec.jitter), len(measured)))
    (error, _), best = min(measured)
    scaling, standardisation, gamma = candidates[best]
    return KernelChoice(_with_width(standardisation, gamma), str(scaling), gamma, error)


def left_out_errors(rows: FloatArray, one_hot: FloatArray, jitter: float) -> tuple[float, float]:
    """Share of the rows that are wrong when left out, and mean squared error of their scores.

    rows: z, (n, d). one_hot: Y, (n, K). Infinite where the matrix is not positive definite.
    """
    n = len(rows)
    kernel = KernelRows(np.ascontiguousarray(rows, dtype=np.float64)).block(slice(0, n), slice(0, n))
    kernel[np.diag_indices(n)] += jitter
    factor, failed = lapack.dpotrf(kernel, lower=1)
    if failed:
        return np.inf, np.inf
    inverse, _ = lapack.dpotri(factor, lower=1)
    alpha, _ = lapack.dpotrs(factor, one_hot, lower=1)
    scores = one_hot - alpha / np.diag(inverse)[:, None]
    wrong = scores.argmax(axis=1) != one_hot.argmax(axis=1)
    return float(wrong.mean()), float(np.mean((scores - one_hot) ** 2))


def _widths(X: FloatArray, scaling: Scaling, gamma: float | None) -> Iterator[tuple[Standardisation, float]]:
    """The standardisation of one scaling, with the γ that is given or those to be tried."""
    standardisation, usual = kernel_standardisation(X, FeatureSpec(kind="kernel", scaling=scaling))
    for one in [usual * factor for factor in _FACTORS] if gamma is None else [gamma]:
        yield standardisation, one


def _with_width(standardisation: Standardisation, gamma: float) -> Standardisation:
    return Standardisation(standardisation.shift, standardisation.scale * np.sqrt(gamma))
