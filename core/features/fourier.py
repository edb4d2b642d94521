"""Random Fourier features: φ(x) = (√(2/p) cos(Ωx' + β), 1), Ω ~ N(0, 2γ) (Rahimi and Recht 2007)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from core.data.dataset import validate_rows
from core.data.validation import row_blocks
from core.errors import InvalidPackage
from core.features.base import FeatureMap, Folded, as_float64, kernel_standardisation
from core.features.spec import FeatureDtype, FeatureKind, FeatureSpec
from core.packed.codec import Arrays, Header
from core.packed.map_packages import map_from
from core.packed.maps import FourierBasis
from core.solvers.threads import one_blas_thread
from core.types import Matrix


@final
@dataclass(frozen=True, eq=False)
class FourierMap(FeatureMap):
    """φ(x) = (√(2/p) cos(Ωx' + β), 1). basis: the p cosines."""

    kind: ClassVar[FeatureKind] = "fourier"
    basis: FourierBasis
    dtype: FeatureDtype = "float64"

    @classmethod
    def fit(cls, X: Matrix, spec: FeatureSpec, seed: int) -> FourierMap:
        standardisation, gamma = kernel_standardisation(X, spec)
        rng, d = np.random.default_rng(seed), standardisation.n_columns
        with one_blas_thread():
            frequencies = np.sqrt(2.0 * gamma) * rng.standard_normal((spec.n_components, d))
            phases = rng.uniform(0.0, 2.0 * np.pi, spec.n_components)
            projections = frequencies * standardisation.scale
            offsets = phases - projections @ standardisation.shift
        return cls(FourierBasis(projections, offsets), spec.dtype)

    @classmethod
    def restore(cls, header: Header, arrays: Arrays, dtype: FeatureDtype) -> FourierMap:
        basis = map_from(header, arrays)
        if not isinstance(basis, FourierBasis):
            raise InvalidPackage("Fourier features need a basis of cosines.")
        return cls(basis, dtype)

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
                values = self.basis.finish(as_float64(X[rows]) @ self.basis.projections.T)
                features[rows, :-1] = self._amplitude * values
        features[:, -1] = 1.0
        return features

    def fold(self, coef: NDArray[np.floating]) -> Folded:
        coef = self._checked_coef(coef)
        return self.basis, self._amplitude * coef[:, :-1], coef[:, -1].copy()

    def _parts(self) -> tuple[Header, Arrays]:
        return self.basis.header(), self.basis.arrays()
