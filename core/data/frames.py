"""Data frames of any library as tables of raw cells: pandas, polars, Arrow, and mappings of columns.

None of these libraries is imported: a frame provides its names, and each column provides its values. Columns
may hold the same values as columns of files, and cells are read in the same way; see the table in
``docs/types.md``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from numbers import Complex, Real
from typing import Any, Final
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from core.data.cell_values import NULLS, category_key
from core.data.table import Cells, NumberCells, Table, TextCells, VectorCells
from core.data.validation import MAX_FAULTS, MAX_MAGNITUDE, is_missing
from core.errors import Fault, InvalidProblem

NO_COLUMN: Final[Mapping[str, str]] = {
    "duration": "durations; send seconds as a number, in pandas column.dt.total_seconds()",
    "time": "times of day; send the seconds since midnight, or the hour, as a number",
    "interval": "intervals; make a column of each of their ends",
    "complex": "complex numbers; make a column of the real and one of the imaginary part",
    "record": "records; make a column of each of their fields",
    "texts": "lists of texts; only lists of numbers are read: make a column of each value, or one text",
    "others": "lists of other values; only lists of numbers are read: make a column of each value",
}
"""Types that a column cannot hold, and what to send instead."""
_MICROSECOND_DIGITS: Final = 6
_USUAL: Final = frozenset({str, float, int, bool, type(None), list, tuple})
"""Types of values that are cells as they are."""


def no_column(name: str, what: str) -> str:
    """The message that a column holds a type that is not supported. what: a key of `NO_COLUMN`."""
    return f"Column {name!r:.80} is of a type which no column may have: {NO_COLUMN[what]}."


def moment_text(moment: date) -> str:
    """A day, or a day and a time to the microsecond, in ISO 8601 as readers of files write it; in UTC."""
    if not isinstance(moment, datetime):
        return moment.isoformat()
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC)
    whole, _, decimals = moment.replace(tzinfo=None).isoformat(" ").partition(".")
    # Timestamps of pandas have nanoseconds.
    decimals = decimals[:_MICROSECOND_DIGITS].rstrip("0")
    return f"{whole}{'.' if decimals else ''}{decimals}{'' if moment.tzinfo is None else 'Z'}"


def moments_of(array: NDArray[np.datetime64]) -> list[Any]:
    """Days and moments of NumPy (n,) as Python's types: None for NaT and masked values, and a whole number
    for a year that Python's dates cannot represent.
    """
    is_days = np.datetime_data(array.dtype)[0] in ("Y", "M", "W", "D")
    moments: list[Any] = array.astype("M8[D]" if is_days else "M8[us]").tolist()
    return moments


def is_frame(X: Any) -> bool:
    """Whether ``X`` is a data frame, a mapping of columns or a list of records."""
    return (
        isinstance(X, Mapping) or _are_records(X) or (_names_of(X) is not None and hasattr(X, "__getitem__"))
    )


def is_array(frame: Any) -> bool:
    """Whether each column of a frame is an array of finite numbers, so that NumPy takes the frame."""
    if isinstance(frame, Mapping) or _are_records(frame):
        return False
    keys = _keys_of(frame)
    column_names(frame)
    has_names = all(isinstance(key, str) for key in keys) or not is_named(frame)
    return has_names and all(_are_finite(frame[key]) for key in keys)


def is_named(frame: Any) -> bool:
    """Whether a column of a frame has a text as its name; otherwise columns are known by their positions."""
    return any(isinstance(key, str) for key in _keys_of(frame))


def has_records(table: Table) -> bool:
    """Whether a table has a column that is no number in every row, so that an encoder is needed."""
    return any(
        not isinstance(cells, NumberCells) or cells.is_truth or bool(cells.is_gap.any())
        for cells in table.cells
    )


def column_names(frame: Any) -> list[str]:
    """The names of a frame's columns: names that are no text are their text, as in the header of a file, and
    a column without a name is called by its position.

    Raises InvalidProblem for names of several levels, and for one that is there twice.
    """
    names: dict[str, Any] = {}
    for position, name in enumerate(_keys_of(frame)):
        if isinstance(name, tuple):
            message = (
                f"The columns have names of several levels, such as {name!r:.80}. Give each column one name:"
                ' frame.columns = ["_".join(map(str, name)) for name in frame.columns].'
            )
            raise InvalidProblem(Fault("X", "bad_name", message, column=position))
        text = name if isinstance(name, str) else str(position) if is_missing(name) else str(name)
        if text in names:
            message = f"The table has two columns named {text!r:.80}."
            raise InvalidProblem(Fault("X", "duplicate", message, column=position))
        names[text] = name
    return list(names)


def table_of_frame(frame: Any) -> Table:
    """The raw cells of a frame: None, NaN, NaT, NA and masked values are gaps, dates are texts of ISO 8601.

    Raises InvalidProblem for columns of other values than texts, numbers, truth values, dates and lists of
    numbers, and naming numbers that are infinite or too large.
    """
    names = column_names(frame)
    if not names:
        raise InvalidProblem(Fault("X", "no_columns", "X has no columns."))
    columns = _columns(frame)
    table = Table(tuple(names), tuple(_cells(*one) for one in zip(names, columns, strict=True)))
    if table.n == 0:
        raise InvalidProblem(Fault("X", "empty", "X has no rows."))
    return table


def without_tokens(table: Table) -> Table:
    """The table with gaps in place of texts that stand for a missing value in cells of files, such as NA."""
    cells = (column.without(NULLS) if isinstance(column, TextCells) else column for column in table.cells)
    return Table(table.names, tuple(cells))


def _are_records(X: Any) -> bool:
    return isinstance(X, list | tuple) and len(X) > 0 and all(isinstance(row, Mapping) for row in X)


def _names_of(frame: Any) -> list[Any] | None:
    # Arrow tables have `column_names`; the other libraries have the names in `columns`.
    names = getattr(frame, "column_names", None)
    if names is None:
        names = getattr(frame, "columns", None)
    if names is None or isinstance(frame, np.ndarray):
        return None
    return list(names)


def _keys_of(frame: Any) -> list[Any]:
    """The names as the frame has them."""
    if _are_records(frame):
        return list(dict.fromkeys(name for row in frame for name in row))
    return list(frame) if isinstance(frame, Mapping) else _names_of(frame) or []


def _columns(frame: Any) -> list[Any]:
    keys = _keys_of(frame)
    if _are_records(frame):
        return [[row.get(key) for row in frame] for key in keys]
    return [frame[key] for key in keys]


def _are_finite(column: Any) -> bool:
    """Whether a column is an array of numbers without gaps and masked values."""
    if isinstance(column, np.ma.MaskedArray):
        return False
    kind = getattr(getattr(column, "dtype", None), "kind", None)
    if kind not in ("i", "u", "f"):
        return False
    try:
        return bool((np.abs(np.asarray(column, dtype=np.float64)) <= MAX_MAGNITUDE).all())
    except (TypeError, ValueError):
        # A nullable column with a gap.
        return False


def _cells(name: str, column: Any) -> Cells:
    if isinstance(getattr(column, "dtype", None), np.dtype) and _are_finite(column):
        numbers = np.asarray(column, dtype=np.float64)
        if numbers.ndim == 1:
            return NumberCells(numbers)
    values = _plain_values(name, _values(name, column))
    known = [value for value in values if not is_missing(value)]
    if all(isinstance(value, bool) for value in known) and known:
        return NumberCells(_numbers(name, values), is_truth=True)
    if all(isinstance(value, Real | Decimal) for value in known):
        return NumberCells(_numbers(name, values))
    if all(isinstance(value, list | tuple | np.ndarray) for value in known):
        return _vectors(name, values, known)
    return TextCells.of(None if is_missing(value) else _text(name, value) for value in values)


def _values(name: str, column: Any) -> Sequence[Any]:
    """The values of a column as objects; days and moments of NumPy and Arrow as those of Python."""
    kind = str(getattr(column, "type", ""))
    if kind.startswith(("duration", "month_day_nano")):
        raise _bad_type(name, "duration")
    array = np.asarray(column) if kind.startswith("timestamp") else column
    if isinstance(array, np.ndarray):
        if array.dtype.kind == "M":
            return _moments(name, array, getattr(getattr(column, "type", None), "tz", None))
        if array.dtype.kind in "mV":
            raise _bad_type(name, "duration" if array.dtype.kind == "m" else "record")
        column = array if array.ndim else array.item()
    if not isinstance(column, Mapping | str | bytes):
        for method in ("to_pylist", "to_list", "tolist"):
            if hasattr(column, method):
                values: Sequence[Any] = getattr(column, method)()
                return values
        if hasattr(column, "__iter__"):
            return list(column)
    message = (
        f"Column {name!r:.80} is {column!r:.40}, not a list of values. If X is one record, give a list of it:"
        " [record]."
    )
    raise InvalidProblem(Fault("X", "wrong_shape", message))


def _moments(name: str, array: NDArray[np.datetime64], zone: str | None) -> list[str | None]:
    """Days and moments (n,) as texts; None for missing ones. zone: of Arrow, whose moments are UTC then."""
    texts = []
    for row, moment in enumerate(moments_of(array)):
        if isinstance(moment, int):
            message = f"Row {row} (counted from 0), column {name!r:.80}: a year beyond 1 to 9999."
            raise InvalidProblem(Fault("X", "bad_date", message, row=row))
        known = moment if moment is None or zone is None else moment.replace(tzinfo=UTC)
        texts.append(None if known is None else moment_text(known))
    return texts


def _plain_values(name: str, values: Sequence[Any]) -> Sequence[Any]:
    unusual = set(map(type, values)) - _USUAL
    if not unusual:
        return values
    return [_plain(name, value) if type(value) in unusual else value for value in values]


def _plain(name: str, value: Any) -> Any:
    """A value as a number, a truth value, a text or a list; None for a missing one. Raises InvalidProblem."""
    if is_missing(value):
        return None
    if isinstance(value, Enum):
        return _plain(name, value.value)
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return _plain(name, value.item())
    text = _special_text(name, value)
    if text is not None:
        return text
    what = _never_a_cell(value)
    if what is not None:
        raise _bad_type(name, what)
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, str | Real | Decimal | list | tuple | np.ndarray):
        return value
    if hasattr(value, "to_pylist") or hasattr(value, "to_list"):
        return list(value)
    message = f"Column {name!r:.80} has a value of type {type(value).__name__}, which no column may have."
    raise InvalidProblem(Fault("X", "bad_type", message))


def _special_text(name: str, value: Any) -> str | None:
    """The text of a date, a period, an identifier, a path or bytes; None for other values."""
    if isinstance(value, np.datetime64):
        return _moments(name, np.asarray([value]), None)[0]
    if type(value).__name__ == "Period":
        value = value.start_time
    if isinstance(value, date):
        return moment_text(value)
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return _decoded(name, bytes(value))
    return value if isinstance(value, str) else None


def _never_a_cell(value: Any) -> str | None:
    """The key in `NO_COLUMN` of a value that no column can have."""
    if isinstance(value, timedelta | np.timedelta64) or type(value).__name__ == "MonthDayNano":
        return "duration"
    if isinstance(value, time):
        return "time"
    if type(value).__name__ == "Interval":
        return "interval"
    if isinstance(value, Complex) and not isinstance(value, Real):
        return "complex"
    return "record" if isinstance(value, Mapping | np.void) else None


def _bad_type(name: str, what: str) -> InvalidProblem:
    return InvalidProblem(Fault("X", "bad_type", no_column(name, what)))


def _decoded(name: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        message = f"Column {name!r:.80} has texts that are not UTF-8."
        raise InvalidProblem(Fault("X", "bad_encoding", message)) from error


def _numbers(name: str, values: Sequence[Any]) -> NDArray[np.float64]:
    numbers = np.array([np.nan if is_missing(value) else _float(value) for value in values], dtype=np.float64)
    bad = np.flatnonzero(np.abs(numbers) > MAX_MAGNITUDE)[:MAX_FAULTS]
    if len(bad):
        raise InvalidProblem(*(_size_fault(name, int(row), float(numbers[row])) for row in bad))
    return numbers


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return np.inf if value > 0 else -np.inf


def _size_fault(name: str, row: int, number: float) -> Fault:
    finite = bool(np.isfinite(number))
    what = f"beyond ±{MAX_MAGNITUDE:g}" if finite else "not a finite number"
    message = f"Row {row} (counted from 0), column {name!r:.80}: {number:g} is {what}."
    return Fault("X", "too_large" if finite else "not_finite", message, row=row)


def _vectors(name: str, values: Sequence[Any], known: Sequence[Any]) -> VectorCells:
    """Lists of numbers of one length. Raises InvalidProblem with the words of files."""
    width = len(known[0])
    table = np.full((len(values), width), np.nan)
    faults = []
    for row, value in enumerate(values):
        if is_missing(value):
            continue
        if any(not isinstance(item, Real | Decimal) and not is_missing(item) for item in value):
            raise _bad_type(name, "texts" if all(isinstance(item, str) for item in value) else "others")
        numbers = [np.nan if is_missing(item) else _float(item) for item in value]
        if len(numbers) != width or width == 0:
            code = "ragged_vector"
            what = f"the list has {len(numbers)} numbers; {width or 'one or more'} are expected"
        elif not all(abs(number) <= MAX_MAGNITUDE for number in numbers):
            code, what = "not_finite", "a number of the list is missing or not finite"
        else:
            table[row] = numbers
            continue
        message = f"Row {row} (counted from 0), column {name!r:.80}: {what}."
        faults.append(Fault("X", code, message, row=row))
        if len(faults) == MAX_FAULTS:
            break
    if faults:
        raise InvalidProblem(*faults)
    return VectorCells(table)


def _text(name: str, value: Any) -> str:
    """A cell of a column of texts, in which numbers and truth values are texts, too."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bool):
        return category_key(value)
    if isinstance(value, Real | Decimal):
        return category_key(_float(value))
    message = f"Column {name!r:.80} has lists and other values."
    raise InvalidProblem(Fault("X", "bad_type", message))
