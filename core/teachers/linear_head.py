"""A teacher from outside: the last layer of a network, one row of weights and one bias a class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from core.errors import Fault, InvalidProblem
from core.features.maps import FeatureMap, LinearMap
from core.packed.maps import Floats, frozen_array
from core.teachers.linear import LinearTeacher


@final
@dataclass(frozen=True, eq=False)
class LinearHead:
    """S^c(x) = w_c·x + b_c on raw columns.

    weights: (K, d), bias: (K,), of the K classes of the data, in order.
    Of a head with more classes the rows of the others are left out: what the students learn to tell apart is
    what the data has. Raises InvalidProblem where shapes do not fit or numbers are not finite.
    """

    weights: Floats
    bias: Floats

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", frozen_array(self.weights, "teacher.weights", (None, None)))
        object.__setattr__(self, "bias", frozen_array(self.bias, "teacher.bias", (len(self.weights),)))

    def on(self, feature_map: FeatureMap) -> LinearTeacher:
        """The same scores as weights on the features φ(x) = ((x − shift)·scale, 1).

            w·x + b = (w / scale)·φ + b + w·shift

        Raises InvalidProblem for features that are not linear, or of another number of columns.
        """
        if not isinstance(feature_map, LinearMap):
            message = "A teacher from outside is linear in the columns: it needs linear features."
            raise InvalidProblem(Fault("features.kind", "not_linear", message))
        if feature_map.n_columns != self.weights.shape[1]:
            message = f"The teacher has {self.weights.shape[1]} columns, the data {feature_map.n_columns}."
            raise InvalidProblem(Fault("teacher", "wrong_columns", message))
        standardisation = feature_map.standardisation
        constant = self.bias + self.weights @ standardisation.shift
        return LinearTeacher(np.column_stack([self.weights / standardisation.scale, constant]))
