"""An imported teacher: the last layer of a network, one row of weights and one bias per class."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np

from core.errors import Fault, InvalidProblem
from core.packed.maps import Floats, frozen_array
from core.teachers.base import FitShape, Task, Teacher, TeacherSpec

if TYPE_CHECKING:
    from core.features.maps import FeatureMap
    from core.packed.codec import Arrays
    from core.run import Run
    from core.solvers.solution import Summary
    from core.teachers.linear import LinearTeacher


@final
@dataclass(frozen=True, eq=False)
class LinearHead:
    """S^c(x) = w_c·x + b_c on raw columns.

    weights: (K, d), bias: (K,), for the K classes of the data, in order. A head's rows for further classes
    are left out. Raises InvalidProblem if shapes do not fit or numbers are not finite.
    """

    weights: Floats
    bias: Floats

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", frozen_array(self.weights, "teacher.weights", (None, None)))
        object.__setattr__(self, "bias", frozen_array(self.bias, "teacher.bias", (len(self.weights),)))

    def on(self, feature_map: FeatureMap) -> LinearTeacher:
        """The teacher with the same scores on the features φ(x) = ((x − shift)·scale, 1).

            w·x + b = (w / scale)·φ + b + w·shift

        Raises InvalidProblem if the features are not linear, or have another number of columns.
        """
        from core.features.maps import LinearMap
        from core.teachers.linear import LinearTeacher

        if not isinstance(feature_map, LinearMap):
            message = "An imported teacher is linear in the columns: it needs linear features."
            raise InvalidProblem(Fault("features.kind", "not_linear", message))
        if feature_map.n_columns != self.weights.shape[1]:
            message = f"The teacher has {self.weights.shape[1]} columns, the data {feature_map.n_columns}."
            raise InvalidProblem(Fault("teacher", "wrong_columns", message))
        standardisation = feature_map.standardisation
        constant = self.bias + self.weights @ standardisation.shift
        return LinearTeacher(np.column_stack([self.weights / standardisation.scale, constant]))


@final
@dataclass(frozen=True, slots=True)
class ImportedHead(TeacherSpec):
    """A linear head in place of a fitted teacher.

    It is also the teacher of every fold: it is unknown which rows it was trained on. If these rows were
    among them, held-out scores are those of rows that the teacher has seen, and thresholds, calibrations and
    searches based on them are optimistic. The packed teacher says so: ``seen_rows`` is ``unknown``.

    reference: its name, for the record. head: None where the weights are not needed because the teacher is
    restored.
    """

    name: ClassVar[str] = "imported"

    reference: str
    head: LinearHead | None = field(default=None, compare=False, repr=False)

    def fit(self, task: Task, run: Run, start: Teacher | None = None) -> LinearTeacher:
        """The head's weights on the features of the task; nothing is fitted."""
        del run, start
        feature_map = task.examples.feature_map
        if self.head is None or feature_map is None:
            message = f"the weights of the imported teacher {self.reference!r} are missing"
            raise InvalidProblem(Fault("teacher", "no_head", message))
        if len(self.head.weights) != task.n_classes:
            message = f"the teacher has {len(self.head.weights)} classes, the data {task.n_classes}"
            raise InvalidProblem(Fault("teacher", "wrong_classes", message))
        return self.head.on(feature_map)

    def fit_bytes(self, shape: FitShape) -> int:
        """Bytes of its weights, as they were imported and on the features."""
        return 24 * shape.weights

    def restore(
        self, arrays: Arrays, n_classes: int, n_features: int, summary: Summary | None
    ) -> LinearTeacher:
        """The teacher with these weights."""
        from core.teachers.linear import LinearTeacher

        return LinearTeacher.restore(arrays, n_classes, n_features, summary)

    def params(self) -> dict[str, str]:
        """The reference."""
        return {"reference": self.reference}

    def metadata(self) -> dict[str, str | float | int]:
        """The reference, and that it is unknown whether the head was trained on these rows."""
        return {"method": self.reference, "seen_rows": "unknown"}
