# Copied from `core/data/row_scaling.py` by ``make client``: do not edit.
"""Scaling of single rows, for data in which only the proportions of a row's values matter; NumPy only."""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from stms_client._packed.types import FloatArray


class RowScaling(StrEnum):
    """How the values of a row are brought to a comparable size.

    NONE: as they are. UNIT: x / ‖x‖. HELLINGER: √(x / Σ_j x_j), for rows without negative values; the
    distance of two such rows is √2 times the Hellinger distance of their proportions.
    """

    NONE = "none"
    UNIT = "unit"
    HELLINGER = "hellinger"


def scale_rows(X: FloatArray, method: RowScaling) -> NDArray[np.float64]:
    """Scaled copy of ``X`` (n, d), float64; for NONE ``X`` itself where it is float64.

    Rows of zeros stay as they are. HELLINGER takes negative values for 0.
    """
    if method is RowScaling.NONE:
        return X.astype(np.float64, copy=False)
    if method is RowScaling.HELLINGER:
        X = np.sqrt(np.maximum(X, 0.0))
    largest = np.max(np.abs(X), axis=1, keepdims=True)
    # Dividing by the largest value first, the squares neither overflow nor vanish.
    scaled: NDArray[np.float64] = X / np.where(largest == 0.0, 1.0, largest).astype(np.float64)
    norms = np.sqrt(np.einsum("ij,ij->i", scaled, scaled))[:, None]
    scaled /= np.where(norms == 0.0, 1.0, norms)
    return scaled
