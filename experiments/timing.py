"""Inference time relative to the teacher (Figure 4), measured on packed models, row by row."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from core.dataset import LabelledData
from core.packed import PackedTeacher
from core.preparation import Preparation
from core.threads import one_blas_thread
from experiments.results import Record

Columns: TypeAlias = slice | NDArray[np.integer]
Basis: TypeAlias = Callable[[int], tuple[Columns, NDArray[np.float64]]]
"""Which basis functions of row i are to be multiplied, and their values."""

_ALL = slice(None)
_ROWS = 100
_REPEATS = 5


def measure_inference(preparation: Preparation, test: LabelledData, *, seed: int) -> Record:
    """Median seconds for one answer on test rows, raw row in, yes or no out, one thread, no checks of input.

    teacher: all scores and their argmax. remark_2: the traversal that stops early; ``classes_evaluated`` is
    how many scores it needs, mean over rows and classes. student: one product, whatever its weights are.
    All three go the same way, so that only the number of scores differs: one row of the basis, then products;
    of a sparse row on linear features the stored values only.
    ``seconds_for_scoring`` leaves out the basis b(x), which all of them share.
    """
    teacher = preparation.packed_teacher()
    rng = np.random.default_rng(seed)
    chosen = rng.integers(0, test.n, min(_ROWS, test.n))
    targets = [int(code) for code in rng.integers(0, test.K, len(chosen))]
    rows = _dense(test.X[chosen])
    evaluated = [teacher.is_class(row, target)[1] for row, target in zip(rows, targets, strict=True)]
    with one_blas_thread():
        if sp.issparse(test.X) and teacher.map.kind == "linear":
            stored = _stored(test.X[chosen])
            queries = scoring = _medians(teacher, lambda i: stored[i], targets)
        else:
            bases = teacher.map.basis(rows)
            queries = _medians(teacher, lambda i: (_ALL, teacher.map.row(rows[i])), targets)
            scoring = _medians(teacher, lambda i: (_ALL, bases[i]), targets)
    return {
        "seconds_per_query": queries,
        "seconds_for_scoring": scoring,
        "classes_evaluated": float(np.mean(evaluated)),
        "classes": test.K,
        "basis": teacher.map.n_basis,
    }


def _medians(teacher: PackedTeacher, basis: Basis, targets: Sequence[int]) -> dict[str, float]:
    coef, intercept = teacher.coef, teacher.intercept
    own_coef, own_intercept = coef[0], float(intercept[0])

    def whole(i: int) -> bool:
        columns, values = basis(i)
        return int((coef[:, columns].dot(values) + intercept).argmax()) == targets[i]

    def traversal(i: int) -> bool:
        columns, values = basis(i)
        y = targets[i]
        own = coef[y, columns].dot(values) + intercept[y]
        others = (k for k in range(len(intercept)) if k != y)
        # Equal scores go to the class that comes first, as argmax decides.
        return not any(
            score > own or (score == own and k < y)
            for k in others
            for score in (coef[k, columns].dot(values) + intercept[k],)
        )

    def student(i: int) -> bool:
        columns, values = basis(i)
        return bool(own_coef[columns].dot(values) + own_intercept >= 0.0)

    asks = {"teacher": whole, "remark_2": traversal, "student": student}
    return {name: _median(ask, len(targets)) for name, ask in asks.items()}


def _stored(rows: sp.csr_array) -> list[tuple[NDArray[np.integer], NDArray[np.float64]]]:
    """Columns and values of the stored entries of each row."""
    return [
        (rows.indices[start:stop], rows.data[start:stop].astype(np.float64))
        for start, stop in zip(rows.indptr[:-1], rows.indptr[1:], strict=True)
    ]


def _median(ask: Callable[[int], bool], n: int) -> float:
    """Median over rows of the fastest of a few repeats, seconds."""
    best = np.full(n, np.inf)
    for _ in range(_REPEATS):
        for i in range(n):
            started = time.perf_counter()
            ask(i)
            best[i] = min(best[i], time.perf_counter() - started)
    return float(np.median(best))


def _dense(X: Any) -> NDArray[np.float64]:
    rows = X.toarray() if sp.issparse(X) else X
    return np.ascontiguousarray(rows, dtype=np.float64)
