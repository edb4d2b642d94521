"""Parquet files: numeric columns and one label column."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import parquet

from app.domain.errors import InputFault, InvalidRequest
from app.ingest.columns import (
    Columns,
    ambiguous_label,
    index_candidates,
    index_reason,
    is_pandas_index,
    label_doubt,
)
from app.ingest.options import ReadingOptions
from app.ingest.raw import (
    MAX_FAULTS,
    UNLABELLED_HINT,
    DatasetLimits,
    FeatureRows,
    Known,
    RawData,
    RawPart,
    invalid_file,
    invalid_rows,
)

_BATCH_ROWS = 65_536
_LONGEST_LABEL = 10_000
_DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError)
"""What Arrow raises for damaged Parquet files."""


OPTIONS = ("label_column", "index_column")
"""What can be said of a Parquet file."""


def read_parquet(path: Path, limits: DatasetLimits, options: ReadingOptions) -> RawData:
    """Read a Parquet file: a table is float32 if all of its columns are, otherwise float64.

    Raises TooLarge, and InvalidRequest that names non-numeric columns and rows with missing values, or the
    columns that may hold the labels.
    """
    schema, columns, tables, labels = _read_file(path, limits, options, Columns.of)
    if columns.label_is_guessed and (doubt := label_doubt(labels)) is not None:
        raise _ambiguous(schema, columns, doubt)
    return RawData(
        RawPart(tables["X"], labels, columns.extras(tables)),
        feature_names=columns.feature_names,
        label_column=columns.label_name,
        decisions=columns.decisions,
        variant=columns.variant,
        warnings=columns.warnings,
    )


def read_parquet_rows(
    path: Path, limits: DatasetLimits, options: ReadingOptions, known: Known
) -> FeatureRows:
    """Read rows of features without labels, as `read_parquet` reads them beside labels; raises as it does."""
    layout = partial(Columns.of_rows, known=known.columns, known_label=known.label)
    _, columns, tables, _ = _read_file(path, limits, options, layout)
    return FeatureRows.of(columns, tables["X"], columns.decisions, None)


def _read_file(
    path: Path, limits: DatasetLimits, options: ReadingOptions, layout: Callable[..., Columns]
) -> tuple[pa.Schema, Columns, dict[str, NDArray[Any]], list[Any]]:
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
    try:
        index = _index(path, schema) if options.index_column is None else {}
        columns = layout(names, len(names), options, index=index)
        _check_types(schema, columns)
        # Text labels stay dictionary-encoded: decoding a huge text that repeats would take unbounded memory.
        label = columns.label
        coded = [names[label]] if label is not None and _is_text(schema.field(label).type) else []
        with parquet.ParquetFile(path, read_dictionary=coded) as file:
            tables, labels = _read(file, columns, metadata.num_rows, options.unlabelled)
    except pa.ArrowMemoryError:
        raise
    except _DAMAGE as error:
        raise invalid_file(f"The Parquet file is damaged: {error}", code="unreadable_file") from error
    return schema, columns, tables, labels


def _index(path: Path, schema: pa.Schema) -> dict[int, str]:
    """Positions of columns that were the index of a data frame or number the rows, each with the reason."""
    described = schema.pandas_metadata or {}
    stored = {name for name in described.get("index_columns", ()) if isinstance(name, str)}
    found = {}
    for position, name in enumerate(schema.names):
        if name in stored:
            found[position] = "the file says that it was the index of a data frame of pandas"
        elif is_pandas_index(name):
            found[position] = "pandas gives this name to the index of a data frame"
    for position in index_candidates(schema.names):
        kind = schema.field(position).type
        if position not in found and (
            pa.types.is_integer(kind) or pa.types.is_floating(kind) or _is_text(kind)
        ):
            with parquet.ParquetFile(path) as file:
                values = _first_column(file)
            reason = index_reason(schema.names[position], values)
            if reason is not None:
                found[position] = reason
    return found


def _first_column(file: parquet.ParquetFile) -> list[Any]:
    values: list[Any] = []
    for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=[file.schema_arrow.names[0]]):
        values += batch.column(0).to_pylist()
    return values


def _ambiguous(schema: pa.Schema, columns: Columns, doubt: str) -> InvalidRequest:
    kinds = [field.type for field in schema]
    skipped = {columns.label, *columns.unread, *columns.privileged, *columns.scores}
    usable = [k for k in range(columns.count) if k not in skipped]
    texts = [k for k in usable if _is_text(kinds[k]) or pa.types.is_boolean(kinds[k])]
    whole = [k for k in usable if pa.types.is_integer(kinds[k])]
    reason = (
        f"No column has a usual name of a label, and the last column, {columns.label_name!r:.60}, hardly"
        f" holds classes: {doubt}."
    )
    return ambiguous_label(columns.names, [*texts, *whole], reason, columns.count)


def _check_sizes(metadata: parquet.FileMetaData, limits: DatasetLimits) -> None:
    if metadata.num_rows < 1:
        raise invalid_file("The file has no rows of data.", code="no_rows")
    limits.check(metadata.num_rows, metadata.num_columns)
    limits.check_bytes(sum(metadata.row_group(k).total_byte_size for k in range(metadata.num_row_groups)))


def _check_types(schema: pa.Schema, columns: Columns) -> None:
    faults = []
    for position, column in enumerate(schema):
        if position in columns.unread:
            continue
        kind = column.type
        if position == columns.label:
            if not (_is_text(kind) or _is_number(kind)):
                text = f"The label column {column.name!r:.80} is of type {kind}."
                faults.append(InputFault("y", "bad_label_type", text))
        elif not _is_number(kind):
            if (
                columns.label_is_guessed
                and _is_text(kind)
                and columns.label is not None
                and _is_measured(schema.field(columns.label).type)
            ):
                raise _ambiguous(schema, columns, "it holds numbers, and other columns hold texts")
            text = f"Column {column.name!r:.80} is of type {kind}, not a number."
            field, place = columns.place(position)
            faults.append(InputFault(field, "not_numeric", text, column=place))
            if len(faults) == MAX_FAULTS:
                break
    if faults:
        raise invalid_rows(faults)


def _inner(kind: pa.DataType) -> pa.DataType:
    """The type of the values, which may be dictionary-encoded."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_measured(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(_inner(kind)) or pa.types.is_decimal(_inner(kind)))


