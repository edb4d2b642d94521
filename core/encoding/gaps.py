"""Chooses how to fill gaps of queries in columns that had no gaps in training, on held-out rows.

It compares the expected values of the columns given the others, with several ridges, and the usual value of
each column. The best is the one nearest to the values that random gaps hide.
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
"""One in this many rows is held out."""
_FEWEST_ROWS: Final = 12
_PATTERNS: Final = 40
_SHARE: Final = 0.25
"""Number of random sets of columns to hide, and the share of the columns in each set."""


def fit_gap_fill(encoder: Encoder, dense: Floats, means: Floats) -> GapFill | None:
    """The way to fill gaps in the rows of an encoder; None if usual values are best.

    dense: training rows, (n, k). means: of the columns of ``dense``.
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
    """The inverse of the correlation matrix, (k, k), with a ridge."""
    inverse = np.linalg.inv(z.T @ z / len(z) + ridge * np.eye(z.shape[1]))
    symmetric: Floats = ((inverse + inverse.T) / 2.0).astype(np.float64)
    return symmetric


def _errors(
    encoder: Encoder, learnt: Floats, measured: Floats, scale: tuple[Floats, Floats]
) -> dict[float, float]:
    """Squared error of filling hidden values, summed over patterns, by ridge; key ∞: usual values."""
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
    """The dense columns (k,) of a row with gaps everywhere, which nothing can fill."""
    return np.array([number for column in encoder.columns for number in column.row(None)])
