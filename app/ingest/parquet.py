"""Parquet files: numeric columns and one label column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import parquet

from app.domain.errors import InputFault
from app.ingest.raw import (
    MAX_FAULTS,
    UNLABELLED_HINT,
    Columns,
    DatasetLimits,
    RawData,
    RawPart,
    invalid_file,
    invalid_rows,
)

_BATCH_ROWS = 65_536
_LONGEST_LABEL = 10_000
_DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError)
"""What Arrow raises for damaged Parquet files."""


def read_parquet(
    path: Path, limits: DatasetLimits, label_column: str | None, *, unlabelled: bool = False
) -> RawData:
    """Read a Parquet file: a table is float32 if all of its columns are, otherwise float64.

    unlabelled: whether labels may be missing. Raises TooLarge, and InvalidRequest that names non-numeric
    columns and rows with missing values.
    """
    try:
        metadata = parquet.read_metadata(path)
        schema = metadata.schema.to_arrow_schema()
    except pa.ArrowMemoryError:
        raise
    except _DAMAGE as error:
        raise invalid_file(
            f"The Parquet file is cut off or damaged: {error}", code="truncated_upload"
        ) from error
    _check_sizes(metadata, limits)
    names = tuple(schema.names)
    columns = Columns.of(names, len(names), label_column)
    label = columns.label
    _check_types(schema, columns)
    # Text labels stay dictionary-encoded: decoding a huge text that repeats would take unbounded memory.
    coded = [names[label]] if _is_text(schema.field(label).type) else []
    try:
        with parquet.ParquetFile(path, read_dictionary=coded) as file:
            tables, labels = _read(file, columns, metadata.num_rows, unlabelled)
    except pa.ArrowMemoryError:
        raise
    except _DAMAGE as error:
        raise invalid_file(f"The Parquet file is damaged: {error}", code="unreadable_file") from error
    return RawData(
        RawPart(tables["X"], labels, columns.extras(tables)),
        feature_names=columns.feature_names,
        label_column=columns.label_name,
        label_is_default=columns.label_is_default,
    )


def _check_sizes(metadata: parquet.FileMetaData, limits: DatasetLimits) -> None:
    if metadata.num_rows < 1:
        raise invalid_file("The file has no rows of data.", code="no_rows")
    limits.check(metadata.num_rows, metadata.num_columns)
    limits.check_bytes(sum(metadata.row_group(k).total_byte_size for k in range(metadata.num_row_groups)))


def _check_types(schema: pa.Schema, columns: Columns) -> None:
    faults = []
    for position, column in enumerate(schema):
        if position == columns.label:
            if not (_is_text(column.type) or _is_number(column.type)):
                text = f"The label column {column.name!r:.80} is of type {column.type}."
                faults.append(InputFault("y", "bad_label_type", text))
        elif not _is_number(column.type):
            text = f"Column {column.name!r:.80} is of type {column.type}, not a number."
            field, place = columns.place(position)
            faults.append(InputFault(field, "not_numeric", text, column=place))
            if len(faults) == MAX_FAULTS:
                break
    if faults:
        raise invalid_rows(faults)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _is_text(kind: pa.DataType) -> bool:
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(inner) or pa.types.is_large_string(inner))


def _read(
    file: parquet.ParquetFile, columns: Columns, rows: int, unlabelled: bool
) -> tuple[dict[str, NDArray[Any]], list[Any]]:
    schema, names = file.schema_arrow, columns.names or ()
    tables = {}
    for field, positions in columns.tables.items():
        single = all(pa.types.is_float32(schema.field(k).type) for k in positions)
        tables[field] = np.empty((rows, len(positions)), dtype=np.float32 if single else np.float64)
    labels: list[Any] = []
    faults: list[InputFault] = []
    for batch in file.iter_batches(batch_size=_BATCH_ROWS):
        start = len(labels)
        stop = start + len(batch)
        if stop > rows:
            raise pa.ArrowInvalid("it has more rows than it declares")
        for field, table in tables.items():
            for column, position in enumerate(columns.tables[field]):
                values = batch.column(position)
                faults += _nulls(values, field, names[position], start, column)
                numbers = pc.cast(values, table.dtype.name, safe=False)
                table[start:stop, column] = numbers.to_numpy(zero_copy_only=False)
        values = batch.column(columns.label)
        if not unlabelled:
            faults += _nulls(values, "y", columns.label_name, start, None)
        labels += _labels(values)
        if len(faults) >= MAX_FAULTS:
            break
    if faults:
        raise invalid_rows(sorted(faults, key=lambda fault: fault.row or 0)[:MAX_FAULTS])
    return {field: table[: len(labels)] for field, table in tables.items()}, labels


def _labels(values: pa.Array) -> list[Any]:
    if not _is_text(values.type):
        numbers: list[Any] = values.to_pylist()
        return numbers
    longest = pc.max(pc.utf8_length(values.dictionary)).as_py()
    if longest is not None and longest > _LONGEST_LABEL:
        raise invalid_file(f"A label is {longest} characters long.", code="label_too_long")
    # All rows of a class share one str object.
    names = [*values.dictionary.to_pylist(), None]
    return [names[code] for code in pc.fill_null(values.indices, len(names) - 1).to_pylist()]


def _nulls(values: pa.Array, field: str, name: str, start: int, column: int | None) -> list[InputFault]:
    if values.null_count == 0:
        return []
    code, what, hint = ("missing_value", "value", "")
    if field == "y":
        code, what, hint = ("missing_label", "label", f" {UNLABELLED_HINT}")
    return [
        InputFault(
            field,
            code,
            f"Row {start + row} (counted from 0) has no {what} in column {name!r:.80}.{hint}",
            row=start + int(row),
            column=column,
        )
        for row in np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[:MAX_FAULTS]
    ]
