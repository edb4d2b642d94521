"""Reads the rows of a CSV file with Arrow, in the same way for the reader and for the diagnosis of faults."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv as arrow_csv

from app.ingest.csv.layout import CsvLayout


def open_rows(
    text: pa.Buffer | bytes,
    layout: CsvLayout,
    *,
    skip_header: bool,
    block_bytes: int,
    use_threads: bool = True,
    types: Mapping[int, pa.DataType] | None = None,
    nulls: Collection[str] = (),
    has_line_breaks: bool = False,
) -> arrow_csv.CSVStreamingReader:
    """A reader of batches whose columns are named by their positions in the file, unread ones left out.

    Numbers are float64; labels, indices and booleans are text. Only without threads do errors name rows.
    types: of the columns that are read, in place of these. nulls: cells of columns of numbers that become
    nulls. has_line_breaks: whether quoted cells may have some. Raises ArrowInvalid, as the reader does.
    """
    if types is None:
        numbers = [k for table in layout.columns.tables.values() for k in table]
        types = {k: pa.string() if k in layout.booleans else pa.float64() for k in numbers}
        types |= dict.fromkeys(text_columns(layout), pa.string())
    options = _options(layout, skip_header, block_bytes, types, nulls, has_line_breaks)
    options["read_options"].use_threads = use_threads
    return arrow_csv.open_csv(pa.BufferReader(text), **options)


def read_rows(
    text: pa.Buffer,
    layout: CsvLayout,
    *,
    block_bytes: int,
    types: Mapping[int, pa.DataType],
    nulls: Collection[str],
    has_line_breaks: bool,
) -> pa.Table:
    """The columns of ``types`` as `open_rows` reads them, at once and by several threads.

    Raises ArrowInvalid.
    """
    options = _options(layout, layout.has_header, block_bytes, types, nulls, has_line_breaks)
    return arrow_csv.read_csv(pa.BufferReader(text), **options)


def _options(
    layout: CsvLayout,
    skip_header: bool,
    block_bytes: int,
    types: Mapping[int, pa.DataType],
    nulls: Collection[str],
    has_line_breaks: bool,
) -> dict[str, Any]:
    return {
        "read_options": arrow_csv.ReadOptions(
            column_names=[str(position) for position in range(layout.columns.count)],
            skip_rows=int(skip_header),
            block_size=block_bytes,
        ),
        "parse_options": arrow_csv.ParseOptions(
            delimiter=layout.separator,
            quote_char='"' if layout.has_quotes else False,
            newlines_in_values=has_line_breaks,
            ignore_empty_lines=False,
        ),
        "convert_options": arrow_csv.ConvertOptions(
            column_types={str(k): kind for k, kind in types.items()},
            include_columns=[str(k) for k in sorted(types)],
            null_values=sorted(nulls),
            strings_can_be_null=False,
            decimal_point=layout.decimal,
        ),
    }


def text_columns(layout: CsvLayout) -> list[int]:
    """Positions of the columns of labels and indices."""
    return [k for k in (layout.columns.label, *layout.columns.index) if k is not None]


def texts_of(rows: pa.RecordBatch | pa.Table, position: int) -> pa.Array | pa.ChunkedArray:
    """The cells of a column of labels or indices without whitespace around them."""
    return pc.utf8_trim_whitespace(rows.column(str(position)))


def numbers_of(batch: pa.RecordBatch, position: int, layout: CsvLayout) -> NDArray[Any]:
    """A column of numbers or booleans.

    Raises ArrowInvalid for cells of a column of booleans that are neither true nor false.
    """
    if position not in layout.booleans:
        values: NDArray[Any] = batch.column(str(position)).to_numpy()
        return values
    words = pc.utf8_lower(texts_of(batch, position))
    is_true, is_false = pc.equal(words, "true"), pc.equal(words, "false")
    if not pc.all(pc.or_(is_true, is_false)).as_py():
        raise pa.ArrowInvalid("a cell is neither true nor false")
    truth: NDArray[Any] = is_true.to_numpy(zero_copy_only=False).astype(np.float64)
    return truth
