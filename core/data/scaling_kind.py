"""Names of the ways to scale raw columns; apart from the code that does it, which loads SciPy."""

from __future__ import annotations

from enum import StrEnum


class Scaling(StrEnum):
    """How raw columns are brought to comparable sizes.

    ZSCORE: mean 0 and variance 1. MINMAX: onto [−1, 1]. NONE: as they are.
    IDF: times 1 + log((1 + n) / (1 + n_j)), where n_j of the n rows are not 0; for terms in texts.
    Sparse data are never shifted: ZSCORE divides by the standard deviation, MINMAX by the largest size.
    """

    ZSCORE = "zscore"
    MINMAX = "minmax"
    IDF = "idf"
    NONE = "none"
