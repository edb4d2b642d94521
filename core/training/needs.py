"""Checks that the data have what the learners need, before anything is fitted."""

from __future__ import annotations

from collections.abc import Sequence

import scipy.sparse as sp

from core.data.dataset import LabelledData
from core.data.extras import EXTRAS
from core.errors import Fault, InvalidProblem
from core.features.tree_columns import has_tree_columns
from core.students.base import StudentSpec
from core.teachers.base import TeacherSpec


def _suits(data: LabelledData, spec: TeacherSpec | StudentSpec) -> bool:
    """Whether the rows are dense or, for teachers of trees, have columns besides texts."""
    if isinstance(spec, TeacherSpec) and spec.grows_trees:
        return has_tree_columns(data.X, data.layout)
    return not sp.issparse(data.X)


def check_needs(data: LabelledData, teacher: TeacherSpec, students: Sequence[StudentSpec]) -> None:
    """Raise InvalidProblem naming each thing that the data lack, with its field and learners that need it."""
    faults = []
    learners: tuple[TeacherSpec | StudentSpec, ...] = (teacher, *students)
    for need, what in EXTRAS.items():
        names = [spec.name for spec in learners if need in spec.needs]
        if names and need not in data.extras.offers:
            message = f"{', '.join(names)} needs {what}, and the data set has none"
            faults.append(Fault(need, "missing", message))
    for kind, specs in (("students", students), ("teachers", [teacher])):
        dense = [spec.name for spec in specs if "dense" in spec.needs and not _suits(data, spec)]
        if dense:
            faults.append(Fault("X", "sparse", f"{kind} of kind {', '.join(dense)} need dense rows"))
    copies = [spec.name for spec in students if "trees" in spec.needs]
    if copies and not teacher.grows_trees:
        message = f"students of kind {', '.join(copies)} need a teacher of trees, not {teacher.name}"
        faults.append(Fault("teacher", "no_trees", message))
    linear = [spec.name for spec in students if "held_out" in spec.needs]
    if linear and teacher.grows_trees:
        message = f"students of kind {', '.join(linear)} need a teacher that is linear in the features"
        faults.append(Fault("teacher", "not_linear", message))
    if faults:
        raise InvalidProblem(*faults)
