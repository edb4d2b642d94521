"""Data frames of pandas and Polars, tables of Arrow, and mappings of columns, as values of JSON and as files.

None of these libraries is needed: a table gives the names of its columns, and each column its values.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from datetime import date
from decimal import Decimal
from typing import Any, TypeGuard

from stms_client.errors import InvalidInput

_ABSENT = frozenset({"NAType", "NaTType"})
"""Types of pandas for missing values."""


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

    Raises InvalidInput for a name that is there twice.
    """
    names = column_names(table)
    columns: dict[str, list[Any]] = {}
    for name in names:
        if str(name) in columns or names.count(name) > 1:
            raise InvalidInput(f"The table has two columns named {str(name)!r:.80}.")
        columns[str(name)] = [cell(value) for value in values_of(table[name])]
    return columns


def records_of(table: Any) -> Iterable[dict[str, Any]]:
    """The rows by the names of the columns, as `columns_of` gives their values."""
    columns = columns_of(table)
    return (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))


def parquet_of(table: Any) -> bytes | None:
    """A table as a Parquet file; None without pyarrow, and for a table that it does not take."""
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
        file = io.BytesIO()
        parquet.write_table(arrow, file)
    except (pa.ArrowException, TypeError, ValueError):
        # A column of values of several types, for example.
        return None
    return file.getvalue()


def values_of(column: Any) -> list[Any]:
    """The values of a column, a row or a vector. Raises InvalidInput for what is none."""
    for method in ("to_pylist", "to_list", "tolist"):
        if hasattr(column, method):
            listed: list[Any] = getattr(column, method)()
            return listed
    if hasattr(column, "to_numpy"):
        return values_of(column.to_numpy())
    try:
        return list(column)
    except TypeError as error:
        raise InvalidInput(f"A row of numbers is needed, got {column!r:.80}.") from error


def cell(value: Any) -> Any:
    """A value of a row for JSON: None for a missing one, ISO 8601 for dates, numbers of Python, and lists."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return float(value) if value == value else None
    if type(value).__name__ in _ABSENT:
        return None
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    if type(value).__name__ == "datetime64":
        return None if str(value) == "NaT" else str(value)
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return cell(value.item())
    is_list = isinstance(value, list | tuple) or hasattr(value, "__array__") or hasattr(value, "to_numpy")
    return values_of(value) if is_list else value
