"""Inputs of the protocol as rows: one table of numbers, or one input for each column, [n] or [n, 1].

    numbers and truth values    FP*, INT*, UINT*, BOOL
    categories                  BYTES, or numbers that are names
    texts and dates             BYTES
    vectors                     FP* of the shape [n, width]

A gap is null in JSON, NaN, or an empty text. An input that is not there has only gaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.domain.errors import InputFault, InvalidRequest
from app.domain.near_names import listed
from app.serving.columns.base import Columns, Rows
from app.serving.columns.faults import check_count, invalid, list_faults, written
from app.serving.columns.table_rows import TableRows
from app.serving.open_inference.tensors import DTYPES, TEXTS, Array, Tensor
from core.data.schema import Kind
from core.packed.encoded_columns import ColumnEncoder, VectorColumn

FIELD: Final = "inputs"
DATATYPES: Final[dict[Kind, str]] = {
    Kind.NUMBER: "FP64",
    Kind.BOOLEAN: "BOOL",
    Kind.CATEGORY: TEXTS,
    Kind.DATE: TEXTS,
    Kind.TEXT: TEXTS,
    Kind.VECTOR: "FP64",
}
"""Data types of the columns in the metadata; others are accepted, too."""


def rows_of(tensors: Sequence[Tensor], columns: Columns, max_rows: int) -> Rows:
    """The rows of inputs. Raises InvalidRequest and TooLarge."""
    if _is_table(tensors, columns):
        return TableRows(columns, _table(tensors[0], max_rows), FIELD)
    return _columns(tensors, columns, max_rows)


def _is_table(tensors: Sequence[Tensor], columns: Columns) -> bool:
    """Whether the inputs are one table of numbers, and the model accepts such rows."""
    if len(tensors) != 1 or not columns.takes_lists:
        return False
    [only] = tensors
    names = columns.names or ()
    if only.datatype == TEXTS:
        return columns.is_table and only.name not in names
    is_column = only.name in names and (len(only.shape) == 1 or only.shape[1:] == (1,))
    return columns.is_table or not is_column or len(names) == 1


def _table(tensor: Tensor, max_rows: int) -> Array:
    """The rows (n, d) of an input of shape (n, d) or (d,), a single row."""
    shape = tensor.shape
    if len(shape) not in (1, 2) or shape[-1] == 0:
        raise tensor.error(f"has the shape {list(shape)}; rows × columns are needed, at least one of each")
    rows = shape[0] if len(shape) == 2 else 1
    check_count(rows, FIELD, max_rows)
    # Every number takes at least a byte in both encodings, so the body bounds the allocation.
    if rows * shape[-1] > len(tensor.data):
        raise tensor.error(f"has too little data for its shape {list(shape)}")
    table = tensor.numbers().reshape(rows, shape[-1])
    # The smaller of float32 and float64 that holds every value; 64-bit integers lose their last digits.
    return table.astype(np.promote_types(table.dtype, np.float32), copy=False)


def _columns(tensors: Sequence[Tensor], columns: Columns, max_rows: int) -> Rows:
    """The rows of inputs that are one column each."""
    named = columns.by_names(FIELD)
    names = [tensor.name for tensor in tensors]
    faults = [*named.reader.name_faults(names, FIELD), *named.reader.missing_faults(names, FIELD)]
    if faults:
        code = faults[0].code
        if code == "unknown_column" and len(tensors) == 1 and not columns.takes_lists:
            code = "needs_record"
        text = f"{faults[0].message} Each column is an input: {listed(named.encoder.names)}."
        raise InvalidRequest(text, code=code, faults=faults)
    by_name = {column.name: column for column in named.rows.columns}
    used = [tensor for tensor in tensors if tensor.name in by_name]
    rows = used[0].shape[0] if used and used[0].shape else 0
    for tensor in used:
        _check_shape(tensor, by_name[tensor.name], rows)
    check_count(rows, FIELD, max_rows)
    cells: dict[str, Sequence[Any] | NDArray[Any]] = {}
    typed = True
    for tensor in used:
        column = by_name[tensor.name]
        values = cells[tensor.name] = _values(tensor, column, named.encoder.names)
        has_gaps = not isinstance(values, np.ndarray) and column.required and None in values
        typed = typed and _is_typed(tensor, column) and not has_gaps
    return columns.of_cells(cells, rows, FIELD, typed=typed)


def _check_shape(tensor: Tensor, column: ColumnEncoder, rows: int) -> None:
    if isinstance(column, VectorColumn):
        wanted: tuple[tuple[int, ...], ...] = ((rows, len(column.fallback)),)
        text = f"[rows, {len(column.fallback)}]"
    else:
        wanted, text = ((rows,), (rows, 1)), "[rows] or [rows, 1]"
    if tensor.shape in wanted:
        return
    message = (
        f"Input {tensor.name!r:.100} has the shape {list(tensor.shape)}; an input is a column of the shape"
        f" {text}, with the same number of rows in all inputs."
    )
    is_longer = bool(tensor.shape) and tensor.shape[1:] in {shape[1:] for shape in wanted}
    code = "wrong_length" if is_longer else "bad_tensor"
    raise invalid([InputFault(f"{FIELD}.{tensor.name}"[:200], code, message, None, None, tensor.name)])


def _is_typed(tensor: Tensor, column: ColumnEncoder) -> bool:
    """Whether the values of a column are all of its type, or gaps."""
    if column.kind is Kind.NUMBER:
        return tensor.datatype in DTYPES
    if column.kind is Kind.BOOLEAN:
        return tensor.datatype == "BOOL"
    return tensor.datatype == TEXTS and column.kind in (Kind.CATEGORY, Kind.DATE, Kind.TEXT)


def _values(
    tensor: Tensor, column: ColumnEncoder, names: Sequence[str]
) -> Sequence[Any] | NDArray[np.float64]:
    """The values of a column as records have them; an array of a column of numbers without gaps.

    Raises InvalidRequest.
    """
    if tensor.datatype == TEXTS:
        return [*tensor.optional_texts()]
    numbers, is_gap = tensor.optional_numbers()
    if numbers.dtype.kind == "f" and np.isinf(numbers).any():
        first = tuple(np.argwhere(np.isinf(numbers))[0])
        value = written(float(numbers[first]))
        raise invalid(list_faults([value], names, FIELD, int(first[0]), names.index(column.name)))
    if isinstance(column, VectorColumn):
        vectors: list[Any] = numbers.astype(np.float64).tolist()
        gaps: list[bool] = np.all(is_gap, axis=1).tolist()
        return [None if gap else vector for vector, gap in zip(vectors, gaps, strict=True)]
    flat, flags = numbers.reshape(-1), is_gap.reshape(-1)
    if column.kind is Kind.NUMBER:
        flat = flat.astype(np.float64)
        if not flags.any():
            return flat
    elif column.kind is Kind.BOOLEAN and np.isin(flat[~flags], (0, 1)).all():
        flat = flat == 1
    values: list[Any] = flat.tolist()
    return (
        [None if gap else value for value, gap in zip(values, flags.tolist(), strict=True)]
        if flags.any()
        else values
    )
