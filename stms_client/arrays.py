"""Rows of any kind as lists or NumPy arrays: arrays, data frames and tensors."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from stms_client.errors import InvalidInput
from stms_client.tables import cell, column_names, is_table, values_of

if TYPE_CHECKING:
    from numpy.typing import NDArray


class DataFrame(Protocol):
    """A table or column of pandas, Polars or another library."""

    def to_numpy(self) -> Any:
        """The values as an array of NumPy."""


_SPARSE = ("indices", "values")

Row: TypeAlias = "Sequence[float] | Mapping[str, Any] | NDArray[Any] | DataFrame"
"""Dense numbers, an array (d,), a record, which is a mapping or a Series of values by the names of their
columns, or a sparse row ``{"indices": …, "values": …}``, with ``"index_base": 1`` if its indices count from
1."""
Frame: TypeAlias = "DataFrame | Mapping[str, Sequence[Any]]"
"""A data frame of pandas or Polars, a table of Arrow, or a mapping from names to columns."""
Rows: TypeAlias = "Sequence[Row] | NDArray[Any] | Frame"
"""Rows, an array (n, d), which is sent as raw numbers, or a frame of n rows."""
Table: TypeAlias = "Sequence[Sequence[float]] | NDArray[Any] | DataFrame"
"""Rows of a data set (n, d)."""


def is_array(values: object) -> bool:
    """Whether these are an array or a data frame."""
    return hasattr(values, "to_numpy") or hasattr(values, "__array__")


def numbers(values: Any, axes: int) -> NDArray[Any]:
    """An array of float32 if the values are, otherwise of float64.

    Raises InvalidInput for values that are not numbers, and for another number of axes.
    """
    import numpy as np

    array = _array(values)
    shape = "(rows, columns)" if axes == 2 else "(columns,)"
    if array.ndim != axes:
        raise InvalidInput(f"An array {shape} is needed, but this one has {array.ndim} axes: {array.shape}.")
    if array.dtype == np.float32:
        return array
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"An array {shape} of numbers is needed: {error}.") from error


def _array(values: Any) -> NDArray[Any]:
    import numpy as np

    try:
        if isinstance(values, Mapping):
            return np.column_stack([_array(column) for column in values.values()])
        return np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"The values are not an array: {error}.") from error


def in_order(frame: Any, names: Sequence[str] | None) -> NDArray[Any]:
    """The numbers of a data frame with its columns in the order of ``names``; None if the model has none.

    Raises InvalidInput for columns that are missing, unknown or there twice.
    """
    table = numbers(frame, 2)
    given = [str(name) for name in column_names(frame)]
    if names is None:
        return table
    missing = [name for name in names if name not in given]
    unknown = [name for name in given if name not in names]
    if missing or unknown or len(given) != len(names):
        shown = f"lacks {missing[:20]}" if missing else f"has {unknown[:20] or given[:20]}"
        raise InvalidInput(f"The data frame {shown}; the columns of the model are {list(names)[:20]}.")
    return table[:, [given.index(name) for name in names]]


def row_values(row: Any) -> Any:
    """A row for JSON: a list of numbers, values by name, or a sparse row."""
    if isinstance(row, str):
        raise InvalidInput(f"{row!r:.80} is a text and no row: send it as text=… (or several as texts=[…]).")
    if isinstance(row, Mapping):
        return {_name(name): cell(part) for name, part in row.items()}
    names = _series_names(row)
    if names is not None:
        return dict(zip(names, _cells(row), strict=True))
    return numbers(row, 1).tolist() if is_array(row) else values_of(row)


def _cells(row: Any) -> list[Any]:
    """The values of a Series; of numbers and truth values alone, numbers, as models of numbers take them."""
    cells = [cell(value) for value in values_of(row)]
    are_numbers = not any(value is None or isinstance(value, str | list) for value in cells)
    return numbers(row, 1).tolist() if are_numbers else cells


def question(x: Any, text: str | None) -> dict[str, Any]:
    """The body of a query about a row or a text. Raises InvalidInput unless one of them is given."""
    if (x is None) == (text is None):
        raise InvalidInput("A query is about a row or about a text: give one of them.")
    return row_body(x) if text is None else {"text": text}


def row_body(row: Any) -> dict[str, Any]:
    """A row in the body of a query: a record if it has names, ``x`` otherwise."""
    values = row_values(row)
    return {"record" if is_record(values) else "x": values}


def rows_body(rows: Any) -> dict[str, Any]:
    """Rows in the body of a query: records if all have names, ``rows`` otherwise."""
    values = [row_values(row) for row in rows]
    return {"records" if values and all(map(is_record, values)) else "rows": values}


def is_record(values: Any) -> bool:
    """Whether values for JSON are a record: no list, and no sparse row."""
    return isinstance(values, dict) and not any(isinstance(values.get(name), list) for name in _SPARSE)


def _series_names(row: Any) -> list[str] | None:
    """The names in the index of a Series of pandas; None for anything else, and for an index of numbers."""
    index = getattr(row, "index", None)
    if not hasattr(row, "to_numpy") or index is None or callable(index):
        return None
    names = list(index)
    if not any(isinstance(name, str) for name in names):
        return None
    texts = [str(name) for name in names]
    double = next((name for name in texts if texts.count(name) > 1), None)
    if double is not None:
        raise InvalidInput(f"The row has two values named {double!r:.80}.")
    return texts


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise InvalidInput(f"{name!r:.80} is not the name of a column: it must be text.")
    return name


def raw_bytes(rows: Any) -> tuple[str, str, bytes]:
    """Name of the dtype, shape, and bytes in little-endian order."""
    import numpy as np

    array = numbers(rows, 2)
    raw = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return array.dtype.name, ",".join(map(str, array.shape)), raw.tobytes()


def archive(X: Any, y: Any, test: tuple[Any, Any] | None) -> bytes:
    """Rows and labels as an .npz archive. Raises InvalidInput as `numbers` does, and for unequal lengths."""
    import numpy as np

    parts = {"": (X, y)} if test is None else {"_train": (X, y), "_test": test}
    arrays: dict[str, Any] = {}
    for suffix, (rows, labels) in parts.items():
        table, named = numbers(rows, 2), _labels(labels)
        if len(table) != len(named):
            raise InvalidInput(f"There are {len(table)} rows, but {len(named)} labels.")
        arrays |= {f"X{suffix}": table, f"y{suffix}": named}
    if is_table(X):
        arrays["feature_names"] = np.array([str(name) for name in column_names(X)])
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _labels(labels: Any) -> NDArray[Any]:
    """Numbers, texts and bytes as they are, anything else as text; a label that is missing is empty.

    The service makes the names of classes of them, by one rule for all formats.
    """
    import numpy as np

    # NumPy would make the text "nan" of a missing label in a list of texts.
    is_list = isinstance(labels, list | tuple)
    array = np.fromiter(labels, dtype=object, count=len(labels)) if is_list else _array(labels)
    if array.ndim != 1:
        raise InvalidInput(f"The labels must be one list; they have {array.ndim} axes.")
    if array.dtype.kind in "iufUS":
        return array
    return np.array([_label(label) for label in array.tolist()], dtype=str)


def _label(label: Any) -> str:
    # Neither NaN nor the NA of pandas is equal to itself.
    if label is None or (label == label) is not True:
        return ""
    try:
        return label.decode() if isinstance(label, bytes) else str(label)
    except UnicodeDecodeError as error:
        raise InvalidInput(f"The label {label!r:.80} is not UTF-8 text.") from error
