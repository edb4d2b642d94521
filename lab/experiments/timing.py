"""Time of one query by teacher, by teacher with Remark 2, and by student; in one process, in alternation."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from core.data.dataset import LabelledData
from core.packed import PackedMap, PackedTeacher
from core.solvers.jit import Rows, as_rows, compiled, row_dot
from core.solvers.threads import one_blas_thread
from core.training.preparation import Preparation
from core.types import Matrix
from lab.experiments.store import Record

Floats: TypeAlias = NDArray[np.float64]
Basis: TypeAlias = Callable[[int], tuple[Rows, int]]
"""The basis functions of row i: rows as kernels take them, and the number of the row among them."""

_ROWS = 100
_REPEATS = 5


def measure_inference(preparation: Preparation, test: LabelledData, *, seed: int) -> Record:
    """Median seconds for one answer on test rows, see ``query_seconds``; the student has the teacher's map.

    Of a sparse row on linear features only the stored values are used. ``seconds_for_scoring`` leaves out the
    basis b(x), which all three share. ``classes_evaluated``: how many scores Remark 2 needs, mean over rows
    and classes.
    """
    teacher, X = preparation.packed_teacher(), some_rows(test.X, seed)
    targets = np.random.default_rng([seed, 1]).integers(0, test.K, X.shape[0]).tolist()
    rows = dense(X)
    evaluated = [teacher.is_class(row, target)[1] for row, target in zip(rows, targets, strict=True)]
    stored = sp.issparse(X) and teacher.map.kind == "linear"
    scoring = _computed(X.astype(np.float64) if stored else teacher.map.basis(rows))
    whole = scoring if stored else basis_of(teacher.map, rows)
    # With any coefficients of the same size a student's query takes the same time.
    student = teacher.coef[0], float(teacher.intercept[0])
    return {
        "seconds_per_query": query_seconds(teacher, targets, whole, student, whole),
        "seconds_for_scoring": query_seconds(teacher, targets, scoring, student, scoring),
        "classes_evaluated": float(np.mean(evaluated)),
        "classes": test.K,
        "basis": teacher.map.n_basis,
    }


def query_seconds(
    teacher: PackedTeacher,
    targets: Sequence[int],
    basis: Basis,
    student: tuple[Floats, float],
    own_basis: Basis,
) -> dict[str, float]:
    """Median seconds for one answer, raw row in, yes or no out, one thread, no checks of input.

    targets: the class that is asked for, by row. student: coefficients of its one product, and its intercept
    minus its threshold. ``teacher``: all scores and their argmax. ``remark_2``: the traversal that stops
    early. Each computes one row of its basis, then products in compiled code, so that only basis and number
    of scores differ.
    """
    coef, intercept = teacher.coef, teacher.intercept
    queries = {
        "teacher": lambda i: _argmax(coef, intercept, *basis(i)) == targets[i],
        "remark_2": lambda i: _is_largest(coef, intercept, *basis(i), targets[i]),
        "student": lambda i: _score(*student, *own_basis(i)) >= 0.0,
    }
    with one_blas_thread():
        measured = time_alternately(queries, len(targets))
    return {name: float(np.median(each)) for name, each in measured.items()}


def time_alternately(queries: Mapping[str, Callable[[int], object]], n: int) -> dict[str, Floats]:
    """Seconds of each query for each row 0 … n − 1, (n,): the fastest of a few repeats.

    A repeat is all rows by one query, then all by the next, so that other load on the machine affects all.
    """
    best = {name: np.full(n, np.inf) for name in queries}
    for _ in range(_REPEATS):
        for name, query in queries.items():
            for i in range(n):
                started = time.perf_counter()
                query(i)
                best[name][i] = min(best[name][i], time.perf_counter() - started)
    return best


def some_rows(X: Any, seed: int) -> Any:
    """At most 100 rows of X (n, d), drawn with the seed."""
    return X[np.random.default_rng(seed).integers(0, X.shape[0], min(_ROWS, X.shape[0]))]


def dense(X: Any) -> Floats:
    """The rows as a C-ordered table of float64."""
    return np.ascontiguousarray(X.toarray() if sp.issparse(X) else X, dtype=np.float64)


def _computed(basis: Matrix) -> Basis:
    """Basis functions (n, p) that are there already."""
    rows = as_rows(basis)
    return lambda i: (rows, i)


def basis_of(packed: PackedMap, rows: Floats) -> Basis:
    """A map's basis functions of raw dense rows, computed when they are asked for."""
    return lambda i: ((packed.row(rows[i])[np.newaxis],), 0)


# All three are compiled: called from the interpreter, one small product costs as much as its call, and the
# comparison would be one of the numbers of calls.


@compiled
def _score(coef: Floats, intercept: float, rows: Rows, i: int) -> float:
    """The score of row i by coefficients (p,)."""
    return row_dot(rows, i, coef) + intercept


@compiled
def _argmax(coef: Floats, intercept: Floats, rows: Rows, i: int) -> int:
    """The class with the largest score, the first of equal ones (Eq. 2)."""
    best, best_score = 0, -np.inf
    for k in range(len(intercept)):
        score = _score(coef[k], intercept[k], rows, i)
        if score > best_score:
            best, best_score = k, score
    return best


@compiled
def _is_largest(coef: Floats, intercept: Floats, rows: Rows, i: int, y: int) -> bool:
    """Whether class y has the largest score, by Remark 2: the others one by one, until one wins."""
    own = _score(coef[y], intercept[y], rows, i)
    for k in range(len(intercept)):
        if k != y:
            score = _score(coef[k], intercept[k], rows, i)
            # Equal scores go to the class that comes first, as argmax decides.
            if score > own or (score == own and k < y):
                return False
    return True
