"""Feature maps φ: raw rows to the features that teacher and students are linear in.

    linear     φ(x) = (x', 1)
    nystroem   φ(x) = (k(x', L) W, 1), W = V Λ^(−1/2) from k(L, L) = V Λ Vᵀ     Williams and Seeger (2001)
    fourier    φ(x) = (√(2/p) cos(Ωx' + β), 1), Ω ~ N(0, 2γ), β ~ U[0, 2π)      Rahimi and Recht (2007)

x' is the standardised row, k(x, l) = exp(−γ‖x − l‖²). The constant 1 comes last, so there is always a bias.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, final, get_args

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from core.data.checks import QUIET, row_blocks
from core.data.dataset import validate_rows
from core.data.scaling import Standardisation, column_moments, fit_standardisation
from core.errors import InvalidPackage
from core.features.landmarks import choose_landmarks
from core.features.spec import MAX_GAMMA, FeatureDtype, FeatureKind, FeatureSpec
from core.packed.codec import Arrays, Buffer, Header, decode, encode, package_errors, take, take_array
from core.packed.maps import (
    FourierBasis,
    LinearBasis,
    PackedMap,
    RbfBasis,
    frozen_array,
    map_from,
    map_header,
)
from core.solvers.threads import one_blas_thread
from core.types import Matrix

Folded: TypeAlias = tuple[PackedMap, NDArray[np.float64], NDArray[np.float64]]

EIGENVALUE_FLOOR = 1e-10
"""Directions of k(L, L) below this part of the largest eigenvalue are left out.

