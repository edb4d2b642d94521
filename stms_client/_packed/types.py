# Copied from `core/types.py` by ``make client``: do not edit.
"""Names for the arrays and callables that travel through ``core``.

Shapes used everywhere: n examples, d raw columns, m features (the constant 1 included, last), K classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import scipy.sparse as sp

FloatArray: TypeAlias = NDArray[np.floating]
IntArray: TypeAlias = NDArray[np.integer]
BoolArray: TypeAlias = NDArray[np.bool_]
Matrix: TypeAlias = "FloatArray | sp.csr_array"
"""Dense C-ordered array or CSR array, one row an example. A text, so that nothing here loads SciPy."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a piece of work is.

    stage: what is being done, e.g. ``"teacher"`` or ``"student"``.
    done, total: in units of the stage (epochs, classes); total may be an upper bound.
    objective, gap: primal objective and primal-dual gap, where the stage is a solver's.
    expected_seconds: estimated wall time of the whole stage, reported with its start if there is one.
    """

    stage: str
    done: int
    total: int
    objective: float | None = None
    gap: float | None = None
    expected_seconds: float | None = None


ProgressCallback: TypeAlias = Callable[[Progress], None]
CancelCheck: TypeAlias = Callable[[], bool]
