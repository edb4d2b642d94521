"""Rows as teachers and students use them: raw, and mapped to features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar

from core.data.extras import NO_EXTRAS, Extras, View

if TYPE_CHECKING:
    from core.features.base import FeatureMap
    from core.features.spec import FeatureSpec
    from core.types import FloatArray, IntArray, Matrix

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class SharedValues:
    """Values computed from all rows, each only once, for all students that need them. Thread-safe."""

    _values: dict[str, Any] = field(default_factory=dict)
    _lock: RLock = field(default_factory=RLock)

    def get(self, key: str, compute: Callable[[], T]) -> T:
        """The value stored under ``key``; it is computed on first use."""
        with self._lock:
            if key not in self._values:
                self._values[key] = compute()
            value: T = self._values[key]
            return value


class Examples:
    """n rows.

    all_X: raw rows (N, d), dense or CSR. all_features: Φ of all_X, (N, m). index: numbers of the n rows among
    these, (n,), None for all. feature_map: φ, fitted as ``feature_spec`` says; both are None if there are
    only features, and nothing can then be packed.
    shared: values computed from all N rows. all_extras: privileged columns, views and scores of all N rows.
    """

    def __init__(
        self,
        all_X: Matrix,
        all_features: Matrix,
        feature_map: FeatureMap | None = None,
        feature_spec: FeatureSpec | None = None,
        *,
        index: IntArray | None = None,
        shared: SharedValues | None = None,
        all_extras: Extras = NO_EXTRAS,
    ) -> None:
        self.all_X, self.all_features = all_X, all_features
        self.feature_map, self.feature_spec = feature_map, feature_spec
        self.index = index
        self.shared = SharedValues() if shared is None else shared
        self.all_extras = all_extras

    @classmethod
    def of_features(cls, features: Matrix) -> Examples:
        """Rows that have features (n, m) only, and no raw rows."""
        return cls(features, features)

    @cached_property
    def X(self) -> Matrix:  # noqa: N802
        """Raw rows, (n, d)."""
        return self.all_X if self.index is None else self.all_X[self.index]

    @cached_property
    def features(self) -> Matrix:
        """Φ, (n, m)."""
        return self.all_features if self.index is None else self.all_features[self.index]

    @cached_property
    def extras(self) -> Extras:
        """Privileged columns, views and scores of an outside teacher."""
        return self.all_extras if self.index is None else self.all_extras.take(self.index)

    @property
    def privileged(self) -> FloatArray | None:
        """Columns that are known in training only, (n, p); None if the data set has none."""
        return self.extras.privileged

    @property
    def views(self) -> tuple[View, ...]:
        """Named ranges of columns of X; empty if the data set has none."""
        return self.all_extras.views

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.all_X.shape[0]) if self.index is None else len(self.index)

    def take(self, rows: IntArray) -> Examples:
        """Some of the rows, given by their numbers; arrays are copied when they are first used."""
        index = rows if self.index is None else self.index[rows]
        return Examples(
            self.all_X,
            self.all_features,
            self.feature_map,
            self.feature_spec,
            index=index,
            shared=self.shared,
            all_extras=self.all_extras,
        )
