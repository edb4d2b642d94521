"""The rows of a query after its answer: read again, where a few of them are kept or asked about elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from app.domain.errors import ServiceError
from app.domain.monitors import MAX_ROW_BYTES
from app.serving.columns.base import Columns, Rows

MAX_SOURCE_BYTES: Final = 1024**2
"""Bodies of more bytes are not held for their rows."""
HELD_BYTES: Final = 16 * 1024**2
"""Most bytes of bodies that wait at the same time, for each purpose."""


class RowSource:
    """The body of a query that was answered. size: of the body in bytes. read: makes its rows of it.

    Reading is left to whoever needs a row, so that it costs a query nothing but the memory of its body.
    """

    __slots__ = ("_read", "_rows", "size")

    def __init__(self, size: int, read: Callable[[Columns], Rows]) -> None:
        self.size, self._read = size, read
        self._rows: Rows | None = None

    def body_of(self, columns: Columns, number: int) -> bytes | None:
        """The body of a query in JSON about one row; None if it is larger than `MAX_ROW_BYTES`.

        None, too, where the rows cannot be read again, of which the answer has told already.
        """
        try:
            if self._rows is None:
                self._rows = self._read(columns)
            body = self._rows.body_of(number)
        except ServiceError:
            return None
        return body if len(body) <= MAX_ROW_BYTES else None
