"""Data frames of any library as tables of raw cells: pandas, polars, Arrow, and mappings of columns.

None of these libraries is imported: a frame gives its names, and each column its values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from numbers import Real
from typing import Any, Final

import numpy as np

from core.data.cell_values import category_key
from core.data.table import Cells, NumberCells, Table, TextCells, VectorCells
from core.errors import Fault, InvalidProblem

_ABSENT: Final = frozenset({"NAType", "NaTType"})
"""Types of pandas for missing values, which are unequal to themselves or to nothing."""


def is_frame(X: Any) -> bool:
    """Whether ``X`` is a data frame or a mapping of columns."""
    return isinstance(X, Mapping) or (_names_of(X) is not None and hasattr(X, "__getitem__"))


def has_records(frame: Any) -> bool:
    """Whether a frame has a column that is no number in every row, so that an encoder is needed."""
    for name in column_names(frame):
        kind = getattr(getattr(_column(frame, name), "dtype", None), "kind", None)
        if kind not in ("i", "u", "f"):
            cells = _cells(name, _values(frame, name))
            if not isinstance(cells, NumberCells) or cells.is_truth or cells.is_gap.any():
                return True
        elif kind == "f" and np.isnan(np.asarray(_column(frame, name), dtype=np.float64)).any():
            return True
    return False


def column_names(frame: Any) -> list[str]:
    """The names of a frame's columns. Raises InvalidProblem for names that are no text."""
    names = list(frame) if isinstance(frame, Mapping) else _names_of(frame) or []
    wrong = next((name for name in names if not isinstance(name, str)), None)
    if wrong is not None:
        message = f"The columns of a data frame must have texts as names, not {wrong!r:.40}."
        raise InvalidProblem(Fault("X", "bad_name", message))
    return names


def table_of_frame(frame: Any) -> Table:
    """The raw cells of a frame: None, NaN, NaT and NA are gaps, and dates become texts of ISO 8601.

    Raises InvalidProblem for columns of other values than texts, numbers, truth values, dates and lists of
    numbers.
    """
    names = column_names(frame)
    return Table(tuple(names), tuple(_cells(name, _values(frame, name)) for name in names))


def _names_of(frame: Any) -> list[Any] | None:
    # Arrow has names beside its columns, the others have names as their columns.
    names = getattr(frame, "column_names", None)
    if names is None:
        names = getattr(frame, "columns", None)
    if names is None or isinstance(frame, np.ndarray):
        return None
    return list(names)


def _column(frame: Any, name: str) -> Any:
    return frame[name]


def _values(frame: Any, name: str) -> Sequence[Any]:
    column = _column(frame, name)
    for method in ("to_pylist", "to_list", "tolist"):
        if hasattr(column, method):
            values: Sequence[Any] = getattr(column, method)()
            return values
    return list(column)


def _cells(name: str, values: Sequence[Any]) -> Cells:
    known = [value for value in values if not _is_gap(value)]
    if all(isinstance(value, bool | np.bool_) for value in known) and known:
        return NumberCells(_numbers(values), is_truth=True)
    if all(isinstance(value, Real) for value in known):
        return NumberCells(_numbers(values))
    if all(isinstance(value, list | tuple | np.ndarray) for value in known):
        return _vectors(name, values, known)
    return TextCells.of(None if _is_gap(value) else _text(name, value) for value in values)


def _is_gap(value: Any) -> bool:
    if value is None or type(value).__name__ in _ABSENT:
        return True
    return isinstance(value, float) and value != value


def _numbers(values: Sequence[Any]) -> np.ndarray:
    return np.array([np.nan if _is_gap(value) else float(value) for value in values], dtype=np.float64)


def _vectors(name: str, values: Sequence[Any], known: Sequence[Any]) -> VectorCells:
    width = len(known[0])
    try:
        rows = [[np.nan] * width if _is_gap(value) else [*map(float, value)] for value in values]
        table = np.array(rows, dtype=np.float64)
        if table.ndim != 2 or width == 0:
            raise ValueError(f"they have between {min(map(len, known))} and {max(map(len, known))} numbers")
    except (TypeError, ValueError) as error:
        message = f"The lists in column {name!r:.80} must all have as many numbers: {error}."
        raise InvalidProblem(Fault("X", "bad_vector", message)) from error
    return VectorCells(table)


def _text(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, bool | np.bool_):
        return category_key(bool(value))
    if isinstance(value, Real):
        return category_key(float(value))
    message = f"Column {name!r:.80} has a value of type {type(value).__name__}, which no column can have."
    raise InvalidProblem(Fault("X", "bad_type", message))