Whitening multiplies the rounding of kernel values by up to the inverse root of the smallest eigenvalue kept,
here 1e5 / √λ₁; a lower floor would let it show in the folded scores.
"""


class FeatureMap(ABC):
    """A fitted map from raw rows (n, d) to features Φ (n, m), the constant 1 last.

    dtype: of Φ. The same map gives the same Φ, bit for bit, in every process of one machine.
    """

    FORMAT: ClassVar[str] = "stms.features.1"
    kind: ClassVar[FeatureKind]
    dtype: FeatureDtype

    @property
    @abstractmethod
    def n_columns(self) -> int:
        """d, raw columns."""

    @property
    @abstractmethod
    def n_features_out(self) -> int:
        """m, features with the constant 1."""

    @abstractmethod
    def transform(self, X: Matrix) -> Matrix:
        """Φ (n, m) of raw rows (n, d). Raises InvalidProblem for unusable rows."""

    @abstractmethod
    def fold(self, coef: NDArray[np.floating]) -> Folded:
        """Weights on φ rewritten as weights on the map's basis.

        coef: (q, m). Returns the packed map with p basis values, coefficients A (q, p) and intercepts b (q,):
        Φ coefᵀ = basis(X) Aᵀ + b. Raises InvalidProblem if coef does not have m columns.
        """

    @abstractmethod
    def _parts(self) -> tuple[Header, Arrays]:
        """What ``to_bytes`` stores beside kind and dtype."""

    def to_bytes(self) -> bytes:
        """The map as safetensors, for ``feature_map_from_bytes``; the same map gives the same bytes."""
        header, arrays = self._parts()
        return encode({"format": self.FORMAT, "features": self.kind, "dtype": self.dtype, **header}, arrays)

    def _checked_coef(self, coef: NDArray[np.floating]) -> NDArray[np.float64]:
        return frozen_array(coef, "coef", (None, self.n_features_out))


@final
@dataclass(frozen=True, eq=False)
class LinearMap(FeatureMap):
    """φ(x) = (x', 1). CSR rows give CSR features."""

    kind: ClassVar[FeatureKind] = "linear"
    standardisation: Standardisation
    dtype: FeatureDtype = "float64"

    @property
    def n_columns(self) -> int:
        return self.standardisation.n_columns

    @property
    def n_features_out(self) -> int:
        return self.n_columns + 1

    def transform(self, X: Matrix) -> Matrix:
        X = validate_rows(X, self.n_columns)
        if sp.issparse(X) and not self.standardisation.shift.any():
            constant = sp.csr_array(np.ones((X.shape[0], 1)))
            return sp.csr_array(
                sp.hstack([self.standardisation.apply(X), constant], format="csr", dtype=self.dtype)
            )
        features = np.empty((X.shape[0], self.n_features_out), dtype=self.dtype)
        for rows in row_blocks(*X.shape):
            features[rows, :-1] = self.standardisation.apply(X[rows])
        features[:, -1] = 1.0
        return features

    def fold(self, coef: NDArray[np.floating]) -> Folded:
        coef = self._checked_coef(coef)
        folded = coef[:, :-1] * self.standardisation.scale
        return LinearBasis(self.n_columns), folded, coef[:, -1] - folded @ self.standardisation.shift

    def _parts(self) -> tuple[Header, Arrays]:
        return {}, {"shift": self.standardisation.shift, "scale": self.standardisation.scale}


@final
@dataclass(frozen=True, eq=False)
class NystroemMap(FeatureMap):
    """φ(x) = (k(x', L) W, 1). basis: the p kernel values. whitening: W (p, r)."""

    kind: ClassVar[FeatureKind] = "nystroem"
    basis: RbfBasis
    whitening: NDArray[np.float64]
    dtype: FeatureDtype = "float64"

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
        return map_header(self.basis), {"whitening": self.whitening, **self.basis.arrays()}


@final
@dataclass(frozen=True, eq=False)
class FourierMap(FeatureMap):
    """φ(x) = (√(2/p) cos(Ωx' + β), 1). basis: the p cosines."""

    kind: ClassVar[FeatureKind] = "fourier"
    basis: FourierBasis
    dtype: FeatureDtype = "float64"

    @property
    def n_columns(self) -> int:
        return self.basis.n_columns

    @property
    def n_features_out(self) -> int:
        return self.basis.n_basis + 1

    @property
    def _amplitude(self) -> float:
        return float(np.sqrt(2.0 / self.basis.n_basis))

    def transform(self, X: Matrix) -> NDArray[np.floating]:
        X = validate_rows(X, self.n_columns)
        features = np.empty((X.shape[0], self.n_features_out), dtype=self.dtype)
        with one_blas_thread():
            for rows in row_blocks(X.shape[0], max(self.basis.n_basis, self.n_columns)):
                values = self.basis.finish(_float64(X[rows]) @ self.basis.projections.T)
                features[rows, :-1] = self._amplitude * values
        features[:, -1] = 1.0
        return features

    def fold(self, coef: NDArray[np.floating]) -> Folded:
        coef = self._checked_coef(coef)
        return self.basis, self._amplitude * coef[:, :-1], coef[:, -1].copy()

    def _parts(self) -> tuple[Header, Arrays]:
        return map_header(self.basis), self.basis.arrays()


def fit_feature_map(X: Matrix, spec: FeatureSpec, seed: int) -> FeatureMap:
    """The map that ``spec`` describes, fitted on raw rows (n, d); the same seed gives the same bits.

    Raises InvalidProblem for unusable rows.
    """
    X = validate_rows(X, None)
    standardisation = fit_standardisation(X, spec.scaling)
    if spec.kind == "linear":
        return LinearMap(standardisation, spec.dtype)
    rng = np.random.default_rng(seed)
    standardisation = _centred(standardisation, X)
    gamma = spec.gamma if spec.gamma is not None else scale_rule(X, standardisation)
    with one_blas_thread():
        if spec.kind == "nystroem":
            return _fit_nystroem(X, standardisation, gamma, spec, rng)
        return _fit_fourier(standardisation, gamma, spec, rng)


def scale_rule(X: Matrix, standardisation: Standardisation) -> float:
    """γ = 1 / Σ_j var(x'_j), twice the inverse of the mean squared distance of rows; 1 if all are equal."""
    total = float((column_moments(X)[1] * standardisation.scale**2).sum())
    return min(1.0 / total, MAX_GAMMA) if total * MAX_GAMMA > 1.0 else 1.0


def feature_map_from_bytes(data: Buffer) -> FeatureMap:
    """The map of ``FeatureMap.to_bytes``, its arrays views of ``data``. Raises InvalidPackage."""
    header, arrays = decode(data, FeatureMap.FORMAT)
    kind, dtype = take(header, "features", str), take(header, "dtype", str)
    if dtype not in get_args(FeatureDtype):
        raise InvalidPackage("The feature map in the package has an unknown type of numbers.")
    with package_errors("feature map"):
        if kind == LinearMap.kind:
            shift = frozen_array(take_array(arrays, "shift"), "shift", (None,))
            scale = frozen_array(take_array(arrays, "scale"), "scale", shift.shape)
            return LinearMap(Standardisation(shift, scale), dtype)
        basis = map_from(header, arrays)
        if kind == NystroemMap.kind and isinstance(basis, RbfBasis):
            whitening = frozen_array(take_array(arrays, "whitening"), "whitening", (basis.n_basis, None))
            return NystroemMap(basis, whitening, dtype)
        if kind == FourierMap.kind and isinstance(basis, FourierBasis):
            return FourierMap(basis, dtype)
    raise InvalidPackage(f"The package has features of unknown kind {kind!r:.80}.")


def _fit_nystroem(
    X: Matrix, standardisation: Standardisation, gamma: float, spec: FeatureSpec, rng: np.random.Generator
) -> NystroemMap:
    root = np.sqrt(gamma)
    landmarks = root * choose_landmarks(standardisation.apply(X), spec.n_components, rng)
    basis = RbfBasis(standardisation.shift, root * standardisation.scale, landmarks)
    norms = np.einsum("ij,ij->i", landmarks, landmarks)
    kernel = basis.finish(2.0 * (landmarks @ landmarks.T), norms)
    eigenvalues, vectors = np.linalg.eigh(kernel)
    kept = eigenvalues > EIGENVALUE_FLOOR * eigenvalues[-1]
    whitening = vectors[:, kept] / np.sqrt(eigenvalues[kept])
    return NystroemMap(basis, np.ascontiguousarray(whitening), spec.dtype)


def _fit_fourier(
    standardisation: Standardisation, gamma: float, spec: FeatureSpec, rng: np.random.Generator
) -> FourierMap:
    frequencies = np.sqrt(2.0 * gamma) * rng.standard_normal((spec.n_components, standardisation.n_columns))
    phases = rng.uniform(0.0, 2.0 * np.pi, spec.n_components)
    projections = frequencies * standardisation.scale
    return FourierMap(FourierBasis(projections, phases - projections @ standardisation.shift), spec.dtype)


def _centred(standardisation: Standardisation, X: Matrix) -> Standardisation:
    """The same up to a shift that makes dense columns centred.

    Kernels of x − l do not see a shift, but ‖x‖² + ‖l‖² − 2x·l loses digits far from the origin.
    """
    if sp.issparse(X):
        return standardisation
    return Standardisation(column_moments(X)[0], standardisation.scale)


@QUIET
def _rbf_block(basis: RbfBasis, X: Matrix) -> NDArray[np.float64]:
    if isinstance(X, np.ndarray):
        return basis.block(_float64(X))
    if basis.shift.any():
        return basis.block(_float64(X.toarray()))
    scaled = sp.csr_array((X.data * basis.twice_scale[X.indices], X.indices, X.indptr), shape=X.shape)
    norms = 0.25 * np.asarray(scaled.power(2).sum(axis=1)).ravel()
    return basis.finish(scaled @ basis.landmarks.T, norms)


def _float64(X: Any) -> Any:
    return X.astype(np.float64, copy=False)
