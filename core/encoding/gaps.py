"""Chooses what fills the gaps of queries in columns that training had without any, on rows that are held out.

The means of the columns given the others are compared, with several ridges, with the usual value of each
column: taken is what is nearest to the values that random gaps hide.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from core.packed.encoded_columns import Floats
from core.packed.encoder import Encoder
from core.packed.gap_fill import MOST_DENSE, MOST_MISSING, GapFill
from core.solvers.threads import one_blas_thread

_RIDGES: Final = (0.01, 0.1, 1.0)
_MOST_ROWS: Final = 3000
_HELD_OUT: Final = 3
"""Every third row is held out."""
_FEWEST_ROWS: Final = 12
_PATTERNS: Final = 40
_SHARE: Final = 0.25
"""How many random choices of columns are hidden, and which share of the columns each."""


def fit_gap_fill(encoder: Encoder, dense: Floats, means: Floats) -> GapFill | None:
    """What fills gaps in the rows of an encoder; None for usual values.

    dense: (n, k), of the rows of training. means: of its columns.
    """
    n, k = dense.shape
    if not encoder.filling or not 1 < k <= MOST_DENSE or n < _FEWEST_ROWS:
        return None
    scales: Floats = dense.std(axis=0).astype(np.float64)
    scales[scales == 0.0] = 1.0
    z = (dense[np.arange(min(n, _MOST_ROWS)) * n // min(n, _MOST_ROWS)] - means) / scales
    is_held_out = np.arange(len(z)) % _HELD_OUT == 0
    with one_blas_thread():
        errors = _errors(encoder, z[~is_held_out], z[is_held_out], (means, scales))
        best = min(errors, key=lambda ridge: errors[ridge])
        return None if best == np.inf else GapFill(means, scales, _precision((dense - means) / scales, best))


def _precision(z: Floats, ridge: float) -> Floats:
    """The inverse of the correlations, (k, k), with a ridge."""
    inverse = np.linalg.inv(z.T @ z / len(z) + ridge * np.eye(z.shape[1]))
    symmetric: Floats = ((inverse + inverse.T) / 2.0).astype(np.float64)
    return symmetric


def _errors(
    encoder: Encoder, learnt: Floats, measured: Floats, scale: tuple[Floats, Floats]
) -> dict[float, float]:
    """The squared error of what fills hidden values, summed over patterns, by ridge; ∞: usual values."""
    rng = np.random.default_rng(0)
    filling = [place for place, column in enumerate(encoder.columns) if column.fills]
    usual = (_usual_row(encoder) - scale[0]) / scale[1]
    precisions = {ridge: _precision(learnt, ridge) for ridge in _RIDGES}
    errors = dict.fromkeys((*_RIDGES, np.inf), 0.0)
    for _ in range(_PATTERNS):
        hidden = rng.choice(filling, max(1, round(_SHARE * len(filling))), replace=False)
        missing = np.array(encoder.dense_places(hidden)[:MOST_MISSING], dtype=np.int64)
        known = np.setdiff1d(np.arange(len(usual)), missing)
        for ridge, precision in precisions.items():
            right = precision[np.ix_(missing, known)] @ measured[:, known].T
            expected = -np.linalg.solve(precision[np.ix_(missing, missing)], right).T
            errors[ridge] += float(((expected - measured[:, missing]) ** 2).sum())
        errors[np.inf] += float(((usual[missing] - measured[:, missing]) ** 2).sum())
    return errors


def _usual_row(encoder: Encoder) -> Floats:
    """The dense columns (k,) of gaps in all columns, without anything to fill them from."""
    return np.array([number for column in encoder.columns for number in column.row(None)])
