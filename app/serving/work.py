"""The computation that a query costs, in multiply-adds or comparisons, and its limit.

The limits on bytes and rows do not bound it: a sparse row of a few bytes has as many columns as the model,
and a row of a classifier with two million classes costs two million scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from app.domain.errors import TooLarge
from core.packed import PackedStudent
from core.packed.maps import BesideTerms, PackedMap
from core.packed.record_rows import RecordRows

MAX_WORK: Final = 20_000_000_000
"""Default limit: ten to twenty seconds of a core."""

_OF_VALUE: Final = 500
_OF_TEXT: Final = 80_000
"""Multiply-adds in the time that a value of a record takes to be read, and a short text to be taken apart."""

TOO_MUCH_WORK: Final = "too_much_work"
"""Code of the error of `check_work`."""


def row_work(packed_map: PackedMap, outputs: int) -> int:
    """Multiply-adds for one row: its basis values, and ``outputs`` scores on them."""
    if isinstance(packed_map, BesideTerms):
        return row_work(packed_map.of_dense, outputs) + packed_map.n_terms * (1 + outputs)
    return max(packed_map.cost, packed_map.n_columns) + outputs * packed_map.n_basis


def students_work(students: Sequence[PackedStudent]) -> int:
    """The same for all scores of students of one map."""
    return row_work(students[0].map, sum(student.form.functions for student in students))


def record_work(students: Sequence[PackedStudent], rows: RecordRows) -> int:
    """The same for a record, whose values and texts cost time of their own."""
    functions = sum(student.form.functions for student in students)
    packed = students[0].map
    if isinstance(packed, BesideTerms):
        of_dense = row_work(packed.of_dense, functions)
    elif rows.has_terms and packed.kind == "linear":
        of_dense = rows.encoder.layout.dense * (1 + functions)
    else:
        of_dense = row_work(packed, functions)
    texts = sum(bool(column.tables) for column in rows.columns)
    return of_dense + _OF_VALUE * len(rows.columns) + _OF_TEXT * texts


def check_work(rows: int, per_row: int, limit: int) -> None:
    """Raise TooLarge if ``rows`` rows cost more than ``limit`` multiply-adds. A single row always passes."""
    if rows > 1 and rows * per_row > limit:
        most = max(1, limit // per_row)
        message = (
            f"{rows} rows cost {rows * per_row:.2g} multiply-adds with this model; at most {limit:.2g} "
            f"are computed for one request. Send at most {most} rows at a time."
        )
        raise TooLarge(message, code=TOO_MUCH_WORK)
