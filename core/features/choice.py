"""Which feature map ``kind="auto"`` stands for, by the shape of the training rows alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import scipy.sparse as sp

from core.features.spec import FeatureSpec
from core.types import Matrix

WIDE: Final = 2000
"""More columns than this are usually separable by planes, and a kernel of them costs more than it gives."""
FEW: Final = 1000
"""Up to so many rows the exact kernel costs no more than an approximation."""
MANY: Final = 50_000
"""From so many rows on, the features of half as many landmarks fit into memory."""


@dataclass(frozen=True, slots=True)
class FeatureChoice:
    """spec: the specification of the map that is fitted, its kind not "auto". reason: one sentence, or ""."""

    spec: FeatureSpec
    reason: str = ""

    def as_dict(self) -> dict[str, str | int]:
        """JSON-ready."""
        values: dict[str, str | int] = {"kind": self.spec.kind}
        if self.spec.kind in ("nystroem", "fourier"):
            values["n_components"] = self.spec.n_components
        return values | ({"reason": self.reason} if self.reason else {})


def choose_features(spec: FeatureSpec, X: Matrix) -> FeatureChoice:
    """What ``spec`` means for raw rows (n, d); labels are not used, so that folds may share the map."""
    if spec.kind != "auto":
        return FeatureChoice(spec)
    n, d = X.shape
    if sp.issparse(X):
        return FeatureChoice(replace(spec, kind="linear"), "The rows are sparse.")
    if d > WIDE:
        return FeatureChoice(replace(spec, kind="linear"), f"There are {d} columns, more than {WIDE}.")
    if n <= FEW:
        return FeatureChoice(replace(spec, kind="kernel"), f"There are {n} rows, at most {FEW}.")
    size = 1000 if n <= MANY else 500
    return FeatureChoice(
        replace(spec, kind="nystroem", n_components=size),
        f"There are {n} dense rows of {d} columns: {size} landmarks.",
    )
