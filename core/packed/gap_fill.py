"""Fills the dense columns of a missing value from all other columns of the row.

Assume a normal distribution whose correlations have the inverse P. If the columns O have the values z_O, the
columns M have the mean −P_MM⁻¹ P_MO z_O, in standard deviations from the means (Anderson, An Introduction to
Multivariate Statistical Analysis, 2003, section 2.5). If a score is linear in the columns, this gives the
expected score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np

from core.errors import Fault, InvalidProblem
from core.packed.maps import Floats

MOST_DENSE: Final = 128
"""Encoders with more dense columns have no such P, whose size is the square of this."""
MOST_MISSING: Final = 64
"""With more missing dense columns in a row, they are not filled, to limit the time."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class GapFill:
    """means, scales: of the dense columns in training, (k,); scales are positive. precision: P, (k, k).

    Raises InvalidProblem if these do not fit together.
    """

    means: Floats
    scales: Floats
    precision: Floats

    def __post_init__(self) -> None:
        k = len(self.means)
        usable = k <= MOST_DENSE and self.scales.shape == (k,) and self.precision.shape == (k, k)
        if not usable or not (self.scales > 0.0).all() or not np.isfinite(self.precision).all():
            raise InvalidProblem(Fault("gaps", "wrong_shape", "how gaps are filled does not fit the columns"))

    def fill(self, row: Floats | list[float], missing: Sequence[int]) -> None:
        """Write expected values into the columns ``missing`` of a dense row (k,); its other columns stay.

        If more than `MOST_MISSING` columns are missing, or if P is not positive, all columns stay.
        """
        if not 0 < len(missing) <= MOST_MISSING:
            return
        z = (np.asarray(row, dtype=np.float64) - self.means) / self.scales
        z[missing] = 0.0
        rows = self.precision[missing]
        try:
            expected = np.linalg.solve(rows[:, missing], -rows.dot(z))
        except np.linalg.LinAlgError:
            return
        values = self.means[missing] + self.scales[missing] * expected
        if np.isfinite(values).all():
            for place, value in zip(missing, values.tolist(), strict=True):
                row[place] = value
