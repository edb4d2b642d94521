"""Features in which labellers look for classes.

They need not answer queries, so they may depend on all rows.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from core.data.scaling_kind import Scaling
from core.features.maps import fit_feature_map
from core.features.spec import FeatureSpec
from core.labelling.base import Space
from core.run import Run
from core.types import FloatArray, Matrix

_NEIGHBOURS = 10
_DIFFUSION = 0.99
_DENSE_ROWS = 600


def labelling_space(X: Matrix, space: Space, scaling: Scaling, size: int, run: Run) -> NDArray[np.float64]:
    """Φ of all rows, (n, m), float64, with mean square 1; the last column is a further constant.

    graph: Φ Φᵀ is the kernel (I − 0.99 S)⁻¹ of the graph of the ten nearest neighbours, in its ``size``
    largest components, where S is the normalised adjacency (Zhou et al., Learning with Local and Global
    Consistency, NIPS 2004). In this kernel, rows are similar if a path of near rows connects them.
    kernel: Nyström features of the RBF kernel with ``size`` landmarks.
    both: the mean of these two kernels. linear: the scaled columns.
    Reports stage ``"space"``. Raises InvalidProblem, Cancelled.
    """
    run.check_cancel()
    run.report("space", 0, 1)
    kernel = FeatureSpec("nystroem", size, scaling=scaling)
    columns = FeatureSpec("linear", scaling=scaling)
    parts: list[Matrix] = []
    if space in ("kernel", "both"):
        parts.append(fit_feature_map(X, kernel, run.seed).transform(X))
    if space != "kernel":
        scaled = fit_feature_map(X, columns, run.seed).transform(X)
        parts.append(scaled if space == "linear" else _diffusion(_neighbours(scaled, run), size, run))
    varying = [_normalised(part) / np.sqrt(len(parts)) for part in parts]
    run.report("space", 1, 1)
    return np.hstack([*varying, np.ones((X.shape[0], 1))])


def _normalised(rows: Matrix) -> FloatArray:
    """The rows with mean square 1, without the constant in their last column."""
    dense = rows if isinstance(rows, np.ndarray) else rows.toarray()
    varying = dense[:, :-1].astype(np.float64)
    scaled: FloatArray = varying / max(float(np.sqrt((varying**2).sum(axis=1).mean())), 1e-300)
    return scaled


def _neighbours(rows: Matrix, run: Run) -> sp.csr_array:
    """W, (n, n): 1 if each row is among the nearest of the other, ½ if that holds on one side only."""
    from sklearn.neighbors import NearestNeighbors

    count = min(_NEIGHBOURS, rows.shape[0] - 1)
    found = NearestNeighbors(n_neighbors=count, n_jobs=run.threads).fit(rows)
    run.check_cancel()
    one_way = found.kneighbors_graph()
    run.check_cancel()
    return sp.csr_array(0.5 * (one_way + one_way.T))


def _diffusion(W: sp.csr_array, size: int, run: Run) -> FloatArray:
    """D^(−½) U (I − 0.99 Λ)^(−½) for the largest eigenvalues Λ of D^(−½) W D^(−½); the constant is last."""
    from scipy.linalg import eigh
    from scipy.sparse.linalg import eigsh

    n = W.shape[0]
    roots = 1.0 / np.sqrt(np.maximum(np.asarray(W.sum(axis=1)).ravel(), 1e-300))
    S = sp.csr_array(W.multiply(roots[:, None]).multiply(roots))
    if n <= max(_DENSE_ROWS, 4 * size):
        values, vectors = eigh(S.toarray(), subset_by_index=(max(0, n - size - 1), n - 1))
    else:
        first = np.random.default_rng(run.seed).normal(size=n)
        values, vectors = eigsh(S, k=size + 1, which="LA", v0=first, tol=1e-6)
    order = np.argsort(values)
    values, vectors = np.clip(values[order], -1.0, 1.0), vectors[:, order]
    features: FloatArray = roots[:, None] * vectors / np.sqrt(1.0 - _DIFFUSION * values)
    return features
