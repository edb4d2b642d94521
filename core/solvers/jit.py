"""Compiled kernels: one decorator, and row access written once for dense and CSR matrices.

A kernel takes ``Rows``, a tuple: ``(X,)`` for a dense matrix, ``(data, indices, indptr)`` for a CSR one.
numba picks the row functions by the tuple's length when it compiles; with ``NUMBA_DISABLE_JIT=1`` the same
functions run as plain Python, so kernels can be debugged and their coverage measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeAlias, TypeGuard, TypeVar, cast

import numba
import numpy as np
import scipy.sparse as sp
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic, overload

from core.types import FloatArray, Matrix

P = ParamSpec("P")
R = TypeVar("R")

Rows: TypeAlias = tuple[Any, ...]

_CACHE_LINE = 64

# Without nnan and ninf, which would make a NaN or an infinity undefined behaviour.
_FASTMATH = {"reassoc", "contract", "nsz", "arcp"}


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile ``function`` with numba: cached on disk, without the GIL, sums may be reordered."""
    return cast(Callable[P, R], numba.njit(cache=True, nogil=True, fastmath=_FASTMATH)(function))


def is_sparse(features: Matrix) -> TypeGuard[sp.csr_array]:
    """TypeGuard for scipy.sparse.issparse."""
    return bool(sp.issparse(features))


def as_rows(features: Matrix) -> Rows:
    """The tuple that kernels take for ``features`` (n, m), float32 or float64.

    Nothing is copied from a C-ordered dense array or a CSR array without duplicate entries.
    """
    if not is_sparse(features):
        return (np.ascontiguousarray(features),)
    if not features.has_canonical_format:
        features = features.copy()
        features.sum_duplicates()
    return (features.data, features.indices, features.indptr)


def _dense_dot(rows: Rows, i: int, w: FloatArray) -> float:
    row = rows[0][i]
    total = 0.0
    for j in range(row.shape[0]):
        total += row[j] * w[j]
    return total


def _csr_dot(rows: Rows, i: int, w: FloatArray) -> float:
    data, indices, indptr = rows
    total = 0.0
    for p in range(indptr[i], indptr[i + 1]):
        total += data[p] * w[indices[p]]
    return total


def _dense_axpy(rows: Rows, i: int, scale: float, w: FloatArray) -> None:
    row = rows[0][i]
    for j in range(row.shape[0]):
        w[j] += scale * row[j]


def _csr_axpy(rows: Rows, i: int, scale: float, w: FloatArray) -> None:
    data, indices, indptr = rows
    for p in range(indptr[i], indptr[i + 1]):
        w[indices[p]] += scale * data[p]


def _dense_load(rows: Rows, i: int, row: FloatArray) -> None:
    source = rows[0][i]
    for j in range(row.shape[0]):
        row[j] = source[j]


def _csr_load(rows: Rows, i: int, row: FloatArray) -> None:  # noqa: ARG001
    return


def _dense_loaded_dot(rows: Rows, i: int, row: FloatArray, w: FloatArray) -> float:  # noqa: ARG001
    total = w.dtype.type(0.0)
    for j in range(row.shape[0]):
        total += row[j] * w[j]
    return float(total)


def _csr_loaded_dot(rows: Rows, i: int, row: FloatArray, w: FloatArray) -> float:  # noqa: ARG001
    data, indices, indptr = rows
    total = 0.0
    for p in range(indptr[i], indptr[i + 1]):
        total += data[p] * w[indices[p]]
    return total


def _dense_loaded_axpy(rows: Rows, i: int, row: FloatArray, scale: float, w: FloatArray) -> None:  # noqa: ARG001
    factor = w.dtype.type(scale)
    for j in range(row.shape[0]):
        w[j] += factor * row[j]


def _csr_loaded_axpy(rows: Rows, i: int, row: FloatArray, scale: float, w: FloatArray) -> None:  # noqa: ARG001
    data, indices, indptr = rows
    for p in range(indptr[i], indptr[i + 1]):
        w[indices[p]] += scale * data[p]


