"""Rows of any kind as lists or NumPy arrays: arrays, data frames and tensors."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from decimal import Decimal
from numbers import Real
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from stms_client.errors import InvalidInput
from stms_client.pictures import encoded
from stms_client.tables import NUMBER_KINDS, cell, cell_of, column_names, is_table, number, values_of

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
Image: TypeAlias = "str | os.PathLike[str] | bytes"
"""A picture: the path of its file, or its bytes."""
Frame: TypeAlias = "DataFrame | Mapping[str, Sequence[Any]]"
"""A data frame of pandas or Polars, a table of Arrow, or a mapping from names to columns."""
Rows: TypeAlias = "Sequence[Row] | NDArray[Any] | Frame"
"""Rows, an array (n, d), which is sent as raw numbers, or a frame of n rows."""
Table: TypeAlias = "Sequence[Sequence[float]] | NDArray[Any] | DataFrame"
"""Rows of a data set (n, d)."""
ClassName: TypeAlias = str | int
"""A class: its name, or a label that the service gives this name, such as the whole number 3 of "3"."""


def is_array(values: object) -> bool:
    """Whether these are an array or a data frame."""
    return hasattr(values, "to_numpy") or hasattr(values, "__array__")


def numbers(values: Any, axes: int) -> NDArray[Any]:
    """An array of float32 if the values are, otherwise of float64.

    Raises InvalidInput for values that are missing, masked or no numbers, and for another number of axes.
    """
    import numpy as np

    array = _array(values)
    shape = "(rows, columns)" if axes == 2 else "(columns,)"
    if array.ndim != axes:
        raise InvalidInput(f"An array {shape} is needed, but this one has {array.ndim} axes: {array.shape}.")
    wrong = _not_a_number(array)
    if wrong is not None:
        raise InvalidInput(f"An array {shape} of numbers is needed, but {wrong}.")
    array = np.asarray(array)
    try:
        return array if array.dtype == np.float32 else array.astype(np.float64)
    except OverflowError as error:
        raise InvalidInput(f"An array {shape} of numbers is needed: {error}.") from error


def _array(values: Any) -> NDArray[Any]:
    """The values as an array, which keeps its mask. Raises InvalidInput."""
    import numpy as np

    try:
        if is_table(values) and hasattr(values, "__getitem__"):
            # Some libraries make numbers of dates and durations that stand beside numbers.
            return np.column_stack([_column(values, name) for name in column_names(values)])
        if isinstance(values, list | tuple) and any(isinstance(part, np.ma.MaskedArray) for part in values):
            return np.ma.stack(values)
        # An array of Arrow refuses `to_numpy` where it has gaps.
        is_given = hasattr(values, "to_numpy") and not hasattr(values, "to_pylist")
        return np.asanyarray(values.to_numpy() if is_given else values)
    except InvalidInput:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        # A tensor that is part of a computation, for example.
        raise InvalidInput(f"The values are not an array: {error}.") from error


def _column(table: Any, name: Any) -> NDArray[Any]:
    """One column of a table. Raises InvalidInput unless it has numbers."""
    import numpy as np

    column = _array(table[name])
    if column.ndim != 1:
        raise InvalidInput(f"A table has one column of each name; {str(name)!r:.80} has {column.shape}.")
    wrong = _not_a_number(column)
    if wrong is not None:
        raise InvalidInput(f"A table of numbers is needed, but of column {str(name)!r:.80} {wrong}.")
    return np.asarray(column, np.float64 if column.dtype.kind == "O" else None)


def _not_a_number(array: NDArray[Any]) -> str | None:
    """What of an array is no number; None if all of it is. Objects are numbers if each of them is."""
    import numpy as np

    if np.ma.is_masked(array):
        place = np.argwhere(np.ma.getmaskarray(array))[0].tolist()
        return f"the value at {place} is masked, so it is missing: fill it, or leave out its row"
    if array.dtype.kind != "O":
        way = ": send seconds as a number" if array.dtype.kind == "m" else ""
        return None if array.dtype.kind in NUMBER_KINDS else f"the type is {array.dtype}{way}"
    odd = {kind for kind in set(map(type, array.flat)) if not _is_number(kind)}
    places = (
        f"the value at {list(place)} is {value!r:.40}"
        for place, value in np.ndenumerate(array)
        if type(value) in odd
    )
    return next(places, None) if odd else None


def _is_number(kind: type) -> bool:
    """Whether values of a type are numbers. A duration of NumPy is a whole number only by its class."""
    import numpy as np

    return issubclass(kind, Real | Decimal | np.bool_) and not issubclass(kind, np.timedelta64)


def in_order(frame: Any, names: Sequence[str] | None) -> NDArray[Any]:
    """The numbers of a data frame with its columns in the order of ``names``; None if the model has none.

    Raises InvalidInput for columns that are missing, unknown or there twice.
    """
    given = [str(name) for name in column_names(frame)]
    if names is None:
        return numbers(frame, 2)
    missing = [name for name in names if name not in given]
    unknown = [name for name in given if name not in names]
    if missing or unknown or len(given) != len(names):
        shown = f"lacks {missing[:20]}" if missing else f"has {unknown[:20] or given[:20]}"
        code = "missing_value" if missing else "unknown_column" if unknown else "duplicate_key"
        text = f"The data frame {shown}; the columns of the model are {list(names)[:20]}."
        raise InvalidInput(text, code=code)
    return numbers(frame, 2)[:, [given.index(name) for name in names]]


def row_values(row: Any) -> Any:
    """A row for JSON: a list of numbers, values by name, or a sparse row."""
    if isinstance(row, str):
        raise InvalidInput(f"{row!r:.80} is a text and no row: send it as text=… (or several as texts=[…]).")
    if isinstance(row, Mapping):
        return {_name(name): cell_of(name, part) for name, part in row.items()}
    names = _series_names(row)
    if names is not None:
        return dict(zip(names, _cells(row), strict=True))
    return numbers(row, 1).tolist() if is_array(row) else [number(value) for value in values_of(row)]


def _cells(row: Any) -> list[Any]:
    """The values of a Series; of numbers and truth values alone, numbers, as models of numbers take them."""
    cells = [cell(value) for value in values_of(row)]
    are_numbers = not any(value is None or isinstance(value, str | list) for value in cells)
    return numbers(row, 1).tolist() if are_numbers else cells


def question(x: Any, text: str | None, image: Image | None = None) -> dict[str, Any]:
    """The body of a query about a row, a text or a picture. Raises InvalidInput unless one is given."""
    if (x is not None) + (text is not None) + (image is not None) != 1:
        raise InvalidInput("A query is about a row, a text or a picture: give one of them.")
    if image is not None:
        return {"image": encoded(image)}
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


def class_name(label: object) -> str:
    """The name that the service gives the class of a label: "3" of 3 and 3.0, "true" of True.

    Raises InvalidInput for what is no text, whole number or truth value.
    """
    plain = number(label)
    if isinstance(plain, str):
        return plain
    if isinstance(plain, bool):
        return str(plain).lower()
    if isinstance(plain, int) or (isinstance(plain, float) and plain.is_integer() and abs(plain) < 2.0**53):
        return str(int(plain))
    raise InvalidInput(
        f"{label!r:.80} is not the name of a class: it must be text, a whole number or a truth value."
    )


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
    if array.dtype.kind in "iufUS" and not np.ma.is_masked(array):
        return np.asarray(array)
    return np.array([_label(label) for label in values_of(array)], dtype=str)


def _label(label: Any) -> str:
    if cell(label) is None:
        return ""
    try:
        return label.decode() if isinstance(label, bytes) else str(label)
    except UnicodeDecodeError as error:
        raise InvalidInput(f"The label {label!r:.80} is not UTF-8 text.") from error
