"""Weights in the students' features that approximate a teacher whose scores are not linear in them.

The gate of a gated student is S^y = w_y·φ, which a query evaluates together with the student's own weights.
For other teachers only scores are available: scores from outside, of a kernel interpolation, or of a
classifier of another library. These are distilled:

    min_W  ‖Φ Wᵀ − S‖² + λ ‖W‖²

on the rows that the teacher was fitted to; in a cross-validation, these are the training rows of the fold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import scipy.linalg

from core.errors import Fault, InvalidProblem
from core.run import Run
from core.solvers.jit import is_sparse
from core.solvers.products import matvec, rmatvec, row_blocks, rows_of
from core.types import FloatArray, IntArray, Matrix

if TYPE_CHECKING:
    from core.features.examples import Examples
    from core.teachers.base import Teacher

_DIRECT_LIMIT = 4096
"""Up to this order Cholesky factorisation solves the normal equations, beyond it conjugate gradients do."""
_RIDGE = 1e-6
"""λ as a multiple of the mean eigenvalue of ΦᵀΦ: too small to change the fit, but above rounding errors."""
_ITERATIONS, _TOLERANCE = 300, 1e-8


def scores_and_weights(
    teacher: Teacher, examples: Examples, run: Run, fitted: IntArray | None = None
) -> tuple[FloatArray, FloatArray]:
    """S of all rows, (n, K), and W, (K, m), with S = Φ Wᵀ exactly or by least squares on the rows of the fit.

    fitted: numbers of the rows that the teacher was fitted to; None for all.
    Raises InvalidProblem, Cancelled.
    """
    own, rows = teacher.own_scores, np.arange(examples.n) if fitted is None else fitted
    if own is None:
        scores = teacher.scores(examples, run)
    else:
        scores = np.empty((examples.n, own.shape[1]))
        scores[rows] = own
        others = np.setdiff1d(np.arange(examples.n), rows, assume_unique=True)
        if len(others):
            scores[others] = teacher.scores(examples.take(others), run)
    known = teacher.class_weights
    if known is not None:
        return scores, known
    features = examples.features if fitted is None else examples.take(rows).features
    return scores, distilled_weights(features, scores[rows], run)


def distilled_weights(features: Matrix, scores: FloatArray, run: Run) -> FloatArray:
    """W, (K, m), float64, for which Φ Wᵀ approximates S by least squares with a small ridge.

    features: Φ (n, m), dense or CSR. scores: S (n, K), finite. Cost: n min(n, m)² multiplications up to
    min(n, m) = 4096; beyond, at most 300 steps of conjugate gradients, each with two products with Φ. Each
    step lowers the objective, so a fit that ends early acts like one with a larger ridge.

    Raises InvalidProblem if scores are not finite or have another shape, Cancelled.
    """
    n, m = features.shape
    if scores.ndim != 2 or len(scores) != n or not np.isfinite(scores).all():
        message = f"scores to distil must be finite, of shape ({n}, K); their shape is {scores.shape}"
        raise InvalidProblem(Fault("scores", "wrong_shape", message))
    order = min(n, m)
    ridge = max(_RIDGE * _squared_norm(features) / order, np.finfo(np.float64).tiny)
    if order > _DIRECT_LIMIT:
        return _by_conjugate_gradients(features, scores, ridge, run)
    if n < m:
        return rmatvec(features, _solved(_row_gram(features, run), scores, ridge), run)
    weights: FloatArray = _solved(_column_gram(features, run), rmatvec(features, scores, run).T, ridge).T
    return np.ascontiguousarray(weights)


def _squared_norm(features: Matrix) -> float:
    """‖Φ‖², the trace of ΦᵀΦ."""
    total = 0.0
    for block in row_blocks(features):
        rows = rows_of(features, block)
        total += float(np.square(rows.data if is_sparse(rows) else rows).sum())
    return total


def _column_gram(features: Matrix, run: Run) -> FloatArray:
    """ΦᵀΦ, (m, m)."""
    gram = np.zeros((features.shape[1],) * 2)
    for block in row_blocks(features):
        run.check_cancel()
        rows = rows_of(features, block)
        product = rows.T @ rows
        gram += product.toarray() if is_sparse(product) else product
    return gram


def _row_gram(features: Matrix, run: Run) -> FloatArray:
    """ΦΦᵀ, (n, n)."""
    n = features.shape[0]
    gram = np.empty((n, n))
    every = rows_of(features, slice(0, n))
    for block in row_blocks(features):
        run.check_cancel()
        product = every[block] @ every.T
        gram[block] = product.toarray() if is_sparse(product) else product
    return gram


def _solved(gram: FloatArray, right: FloatArray, ridge: float) -> FloatArray:
    """(G + λI)⁻¹ R; overwrites the gram matrix G."""
    gram[np.diag_indices_from(gram)] += ridge
    factor = scipy.linalg.cho_factor(gram, lower=True, overwrite_a=True, check_finite=False)
    solution: FloatArray = scipy.linalg.cho_solve(factor, right, check_finite=False)
    return solution


def _by_conjugate_gradients(features: Matrix, scores: FloatArray, ridge: float, run: Run) -> FloatArray:
    """Solve the same problem for all classes at once, each with its own step lengths, from W = 0."""
    residual = rmatvec(features, scores, run)
    weights = np.zeros_like(residual)
    direction = residual.copy()
    squares = (residual**2).sum(axis=1)
    enough = _TOLERANCE**2 * squares
    for _ in range(_ITERATIONS):
        going = squares > enough
        if not going.any():
            break
        image = rmatvec(features, matvec(features, direction, run), run) + ridge * direction
        curvature = (direction * image).sum(axis=1)
        step = np.divide(squares, curvature, out=np.zeros_like(squares), where=going & (curvature > 0.0))
        weights += step[:, None] * direction
        residual -= step[:, None] * image
        before, squares = squares, (residual**2).sum(axis=1)
        direction *= np.divide(squares, before, out=np.zeros_like(squares), where=going)[:, None]
        direction += residual
    return weights
