"""Privileged information of a student: columns known in training only, or values from the teacher."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

import numpy as np

from core.parameters import Doc
from core.students.base import Need

if TYPE_CHECKING:
    from core.students.base import Problem
    from core.types import FloatArray

Source: TypeAlias = Annotated[
    Literal["auto", "columns", "teacher"],
    Doc(
        "columns: the privileged columns of the data set. teacher: the teacher's score of the class, its"
        " largest score of another class, and the difficulty. auto: the columns if there are any."
    ),
]

_FLOOR: Final = 0.5
"""ϵ of Eq. 11. Any value gives the same columns, because the columns are standardised."""


def privileged_needs(source: str) -> frozenset[Need]:
    """Dense rows; also privileged columns, if ``source`` asks for them."""
    return frozenset({"dense", "privileged"} if source == "columns" else {"dense"})


def privileged_columns(problem: Problem, source: str) -> tuple[str, FloatArray]:
    """The source and the columns (n, p): ``"columns"`` of the set, or (S^y, r, d) of the ``"teacher"``."""
    columns = problem.examples.privileged
    if columns is not None and source != "teacher":
        return "columns", np.asarray(columns, dtype=np.float64)
    scores = (problem.gate, problem.rival, problem.difficulty(_FLOOR))
    return "teacher", np.column_stack(scores).astype(np.float64)
