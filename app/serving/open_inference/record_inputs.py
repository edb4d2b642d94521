"""Inputs of versions with an encoder: one for each column of its records, of the shape [n] or [n, 1].

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

from app.domain.errors import InvalidRequest, TooLarge
from app.domain.near_names import listed
from app.serving.open_inference.tensors import DTYPES, TEXTS, Tensor
from app.serving.record_sources import CellSource
from app.serving.records import Records
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
"""Of the columns in the metadata; others are taken, too."""


def is_table(tensors: Sequence[Tensor], records: Records) -> bool:
    """Whether the inputs are one table of numbers, and the model takes such rows."""
    if len(tensors) != 1 or tensors[0].datatype == TEXTS or not records.encoder.takes_numbers:
        return False
    [only] = tensors
    is_column = only.name in records.encoder.names and (len(only.shape) == 1 or only.shape[1:] == (1,))
    return not is_column or len(records.encoder.names) == 1


def read_columns(tensors: Sequence[Tensor], records: Records, max_rows: int) -> CellSource:
    """The records of inputs that are one column each. Raises InvalidRequest and TooLarge."""
    names = [tensor.name for tensor in tensors]
    faults = [
        *records.reader.unknown_names(names, FIELD),
        *records.reader.missing_names(names, FIELD),
    ]
    if len(set(names)) != len(names):
        double = next(name for name in names if names.count(name) > 1)
        raise InvalidRequest(f"Input {double!r:.100} is there twice.", code="duplicate_key")
    if faults:
        code = faults[0].code
        if code == "unknown_column" and len(tensors) == 1 and not records.encoder.takes_numbers:
            code = "needs_record"
        text = f"{faults[0].message} Each column is an input: {listed(records.encoder.names)}."
        raise InvalidRequest(text, code=code, faults=faults)
    columns = {column.name: column for column in records.rows.columns}
    used = [tensor for tensor in tensors if tensor.name in columns]
    rows = used[0].shape[0] if used and used[0].shape else 0
    if rows > max_rows:
        raise TooLarge(f"The request has {rows} rows; at most {max_rows} are taken.", code="too_many_rows")
    cells: dict[str, Sequence[Any]] = {}
    typed = True
    for tensor in used:
        column = columns[tensor.name]
        _check_shape(tensor, column, rows)
        values = _values(tensor, column)
        cells[tensor.name] = values
        typed = typed and _is_typed(tensor, column) and not (column.required and None in values)
    return CellSource(records, cells, rows, FIELD, typed=typed)


def _check_shape(tensor: Tensor, column: ColumnEncoder, rows: int) -> None:
    if isinstance(column, VectorColumn):
        wanted: tuple[tuple[int, ...], ...] = ((rows, len(column.fallback)),)
        text = f"[rows, {len(column.fallback)}]"
    else:
        wanted, text = ((rows,), (rows, 1)), "[rows] or [rows, 1]"
    if tensor.shape not in wanted or rows < 1:
        raise tensor.error(
            f"has the shape {list(tensor.shape)}; an input is a column of the shape {text}, with the same"
            " number of rows, at least one, in all inputs"
        )


def _is_typed(tensor: Tensor, column: ColumnEncoder) -> bool:
    """Whether the values of a column are all of its type, or gaps."""
    if column.kind is Kind.NUMBER:
        return tensor.datatype in DTYPES
    if column.kind is Kind.BOOLEAN:
        return tensor.datatype == "BOOL"
    return tensor.datatype == TEXTS and column.kind in (Kind.CATEGORY, Kind.DATE, Kind.TEXT)


def _values(tensor: Tensor, column: ColumnEncoder) -> list[Any]:
    """The values of a column as records have them. Raises InvalidRequest."""
    if tensor.datatype == TEXTS:
        return [*tensor.optional_texts()]
    numbers, is_gap = tensor.optional_numbers()
    if numbers.dtype.kind == "f" and np.isinf(numbers).any():
        row = int(np.argwhere(np.isinf(numbers))[0][0])
        message = f"{FIELD}, row {row} (counted from 0): {column.name!r:.100} is an infinite value."
        raise InvalidRequest(message, code="not_finite")
    if isinstance(column, VectorColumn):
        vectors: list[Any] = numbers.astype(np.float64).tolist()
        gaps: list[bool] = np.all(is_gap, axis=1).tolist()
        return [None if gap else vector for vector, gap in zip(vectors, gaps, strict=True)]
    flat, flags = numbers.reshape(-1), is_gap.reshape(-1)
    if column.kind is Kind.NUMBER:
        flat = flat.astype(np.float64)
    elif column.kind is Kind.BOOLEAN and np.isin(flat[~flags], (0, 1)).all():
        flat = flat == 1
    values: list[Any] = flat.tolist()
    return (
        [None if gap else value for value, gap in zip(values, flags.tolist(), strict=True)]
        if flags.any()
        else values
    )