@intrinsic
def _prefetch(_context: Any, array: Any, _at: Any) -> Any:
    """Ask the processor for the cache line of entry ``_at`` of a contiguous array; reads nothing."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        array_type = signature.args[0]
        data = context.make_array(array_type)(context, builder, values[0]).data
        address = builder.bitcast(builder.gep(data, [values[1]]), cgutils.voidptr_t)
        number = ir.IntType(32)
        declared = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [cgutils.voidptr_t], declared)
        builder.call(function, [address, number(0), number(2), number(1)])  # to read, into L2, data
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


def _dense_prefetch(rows: Rows, i: int, start: int, stop: int) -> None:
    X = rows[0]
    first, m = i * X.shape[1], X.shape[1]
    for at in range(first + start, first + min(stop, m), _CACHE_LINE // X.itemsize):
        _prefetch(X, at)  # type: ignore[call-arg]


def _no_prefetch(rows: Rows, i: int, start: int, stop: int) -> None:  # noqa: ARG001
    return


def _dense_norm2(rows: Rows, i: int) -> float:
    row = rows[0][i]
    total = 0.0
    for j in range(row.shape[0]):
        total += np.float64(row[j]) * np.float64(row[j])
    return total


def _csr_norm2(rows: Rows, i: int) -> float:
    data, _indices, indptr = rows
    total = 0.0
    for p in range(indptr[i], indptr[i + 1]):
        total += np.float64(data[p]) * np.float64(data[p])
    return total


def row_dot(rows: Rows, i: int, w: FloatArray) -> float:
    """φ_i · w for a float64 vector ``w`` (m,), summed in float64."""
    return _dense_dot(rows, i, w) if len(rows) == 1 else _csr_dot(rows, i, w)


def row_axpy(rows: Rows, i: int, scale: float, w: FloatArray) -> None:
    """w ← w + scale · φ_i, in place, for a float64 vector ``w`` (m,)."""
    if len(rows) == 1:
        _dense_axpy(rows, i, scale, w)
    else:
        _csr_axpy(rows, i, scale, w)


def row_norm2(rows: Rows, i: int) -> float:
    """‖φ_i‖², summed in float64; 0 for an empty row."""
    return _dense_norm2(rows, i) if len(rows) == 1 else _csr_norm2(rows, i)


def row_load(rows: Rows, i: int, row: FloatArray) -> None:
    """Copy φ_i to the buffer ``row`` (m,), in its dtype, for several products; does nothing for CSR."""
    if len(rows) == 1:
        _dense_load(rows, i, row)


def row_prefetch(rows: Rows, i: int, start: int, stop: int) -> None:
    """Bring the entries ``start`` to ``stop`` of φ_i closer to the processor; does nothing for CSR.

    The processor does not predict rows in random order. Parts of the next row can be requested between the
    products with the current row, so that they arrive in time. Does nothing without compilation.
    """


def loaded_dot(rows: Rows, i: int, row: FloatArray, w: FloatArray) -> float:
    """φ_i · w after ``row_load(rows, i, row)``; for dense rows in the dtype of ``row`` and ``w``."""
    return _dense_loaded_dot(rows, i, row, w) if len(rows) == 1 else _csr_loaded_dot(rows, i, row, w)


def loaded_axpy(rows: Rows, i: int, row: FloatArray, scale: float, w: FloatArray) -> None:
    """w ← w + scale · φ_i after ``row_load(rows, i, row)``, in the precision of ``w``."""
    if len(rows) == 1:
        _dense_loaded_axpy(rows, i, row, scale, w)
    else:
        _csr_loaded_axpy(rows, i, row, scale, w)


# numba calls these with the argument types and requires the parameter names of the chosen function.
def _choose_dot(rows: Any, i: Any, w: Any) -> Callable[..., float]:  # noqa: ARG001
    return _dense_dot if len(rows) == 1 else _csr_dot


def _choose_axpy(rows: Any, i: Any, scale: Any, w: Any) -> Callable[..., None]:  # noqa: ARG001
    return _dense_axpy if len(rows) == 1 else _csr_axpy


def _choose_norm2(rows: Any, i: Any) -> Callable[..., float]:  # noqa: ARG001
    return _dense_norm2 if len(rows) == 1 else _csr_norm2


def _choose_load(rows: Any, i: Any, row: Any) -> Callable[..., None]:  # noqa: ARG001
    return _dense_load if len(rows) == 1 else _csr_load


def _choose_loaded_dot(rows: Any, i: Any, row: Any, w: Any) -> Callable[..., float]:  # noqa: ARG001
    return _dense_loaded_dot if len(rows) == 1 else _csr_loaded_dot


def _choose_loaded_axpy(rows: Any, i: Any, row: Any, scale: Any, w: Any) -> Callable[..., None]:  # noqa: ARG001
    return _dense_loaded_axpy if len(rows) == 1 else _csr_loaded_axpy


def _choose_prefetch(rows: Any, i: Any, start: Any, stop: Any) -> Callable[..., None]:  # noqa: ARG001
    return _dense_prefetch if len(rows) == 1 else _no_prefetch


overload(row_prefetch, strict=False)(_choose_prefetch)
overload(row_load, strict=False, jit_options={"fastmath": _FASTMATH})(_choose_load)
overload(loaded_dot, strict=False, jit_options={"fastmath": _FASTMATH})(_choose_loaded_dot)
overload(loaded_axpy, strict=False, jit_options={"fastmath": _FASTMATH})(_choose_loaded_axpy)
overload(row_dot, strict=False, jit_options={"fastmath": _FASTMATH})(_choose_dot)
overload(row_axpy, strict=False, jit_options={"fastmath": _FASTMATH})(_choose_axpy)
overload(row_norm2, strict=False, jit_options={"fastmath": _FASTMATH})(_choose_norm2)


@compiled
def row_norms2(rows: Rows, n: int) -> FloatArray:
    """‖φ_i‖² of all n rows, shape (n,), float64."""
    norms = np.empty(n)
    for i in range(n):
        norms[i] = row_norm2(rows, i)
    return norms
