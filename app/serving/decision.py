"""Decisions of students on rows, for all formats of queries.

score = v·φ(x)      match = score ≥ threshold      S^y(x) = score + θ·φ(x)  (gated SVM, Eq. 8)

If a student has several rejections θ_j, the one with the largest θ_j·φ(x) decides; an explained answer has
its number j.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Final, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from core.data.validation import QUIET, out_of_range
from core.packed import PackedStudent
from core.packed.evaluation import Output, evaluate, rows_for
from core.packed.student import finite_scores

Floats = NDArray[np.float64]
_Number = TypeVar("_Number", np.float64, np.int64)

Explain: TypeAlias = bool | Literal["columns"]
"""What a query requests besides the decision: nothing, its parts, or also the effects of columns."""
COLUMNS: Final = "columns"
MAX_CLASSES: Final = 256
"""Largest number of classes in one query."""


@dataclass(frozen=True, slots=True)
class Decisions:
    """Decisions of one student on n rows; arrays are (n,).

    probabilities: None if the student is not calibrated. gate: S^y(x), the teacher's score of the class.
    rejection: θ·φ(x), which is compared with the gate: gate minus rejection is the score. pieces: numbers of
    the deciding rejections, from 0; None if the student has only one. All three are None unless requested.
    """

    scores: Floats
    match: NDArray[np.bool_]
    probabilities: Floats | None = None
    gate: Floats | None = None
    rejection: Floats | None = None
    pieces: NDArray[np.int64] | None = None

    @property
    def first(self) -> RowDecision:
        """The decision on the first row."""
        return RowDecision(
            float(self.scores[0]),
            None if self.gate is None else float(self.gate[0]),
            None if self.pieces is None else int(self.pieces[0]),
        )

    @classmethod
    def joined(cls, parts: Sequence[Decisions]) -> Decisions:
        """Concatenate the decisions of one student on consecutive blocks of rows."""
        return cls(
            np.concatenate([part.scores for part in parts]),
            np.concatenate([part.match for part in parts]),
            _joined([part.probabilities for part in parts]),
            _joined([part.gate for part in parts]),
            _joined([part.rejection for part in parts]),
            _joined([part.pieces for part in parts]),
        )


class RowDecision(NamedTuple):
    """The score of one student on one row, and on request its gate and piece, as in `Decisions`."""

    score: float
    gate: float | None = None
    piece: int | None = None


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
        outputs: list[Output] = [student.form.linear or student.form.block for student in group]
        if explain:
            outputs += [student.form.gate for student in group]
            outputs += [student.form.piece for student in group if student.form.piece is not None]
        values = iter(evaluate(group[0].map, rows_for(group[0].map, X), outputs))
        scores = [next(values) for _ in group]
        gates = [next(values) if explain else None for _ in group]
        for index, student, score, gate in zip(indices, group, scores, gates, strict=True):
            pieces = next(values) if explain and student.form.piece is not None else None
            decisions[index] = decisions_of(student, score, gate, pieces)
    return [decisions[index] for index in range(len(students))]


def decide_row(
    students: Sequence[PackedStudent], x: ArrayLike, *, explain: bool = False
) -> list[RowDecision]:
    """The decisions of several students on one dense row x (d,); gate and piece only with ``explain``.

    Students of the same map share its basis values. Raises InvalidProblem naming the column.
    """
    results: list[RowDecision] = []
    shared: dict[str, Floats] = {}
    for student in students:
        basis = shared.get(student.map.digest)
        if basis is None:
            basis = student.map.row(student.checked_row(x))
            shared[student.map.digest] = basis
        score = student.score_at(basis)
        if not explain:
            results.append(RowDecision(score))
            continue
        gate, piece = student.gate_at(basis), student.form.piece
        if not isfinite(gate - score):
            raise out_of_range("x")
        results.append(RowDecision(score, gate, None if piece is None else int(piece(basis[np.newaxis])[0])))
    return results


def _joined(parts: Sequence[NDArray[_Number] | None]) -> NDArray[_Number] | None:
    known = [part for part in parts if part is not None]
    return np.concatenate(known) if known else None


@QUIET
def decisions_of(
    student: PackedStudent, scores: Floats, gate: Floats | None = None, pieces: Floats | None = None
) -> Decisions:
    """The decisions with some scores (n,). gate, pieces: only of rows that are explained."""
    calibration = student.calibration
    return Decisions(
        scores,
        scores >= student.threshold,
        None if calibration is None else calibration.probabilities(scores),
        gate,
        None if gate is None else finite_scores(gate - scores),
        None if pieces is None else pieces.astype(np.int64),
    )
