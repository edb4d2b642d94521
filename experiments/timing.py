"""Inference time relative to the teacher (Figure 4), measured on packed models, row by row."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from core.dataset import LabelledData
from core.packed import PackedStudent, PackedTeacher
from core.preparation import Preparation
from core.threads import one_blas_thread
from experiments.results import Record

Asks: TypeAlias = dict[str, Callable[[int], Any]]

_ROWS = 100
_REPEATS = 5


def measure_inference(preparation: Preparation, test: LabelledData, *, seed: int) -> Record:
    """Median seconds for one answer on test rows, raw row in, yes or no out, one thread.

    teacher: all scores and their argmax. remark_2: the traversal that stops early; ``classes_evaluated`` is
    how many scores it needs, mean over rows and classes. student: one map, one product; of a sparse row on
    linear features its stored values only, for teacher and student alike.
    ``seconds_for_scoring`` leaves out the basis b(x), which all of them share.
    """
    teacher = preparation.packed_teacher()
    student = student_on(teacher)
    rng = np.random.default_rng(seed)
    chosen = rng.integers(0, test.n, min(_ROWS, test.n))
    rows = _dense(test.X[chosen])
    targets = [int(code) for code in rng.integers(0, test.K, len(rows))]
    evaluated = [teacher.is_class(row, target)[1] for row, target in zip(rows, targets, strict=True)]
    with one_blas_thread():
        queries = _queries(teacher, student, rows, targets)
        if sp.issparse(test.X) and teacher.map.kind == "linear":
            queries |= _sparse_queries(teacher, student, test.X[chosen], targets)
        scoring = _scoring(teacher, student, teacher.map.basis(rows), targets)
        return {
            "seconds_per_query": {name: _median(ask, len(rows)) for name, ask in queries.items()},
            "seconds_for_scoring": {name: _median(ask, len(rows)) for name, ask in scoring.items()},
            "classes_evaluated": float(np.mean(evaluated)),
            "classes": test.K,
            "basis": teacher.map.n_basis,
        }


def student_on(teacher: PackedTeacher) -> PackedStudent:
    """A student with the teacher's basis: what it costs does not depend on its weights."""
    return PackedStudent(
        map=teacher.map,
        coef=teacher.coef[0],
        intercept=float(teacher.intercept[0]),
        gate_coef=teacher.coef[0],
        gate_intercept=float(teacher.intercept[0]),
        threshold=0.0,
        label=teacher.classes[0],
    )


def _queries(
    teacher: PackedTeacher, student: PackedStudent, rows: NDArray[np.float64], targets: Sequence[int]
) -> Asks:
    return {
        "teacher": lambda i: int(teacher.scores(rows[i : i + 1]).argmax()) == targets[i],
        "remark_2": lambda i: teacher.is_class(rows[i], targets[i])[0],
        "student": lambda i: student.score(rows[i]) >= student.threshold,
    }


def _sparse_queries(
    teacher: PackedTeacher, student: PackedStudent, rows: sp.csr_array, targets: Sequence[int]
) -> Asks:
    stored = [
        (rows.indices[start:stop], rows.data[start:stop].astype(np.float64))
        for start, stop in zip(rows.indptr[:-1], rows.indptr[1:], strict=True)
    ]

    def whole_teacher(i: int) -> bool:
        columns, values = stored[i]
        return int((teacher.coef[:, columns] @ values + teacher.intercept).argmax()) == targets[i]

    def traversal(i: int) -> bool:
        columns, values = stored[i]
        own = teacher.coef[targets[i], columns] @ values + teacher.intercept[targets[i]]
        others = (k for k in range(len(teacher.classes)) if k != targets[i])
        return all(teacher.coef[k, columns] @ values + teacher.intercept[k] <= own for k in others)

    return {
        "teacher": whole_teacher,
        "remark_2": traversal,
        "student": lambda i: student.scores_sparse(*stored[i])[0] >= student.threshold,
    }


def _scoring(
    teacher: PackedTeacher, student: PackedStudent, bases: NDArray[np.float64], targets: Sequence[int]
) -> Asks:
    return {
        "teacher": lambda i: int((teacher.coef.dot(bases[i]) + teacher.intercept).argmax()) == targets[i],
        "student": lambda i: student.coef.dot(bases[i]) + student.intercept >= student.threshold,
    }


def _median(ask: Callable[[int], Any], n: int) -> float:
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
