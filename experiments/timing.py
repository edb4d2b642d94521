"""Time of one query by teacher, by teacher with Remark 2, and by student; in one process, in alternation."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from core.data.dataset import LabelledData
from core.packed import PackedMap, PackedStudent, PackedTeacher
from core.solvers.jit import compiled
from core.solvers.threads import one_blas_thread
from core.training.preparation import Preparation
from experiments.store import Record

Floats: TypeAlias = NDArray[np.float64]
Columns: TypeAlias = NDArray[np.integer]
Basis: TypeAlias = Callable[[int], tuple[Columns, Floats]]
"""Columns of row i's basis functions, and their values; no columns means all of them."""

Query: TypeAlias = Callable[[int], bool]
"""One query: the decision on row i."""

_ALL = np.empty(0, dtype=np.int32)
_ROWS = 100
_REPEATS = 5


def measure_inference(preparation: Preparation, test: LabelledData, *, seed: int) -> Record:
    """Median seconds for one answer on test rows, raw row in, yes or no out, one thread, no checks of input.

    teacher: all scores and their argmax. remark_2: the traversal that stops early; ``classes_evaluated`` is
    how many scores it needs, mean over rows and classes. student: one product, with any weights. All three
    compute one row of the basis, then products, so that only the number of scores differs; of a sparse row on
    linear features they use the stored values only.
    ``seconds_for_scoring`` leaves out the basis b(x), which all of them share.
    """
    teacher = preparation.packed_teacher()
    rng = np.random.default_rng(seed)
    chosen = rng.integers(0, test.n, min(_ROWS, test.n))
    targets = [int(code) for code in rng.integers(0, test.K, len(chosen))]
    rows = dense_rows(test.X[chosen])
    evaluated = [teacher.is_class(row, target)[1] for row, target in zip(rows, targets, strict=True)]
    own_coef, own_intercept = teacher.coef[0], float(teacher.intercept[0])

    def timed(basis: Basis) -> dict[str, float]:
        student = _student(own_coef, own_intercept, 0.0, basis)
        queries = {**_teacher(teacher, basis, targets), "student": student}
        return {
            name: float(np.median(each)) for name, each in time_alternately(queries, len(targets)).items()
        }

    with one_blas_thread():
        if sp.issparse(test.X) and teacher.map.kind == "linear":
            stored = stored_entries(test.X[chosen])
            queries = scoring = timed(lambda i: stored[i])
        else:
            bases = teacher.map.basis(rows)
            queries = timed(_basis_of(teacher.map, rows))
            scoring = timed(lambda i: (_ALL, bases[i]))
    return {
        "seconds_per_query": queries,
        "seconds_for_scoring": scoring,
        "classes_evaluated": float(np.mean(evaluated)),
        "classes": test.K,
        "basis": teacher.map.n_basis,
    }


def measure_against_teacher(
    teacher: PackedTeacher, student: PackedStudent, X: Any, *, seed: int
) -> dict[str, float]:
    """Median seconds for one answer on rows of X (n, d): student on its own basis, teacher on the other.

    Same keys and method as ``measure_inference``.
    """
    chosen = np.random.default_rng(seed).integers(0, X.shape[0], min(_ROWS, X.shape[0]))
    rows = dense_rows(X[chosen])
    targets = [teacher.classes.index(student.label)] * len(rows)
    own, linear = _basis_of(student.map, rows), student.form.linear
    if linear is None:
        raise ValueError(f"a {student.form.kind} student is not one product")
    queries = {
        **_teacher(teacher, _basis_of(teacher.map, rows), targets),
        "student": _student(*linear, student.threshold, own),
    }
    with one_blas_thread():
        found = time_alternately(queries, len(rows))
    return {name: float(np.median(each)) for name, each in found.items()}


def time_alternately(queries: Mapping[str, Callable[[int], object]], n: int) -> dict[str, Floats]:
    """Seconds of each query for each row 0 … n − 1, (n,): the fastest of a few repeats.

    A repeat is all rows by one query, then all by the next, so that other load on the machine affects all.
    """
    best = {name: np.full(n, np.inf) for name in queries}
    for _ in range(_REPEATS):
        for name, query in queries.items():
            fastest = best[name]
            for i in range(n):
                started = time.perf_counter()
                query(i)
                fastest[i] = min(fastest[i], time.perf_counter() - started)
    return best


def stored_entries(rows: sp.csr_array) -> list[tuple[NDArray[np.integer], Floats]]:
    """Columns and values of the stored entries of each row."""
    return [
        (rows.indices[start:stop], rows.data[start:stop].astype(np.float64))
        for start, stop in zip(rows.indptr[:-1], rows.indptr[1:], strict=True)
    ]


def dense_rows(X: Any) -> Floats:
    """The rows as a C-ordered table of float64."""
    rows = X.toarray() if sp.issparse(X) else X
    return np.ascontiguousarray(rows, dtype=np.float64)


def _basis_of(packed: PackedMap, rows: Floats) -> Basis:
    return lambda i: (_ALL, packed.row(rows[i]))


def _teacher(teacher: PackedTeacher, basis: Basis, targets: Sequence[int]) -> dict[str, Query]:
    """Whether the teacher takes row i for class ``targets[i]``: by all scores, and by Remark 2."""
    coef, intercept = teacher.coef, teacher.intercept

    def whole(i: int) -> bool:
        columns, values = basis(i)
        return _argmax(coef, intercept, columns, values) == targets[i]

    def traversal(i: int) -> bool:
        columns, values = basis(i)
        return _is_largest(coef, intercept, columns, values, targets[i])

    return {"teacher": whole, "remark_2": traversal}


def _student(coef: Floats, intercept: float, threshold: float, basis: Basis) -> Query:
    table, constant = coef[np.newaxis], np.array([intercept])

    def query(i: int) -> bool:
        columns, values = basis(i)
        return _score(table, constant, columns, values, 0) >= threshold

    return query


# All three are compiled and share the score of a class: called from the interpreter, one small product costs
# as much as its call, and the comparison would be one of the numbers of calls.


@compiled
def _score(coef: Floats, intercept: Floats, columns: Columns, values: Floats, k: int) -> float:
    """The score of class k. columns: of the values; none means all columns in order."""
    total = 0.0
    if len(columns) == 0:
        for j in range(len(values)):
            total += coef[k, j] * values[j]
    else:
        for j in range(len(values)):
            total += coef[k, columns[j]] * values[j]
    score: float = total + intercept[k]
    return score


@compiled
def _argmax(coef: Floats, intercept: Floats, columns: Columns, values: Floats) -> int:
    """The class with the largest score, the first of equal ones (Eq. 2)."""
    if len(columns) == 0:
        return int(np.argmax(np.dot(coef, values) + intercept))
    best, best_score = 0, _score(coef, intercept, columns, values, 0)
    for k in range(1, len(intercept)):
        score = _score(coef, intercept, columns, values, k)
        if score > best_score:
            best, best_score = k, score
    return best


@compiled
def _is_largest(coef: Floats, intercept: Floats, columns: Columns, values: Floats, y: int) -> bool:
    """Whether class y has the largest score, by Remark 2: the others one by one, until one wins."""
    own = _score(coef, intercept, columns, values, y)
    for k in range(len(intercept)):
        if k == y:
            continue
        score = _score(coef, intercept, columns, values, k)
        # Equal scores go to the class that comes first, as argmax decides.
        if score > own or (score == own and k < y):
            return False
    return True
