"""Linear features: φ(x) = (x', 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from core.data.dataset import validate_rows
from core.data.scaling import Standardisation, fit_standardisation
from core.data.validation import row_blocks
from core.features.base import FeatureMap, Folded
from core.features.spec import FeatureDtype, FeatureKind, FeatureSpec
from core.packed.codec import Arrays, Header, take_array
from core.packed.maps import LinearBasis, frozen_array
from core.types import Matrix


@final
@dataclass(frozen=True, eq=False)
class LinearMap(FeatureMap):
    """φ(x) = (x', 1). CSR rows give CSR features."""

    kind: ClassVar[FeatureKind] = "linear"
    standardisation: Standardisation
    dtype: FeatureDtype = "float64"

    @classmethod
    def fit(cls, X: Matrix, spec: FeatureSpec, seed: int) -> LinearMap:
        del seed
        return cls(fit_standardisation(X, spec.scaling, spec.layout), spec.dtype)

    @classmethod
    def restore(cls, header: Header, arrays: Arrays, dtype: FeatureDtype) -> LinearMap:
        del header
        shift = frozen_array(take_array(arrays, "shift"), "shift", (None,))
        scale = frozen_array(take_array(arrays, "scale"), "scale", shift.shape)
        return cls(Standardisation(shift, scale), dtype)

    @property
    def n_columns(self) -> int:
        return self.standardisation.n_columns

    @property
    def n_features_out(self) -> int:
        return self.n_columns + 1

    def transform(self, X: Matrix) -> Matrix:
        X = validate_rows(X, self.n_columns)
        if self.standardisation.keeps_sparse(X):
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
