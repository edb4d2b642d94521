"""The base class of feature maps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from core.data.scaling import Standardisation, column_moments, fit_standardisation
from core.errors import Fault, InvalidProblem
from core.features.spec import MAX_GAMMA, FeatureDtype, FeatureSpec
from core.packed.codec import Arrays, Header, encode
from core.packed.maps import PackedMap, frozen_array
from core.types import Matrix

Folded: TypeAlias = tuple[PackedMap, NDArray[np.float64], NDArray[np.float64]]


class FeatureMap(ABC):
    """A fitted map from raw rows (n, d) to features Φ (n, m), whose last column is the constant 1.

    dtype: of Φ. The same map gives the same Φ, bit for bit, in every process of one machine.
    """

    FORMAT: ClassVar[str] = "stms.features.1"
    kind: ClassVar[str]
    dtype: FeatureDtype

    @classmethod
    @abstractmethod
    def fit(cls, X: Matrix, spec: FeatureSpec, seed: int) -> Self:
        """The map that ``spec`` describes, fitted to checked rows (n, d)."""

    @classmethod
    @abstractmethod
    def restore(cls, header: Header, arrays: Arrays, dtype: FeatureDtype) -> Self:
        """The map that ``to_bytes`` stored. Raises InvalidPackage, InvalidProblem."""

    @property
    @abstractmethod
    def n_columns(self) -> int:
        """d, the number of raw columns."""

    @property
    @abstractmethod
    def n_features_out(self) -> int:
        """m, the number of features including the constant 1."""

    @abstractmethod
    def transform(self, X: Matrix) -> Matrix:
        """Φ (n, m) of raw rows (n, d). Raises InvalidProblem for unusable rows."""

    @abstractmethod
    def fold(self, coef: NDArray[np.floating]) -> Folded:
        """Rewrite weights on φ as weights on the map's basis.

        coef: (q, m). Returns the packed map with p basis values, coefficients A (q, p) and intercepts b (q,):
        Φ coefᵀ = basis(X) Aᵀ + b. Raises InvalidProblem if coef does not have m columns.
        """

    @abstractmethod
    def _parts(self) -> tuple[Header, Arrays]:
        """What ``to_bytes`` stores besides kind and dtype."""

    def to_bytes(self) -> bytes:
        """The map as safetensors, for ``feature_map_from_bytes``; the same map gives the same bytes."""
        header, arrays = self._parts()
        return encode({"format": self.FORMAT, "features": self.kind, "dtype": self.dtype, **header}, arrays)

    def _checked_coef(self, coef: NDArray[np.floating]) -> NDArray[np.float64]:
        return frozen_array(coef, "coef", (None, self.n_features_out))


def scale_rule(X: Matrix, standardisation: Standardisation) -> float:
    """γ = 1 / Σ_j var(x'_j), twice the inverse of the mean squared distance of rows; 1 if all are equal."""
    total = float((column_moments(X)[1] * standardisation.scale**2).sum())
    return min(1.0 / total, MAX_GAMMA) if total * MAX_GAMMA > 1.0 else 1.0


def kernel_standardisation(X: Matrix, spec: FeatureSpec) -> tuple[Standardisation, float]:
    """Standardisation and γ of an RBF kernel; dense columns are centred, column factors are in the scale.

    A kernel of x − l does not depend on a shift, but ‖x‖² + ‖l‖² − 2x·l loses digits far from the origin.
    Raises InvalidProblem if there is not one factor for each column.
    """
    fitted = fit_standardisation(X, spec.scaling, spec.layout)
    scale = fitted.scale
    if spec.column_factors is not None:
        if len(spec.column_factors) != len(scale):
            message = f"there are {len(spec.column_factors)} factors for {len(scale)} columns"
            raise InvalidProblem(Fault("features.column_factors", "wrong_shape", message))
        scale = scale * np.array(spec.column_factors)
    centred = Standardisation(fitted.shift if sp.issparse(X) else column_moments(X)[0], scale)
    return centred, spec.gamma if spec.gamma is not None else scale_rule(X, centred)


def before_terms(X: Matrix, spec: FeatureSpec) -> tuple[Any, FeatureSpec]:
    """The columns of a kernel as dense rows, without terms of texts, and the specification for them."""
    layout = spec.layout
    if layout is None or not layout.terms or isinstance(X, np.ndarray):
        return X, spec
    return X[:, : layout.dense].toarray(), replace(spec, layout=replace(layout, columns=layout.dense))


def as_float64(X: Any) -> Any:
    """Dense or CSR rows in float64; no copy is made if they are float64 already."""
    return X.astype(np.float64, copy=False)
