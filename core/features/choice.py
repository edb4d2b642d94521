"""Chooses the feature map that ``kind="auto"`` means, from the shape of the training rows alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from core.data.scaling_kind import Scaling
from core.features.spec import FeatureSpec

if TYPE_CHECKING:
    import scipy.sparse as sp

    from core.types import Matrix

WIDE: Final = 2000
"""With more columns, planes usually separate the classes, and a kernel costs more than it gains."""
USUAL_LANDMARKS: Final = 1000
"""Number of landmarks of a Nyström map; up to this many rows the exact kernel costs no more."""
FEWEST_LANDMARKS: Final = 100
MOST_KERNEL_ROWS: Final = 500_000
"""With more rows, a linear map is chosen, because kernel features would take too much memory."""
FEATURE_VALUES: Final = 50_000_000
"""Largest number of landmarks times rows, 400 MB; with more than 50 000 rows there are fewer landmarks."""


@dataclass(frozen=True, slots=True)
class FeatureChoice:
    """spec: specification of the map to fit, with a kind other than "auto". reason: one sentence, or ""."""

    spec: FeatureSpec
    reason: str = ""

    def as_dict(self) -> dict[str, str | int]:
        """JSON-ready."""
        values: dict[str, str | int] = {"kind": self.spec.kind}
        if self.spec.kind in ("nystroem", "fourier"):
            values["n_components"] = self.spec.n_components
        return values | ({"reason": self.reason} if self.reason else {})


def choose_features(spec: FeatureSpec, X: Matrix) -> FeatureChoice:
    """The map that ``spec`` means for raw rows (n, d). Labels are not used, so folds may share the map."""
    if spec.kind != "auto":
        return FeatureChoice(spec)
    n, d = X.shape
    if spec.has_terms:
        return FeatureChoice(replace(spec, kind="linear"), "The rows have terms of texts.")
    if not isinstance(X, np.ndarray):
        return _sparse_choice(replace(spec, kind="linear"), X)
    if d > WIDE:
        return FeatureChoice(replace(spec, kind="linear"), f"There are {d} columns, more than {WIDE}.")
    fitted = rbf_features(spec, n)
    if fitted.kind == "kernel":
        return FeatureChoice(fitted, f"There are {n} rows, at most {USUAL_LANDMARKS}.")
    return FeatureChoice(fitted, f"There are {n} dense rows of {d} columns: {fitted.n_components} landmarks.")


def _sparse_choice(spec: FeatureSpec, X: sp.csr_array) -> FeatureChoice:
    """Linear features. The default scaling becomes idf if no value is negative, as in counts of terms.

    A column that is rarely other than 0 has a small standard deviation; divided by it, such columns would
    outweigh the others.
    """
    if spec.scaling is Scaling.ZSCORE and not (X.data < 0.0).any():
        return FeatureChoice(
            replace(spec, scaling=Scaling.IDF),
            "The rows are sparse, without negative values: columns are weighed by their rarity (idf).",
        )
    return FeatureChoice(spec, "The rows are sparse.")


def rbf_features(spec: FeatureSpec, n: int, landmarks: int = USUAL_LANDMARKS) -> FeatureSpec:
    """The RBF map for n rows: exact, or with this many landmarks, or fewer if memory does not suffice."""
    if n <= landmarks:
        return replace(spec, kind="kernel")
    size = min(landmarks, max(FEATURE_VALUES // n, FEWEST_LANDMARKS))
    return replace(spec, kind="nystroem", n_components=size)
