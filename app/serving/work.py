"""How large a request may be, and how much it may cost in the multiply-adds of `core.packed.work`.

The limits on bytes and rows do not bound the cost: a sparse row of a few bytes has as many columns as the
model, and a row of a classifier with two million classes costs two million scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.domain.errors import TooLarge
from core.packed import PackedMap
from core.packed.work import row_work

MAX_WORK: Final = 20_000_000_000
"""Default limit: six seconds or more of a core."""
INLINE_WORK: Final = 1 << 23
"""Most multiply-adds in the event loop: about three milliseconds."""

_OF_CLASS: Final = 2_000
"""Multiply-adds in the time of one step of the loop over the classes in `PackedTeacher.is_class`."""

TOO_MUCH_WORK: Final = "too_much_work"
"""Code of the error of `check_work`."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """max_bytes: of a decompressed body. max_rows: of a query. max_work: multiply-adds, see `check_work`.

    explains_columns: whether to explain rows by columns, which is always done in a thread.
    """

    max_bytes: int
    max_rows: int
    max_work: int = MAX_WORK
    explains_columns: bool = True


def prediction_work(packed: PackedMap, n_classes: int, *, target: bool = False) -> int:
    """Work of a row and the scores of all classes of a teacher.

    target: for one class, one score at a time.
    """
    return row_work(packed, n_classes) + (n_classes * _OF_CLASS if target else 0)


def check_work(rows: int, per_row: int, limit: int, *, classes: int = 1) -> None:
    """Raise TooLarge if ``rows`` rows cost more than ``limit`` multiply-adds.

    classes: that one row is asked for. One row of one class always passes.
    """
    if rows * classes > 1 and rows * per_row > limit:
        asked = f"{rows} rows" if classes == 1 else f"{rows} rows of {classes} classes"
        most = limit // per_row
        advice = (
            "Ask for fewer classes."
            if most == 0 and classes > 1
            else f"Send at most {max(1, most)} rows at a time."
        )
        message = (
            f"{asked} cost {rows * per_row:.2g} multiply-adds with this model; at most {limit:.2g} "
            f"are computed for one request. {advice}"
        )
        raise TooLarge(message, code=TOO_MUCH_WORK)
