"""Values of rows that are outside the range of the training rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

MAX_OUTSIDE: Final = 10
"""Columns outside their range that are named for one row; all are counted."""

ROUNDING: Final = 2.0**-23
"""Numbers that were converted to float32 may exceed their range by this share of its larger end."""


class Outside(NamedTuple):
    """The columns of one row with values outside the range of the training rows.

    columns: the first `MAX_OUTSIDE`, each by its name, or by its number if it has none. total: their number.
    """

    columns: list[str | int]
    total: int


@dataclass(slots=True)
class RowCount:
    """How many explained rows had columns outside the range of the training rows."""

    outside: int = 0


def widened(ranges: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Lower and upper ends of ranges (d, 2), widened by the rounding errors of float32."""
    slack = ROUNDING * np.abs(ranges).max(axis=1)
    return ranges[:, 0] - slack, ranges[:, 1] + slack
