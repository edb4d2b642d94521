"""Pages of lists that are bounded in bytes, too: a thousand rows may be of a megabyte each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, takewhile
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Connection

PAGE_BYTES: Final = 4 * 1024**2
"""Bytes of the rows of one page, as they are stored. A page has at least one row, however long that is."""


def fitting(sizes: Iterable[int]) -> int:
    """How many of the first items, whose bytes these are, fit into a page; at least one if there is any."""
    totals = list(accumulate(sizes))
    return max(len(list(takewhile(lambda total: total <= PAGE_BYTES, totals))), min(1, len(totals)))


def bounded_page(
    connection: Connection, query: sa.Select[Any], size: sa.ColumnElement[int], limit: int
) -> tuple[Sequence[sa.Row[Any]], bool]:
    """The first rows of an ordered query, at most ``limit`` and `PAGE_BYTES`, and whether more follow.

    size: bytes of a row, preferably a column. The database computes it, so that long rows are not read only
    to be left out.
    """
    sizes = list(connection.execute(query.with_only_columns(size).limit(limit + 1)).scalars())
    count = fitting(sizes[:limit])
    rows = connection.execute(query.limit(count)).all() if count else []
    return rows, len(sizes) > count
