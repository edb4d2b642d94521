"""Features of rows with terms of texts: φ(x) = (ψ(z), t, 1), where z are the columns before the terms t.

ψ is any map of dense rows without its constant, so a kernel of φ is the sum of a kernel of z and the inner
product of the terms. Terms are not scaled, because the encoder has weighted them and given each text norm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self, final

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from core.data.dataset import validate_rows
from core.data.validation import row_blocks
from core.errors import Fault, InvalidPackage, InvalidProblem
from core.features.base import FeatureMap, Folded, before_terms
from core.features.fourier import FourierMap
from core.features.nystroem import NystroemMap
from core.features.spec import FeatureDtype, FeatureSpec
from core.packed.codec import Arrays, Header, take
from core.packed.maps import BesideTerms
from core.types import Matrix

_DENSE: dict[str, type[FeatureMap]] = {one.kind: one for one in (NystroemMap, FourierMap)}


@final
@dataclass(frozen=True, eq=False)
class BesideTermsMap(FeatureMap):
    """φ(x) = (ψ(z), t, 1), in CSR. of_dense: the map (ψ, 1). n_terms: number of columns of t."""

    kind: ClassVar[str] = "beside_terms"
    of_dense: FeatureMap
    n_terms: int
    dtype: FeatureDtype = "float64"

    @classmethod
    def fit(cls, X: Matrix, spec: FeatureSpec, seed: int) -> Self:
        layout = spec.layout
        if layout is None or not sp.issparse(X) or not layout.dense:
            raise InvalidProblem(
                Fault("features.kind", "no_dense_columns", "there are no columns beside terms")
            )
        kind = NystroemMap.kind if spec.kind == "kernel" else spec.kind
        return cls(_DENSE[kind].fit(*before_terms(X, spec), seed), layout.terms, spec.dtype)

    @classmethod
    def restore(cls, header: Header, arrays: Arrays, dtype: FeatureDtype) -> Self:
        kind, n_terms = take(header, "of_dense", str), take(header, "n_terms", int)
        if kind not in _DENSE or n_terms < 1:
            raise InvalidPackage("The package has features beside terms of an unknown kind.")
        return cls(_DENSE[kind].restore(header, arrays, dtype), n_terms, dtype)

    @property
    def n_columns(self) -> int:
        return self.of_dense.n_columns + self.n_terms

    @property
    def n_features_out(self) -> int:
        return self.of_dense.n_features_out + self.n_terms

    def transform(self, X: Matrix) -> Matrix:
        X = sp.csr_array(validate_rows(X, self.n_columns))
        d, parts = self.of_dense.n_columns, []
        for rows in row_blocks(X.shape[0], self.of_dense.n_features_out):
            block = X[rows]
            features = self.of_dense.transform(block[:, :d].toarray())
            parts.append(
                sp.hstack([sp.csr_array(features[:, :-1]), block[:, d:], sp.csr_array(features[:, -1:])])
            )
        return sp.csr_array(sp.vstack(parts, format="csr", dtype=self.dtype))

    def fold(self, coef: NDArray[np.floating]) -> Folded:
        coef = self._checked_coef(coef)
        m = self.of_dense.n_features_out - 1
        basis, folded, intercepts = self.of_dense.fold(np.hstack([coef[:, :m], coef[:, -1:]]))
        return BesideTerms(basis, self.n_terms), np.hstack([folded, coef[:, m:-1]]), intercepts

    def _parts(self) -> tuple[Header, Arrays]:
        header, arrays = self.of_dense._parts()
        return {**header, "of_dense": self.of_dense.kind, "n_terms": self.n_terms}, arrays
