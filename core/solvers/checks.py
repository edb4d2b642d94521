"""Validation of the arrays that solvers take: each function returns a list of faults."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from core.errors import Fault
from core.solvers.jit import is_sparse
from core.solvers.products import row_blocks
from core.types import FloatArray, Matrix


def matrix_faults(features: Matrix) -> list[Fault]:
    """Faults of a feature matrix: (n, m), n and m at least 1, float32 or float64, dense or CSR, finite."""
    field = "features"
    if is_sparse(features):
        if features.format != "csr":
            return [Fault(field, "wrong_format", f"sparse features must be CSR, got {features.format}")]
    elif not isinstance(features, np.ndarray):
        return [Fault(field, "wrong_type", f"features must be an array, got {type(features).__name__}")]
    if features.ndim != 2 or min(features.shape) < 1:
        return [Fault(field, "wrong_shape", f"features must be (n, m) and not empty, got {features.shape}")]
    if features.dtype not in (np.float32, np.float64):
        return [Fault(field, "wrong_dtype", f"features must be float32 or float64, got {features.dtype}")]
    row = _first_row_not_finite(features)
    if row is not None:
        return [Fault(field, "not_finite", f"features hold a NaN or an infinity in row {row}", row=row)]
    return []


def vector_faults(field: str, values: FloatArray, n: int) -> list[Fault]:
    """Faults of a vector with one value per example: shape (n,), finite."""
    if values.shape != (n,):
        return [Fault(field, "wrong_shape", f"{field} must have shape ({n},), got {values.shape}")]
    return element_faults(field, np.isfinite(values), "not_finite", "finite")


def element_faults(field: str, good: NDArray[np.bool_], code: str, wanted: str) -> list[Fault]:
    """A fault naming the first element that is not ``good``; none if all are."""
    if good.all():
        return []
    row = int(np.argmin(good))
    return [Fault(field, code, f"{field} must be {wanted}; element {row} is not", row=row)]


def positive_fault(field: str, value: float) -> list[Fault]:
    """A fault if a number is not finite and greater than zero."""
    if np.isfinite(value) and value > 0:
        return []
    return [Fault(field, "out_of_range", f"{field} must be finite and greater than 0, got {value}")]


def _first_row_not_finite(features: Matrix) -> int | None:
    if is_sparse(features):
        bad = np.flatnonzero(~np.isfinite(features.data))
        return int(np.searchsorted(features.indptr, bad[0], side="right") - 1) if bad.size else None
    for block in row_blocks(features):
        finite = np.isfinite(features[block]).all(axis=1)
        if not finite.all():
            return int(block.start + np.argmin(finite))
    return None
