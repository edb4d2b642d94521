"""Parquet files: columns of cells and one label column."""

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

from app.domain.errors import InputFault
from app.ingest.arrow_columns import (
    DAMAGE,
    NO_END,
    ArrowCells,
    ambiguous,
    batches_of,
    check_types,
    converted,
    errors_as_invalid,
    index_of,
    is_number,
    is_text,
    labels_of,
    plain,
    unreadable,
    way_out,
)
from app.ingest.cells import null_tokens
from app.ingest.columns import Columns, distinct_names, label_doubt, renamed_warning
from app.ingest.left_out import Unlabelled, is_few
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
from app.ingest.tables import data_of_columns, record_rows
from core.data.validation import row_blocks

_BATCH_ROWS = 65_536
_ENDS = (b"PAR1", b"PARE")
"""The last bytes of whole files, not encrypted and encrypted."""
OPTIONS = ("label_column", "index_column", "columns", "null_values")
"""Options that a sender may set for a Parquet file."""
OPTIONS_OF_ROWS = ("label_column", "index_column")
"""Options that a sender may set for a Parquet file of rows without labels."""


@errors_as_invalid("Parquet")
def read_parquet(path: Path, limits: DatasetLimits, options: ReadingOptions) -> RawData:
    """Read a Parquet file: a table is float32 if all of its columns are, otherwise float64.

    Features that are not all numbers without gaps become a table of raw cells. Raises TooLarge, and
    InvalidRequest that names rows without a label, or the columns that may hold the labels.
    """
    schema, columns, rows = _described(path, limits, options, Columns.of)
    check_types(schema, columns)
    warnings = tuple(renamed_warning(schema.names, columns.names or ()))
    has_numbers = all(is_number(schema.field(k).type) for table in columns.tables.values() for k in table)
    if has_numbers and not options.columns and not options.null_values:
        numbers = _read_numbers(path, schema, columns, rows, options.unlabelled)
        if numbers is not None:
            tables, labels = numbers
            _check_label(schema, columns, labels)
            return RawData(
                RawPart(tables["X"], labels, columns.extras(tables)),
                feature_names=columns.feature_names,
                label_column=columns.label_name,
                decisions=columns.decisions,
                variant=columns.variant,
                warnings=(*warnings, *columns.warnings),
            )
    cells = ArrowCells(columns, options.kinds, null_tokens(options.null_values), limits)
    _read_cells(path, schema, cells)
    _check_label(schema, columns, cells.labels)
    return data_of_columns(columns, cells.read(), cells.labels, options, limits, warnings=warnings)


@errors_as_invalid("Parquet")
def read_parquet_rows(
    path: Path, limits: DatasetLimits, options: ReadingOptions, known: Known
) -> FeatureRows:
    """Read rows without labels, in the same way as `read_parquet`."""
    schema, columns, rows = _described(path, limits, options, partial(Columns.of_rows, known=known))
    if known.kinds is not None:
        check_types(schema, columns)
        cells = ArrowCells(columns, known.kinds, null_tokens(options.null_values), limits)
        _read_cells(path, schema, cells)
        return record_rows(columns, cells.read(), known, columns.decisions, None)
    _check_numbers(schema, columns)
    numbers = _read_numbers(path, schema, columns, rows, "refuse", gaps_are_faults=True)
    X = np.empty((0, 0)) if numbers is None else numbers[0]["X"]
    return columns.rows(X, columns.decisions, None)


def _described(
    path: Path, limits: DatasetLimits, options: ReadingOptions, layout: Callable[..., Columns]
) -> tuple[pa.Schema, Columns, int]:
    """The schema of a file, its columns and the number of its rows. Raises InvalidRequest, TooLarge."""
    _check_end(path)
    try:
        metadata = parquet.read_metadata(path)
        schema = metadata.schema.to_arrow_schema()
    except pa.ArrowMemoryError:
        raise
    except DAMAGE as error:
        raise invalid_file(
            f"The Parquet file is cut off or damaged: {error}", code="truncated_upload"
        ) from error
    _check_sizes(metadata, limits)
    names = distinct_names(schema.names)
    index = index_of(schema, partial(_first_column, path)) if options.index_column is None else {}
    return schema, layout(names, len(names), options, index=index), metadata.num_rows


