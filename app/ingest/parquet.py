"""Parquet files: numeric feature columns and one label column."""

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
    DatasetLimits,
    RawData,
    RawPart,
    choose_label_column,
    invalid_file,
    invalid_rows,
)

_BATCH_ROWS = 65_536
_LONGEST_LABEL = 10_000
_DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError)
"""What Arrow raises for damaged Parquet files."""


def read_parquet(path: Path, limits: DatasetLimits, label_column: str | None) -> RawData:
    """Read a Parquet file: as float32 if every feature column is float32, otherwise as float64.

    Raises TooLarge, and InvalidRequest that names non-numeric columns and rows with missing values.
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
    names = tuple(schema.names)
    label = choose_label_column(names, len(names), label_column)
    rows = metadata.num_rows
    _check_sizes(metadata, limits)
    _check_types(schema, label)
    # Text labels stay dictionary-encoded: decoding a huge text that repeats would take unbounded memory.
    coded = [names[label]] if _is_text(schema.field(label).type) else []
    try:
        with parquet.ParquetFile(path, read_dictionary=coded) as file:
            X, labels = _read(file, label, rows)
    except pa.ArrowMemoryError:
        raise
    except _DAMAGE as error:
        raise invalid_file(f"The Parquet file is damaged: {error}", code="unreadable_file") from error
    features = names[:label] + names[label + 1 :]
    return RawData(
        RawPart(X, labels),
        feature_names=features,
        label_column=names[label],
        label_is_default=label == len(names) - 1,
    )


def _check_sizes(metadata: parquet.FileMetaData, limits: DatasetLimits) -> None:
    if metadata.num_rows < 1:
        raise invalid_file("The file has no rows of data.", code="no_rows")
    limits.check(metadata.num_rows, metadata.num_columns)
    limits.check_bytes(sum(metadata.row_group(k).total_byte_size for k in range(metadata.num_row_groups)))


def _check_types(schema: pa.Schema, label: int) -> None:
    faults = []
    for position, column in enumerate(schema):
        if position == label:
            if not (_is_text(column.type) or _is_number(column.type)):
                text = f"The label column {column.name!r:.80} is of type {column.type}."
                faults.append(InputFault("y", "bad_label_type", text))
        elif not _is_number(column.type):
            text = f"Column {column.name!r:.80} is of type {column.type}, not a number."
            faults.append(InputFault("X", "not_numeric", text, column=position - (position > label)))
    if faults:
        raise invalid_rows(faults[:MAX_FAULTS])


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _is_text(kind: pa.DataType) -> bool:
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(inner) or pa.types.is_large_string(inner))


def _read(file: parquet.ParquetFile, label: int, rows: int) -> tuple[NDArray[Any], list[Any]]:
    schema = file.schema_arrow
    # `Schema.names` makes a new list each time.
    names = schema.names
    features = [k for k in range(len(schema)) if k != label]
    single = all(pa.types.is_float32(schema.field(k).type) for k in features)
    X = np.empty((rows, len(features)), dtype=np.float32 if single else np.float64)
    labels: list[Any] = []
    faults: list[InputFault] = []
    for batch in file.iter_batches(batch_size=_BATCH_ROWS):
        start = len(labels)
        stop = start + len(batch)
        if stop > rows:
            raise pa.ArrowInvalid("it has more rows than it declares")
        for column, position in enumerate(features):
            values = batch.column(position)
            faults += _nulls(values, "X", names[position], start, column)
            X[start:stop, column] = pc.cast(values, X.dtype.name, safe=False).to_numpy(zero_copy_only=False)
        faults += _nulls(batch.column(label), "y", names[label], start, None)
        labels += _labels(batch.column(label))
        if len(faults) >= MAX_FAULTS:
            break
    if faults:
        raise invalid_rows(sorted(faults, key=lambda fault: fault.row or 0)[:MAX_FAULTS])
    return X[: len(labels)], labels


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
    code, what = ("missing_label", "label") if column is None else ("missing_value", "value")
    return [
        InputFault(
            field,
            code,
            f"Row {start + row} (counted from 0) has no {what} in column {name!r:.80}.",
            row=start + int(row),
            column=column,
        )
        for row in np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[:MAX_FAULTS]
    ]
