"""Estimates, before it starts, how long a job's search for features, teacher and students will take."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import scipy.sparse as sp
from scipy.linalg import eigh

from core.data.dataset import LabelledData
from core.features.choice import WIDE
from core.model_selection.contest import FOLDS, LANDMARKS
from core.model_selection.row_samples import COMPARED_ROWS
from core.model_selection.setting_points import TARGETS, points_near
from core.model_selection.setting_search import FINALISTS, MOST_CLASSES, ROWS
from core.run import Run
from core.solvers.threads import one_blas_thread
from core.students.base import StudentSpec
from core.students.polytope import Polytope
from core.types import FloatArray

_PROBE: Final = 256
"""Order of the matrix whose decomposition is timed for an estimate."""
_MAPS: Final = 25
_WIDE_MAPS: Final = 8
"""Time of screening about 20 maps, or those of sparse or wide rows, in decompositions."""
_FIXED_SECONDS: Final = 2.0
"""Time of learning the scales of columns and of other work that hardly depends on the number of rows."""
_TEACHER_PASSES: Final = 175.0
_STUDENT_PASSES: Final = 17.5
_PIECE_PASSES: Final = 3.0
"""Time of the fits for a fold and class, relative to one decomposition with as many products. A fit with
several pieces takes this many times as much for each piece."""


def expected_seconds(data: LabelledData, students: Sequence[StudentSpec], run: Run = Run()) -> float:
    """Estimated wall time of ``search_setting``: its work, in units of the time of one small decomposition.

    The shares of the steps were fitted to measured searches. The estimate ignores that the load of other
    processes on the machine changes.
    """
    rng = np.random.default_rng(0)
    square = rng.standard_normal((_PROBE, _PROBE))
    with one_blas_thread():
        unit = min(_seconds_of(square @ square.T) for _ in range(3)) / _PROBE**3
    X: Any = data.X
    rows, wide = min(data.n, ROWS), sp.issparse(X) or data.d > WIDE
    columns = X.nnz / data.n if sp.issparse(X) else data.d if wide else LANDMARKS
    maps = min(data.n, COMPARED_ROWS) ** 3 * (_WIDE_MAPS if wide else _MAPS)
    classes, finalists = min(data.K, MOST_CLASSES), 3 if wide else FINALISTS
    teachers = finalists * FOLDS * _TEACHER_PASSES * classes
    fits = sum(_fits(one, classes) for one in students) * FOLDS * _STUDENT_PASSES
    return _FIXED_SECONDS + float(unit * (maps + (teachers + fits) * rows * columns / run.threads))


def _fits(student: StudentSpec, classes: int) -> float:
    """Approximate number of fits of a student's points in a fold, in fits with one piece."""
    points = len(points_near(student, 1.0))
    cost = _PIECE_PASSES * student.pieces if isinstance(student, Polytope) else 1.0
    screened = points * min(classes, 8) if points > 4 else 0
    return (screened + 6 * min(classes, TARGETS)) * cost


def _seconds_of(matrix: FloatArray) -> float:
    started = time.perf_counter()
    eigh(matrix)
    return time.perf_counter() - started
