"""scikit-learn's gradient boosting of binned rows, without binning them again in every fit."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier

from core.types import FloatArray


class BinnedBoosting(HistGradientBoostingClassifier):  # type: ignore[misc]
    """The rows (n, d) must hold numbers of bins from 0 to 254.

    scikit-learn sorts every column in every fit, even with a warm start, which takes longer than growing
    trees on a few hundred rows. Here the bins that scikit-learn would find are computed once for all fits of
    the same rows: every number that occurs has its own bin, and thresholds are half-way between neighbours.
    """

    def _bin_data(self, X: FloatArray, sample_weight: None, is_training_data: bool) -> Any:
        del sample_weight, is_training_data
        mapper = self._bin_mapper
        if not hasattr(self, "_own_bins"):
            self._own_bins = _bins(X.astype(np.uint8))
        mapper.missing_values_bin_idx_ = mapper.n_bins - 1
        mapper.is_categorical_ = np.zeros(X.shape[1], dtype=np.uint8)
        mapper.bin_thresholds_, binned = self._own_bins
        mapper.n_bins_non_missing_ = np.array([len(one) + 1 for one in mapper.bin_thresholds_], np.uint32)
        return binned


def _bins(codes: Any) -> tuple[list[Any], Any]:
    """Thresholds of each column, and the bins of its codes, (n, d) in column order."""
    binned = np.empty(codes.shape, dtype=np.uint8, order="F")
    thresholds = []
    for column, values in enumerate(codes.T):
        present = np.flatnonzero(np.bincount(values))
        place = np.zeros(256, dtype=np.uint8)
        place[present] = np.arange(len(present))
        binned[:, column] = place[values]
        thresholds.append((present[:-1] + present[1:]) / 2.0)
    return thresholds, binned
