"""What answers cost: the time of each evaluation, in multiply-adds.

A multiply-add is one of a product of two vectors, about a third of a nanosecond. Maps, forms and trees say
beside their code what a row costs them (``work``), and so do explanations (``contributions``); here is what
the classes of a request come to. What the interpreter takes to call each of them is not counted, unless a
request has many calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from core.packed.maps import BesideTerms, PackedMap
from core.packed.record_rows import RecordRows
from core.packed.student import PackedStudent

_OF_VALUE: Final = 500
_OF_TEXT: Final = 80_000
"""The time in which a value of a record is read, and a short text is taken apart."""


def row_work(packed: PackedMap, outputs: int) -> int:
    """For the basis values of a row, and ``outputs`` linear functions of them."""
    return packed.work + outputs * packed.n_basis


def students_work(students: Sequence[PackedStudent], *, explain: bool = False) -> int:
    """For all scores of students of one version at a row; those of the same map share its basis values.

    explain: also for the gates, and for the numbers of the rejections that decide.
    """
    of_maps = {student.map.digest: student.map.work for student in students}
    return sum(of_maps.values()) + sum(_score_work(student, explain=explain) for student in students)


def record_work(students: Sequence[PackedStudent], rows: RecordRows, *, explain: bool = False) -> int:
    """As `students_work` for a record, whose values and texts take time of their own.

    Of the terms a record has few: linear functions of them cost only those.
    """
    of_maps: dict[str, int] = {}
    of_scores = 0
    for student in students:
        packed, of_score = student.map, _score_work(student, explain=explain)
        of_map = packed.work
        if isinstance(packed, BesideTerms):
            of_map, of_score = packed.of_dense.work, of_score * packed.of_dense.n_basis // packed.n_basis
        elif rows.has_terms and packed.kind == "linear":
            dense = rows.encoder.layout.dense
            of_map, of_score = dense, of_score * dense // packed.n_basis
        of_maps[packed.digest] = of_map
        of_scores += of_score
    texts = sum(bool(column.tables) for column in rows.columns)
    return sum(of_maps.values()) + of_scores + _OF_VALUE * len(rows.columns) + _OF_TEXT * texts


def _score_work(student: PackedStudent, *, explain: bool) -> int:
    """For a score from basis values."""
    form = student.form
    if not explain:
        return form.work
    return form.work * (1 if form.piece is None else 2) + student.map.n_basis