def _is_number(kind: pa.DataType) -> bool:
    inner = _inner(kind)
    return bool(pa.types.is_integer(inner) or pa.types.is_boolean(inner) or _is_measured(inner))


def _is_text(kind: pa.DataType) -> bool:
    inner = _inner(kind)
    return bool(
        pa.types.is_string(inner)
        or pa.types.is_large_string(inner)
        or pa.types.is_string_view(inner)
        or pa.types.is_binary(inner)
        or pa.types.is_large_binary(inner)
        or pa.types.is_binary_view(inner)
    )


def _plain(values: pa.Array) -> pa.Array:
    """Numbers or booleans that are not dictionary-encoded."""
    return values.cast(values.type.value_type) if pa.types.is_dictionary(values.type) else values


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
    stop = 0
    for batch in file.iter_batches(batch_size=_BATCH_ROWS):
        start, stop = stop, stop + len(batch)
        if stop > rows:
            raise pa.ArrowInvalid("it has more rows than it declares")
        for field, table in tables.items():
            for column, position in enumerate(columns.tables[field]):
                values = batch.column(position)
                faults += _nulls(values, field, names[position], start, column)
                numbers = pc.cast(_plain(values), table.dtype.name, safe=False)
                table[start:stop, column] = numbers.to_numpy(zero_copy_only=False)
        if columns.label is not None:
            values = batch.column(columns.label)
            if not unlabelled:
                faults += _nulls(values, "y", names[columns.label], start, None)
            labels += _labels(values)
        if len(faults) >= MAX_FAULTS:
            break
    if faults:
        raise invalid_rows(sorted(faults, key=lambda fault: fault.row or 0)[:MAX_FAULTS])
    return {field: table[:stop] for field, table in tables.items()}, labels


def _labels(values: pa.Array) -> list[Any]:
    """Labels as text, numbers or booleans; None where one is missing."""
    if not _is_text(values.type):
        plain = _plain(values)
        if pa.types.is_decimal(plain.type):
            plain = pc.cast(plain, pa.string())
        numbers: list[Any] = plain.to_pylist()
        return numbers
    coded = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
    longest = pc.max(pc.binary_length(coded.dictionary)).as_py()
    if longest is not None and longest > _LONGEST_LABEL:
        raise invalid_file(f"A label is {longest} bytes long.", code="label_too_long")
    # All rows of a class share one str object.
    names = [*pc.cast(coded.dictionary, pa.string()).to_pylist(), None]
    return [names[code] for code in pc.fill_null(coded.indices, len(names) - 1).to_pylist()]


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
