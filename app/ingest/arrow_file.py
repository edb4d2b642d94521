"""Arrow's own files and streams: columns of cells and one label column."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import ipc

from app.ingest.arrow_columns import (
    DAMAGE,
    NO_END,
    ArrowCells,
    ambiguous,
    batches_of,
    check_types,
    errors_as_invalid,
    index_of,
    unreadable,
)
from app.ingest.cells import null_tokens
from app.ingest.columns import Columns, distinct_names, label_doubt, renamed_warning
from app.ingest.options import ReadingOptions
from app.ingest.raw import DatasetLimits, FeatureRows, Known, RawData, invalid_file
from app.ingest.tables import data_of_columns, record_rows
from core.data.schema import KindSpec

OPTIONS: Final = ("label_column", "index_column", "columns", "null_values")
"""Options that a sender may set for an Arrow file."""
_FILE_MAGIC: Final = b"ARROW1"


@errors_as_invalid("Arrow")
def read_arrow(path: Path, limits: DatasetLimits, options: ReadingOptions) -> RawData:
    """Read an Arrow file or stream as a table of numbers, or of raw cells if some columns are not numbers.

    Raises TooLarge, and InvalidRequest that names columns of other types and faulty rows, or the columns
    that may hold the labels.
    """
    schema, cells = _read(path, limits, options, Columns.of, options.kinds)
    columns = cells.columns
    if not cells.labels:
        raise invalid_file("The file has no rows of data.", code="no_rows")
    if (
        columns.label_is_guessed
        and (doubt := label_doubt(cells.labels, may_lack=columns.labels_may_lack)) is not None
    ):
        raise ambiguous(schema, columns, doubt)
    warnings = tuple(renamed_warning(schema.names, columns.names or ()))
    return data_of_columns(columns, cells.read(), cells.labels, options, limits, warnings=warnings)


@errors_as_invalid("Arrow")
def read_arrow_records(
    path: Path, limits: DatasetLimits, options: ReadingOptions, known: Known
) -> FeatureRows:
    """Read records to ask about. Raises as `read_arrow` does."""
    _, cells = _read(path, limits, options, partial(Columns.of_rows, known=known), known.kinds or {})
    found = cells.read()
    if not found:
        raise invalid_file("The file has no rows of data.", code="no_rows")
    return record_rows(cells.columns, found, known, (), None)


def _read(
    path: Path,
    limits: DatasetLimits,
    options: ReadingOptions,
    layout: Callable[..., Columns],
    kinds: Mapping[str, KindSpec],
) -> tuple[pa.Schema, ArrowCells]:
    """The schema and the cells of all rows. kinds: given for columns, by name. Raises as `read_arrow`."""
    with _batches(path) as (schema, batches):
        names = distinct_names(schema.names)
        limits.check_shape(0, len(names))
        index = index_of(schema, lambda: _first_column(path)) if options.index_column is None else {}
        columns = layout(names, len(names), options, index=index)
        check_types(schema, columns)
        cells = ArrowCells(columns, kinds, null_tokens(options.null_values), limits)
        for batch in batches:
            cells.add(batch)
        return schema, cells


@contextmanager
def _batches(path: Path) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """The schema and the checked batches of a file or stream. Raises InvalidRequest for damaged ones."""
    with pa.memory_map(str(path)) as source:
        is_file = source.read(len(_FILE_MAGIC)) == _FILE_MAGIC
        if is_file:
            source.seek(max(0, source.size() - len(_FILE_MAGIC)))
            if source.read() != _FILE_MAGIC:
                raise invalid_file(f"The Arrow file is cut off: {NO_END}", code="truncated_upload")
        source.seek(0)
        try:
            file = ipc.open_file(source) if is_file else ipc.open_stream(source)
            schema = file.schema
        except pa.ArrowMemoryError:
            raise
        except DAMAGE as error:
            raise unreadable("Arrow", error) from error
        batches = (file.get_batch(k) for k in range(file.num_record_batches)) if is_file else iter(file)
        yield schema, batches_of("Arrow", _checked(batches))


def _checked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches; the offsets and codes of each are checked before they are used."""
    for batch in batches:
        batch.validate(full=True)
        yield batch


def _first_column(path: Path) -> list[Any]:
    values: list[Any] = []
    with _batches(path) as (_, batches):
        for batch in batches:
            values += batch.column(0).to_pylist()
    return values
