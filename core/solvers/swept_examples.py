"""The examples that block descent sweeps: all of them, or a copy of the active ones that is fast to read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.solvers.block_sweeps import copy_rows, sweep
from core.solvers.jit import Rows
from core.solvers.plane_search import PlaneSearch
from core.types import FloatArray

# Share of the examples up to which active ones are copied: at most 14 % of the memory of the features.
_FEW = 0.27


@dataclass(frozen=True, eq=False)
class SweptExamples:
    """The arrays that sweeps read, and those that they change in place: dual, classes, counts.

    rows: features. labels, norms, counts: (b,). dual, classes: (b, K). bound: C/n. numbers: numbers of these
    examples, (b,); None for all.
    """

    rows: Rows
    labels: NDArray[np.int64]
    norms: FloatArray
    dual: FloatArray
    classes: NDArray[np.int32]
    counts: NDArray[np.int32]
    bound: float
    numbers: NDArray[np.int64] | None = None

    def worth_copying(self, active: NDArray[np.int64], dtype: np.dtype[np.floating]) -> bool:
        """Whether a copy of the examples ``active``, for sweeps in ``dtype``, is small and saves time."""
        halves = len(self.rows) == 1 and self.rows[0].dtype == np.float64 and dtype == np.float32
        return halves and self.numbers is None and 0 < len(active) <= _FEW * len(self.labels)

    def memory(self) -> NDArray[np.float32]:
        """Uninitialised memory for the features of the largest copy, (b, m), shared by all copies."""
        return np.empty((int(_FEW * len(self.labels)), self.rows[0].shape[1]), np.float32)

    def copy_of(self, numbers: NDArray[np.int64], memory: NDArray[np.float32]) -> SweptExamples:
        """The examples ``numbers`` (b,) of dense rows, copied one after another into ``memory``."""
        features = memory[: len(numbers)]
        copy_rows(self.rows[0], numbers, features)
        return SweptExamples(
            rows=(features,),
            labels=self.labels[numbers],
            norms=self.norms[numbers],
            dual=self.dual[numbers],
            classes=self.classes[numbers],
            counts=self.counts[numbers],
            bound=self.bound,
            numbers=numbers,
        )

    def sweep(self, order: NDArray[np.int64], W: FloatArray, slack: float) -> tuple[int, float, float]:
        """Exact block steps for the examples ``order``, in place, keeping W = W(α): see the kernel."""
        return sweep(
            self.rows,
            self.labels,
            self.bound,
            self.norms,
            order,
            self.classes,
            self.counts,
            slack,
            self.dual,
            W,
        )

    def plane_search(self, order: NDArray[np.int64]) -> PlaneSearch:
        """Accelerates the epochs over the examples ``order``."""
        return PlaneSearch(self.rows, self.labels, self.bound, order, self.dual, self.classes, self.counts)
