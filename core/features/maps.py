"""Feature maps φ from raw rows to features; linear teachers and students are linear in these.

    linear     φ(x) = (x', 1)
    nystroem   φ(x) = (k(x', L) W, 1), W = V Λ^(−1/2) from k(L, L) = V Λ Vᵀ     Williams and Seeger (2001)
    kernel     the same with all training rows as L, the exact kernel
    fourier    φ(x) = (√(2/p) cos(Ωx' + β), 1), Ω ~ N(0, 2γ), β ~ U[0, 2π)      Rahimi and Recht (2007)

Terms of texts stay unchanged beside the features of each map, see ``core.features.beside_terms``.

x' is the standardised row, k(x, l) = exp(−γ‖x − l‖²). The constant 1 comes last, so there is always a bias.
"""

from __future__ import annotations

from typing import get_args

import scipy.sparse as sp

from core.data.dataset import validate_rows
from core.data.scaling_kind import Scaling
from core.errors import InvalidPackage
from core.features.base import FeatureMap, scale_rule
from core.features.beside_terms import BesideTermsMap
from core.features.choice import choose_features
from core.features.examples import Examples
from core.features.fourier import FourierMap
from core.features.linear import LinearMap
from core.features.nystroem import NystroemMap
from core.features.spec import FeatureDtype, FeatureSpec
from core.packed.codec import Buffer, decode, package_errors, take
from core.types import IntArray, Matrix

__all__ = [
    "FeatureMap",
    "FourierMap",
    "LinearMap",
    "NystroemMap",
    "feature_map_from_bytes",
    "fit_feature_map",
    "refitted",
    "scale_rule",
]

_MAPS: dict[str, type[FeatureMap]] = {
    one.kind: one for one in (LinearMap, NystroemMap, FourierMap, BesideTermsMap)
}
_FITTED_AS = {"kernel": NystroemMap.kind}
"""The exact kernel is a Nyström map whose landmarks are all rows."""


def fit_feature_map(X: Matrix, spec: FeatureSpec, seed: int) -> FeatureMap:
    """The map that ``spec`` describes, fitted on raw rows (n, d); the same seed gives the same bits.

    Raises InvalidProblem for unusable rows.
    """
    rows = validate_rows(X, None)
    chosen = choose_features(spec, rows).spec
    if chosen.has_terms and chosen.kind != LinearMap.kind:
        return BesideTermsMap.fit(rows, chosen, seed)
    return _MAPS[_FITTED_AS.get(chosen.kind, chosen.kind)].fit(rows, chosen, seed)


def refitted(examples: Examples, rows: IntArray) -> Examples:
    """``examples`` with features of a map that was fitted to ``rows`` (row numbers) only.

    A map does not use labels, so one that was fitted to all rows usually serves a cross-validation: the same
    examples are returned. But the standard deviation of a sparse column that is rarely other than 0 includes
    the values of held-out rows. These rows then look smaller than new rows do, and a threshold chosen on
    their scores promises too few false positives.
    """
    fitted, spec = examples.feature_map, examples.feature_spec
    if fitted is None or spec is None or not sp.issparse(examples.X):
        return examples
    chosen = choose_features(spec, examples.X).spec
    if chosen.kind != LinearMap.kind or chosen.scaling is not Scaling.ZSCORE or chosen.layout is not None:
        return examples
    own = fit_feature_map(examples.X[rows], chosen, 0)
    return Examples(examples.X, own.transform(examples.X), own, chosen, all_extras=examples.extras)


def feature_map_from_bytes(data: Buffer) -> FeatureMap:
    """The map that ``FeatureMap.to_bytes`` stored; its arrays are views of ``data``.

    Raises InvalidPackage.
    """
    header, arrays = decode(data, FeatureMap.FORMAT)
    kind, dtype = take(header, "features", str), take(header, "dtype", str)
    if dtype not in get_args(FeatureDtype):
        raise InvalidPackage("The feature map in the package has an unknown type of numbers.")
    if kind not in _MAPS:
        raise InvalidPackage(f"The package has features of unknown kind {kind!r:.80}.")
    with package_errors("feature map"):
        return _MAPS[kind].restore(header, arrays, dtype)
