"""Some different cells of each column, by which a person sees at a glance what the column holds."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from core.data.table import Cells, NumberCells, PictureCells, TextCells
from core.types import Matrix

MOST_EXAMPLES: Final = 3
LONGEST_EXAMPLE: Final = 100
"""Characters of an example; of a longer cell it has the first ones and an ellipsis."""
_FIRST_ROWS: Final = 1000
"""Rows of a matrix in which examples are looked for."""
_VECTOR_NUMBERS: Final = 5


def cell_examples(cells: Cells, nulls: Collection[str] = ()) -> list[str]:
    """The first different cells of a column as they stand in its file. nulls: further texts that are gaps."""
    if isinstance(cells, TextCells):
        rows = _first_different(cells.codes, cells.is_gap, {*nulls}, cells)
        return [_shortened(cells.texts[int(cells.codes[row])]) for row in rows]
    if isinstance(cells, NumberCells):
        rows = _first_different(cells.values, cells.is_gap)
        return [_written(float(cells.values[row]), is_truth=cells.is_truth) for row in rows]
    if isinstance(cells, PictureCells):
        return []
    vectors = cells.values[~cells.is_gap][:MOST_EXAMPLES]
    return [*dict.fromkeys(map(_vector, vectors))]


def number_examples(X: Matrix) -> Iterator[list[str]]:
    """The first different numbers of each column of a matrix, (n, d)."""
    first = X[:_FIRST_ROWS]
    dense = first if isinstance(first, np.ndarray) else first.toarray()
    for column in dense.T:
        rows = _first_different(column, np.zeros(len(column), dtype=bool))
        # Numbers of single precision are written as that: 0.1, not 0.10000000149011612.
        yield [_written(float(str(column[row]))) for row in rows]


def _first_different(
    values: NDArray[Any],
    is_gap: NDArray[np.bool_],
    nulls: Collection[str] = (),
    cells: TextCells | None = None,
) -> list[int]:
    """The first rows with different values."""
    left, rows = ~is_gap, list[int]()
    while len(rows) < MOST_EXAMPLES and left.any():
        row = int(left.argmax())
        left &= values != values[row]
        if cells is None or cells.texts[int(values[row])] not in nulls:
            rows.append(row)
    return rows


def _written(value: float, *, is_truth: bool = False) -> str:
    if is_truth:
        return "true" if value else "false"
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def _vector(values: NDArray[np.float64]) -> str:
    shown = ", ".join(_written(float(value)) for value in values[:_VECTOR_NUMBERS])
    return f"[{shown}{', …' if len(values) > _VECTOR_NUMBERS else ''}]"


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_EXAMPLE else text[: LONGEST_EXAMPLE - 1] + "…"