def _check_end(path: Path) -> None:
    """Raise InvalidRequest for a file that is cut off."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - len(_ENDS[0])))
        if file.read() not in _ENDS:
            raise invalid_file(f"The Parquet file is cut off: {NO_END}", code="truncated_upload")


def _read_cells(path: Path, schema: pa.Schema, cells: ArrowCells) -> None:
    """Collect the cells of all rows."""
    with parquet.ParquetFile(path, read_dictionary=_texts(schema)) as file:
        for batch in batches_of("Parquet", file.iter_batches(batch_size=_BATCH_ROWS)):
            cells.add(batch)


def _check_label(schema: pa.Schema, columns: Columns, labels: list[Any]) -> None:
    if (
        columns.label_is_guessed
        and (doubt := label_doubt(labels, may_lack=columns.labels_may_lack)) is not None
    ):
        raise ambiguous(schema, columns, doubt)


def _texts(schema: pa.Schema) -> list[str]:
    """Columns of texts, which stay dictionary-encoded: huge repeated texts would take too much memory."""
    return [column.name for column in schema if is_text(column.type)]


def _first_column(path: Path) -> list[Any]:
    values: list[Any] = []
    with parquet.ParquetFile(path) as file:
        first = file.iter_batches(batch_size=_BATCH_ROWS, columns=[file.schema_arrow.names[0]])
        for batch in batches_of("Parquet", first):
            values += batch.column(0).to_pylist()
    return values


def _check_sizes(metadata: parquet.FileMetaData, limits: DatasetLimits) -> None:
    if metadata.num_rows < 1:
        raise invalid_file("The file has no rows of data.", code="no_rows")
    limits.check(metadata.num_rows, metadata.num_columns)
    limits.check_bytes(sum(metadata.row_group(k).total_byte_size for k in range(metadata.num_row_groups)))


def _check_numbers(schema: pa.Schema, columns: Columns) -> None:
    """Raise InvalidRequest for columns that are no numbers."""
    faults = []
    for position, column in enumerate(schema):
        if position not in columns.unread and not is_number(column.type):
            text = f"Column {column.name!r:.80} is of type {column.type}, not a number{way_out(column.type)}."
            field, place = columns.place(position)
            faults.append(InputFault(field, "not_numeric", text, column=place))
    if faults:
        raise invalid_rows(faults[:MAX_FAULTS])


def _read_numbers(
    path: Path,
    schema: pa.Schema,
    columns: Columns,
    rows: int,
    unlabelled: Unlabelled | None,
    *,
    gaps_are_faults: bool = False,
) -> tuple[dict[str, NDArray[Any]], list[Any]] | None:
    """Tables of numbers by field, and the labels; None if features have gaps, unless these are faults."""
    label = columns.label
    coded = [schema.names[label]] if label is not None and is_text(schema.field(label).type) else []
    with parquet.ParquetFile(path, read_dictionary=coded) as file:
        found = _read(file, columns, rows, unlabelled, gaps_are_faults)
    if found is None or gaps_are_faults:
        return found
    X = found[0]["X"]
    return None if any(np.isnan(X[part]).any() for part in row_blocks(*X.shape)) else found


def _read(
    file: parquet.ParquetFile,
    columns: Columns,
    rows: int,
    unlabelled: Unlabelled | None,
    gaps_are_faults: bool,
) -> tuple[dict[str, NDArray[Any]], list[Any]] | None:
    schema, names = file.schema_arrow, columns.names or ()
    tables = {}
    for field, positions in columns.tables.items():
        single = all(pa.types.is_float32(schema.field(k).type) for k in positions)
        tables[field] = np.empty((rows, len(positions)), dtype=np.float32 if single else np.float64)
    labels: list[Any] = []
    faults: list[InputFault] = []
    missing: list[InputFault] = []
    stop = 0
    for batch in batches_of("Parquet", file.iter_batches(batch_size=_BATCH_ROWS)):
        start, stop = stop, stop + len(batch)
        if stop > rows:
            raise unreadable("Parquet", pa.ArrowInvalid("it has more rows than it declares"))
        for field, table in tables.items():
            for column, position in enumerate(columns.tables[field]):
                values = batch.column(position)
                if values.null_count and field == "X" and not gaps_are_faults:
                    return None
                faults += _nulls(values, field, names[position], start, column)
                numbers = pc.cast(plain(values), table.dtype.name, safe=False)
                table[start:stop, column] = numbers.to_numpy(zero_copy_only=False)
        if columns.label is not None:
            values = batch.column(columns.label)
            missing += _nulls(values, "y", names[columns.label], start, None)
            labels += converted(columns.name(columns.label), values, labels_of)
        if len(faults) >= MAX_FAULTS:
            break
    if unlabelled == "refuse" or (unlabelled is None and not is_few(labels.count(None), labels)):
        faults += missing
    if faults:
        raise invalid_rows(sorted(faults, key=lambda fault: fault.row or 0)[:MAX_FAULTS])
    return {field: table[:stop] for field, table in tables.items()}, labels


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
