"""Solve (I + Φᵀ diag(q) Φ) x = b by Cholesky of an m × m or n × n matrix, or by conjugate gradients."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy.linalg
import scipy.sparse as sp
import scipy.sparse.linalg
from scipy.linalg import lapack

from core.run import Run
from core.solvers.jit import is_sparse
from core.solvers.products import matvec, matvec_rows, rmatvec, rmatvec_rows, row_blocks, rows_of
from core.solvers.sparse_gram import example_gram
from core.types import FloatArray, IntArray, Matrix

_DIRECT_LIMIT = 2048
# Multiplications between two cancel checks: some ten milliseconds.
_BLOCK_PRODUCTS = 500_000_000
# Entries of the rows scaled at a time: enough for BLAS to be efficient, few beside the Gram matrix.
_BLOCK_ENTRIES = 50_000
_CG_ITERATIONS = 200


def solve_ridge_system(
    features: Matrix,
    weights: FloatArray,
    rhs: FloatArray,
    run: Run,
    *,
    rtol: float = 1e-8,
    index: IntArray | None = None,
) -> FloatArray:
    """x with (I + Σ_i q_i φ_i φ_iᵀ) x = b.

    features: (n, m), n may be 0. index: numbers of the n rows to use, by default all; they are copied only if
    necessary. weights: q (n,) >= 0. rhs: b (m,). rtol: relative residual of the iterative form, which is used
    if n and m are both above 2048. It may stop early; as it starts from 0, each of its iterates lowers
    ½xᵀHx − bᵀx.

    Raises LinAlgError if the matrix is not numerically positive definite, Cancelled.
    """
    m = features.shape[1]
    n = features.shape[0] if index is None else len(index)
    if n == 0:
        return rhs.copy()
    if m <= 2 * n and m <= _DIRECT_LIMIT:  # the n × n form needs the rows as one float64 matrix
        if is_sparse(features):
            return _solve_positive(_sparse_gram(features, weights, index, run), rhs)
        return _solve_packed(_packed_gram(features, weights, index, run), rhs)
    if min(n, m) > _DIRECT_LIMIT:
        chosen = features if index is None else features[index]
        return _conjugate_gradients(chosen, weights, rhs, run, rtol)
    # Woodbury: x = b − Φᵀ diag(√q) (I + diag(√q) ΦΦᵀ diag(√q))⁻¹ diag(√q) Φ b
    root = np.sqrt(weights)
    if is_sparse(features):
        index = np.arange(n) if index is None else index
        gram = example_gram(features, index, root, run)
        gram[np.diag_indices_from(gram)] += 1.0
        inner = _solve_positive(gram, root * matvec_rows(features, rhs, index, run))
        return rhs - rmatvec_rows(features, root * inner, index, run)
    features = features if index is None else features[index]
    inner = _solve_positive(_example_gram(features, root, run), root * matvec(features, rhs, run))
    return rhs - rmatvec(features, root * inner, run)


def _packed_gram(features: Matrix, weights: FloatArray, index: IntArray | None, run: Run) -> FloatArray:
    """I + Φᵀ diag(q) Φ of dense rows, (m (m + 1) / 2,): half the memory of a square matrix, and as fast.

    Rectangular full packed format, upper triangle, not transposed (Gustavson et al. 2010).
    """
    m = features.shape[1]
    gram = np.zeros(m * (m + 1) // 2)
    gram[_packed_diagonal(m)] = 1.0
    for rows in _scaled_rows(features, weights, index, run):
        # Transposed, as LAPACK expects column-major order; it then updates ``gram`` in place.
        gram = lapack.dsfrk(m, len(rows), 1.0, rows.T, 1.0, gram, overwrite_c=True)
    return gram


def _packed_diagonal(m: int) -> IntArray:
    """Positions of the m diagonal entries in rectangular full packed format, in no particular order."""
    half, column = m // 2, m + 1 - m % 2
    lower = np.arange(m - half) * (column + 1) + half
    return np.concatenate((lower, lower[:half] + 1))


def _sparse_gram(features: Matrix, weights: FloatArray, index: IntArray | None, run: Run) -> FloatArray:
    """I + Φᵀ diag(q) Φ of sparse rows, (m, m)."""
    gram = np.eye(features.shape[1])
    for rows in _scaled_rows(features, weights, index, run):
        gram += sp.csr_array(rows.T @ rows).toarray()
    return gram


def _scaled_rows(features: Matrix, weights: FloatArray, index: IntArray | None, run: Run) -> Iterator[Matrix]:
    """√q_i φ_i, a few rows at a time."""
    root, m = np.sqrt(weights), features.shape[1]
    size = max(1, min(_BLOCK_PRODUCTS // (4 * m**2), _BLOCK_ENTRIES // m))
    for start in range(0, len(root), size):
        run.check_cancel()
        block = slice(start, min(start + size, len(root)))
        yield _scale_rows(features[block] if index is None else features[index[block]], root[block])


def _example_gram(features: FloatArray, root: FloatArray, run: Run) -> FloatArray:
    """I + diag(√q) Φ Φᵀ diag(√q) of dense rows, shape (n, n), lower triangle only."""
    n = features.shape[0]
    rows = rows_of(features, slice(0, n))
    gram = np.zeros((n, n))
    for block in row_blocks(features, min(_BLOCK_PRODUCTS // n, 2 * _BLOCK_ENTRIES)):
        run.check_cancel()
        gram[block, : block.stop] = rows[block] @ rows[: block.stop].T
    gram *= root  # scaling the rows instead would need a copy of them
    gram *= root[:, None]
    gram[np.diag_indices_from(gram)] += 1.0
    run.check_cancel()
    return gram


def _scale_rows(rows: Matrix, scale: FloatArray) -> Matrix:
    if is_sparse(rows):
        return sp.csr_array(sp.diags_array(scale) @ rows.astype(np.float64, copy=False))
    return np.multiply(rows, scale[:, None], dtype=np.float64)


def _solve_positive(gram: FloatArray, rhs: FloatArray) -> FloatArray:
    """Solve by Cholesky; only the lower triangle of ``gram`` (C order) is read, and it is overwritten."""
    gram[np.diag_indices_from(gram)] *= _ridge(len(gram))
    factor = scipy.linalg.cho_factor(gram.T, lower=False, overwrite_a=True, check_finite=False)
    solution: FloatArray = scipy.linalg.cho_solve(factor, rhs, check_finite=False)
    return solution


def _solve_packed(gram: FloatArray, rhs: FloatArray) -> FloatArray:
    """Solve by Cholesky; ``gram``, in the format of ``_packed_gram``, is overwritten."""
    m = len(rhs)
    gram[_packed_diagonal(m)] *= _ridge(m)
    factor, not_positive = lapack.dpftrf(m, gram, overwrite_a=True)
    if not_positive:
        raise np.linalg.LinAlgError(f"the leading minor of order {not_positive} is not positive")
    solution, _ = lapack.dpftrs(m, factor, rhs)
    return np.asarray(solution).reshape(m)


def _ridge(m: int) -> float:
    """Factor of the diagonal of an m × m matrix, slightly above 1.

    With weights near 1/eps the identity can be lost to rounding. A ridge of a few units in the last place of
    the diagonal keeps the matrix positive definite, and a larger H is still a majoriser.
    """
    return 1.0 + 4.0 * float(np.finfo(np.float64).eps) * m


def _conjugate_gradients(
    features: Matrix, weights: FloatArray, rhs: FloatArray, run: Run, rtol: float
) -> FloatArray:
    m = features.shape[1]
    diagonal = np.ones(m)
    for block in row_blocks(features):
        run.check_cancel()
        rows = rows_of(features, block)
        squares = rows.power(2) if is_sparse(rows) else np.square(rows)
        diagonal += squares.T @ weights[block]

    def apply(x: FloatArray) -> FloatArray:
        return x + rmatvec(features, weights * matvec(features, x, run), run)

    hessian = scipy.sparse.linalg.LinearOperator((m, m), matvec=apply, dtype=np.float64)
    jacobi = scipy.sparse.linalg.LinearOperator((m, m), matvec=lambda x: x / diagonal, dtype=np.float64)
    solution, _unfinished = scipy.sparse.linalg.cg(hessian, rhs, rtol=rtol, maxiter=_CG_ITERATIONS, M=jacobi)
    result: FloatArray = solution
    return result
