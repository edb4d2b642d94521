"""The training rows as the compact students of all classes need them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from core.data.checks import row_blocks
from core.data.dataset import LabelledData
from core.data.scaling import Standardisation, column_moments, fit_standardisation
from core.errors import Fault, InvalidProblem
from core.features.maps import scale_rule
from core.run import Run
from core.solvers.threads import one_blas_thread
from core.students.compact import Floats, Singles, neighbour_distance
from core.training.preparation import Preparation, data_digest


@dataclass(frozen=True, slots=True, eq=False)
class CompactRows:
    """Rows scaled for the kernel, and the preparation that they belong to.

    shift, scale: (d,), x' = (x − shift)·scale with the kernel's √γ inside scale; γ and scaling are those of
    the teacher's features, for linear features γ is ``scale_rule``'s.
    rows: x' of the training rows, (n, d) float32. neighbour: ``neighbour_distance`` of them.
    """

    preparation: Preparation
    shift: Floats
    scale: Floats
    rows: Singles
    neighbour: float

    @classmethod
    def of(
        cls,
        preparation: Preparation,
        data: LabelledData,
        run: Run = Run(),
    ) -> CompactRows:
        """Scale the rows that ``preparation`` was made from. run: reports stage ``"compact_rows"`` in rows.

        Raises InvalidProblem for sparse rows and for other data, Cancelled.
        """
        if sp.issparse(data.X):
            message = "compact students need dense rows: landmarks of their own are dense, whatever the rows"
            raise InvalidProblem(Fault("X", "sparse", message))
        if data_digest(data) != preparation.data_digest:
            message = "the preparation was made from other data"
            raise InvalidProblem(Fault("data", "other_data", message))
        run.report("compact_rows", 0, data.n)
        spec = preparation.config.features
        fitted = fit_standardisation(data.X, spec.scaling)
        # A kernel does not see a shift, but products lose digits far from the origin.
        centred = Standardisation(column_moments(data.X)[0], fitted.scale)
        gamma = spec.gamma if spec.gamma is not None else scale_rule(data.X, centred)
        scale = np.sqrt(gamma) * centred.scale
        rows = np.empty(data.X.shape, dtype=np.float32)
        for block in row_blocks(data.n, data.d):
            run.check_cancel()
            rows[block] = (data.X[block] - centred.shift) * scale
            run.report("compact_rows", block.stop, data.n)
        with one_blas_thread():
            neighbour = neighbour_distance(rows, run.with_seed(preparation.config.seed))
        return cls(preparation, centred.shift, scale, rows, neighbour)
