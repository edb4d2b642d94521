"""Landmarks of a Nyström map: a few points that represent many rows."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from core.data.validation import row_blocks
from core.types import Matrix

_ITERATIONS = 5
"""Lloyd steps. More steps move the centres, but do not make the classifier on them more accurate."""

_ROWS_PER_CENTRE = 20
"""Rows used for each centre; more rows take longer and do not improve the centres."""

_FAR = 4
"""One in this many landmarks starts at a row that is far from the others. With 500 landmarks, this raised the
teacher's mean F on a third of the training part of shuttle, which has classes of a few rows, from 73 to 79
(four splits). On pendigits, usps, letter, satimage, protein and mnist it changed F by less than 0.2."""

_ROWS_SEARCHED = 100_000
"""Far rows are searched among this many rows."""


def choose_landmarks(X: Matrix, n_landmarks: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """At most ``n_landmarks`` different points (p, d) that cover the rows of ``X`` (n, d).

    Dense rows: k-means centres. Sparse rows: random rows, because their centres would be dense and far from
    every row. There are fewer points if X has fewer different rows or if clusters become empty.
    """
    n = X.shape[0]
    drawn = np.sort(rng.choice(n, min(n, _ROWS_PER_CENTRE * n_landmarks), replace=False))
    if sp.issparse(X):
        chosen = np.sort(rng.choice(drawn, min(len(drawn), n_landmarks), replace=False))
        return np.unique(X[chosen].toarray().astype(np.float64), axis=0)
    sample = X[drawn].astype(np.float64)
    different = np.unique(sample, axis=0)
    start = np.sort(rng.choice(len(different), min(len(different), n_landmarks), replace=False))
    return lloyd(sample, different[start])


def covering_landmarks(X: Matrix, n_landmarks: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Like ``choose_landmarks``, but with landmarks also where rows are rare; labels are not used.

    For dense rows, a quarter of the centres start at rows drawn in proportion to their squared distance from
    the starts of the other centres (k-means++, Arthur and Vassilvitskii 2007). They are drawn from all rows,
    because the sample that centres are computed from seldom includes rows of a rare class.
    """
    n, n_far = X.shape[0], n_landmarks // _FAR
    if sp.issparse(X) or n <= n_landmarks or not n_far:
        return choose_landmarks(X, n_landmarks, rng)
    drawn = rng.choice(n, min(n, _ROWS_PER_CENTRE * n_landmarks), replace=False)
    near = np.sort(drawn[: n_landmarks - n_far])
    searched = rng.choice(n, min(n, _ROWS_SEARCHED), replace=False)
    far = _far_rows(X, searched, X[near].astype(np.float64), n_far, rng)
    sample = X[np.union1d(drawn, far)].astype(np.float64)
    return lloyd(sample, np.unique(X[np.concatenate([near, far])].astype(np.float64), axis=0))


def _far_rows(
    X: NDArray[np.floating],
    searched: NDArray[np.intp],
    centres: NDArray[np.float64],
    count: int,
    rng: np.random.Generator,
) -> NDArray[np.intp]:
    """At most ``count`` of the rows ``searched`` (s,), drawn in proportion to their squared distance."""
    half_norms = 0.5 * np.einsum("ij,ij->i", centres, centres)
    distance = np.empty(len(searched))
    for rows in row_blocks(len(searched), len(centres)):
        block = X[searched[rows]].astype(np.float64)
        nearest = np.max(block @ centres.T - half_norms, axis=1)
        distance[rows] = np.maximum(np.einsum("ij,ij->i", block, block) - 2.0 * nearest, 0.0)
    total = distance.sum()
    if total == 0.0:
        return searched[:0]
    weights = distance / total
    most = min(count, int(np.count_nonzero(weights)))
    return searched[rng.choice(len(searched), most, replace=False, p=weights)]


def lloyd(X: NDArray[np.float64], centres: NDArray[np.float64]) -> NDArray[np.float64]:
    """Centres (p, d) after a few steps of Lloyd's k-means on rows (n, d), without empty clusters.

    Sums are computed in the order of the rows, so processes with the same BLAS threads give the same result.
    """
    n = len(X)
    for _ in range(_ITERATIONS):
        nearest = _nearest(X, centres)
        sizes = np.bincount(nearest, minlength=len(centres))
        members = sp.csr_array((np.ones(n), nearest, np.arange(n + 1)), shape=(n, len(centres)))
        filled = sizes > 0
        centres = (members.T.tocsr() @ X)[filled] / sizes[filled, np.newaxis]
    return centres


def _nearest(X: NDArray[np.float64], centres: NDArray[np.float64]) -> NDArray[np.intp]:
    """Index of the centre nearest to each row, (n,); the first of equally near ones."""
    half_norms = 0.5 * np.einsum("ij,ij->i", centres, centres)
    nearest = np.empty(len(X), dtype=np.intp)
    for rows in row_blocks(len(X), len(centres)):
        nearest[rows] = np.argmax(X[rows] @ centres.T - half_norms, axis=1)
    return nearest
