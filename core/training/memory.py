"""Estimates the peak memory of a training run from the shape of its data alone.

The estimate is the sum of everything that lives at the same time in the largest stage: the teacher's fit to
all rows, the parallel fits of the folds, or the students. It is too large rather than too small, because a
run that does not fit into memory must be refused before it begins.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from core.features.choice import MOST_KERNEL_ROWS, USUAL_LANDMARKS, WIDE, rbf_features
from core.teachers.base import FitShape
from core.training.config import TrainingConfig

if TYPE_CHECKING:
    from core.features.spec import FeatureSpec

PROCESS_BYTES: Final = 450_000_000
"""Memory of a process that has imported its libraries and compiled its kernels."""
THREAD_BYTES: Final = 16_000_000
"""Memory of a thread: its stack, and what libraries keep for each thread."""
FOLD_SCORE_BYTES: Final = 512 * 1024**2
"""Upper limit for the fold scores of the classes that are trained together."""
_COMPARED_ROWS: Final = 10_000
"""Approximate number of rows on which an automatic run compares maps and families."""
_FAMILIES: Final = 6
_GUARD_PARTS: Final = 3


@dataclass(frozen=True, slots=True)
class RunShape:
    """What the memory of a run depends on, besides its configuration.

    rows: training rows, with or without a label. test_rows: n', all with labels. columns: d. classes: K.
    row_bytes: bytes of the arrays of all rows; 8 bytes for each dense value. is_sparse: whether features are
    sparse, too. threads: number of threads of the run.
    """

    rows: int
    test_rows: int
    columns: int
    classes: int
    row_bytes: int
    is_sparse: bool = False
    threads: int = 1


def peak_bytes(config: TrainingConfig, shape: RunShape) -> int:
    """Peak bytes of ``prepare`` and of one batch of students, including the process itself."""
    process = PROCESS_BYTES + THREAD_BYTES * shape.threads
    return process + 2 * shape.row_bytes + max(_chosen(config, shape), _trained(config, shape))


def _trained(config: TrainingConfig, shape: RunShape) -> int:
    """Bytes of features and scores, and of the largest stage besides them."""
    n, threads = shape.rows, shape.threads
    spec = _spec_of(config, shape)
    count, width = _count(spec, shape), 4 if spec.dtype == "float32" else 8
    fit = FitShape(n, shape.columns, count, shape.classes, threads, shape.is_sparse)
    of_row = 2 * shape.row_bytes // max(1, n) if shape.is_sparse else width * count
    features = of_row * (n + shape.test_rows) + _map_bytes(spec, shape, count)
    scores = 8 * shape.classes * (n + shape.test_rows)
    folds = _folds(config, n)
    beside = 1 if folds == 1 else min(threads, folds)
    share = 1.0 - 1.0 / (folds if folds > 1 else _GUARD_PARTS)
    part = replace(fit, rows=int(n * share), threads=max(1, threads // max(1, beside)))
    in_fold = int(of_row * n * share) + config.teacher.fit_bytes(part) if folds else 0
    # For teachers that are not linear, a linear approximation of their scores is solved for.
    distilled = 16 * fit.cells + 16 * min(n, count, 4096) ** 2
    stages = (
        config.teacher.fit_bytes(fit),
        scores + distilled,
        scores + beside * in_fold + 8 * fit.cells,
        scores + 8 * fit.cells + _students(fit, folds),
    )
    return features + max(stages)


def _students(fit: FitShape, folds: int) -> int:
    """Bytes that the students of a batch share, and those that each of them takes in its thread."""
    single = 4 * fit.values
    shared = folds * (single + 24 * fit.weights) + 8 * fit.cells if folds else 0
    scored = min(FOLD_SCORE_BYTES, 8 * folds * fit.cells)
    each = fit.threads * (2 * single + 400 * fit.rows + 400 * fit.features)
    return shared + scored + each + 24 * fit.weights


def _folds(config: TrainingConfig, rows: int) -> int:
    """Number of fits of the teacher to a part of the rows; the guard alone needs one."""
    if not config.needs_folds:
        return 0
    return min(config.n_folds, rows) if config.needs_all_folds else 1


def _spec_of(config: TrainingConfig, shape: RunShape) -> FeatureSpec:
    """The map that a run fits. If it is still to be chosen: the candidate that takes most memory."""
    spec, n = config.features, max(1, shape.rows)
    if config.automatic or config.searches_job:
        spec = replace(spec, kind="auto" if n <= MOST_KERNEL_ROWS else "linear")
    if shape.is_sparse or (spec.kind == "auto" and shape.columns > WIDE):
        return replace(spec, kind="linear")
    return rbf_features(spec, n) if spec.kind == "auto" else spec


def _count(spec: FeatureSpec, shape: RunShape) -> int:
    """Number of features."""
    if spec.kind == "linear":
        return shape.columns + 1
    size = shape.rows if spec.kind == "kernel" else spec.n_components
    return (size if spec.kind == "fourier" else min(size, shape.rows)) + 1


def _map_bytes(spec: FeatureSpec, shape: RunShape, count: int) -> int:
    """Bytes of the landmarks, and of the kernel matrix, its eigenvectors and the work space."""
    if spec.kind == "linear":
        return 0
    return 8 * count * shape.columns + (0 if spec.kind == "fourier" else 32 * count**2)


def _chosen(config: TrainingConfig, shape: RunShape) -> int:
    """Bytes of comparing maps and families on a sample, for a run that chooses them; otherwise 0."""
    if not (config.automatic or config.searches_job):
        return 0
    n = min(shape.rows, _COMPARED_ROWS)
    count = min(n, USUAL_LANDMARKS) if shape.columns <= WIDE and not shape.is_sparse else shape.columns
    maps = 8 * n * count * 3 + 32 * min(n, count) ** 2
    return maps + 8 * n * shape.classes * _FAMILIES * 2
