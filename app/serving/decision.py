"""Decisions of students on rows, for all formats of queries.

score = v·φ(x)      match = score ≥ threshold      S^y(x) = score + θ·φ(x)  (gated SVM, Eq. 8)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from core.data.validation import QUIET, out_of_range
from core.packed import PackedStudent
from core.packed.evaluation import Output, evaluate, rows_for
from core.packed.student import finite_scores

Floats = NDArray[np.float64]

MAX_CLASSES: Final = 256
"""Largest number of classes in one query."""


@dataclass(frozen=True, slots=True)
class Decisions:
    """Decisions of one student on n rows; arrays are (n,).

    probabilities: None if the student is not calibrated. gate: S^y(x), the teacher's score of the class.
    rejection: θ·φ(x), which the gate is compared with: their difference is the score. Both are None unless
    requested.
    """

    scores: Floats
    match: NDArray[np.bool_]
    probabilities: Floats | None = None
    gate: Floats | None = None
    rejection: Floats | None = None

    @classmethod
    def joined(cls, parts: Sequence[Decisions]) -> Decisions:
        """Concatenate the decisions of one student on consecutive blocks of rows."""
        return cls(
            np.concatenate([part.scores for part in parts]),
            np.concatenate([part.match for part in parts]),
            _joined([part.probabilities for part in parts]),
            _joined([part.gate for part in parts]),
            _joined([part.rejection for part in parts]),
        )


def decide(student: PackedStudent, X: NDArray[np.floating], *, explain: bool = False) -> Decisions:
    """The decisions of one student on dense rows X (n, d), float32 or float64.

    Raises InvalidProblem naming row and column of an invalid value.
    """
    return decide_all([student], X, explain=explain)[0]


def decide_all(
    students: Sequence[PackedStudent], X: NDArray[np.floating], *, explain: bool = False
) -> list[Decisions]:
    """The decisions of several students on the same rows X (n, d), in the order of the students.

    Students of the same map share one pass over the rows. Raises as `decide`.
    """
    sharing: dict[str, list[int]] = {}
    for index, student in enumerate(students):
        sharing.setdefault(student.map.digest, []).append(index)
    decisions: dict[int, Decisions] = {}
    for indices in sharing.values():
        group = [students[index] for index in indices]
        outputs: list[Output] = [student.form.linear or student.form for student in group]
        if explain:
            outputs += [student.form.gate for student in group]
        values = evaluate(group[0].map, rows_for(group[0].map, X), outputs)
        for number, (index, student) in enumerate(zip(indices, group, strict=True)):
            gate = values[len(group) + number] if explain else None
            decisions[index] = _decisions(student, values[number], gate)
    return [decisions[index] for index in range(len(students))]


def decide_row(
    students: Sequence[PackedStudent], x: ArrayLike, *, explain: bool = False
) -> list[tuple[float, float | None]]:
    """(score, gate) of several students on one dense row x (d,); the gate is None unless ``explain``.

    Students of the same map share its basis values. Raises InvalidProblem naming the column.
    """
    results: list[tuple[float, float | None]] = []
    shared: dict[str, Floats] = {}
    for student in students:
        basis = shared.get(student.map.digest)
        if basis is None:
            basis = student.map.row(student.checked_row(x))
            shared[student.map.digest] = basis
        score = student.score_at(basis)
        gate = student.gate_at(basis) if explain else None
        if gate is not None and not isfinite(gate - score):
            raise out_of_range("x")
        results.append((score, gate))
    return results


def _joined(parts: Sequence[Floats | None]) -> Floats | None:
    known = [part for part in parts if part is not None]
    return np.concatenate(known) if known else None


@QUIET
def _decisions(student: PackedStudent, scores: Floats, gate: Floats | None) -> Decisions:
    calibration = student.calibration
    return Decisions(
        scores,
        scores >= student.threshold,
        None if calibration is None else calibration.probabilities(scores),
        gate,
        None if gate is None else finite_scores(gate - scores),
    )
