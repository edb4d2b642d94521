"""Data frames of pandas and Polars, tables of Arrow, and mappings of columns, as values of JSON and as files.

None of these libraries is needed: a table gives the names of its columns, and each column its values.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, TypeGuard
from uuid import UUID

from stms_client.errors import InvalidInput

_ABSENT = frozenset({"NAType", "NaTType", "MaskedConstant"})
"""Types of pandas and NumPy for missing values."""
NUMBER_KINDS = frozenset("biuf")
"""Kinds of NumPy's types that are numbers: truth values, whole numbers, and floats."""


def is_table(values: object) -> TypeGuard[Any]:
    """Whether these are columns with names: a data frame, a table of Arrow or a mapping."""
    return isinstance(values, Mapping) or hasattr(values, "columns") or hasattr(values, "column_names")


def column_names(table: Any) -> list[Any]:
    """The names of the columns."""
    if isinstance(table, Mapping):
        return list(table)
    # Arrow has names beside its columns, the others have names as their columns.
    names = getattr(table, "column_names", None)
    return list(table.columns if names is None else names)


def columns_of(table: Any) -> dict[str, list[Any]]:
    """The values of each column by its name, for JSON; None for missing ones, and ISO 8601 for dates.

    Raises InvalidInput for a name that is there twice, and for durations.
    """
    names = column_names(table)
    columns: dict[str, list[Any]] = {}
    for name in names:
        if str(name) in columns or names.count(name) > 1:
            raise InvalidInput(f"The table has two columns named {str(name)!r:.80}.")
        columns[str(name)] = [cell_of(name, value) for value in values_of(table[name])]
    return columns


def records_of(table: Any) -> Iterable[dict[str, Any]]:
    """The rows by the names of the columns, as `columns_of` gives their values."""
    columns = columns_of(table)
    return (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))


def parquet_of(table: Any) -> bytes | None:
    """A table as a Parquet file; None without pyarrow, and for a table that it does not take.

    Raises InvalidInput for durations.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        return None
    try:
        if isinstance(table, pa.Table):
            arrow = table
        elif hasattr(table, "to_arrow"):
            arrow = table.to_arrow()
        elif type(table).__module__.partition(".")[0] == "pandas":
            arrow = pa.Table.from_pandas(table, preserve_index=False)
        else:
            return None
        types = {field.name: str(field.type) for field in arrow.schema}
        durations = [name for name, type_name in types.items() if "duration[" in type_name]
        if durations:
            raise InvalidInput(f"Column {durations[0]!r:.80}: {_NO_DURATIONS}")
        if any("pandas.period" in type_name for type_name in types.values()):
            # Parquet has only the number of each period.
            return None
        file = io.BytesIO()
        parquet.write_table(arrow, file)
    except InvalidInput:
        raise
    except (pa.ArrowException, TypeError, ValueError):
        # A column of values of several types, for example.
        return None
    return file.getvalue()


def values_of(column: Any) -> list[Any]:
    """The values of a column, a row or a vector. Raises InvalidInput for what is none."""
    if getattr(getattr(column, "type", None), "extension_name", None) == "pandas.period":
        # Arrow has only the number of each period.
        column = column.to_pandas()
    for method in ("to_pylist", "to_list", "tolist"):
        if method == "tolist" and _kind(column) in ("m", "M"):
            # NumPy would give numbers of nanoseconds.
            return list(column)
        if hasattr(column, method):
            listed: list[Any] = getattr(column, method)()
            return listed
    if hasattr(column, "to_numpy"):
        return values_of(column.to_numpy())
    try:
        return list(column)
    except TypeError as error:
        raise InvalidInput(f"A row of numbers is needed, got {column!r:.80}.") from error


def cell_of(name: object, value: Any) -> Any:
    """As `cell`; an error names the column. Raises InvalidInput for a time of day, too."""
    try:
        if isinstance(value, time):
            raise InvalidInput(
                f"{value!r:.80} is a time of day: send the seconds since midnight, or the hour, as a number."
            )
        return cell(value)
    except InvalidInput as error:
        raise InvalidInput(f"Column {str(name)!r:.80}: {error}") from error


def cell(value: Any) -> Any:
    """A value of a row for JSON: None for a missing one, ISO 8601 for dates, numbers of Python, and lists.

    A period of pandas is the moment at which it starts; bytes, paths and values of enumerations are their
    texts. Raises InvalidInput for a duration, and for bytes that are not UTF-8.
    """
    if value is None or (isinstance(value, str | int) and not isinstance(value, Enum)):
        return value
    if isinstance(value, float | Decimal):
        return float(value) if value == value else None
    if type(value).__name__ in _ABSENT:
        return None
    if isinstance(value, date):
        return value.isoformat()
    if type(value).__name__ == "Period":
        return value.start_time.isoformat()
    if _kind(value) in ("m", "M") and getattr(value, "ndim", None) == 0:
        return None if str(value) == "NaT" else _iso(value)
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return cell(value.item())
    if isinstance(value, timedelta):
        raise InvalidInput(f"{value!r:.80} is a duration. {_NO_DURATIONS}")
    if isinstance(value, Enum):
        return cell(value.value)
    if isinstance(value, bytes | PurePath | UUID):
        return _text_of(value)
    is_list = isinstance(value, list | tuple) or hasattr(value, "__array__") or hasattr(value, "to_numpy")
    return values_of(value) if is_list else value


def number(value: Any) -> Any:
    """A number of NumPy or another library as one of Python, and any other value as it is.

    Raises InvalidInput for what is masked, and for dates, durations and complex numbers.
    """
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, str) or not hasattr(value, "item"):
        return value
    if type(value).__name__ in _ABSENT:
        raise InvalidInput("A masked value is missing, and a row of numbers needs all of them.")
    if _kind(value) not in (None, *NUMBER_KINDS):
        raise InvalidInput(f"{value!r:.80} is not a number.")
    return value.item()


def _text_of(value: bytes | PurePath | UUID) -> str:
    try:
        return value.decode() if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{value!r:.80} is not text in UTF-8.") from error


_NO_DURATIONS = (
    "Send durations as numbers of seconds: column.dt.total_seconds(), or array / numpy.timedelta64(1, 's')."
)


def _kind(value: Any) -> str | None:
    """The kind of NumPy's type of a value or array; None if it has none."""
    kind = getattr(getattr(value, "dtype", None), "kind", None)
    return kind if isinstance(kind, str) else None


def _iso(moment: Any) -> str:
    """A moment of NumPy as ISO 8601; of a year, a month or a week it is the first day."""
    if _kind(moment) == "m":
        raise InvalidInput(f"{moment!r:.80} is a duration. {_NO_DURATIONS}")
    text = str(moment)
    if "T" not in text:
        return str(moment.astype("datetime64[D]"))
    return text if ":" in text else f"{text}:00"
