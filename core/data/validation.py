"""Checks of hyper-parameters and of rows, shared by training and queries; NumPy only.

Checks of hyper-parameters return a Fault each, so that all faults are reported together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import date, timedelta
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from core.errors import Fault, InvalidProblem

MAX_FAULTS = 10
"""Faults reported for one array; the rest would only repeat them."""

MAX_MAGNITUDE = 1e100
"""Largest absolute value accepted, so that sums of squares stay finite in float64."""

NO_VALUE = "has no value, and had one in every training row"
"""Message about a row with a gap in a column that may not have gaps."""

QUIET = np.errstate(over="ignore", invalid="ignore")
"""For functions that look themselves at whether their result is finite, instead of NumPy's warnings."""

_BLOCK_ENTRIES = 1 << 21
_NO_NUMBERS = {
    "m": "send seconds as a number",
    "M": "send columns with names, of which some may be dates",
    "c": "Complex data not supported; make a column of the real and one of the imaginary part",
    "V": "make a column of each field",
}
"""Kinds of NumPy types that are not numbers, and what to send instead."""
_ABSENT = frozenset({"NAType", "NaTType"})
"""Types of pandas for missing values, which are unequal to themselves or to nothing."""


def is_missing(value: Any) -> bool:
    """Whether a value of any library stands for a missing one: None, NaN, NaT or NA, or masked."""
    if value is None or type(value).__name__ in _ABSENT or type(value).__name__ == "MaskedConstant":
        return True
    if isinstance(value, Decimal):
        return value.is_nan()
    is_comparable = isinstance(value, float | np.floating | np.datetime64 | np.timedelta64)
    return is_comparable and bool(value != value)


