"""Nyström features (Williams and Seeger 2001): φ(x) = (k(x', L) W, 1), W = V Λ^(−1/2), k(L, L) = V Λ Vᵀ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from core.data.dataset import validate_rows
from core.data.validation import QUIET, row_blocks
from core.errors import Fault, InvalidPackage, InvalidProblem
from core.features.base import FeatureMap, Folded, as_float64, kernel_standardisation
from core.features.landmarks import covering_landmarks
from core.features.spec import MAX_KERNEL_ROWS, FeatureDtype, FeatureKind, FeatureSpec
from core.packed.codec import Arrays, Header, take_array
from core.packed.map_packages import map_from
from core.packed.maps import RbfBasis, frozen_array
from core.solvers.threads import one_blas_thread
from core.types import Matrix

EIGENVALUE_FLOOR = 1e-10
"""Directions of k(L, L) are left out if their eigenvalue is below this share of the largest one.

Whitening multiplies rounding errors of kernel values by up to the inverse root of the smallest kept
eigenvalue, here 1e5 / √λ₁; with a lower floor these errors would be visible in the folded scores.
"""


@final
@dataclass(frozen=True, eq=False)
class NystroemMap(FeatureMap):
    """φ(x) = (k(x', L) W, 1). basis: the p kernel values. whitening: W (p, r)."""

    kind: ClassVar[FeatureKind] = "nystroem"
    basis: RbfBasis
    whitening: NDArray[np.float64]
    dtype: FeatureDtype = "float64"

    @classmethod
    def fit(cls, X: Matrix, spec: FeatureSpec, seed: int) -> NystroemMap:
        standardisation, gamma = kernel_standardisation(X, spec)
        root = np.sqrt(gamma)
        with one_blas_thread():
            rng = np.random.default_rng(seed)
            scaled = standardisation.apply(X)
            if spec.kind == "kernel":
                landmarks = root * _all_rows(scaled)
            else:
                landmarks = root * covering_landmarks(scaled, spec.n_components, rng)
            basis = RbfBasis(standardisation.shift, root * standardisation.scale, landmarks)
            norms = np.einsum("ij,ij->i", landmarks, landmarks)
            eigenvalues, vectors = np.linalg.eigh(basis.finish(2.0 * (landmarks @ landmarks.T), norms))
        kept = eigenvalues > EIGENVALUE_FLOOR * eigenvalues[-1]
        whitening = vectors[:, kept] / np.sqrt(eigenvalues[kept])
        return cls(basis, np.ascontiguousarray(whitening), spec.dtype)

    @classmethod
    def restore(cls, header: Header, arrays: Arrays, dtype: FeatureDtype) -> NystroemMap:
        basis = map_from(header, arrays)
        if not isinstance(basis, RbfBasis):
            raise InvalidPackage("Nyström features need an RBF basis.")
        whitening = frozen_array(take_array(arrays, "whitening"), "whitening", (basis.n_basis, None))
        return cls(basis, whitening, dtype)

    @property
    def n_columns(self) -> int:
        return self.basis.n_columns

    @property
    def n_features_out(self) -> int:
        return int(self.whitening.shape[1]) + 1

    def transform(self, X: Matrix) -> NDArray[np.floating]:
        X = validate_rows(X, self.n_columns)
        features = np.empty((X.shape[0], self.n_features_out), dtype=self.dtype)
        with one_blas_thread():
            for rows in row_blocks(X.shape[0], max(self.basis.n_basis, self.n_columns)):
                features[rows, :-1] = _rbf_block(self.basis, X[rows]) @ self.whitening
        features[:, -1] = 1.0
        return features

    def fold(self, coef: NDArray[np.floating]) -> Folded:
        coef = self._checked_coef(coef)
        return self.basis, coef[:, :-1] @ self.whitening.T, coef[:, -1].copy()

    def _parts(self) -> tuple[Header, Arrays]:
        return self.basis.header(), {"whitening": self.whitening, **self.basis.arrays()}


def _all_rows(X: Matrix) -> NDArray[np.float64]:
    """The different rows, (p, d). Raises InvalidProblem if there are too many rows for an exact kernel."""
    n = X.shape[0]
    if n > MAX_KERNEL_ROWS:
        message = f"An exact kernel takes at most {MAX_KERNEL_ROWS} rows; there are {n}. Take nystroem."
        raise InvalidProblem(Fault("features.kind", "too_many_rows", message))
    dense = X if isinstance(X, np.ndarray) else X.toarray()
    return np.unique(dense.astype(np.float64), axis=0)


@QUIET
def _rbf_block(basis: RbfBasis, X: Matrix) -> NDArray[np.float64]:
    if isinstance(X, np.ndarray):
        return basis.block(as_float64(X))
    if basis.shift.any():
        return basis.block(as_float64(X.toarray()))
    scaled = sp.csr_array((X.data * basis.twice_scale[X.indices], X.indices, X.indptr), shape=X.shape)
    norms = 0.25 * np.asarray(scaled.power(2).sum(axis=1)).ravel()
    return basis.finish(scaled @ basis.landmarks.T, norms)
