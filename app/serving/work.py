"""The computation that a query costs, in multiply-adds, and its limit.

The limits on bytes and rows do not bound it: a sparse row of a few bytes has as many columns as the model,
and a row of a classifier with two million classes costs two million scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from app.domain.errors import TooLarge
from core.packed import PackedStudent
from core.packed.maps import PackedMap

MAX_WORK: Final = 20_000_000_000
"""Default limit: ten to twenty seconds of a core."""

TOO_MUCH_WORK: Final = "too_much_work"
"""Code of the error of `check_work`."""


def row_work(packed_map: PackedMap, outputs: int) -> int:
    """Multiply-adds for one row: its basis values, and ``outputs`` scores on them."""
    n_columns, n_basis = packed_map.n_columns, packed_map.n_basis
    basis = n_columns if packed_map.kind == "linear" else n_columns * n_basis
    return basis + outputs * n_basis


def students_work(students: Sequence[PackedStudent]) -> int:
    """The same for all scores of students of one map."""
    return row_work(students[0].map, sum(student.form.functions for student in students))


def check_work(rows: int, per_row: int, limit: int) -> None:
    """Raise TooLarge if ``rows`` rows cost more than ``limit`` multiply-adds. A single row always passes."""
    if rows > 1 and rows * per_row > limit:
        most = max(1, limit // per_row)
        message = (
            f"{rows} rows cost {rows * per_row:.2g} multiply-adds with this model; at most {limit:.2g} "
            f"are computed for one request. Send at most {most} rows at a time."
        )
        raise TooLarge(message, code=TOO_MUCH_WORK)