def block_rows(width: int, entries: int = _BLOCK_ENTRIES) -> int:
    """Rows of a block of about ``entries`` when rows have ``width`` entries."""
    return max(1, entries // max(1, width))


def row_blocks(n_rows: int, width: int, entries: int = _BLOCK_ENTRIES) -> Iterator[slice]:
    """Slices that cover ``n_rows`` rows, each block about ``entries`` when rows have ``width`` entries.

    The cut depends on the numbers only, so block-wise sums are the same in every process.
    """
    step = block_rows(width, entries)
    for start in range(0, n_rows, step):
        yield slice(start, min(start + step, n_rows))


def value_faults(
    X: NDArray[np.floating], field: str, names: Sequence[str] | None = None
) -> tuple[Fault, ...]:
    """The first ten entries of ``X`` (n, d) that are NaN, infinite or beyond ``MAX_MAGNITUDE``, by rows."""
    faults: list[Fault] = []
    largest = largest_value(X.dtype)
    for rows in row_blocks(len(X), X.shape[1]):
        block = X[rows]
        # NaN fails both comparisons, so two reductions without a temporary clear a good block.
        if block.size == 0 or (block.min() >= -largest and block.max() <= largest):
            continue
        for row, column in np.argwhere(~(np.abs(block) <= largest))[: MAX_FAULTS - len(faults)]:
            place = (rows.start + int(row), int(column))
            faults.append(value_fault(float(block[row, column]), field, *place, names))
        if len(faults) == MAX_FAULTS:
            break
    return tuple(faults)


def largest_value(dtype: np.dtype[Any]) -> np.floating:
    """``MAX_MAGNITUDE``, or the largest number of a float ``dtype`` that does not reach as far."""
    limit: np.floating = dtype.type(min(MAX_MAGNITUDE, float(np.finfo(dtype).max)))
    return limit


def value_fault(value: float, field: str, row: int, column: int, names: Sequence[str] | None = None) -> Fault:
    """The Fault of one unusable number, with its place and, if known, the name of its column."""
    column_text = f"column {column}" if names is None else f"column {column} ({names[column]!r})"
    place = f"row {row}, {column_text} (counted from 0)"
    if np.isfinite(value):
        message = f"{field} has {value:.6g} at {place}; values beyond ±{MAX_MAGNITUDE:g} cannot be used."
        return Fault(field, "too_large", message, row, column)
    what = "NaN" if np.isnan(value) else ("an infinite value" if value > 0 else "a negative infinite value")
    return Fault(field, "not_finite", f"{field} has {what} at {place}.", row, column)


def no_value(name: str) -> str:
    """The message about a row with a gap in a column that had no gap in training."""
    return f"{name!r:.100} {NO_VALUE}"


def wrong_columns(field: str, given: int, expected: int) -> InvalidProblem:
    """The error of rows that do not have the expected number of columns."""
    message = f"{field} has {given} column{'' if given == 1 else 's'}; {expected} expected."
    return InvalidProblem(Fault(field, "wrong_columns", message))


def as_dense(X: Any, field: str, *, ndim: int = 2) -> NDArray[np.floating]:
    """``X`` as a C-ordered float array of ``ndim`` axes: float32 stays, other real types become float64.

    Raises InvalidProblem with code ``ragged``, ``not_numeric`` or ``wrong_shape``.
    """
    array = X if isinstance(X, np.ndarray) else _from_sequence(X, field)
    refuse_no_numbers(array, field)
    if array.dtype.kind == "O":
        array = _from_objects(array, field)
    if array.dtype.kind not in "biuf":
        raise InvalidProblem(Fault(field, "not_numeric", f"{field} must hold numbers, not {array.dtype}."))
    if array.ndim != ndim:
        shape = "a row (one axis)" if ndim == 1 else "a table of rows and columns (two axes)"
        message = f"{field} must be {shape}; it has {array.ndim} axes."
        raise InvalidProblem(Fault(field, "wrong_shape", message))
    if array.dtype.isnative and array.dtype in (np.float32, np.float64):
        return np.ascontiguousarray(array)
    return np.ascontiguousarray(array, dtype=np.float64)


def refuse_no_numbers(array: NDArray[Any], field: str) -> None:
    """Raise InvalidProblem for an array that NumPy would silently turn into wrong numbers: with a masked
    value, or with durations, moments, complex numbers or records.
    """
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        place = [int(axis[0]) for axis in np.nonzero(np.ma.getmaskarray(array))]
        where = ", ".join(f"{axis} {number}" for axis, number in zip(("row", "column"), place, strict=False))
        message = f"{field} has a masked value at {where} (counted from 0), and an array has no gaps."
        raise InvalidProblem(Fault(field, "missing_value", message, place[0]))
    kind: str = array.dtype.kind
    what = str(array.dtype)
    if kind == "O":
        kind, what = next(filter(None, map(_kind_of_no_numbers, set(map(type, array.ravel())))), (kind, what))
    if kind in _NO_NUMBERS:
        message = f"{field} must hold numbers, not {what}: {_NO_NUMBERS[kind]}."
        raise InvalidProblem(Fault(field, "not_numeric", message))


def _kind_of_no_numbers(kind: type) -> tuple[str, str] | None:
    """The kind in `_NO_NUMBERS` and the name of a Python or NumPy type of objects."""
    kinds = {"m": (timedelta, np.timedelta64), "M": (date, np.datetime64), "c": (complex, np.complexfloating)}
    return next(((letter, kind.__name__) for letter, types in kinds.items() if issubclass(kind, types)), None)


def _from_sequence(X: Any, field: str) -> NDArray[Any]:
    try:
        return np.asarray(X)
    except ValueError as error:
        row = _first_ragged_row(X)
        where = "" if row is None else f" Row {row} (counted from 0) is the first to differ."
        message = f"{field} must have the same number of values in every row.{where}"
        raise InvalidProblem(Fault(field, "ragged", message, row)) from error


def _first_ragged_row(X: Any) -> int | None:
    lengths = [len(row) if isinstance(row, Sequence | np.ndarray) else -1 for row in X]
    return next((i for i, length in enumerate(lengths) if length != lengths[0]), None)


def _from_objects(array: NDArray[Any], field: str) -> NDArray[np.float64]:
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidProblem(Fault(field, "not_numeric", f"{field} must hold numbers only.")) from error


def query_rows(X: ArrayLike, n_columns: int, field: str = "X") -> NDArray[np.float64]:
    """``X`` as a float64 table (n, n_columns) of usable numbers, or InvalidProblem."""
    table = as_dense(X, field)
    if table.shape[1] != n_columns:
        raise wrong_columns(field, table.shape[1], n_columns)
    faults = value_faults(table, field)
    if faults:
        raise InvalidProblem(*faults)
    return table.astype(np.float64, copy=False)


def query_row(x: ArrayLike, n_columns: int, field: str = "x") -> NDArray[np.float64]:
    """``x`` as a float64 row (n_columns,) of usable numbers, or InvalidProblem naming the column at fault."""
    row = as_dense(x, field, ndim=1)
    if len(row) != n_columns:
        raise wrong_columns(field, len(row), n_columns)
    faults = value_faults(row[np.newaxis], field)
    if faults:
        raise InvalidProblem(*faults)
    return row.astype(np.float64, copy=False)


def out_of_range(field: str) -> InvalidProblem:
    """The error of a row whose numbers are finite but too large for a finite answer."""
    message = f"{field} has values so large that no finite score exists."
    return InvalidProblem(Fault(field, "out_of_range", message))


def refuse(*faults: Fault | None) -> None:
    """Raise InvalidProblem with every fault that is not None; return when there is none."""
    found = [fault for fault in faults if fault is not None]
    if found:
        raise InvalidProblem(*found)


def out_of_bounds(
    field: str, value: object, low: float, high: float, *, open_low: bool = False, open_high: bool = False
) -> Fault | None:
    """A Fault unless ``value`` is a real number in [low, high], the marked ends excluded. NaN is outside."""
    if isinstance(value, Real) and not isinstance(value, bool):
        number = float(value)
        above = low < number if open_low else low <= number
        below = number < high if open_high else number <= high
        if above and below:
            return None
    interval = f"{'(' if open_low else '['}{low:g}, {high:g}{')' if open_high else ']'}"
    return Fault(field, "out_of_bounds", f"{field} must be a number in {interval}, got {value!r}")


def not_whole(field: str, value: object, low: int, high: int) -> Fault | None:
    """A Fault unless ``value`` is an integer in [low, high]."""
    if isinstance(value, Integral) and not isinstance(value, bool) and low <= int(value) <= high:
        return None
    return Fault(field, "out_of_bounds", f"{field} must be an integer in [{low}, {high}], got {value!r}")


def unknown_choice(field: str, value: object, choices: Collection[str]) -> Fault | None:
    """A Fault unless ``value`` is one of ``choices``."""
    if isinstance(value, str) and value in choices:
        return None
    return Fault(field, "unknown_choice", f"{field} must be one of {', '.join(choices)}, got {value!r}")
