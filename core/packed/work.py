"""Estimates the time of each evaluation, in multiply-adds.

One multiply-add of a product of two vectors takes about a third of a nanosecond. Maps, forms and trees
declare the time of a row in ``work``, and explanations in ``contributions``; this module adds up the classes
of a request. The interpreter's time for each call is not counted, unless a request has many calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from core.packed.maps import BesideTerms, PackedMap
from core.packed.record_rows import RecordRows
from core.packed.student import PackedStudent

_OF_VALUE: Final = 500
_OF_TEXT: Final = 80_000
"""Time of reading a value of a record and splitting a short text."""


def row_work(packed: PackedMap, outputs: int) -> int:
    """Work of a row's basis values, and of ``outputs`` linear functions of them."""
    return packed.work + outputs * packed.n_basis


def students_work(students: Sequence[PackedStudent], *, explain: bool = False) -> int:
    """Work of all scores of one version's students for a row; students of one map share its basis values.

    explain: also for gates and numbers of the deciding rejections.
    """
    of_maps = {student.map.digest: student.map.work for student in students}
    return sum(of_maps.values()) + sum(_score_work(student, explain=explain) for student in students)


def record_work(students: Sequence[PackedStudent], rows: RecordRows, *, explain: bool = False) -> int:
    """Like `students_work` for a record, whose values and texts take additional time.

    A record has few terms, and linear functions of terms take time for these only.
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
    """Work of a score from basis values."""
    form = student.form
    if not explain:
        return form.work
    return form.work * (1 if form.piece is None else 2) + student.map.n_basis
