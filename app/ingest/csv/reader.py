"""CSV files: one example per row, labels in one column.

Arrow reads the file; only if it fails does `app.ingest.csv.diagnose` locate the faults cell by cell.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv as arrow_csv

from app.ingest.csv.diagnose import find_faults
from app.ingest.csv.layout import CsvLayout, sniff
from app.ingest.raw import DatasetLimits, RawData, RawPart, invalid_file, invalid_rows

_SNIFF_BYTES = 1024**2
_LONGEST_FIRST_LINE = 64 * 1024**2
_BOM = b"\xef\xbb\xbf"


def read_csv(
    path: Path, limits: DatasetLimits, label_column: str | None, *, unlabelled: bool = False
) -> RawData:
    """Read a CSV file in UTF-8.

    Numbers are float64, labels are text without surrounding whitespace. unlabelled: whether labels may be
    missing. Raises TooLarge, and InvalidRequest that names line, row and column of the first faults.
    """
    with _mapped(path) as (text, start, end):
        layout = _layout(text, start, end, label_column)
        columns = layout.columns
        limits.check_shape(0, columns.count)
        lines = _count_lines(text, start, end)
        rows = lines - (columns.names is not None)
        if rows < 1:
            raise invalid_file("The file has no rows of data.", code="no_rows")
        limits.check(rows, columns.count)
        block = _block_bytes(text, start, end)
        try:
            tables, labels = _read_fast(path, start, end, layout, rows, block)
        except pa.ArrowInvalid as error:
            faults = find_faults(text, start, end, layout, unlabelled=unlabelled)
            if faults:
                raise invalid_rows(faults) from error
            raise invalid_file(f"The CSV file cannot be read: {error}", code="unreadable_file") from error
    return RawData(
        RawPart(tables["X"], labels, columns.extras(tables)),
        feature_names=columns.feature_names,
        label_column=columns.label_name,
        label_is_default=columns.label_is_default,
    )


@contextmanager
def _mapped(path: Path) -> Iterator[tuple[mmap.mmap, int, int]]:
    """The mapped file with start and end of its text, without byte order mark and trailing empty lines."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        start = len(_BOM) if text[: len(_BOM)] == _BOM else 0
        end = len(text)
        while end > start and text[end - 1] in b"\r\n":
            end -= 1
        if end == start:
            raise invalid_file("The file contains only empty lines.", code="empty_file")
        yield text, start, end


def _layout(text: mmap.mmap, start: int, end: int, label_column: str | None) -> CsvLayout:
    stop = min(end, start + _SNIFF_BYTES)
    beginning = text[start:stop]
    if stop < end and b"\n" not in beginning and b"\r" not in beginning:
        stop = min(end, start + _LONGEST_FIRST_LINE)
        beginning = text[start:stop]
    return sniff(beginning, label_column, whole=stop == end)


def _count_lines(text: mmap.mmap, start: int, end: int) -> int:
    line_feeds = returns = 0
    for position in range(start, end, _SNIFF_BYTES):
        block = np.frombuffer(text[position : min(end, position + _SNIFF_BYTES)], dtype=np.uint8)
        line_feeds += int(np.count_nonzero(block == ord("\n")))
        returns += int(np.count_nonzero(block == ord("\r")))
    return max(line_feeds, returns) + 1


def _block_bytes(text: mmap.mmap, start: int, end: int) -> int:
    """Arrow's block size in bytes: large enough for many rows even if they are wide."""
    newline = text.find(b"\n", start, min(end, start + _LONGEST_FIRST_LINE))
    first_line = (end if newline < 0 else newline) - start
    return min(max(4 * 1024**2, 64 * first_line), 256 * 1024**2)


def _read_fast(
    path: Path, start: int, end: int, layout: CsvLayout, rows: int, block_bytes: int
) -> tuple[dict[str, NDArray[np.float64]], list[str]]:
    """Tables of numbers by field and labels (n,). Raises ArrowInvalid, which does not locate the fault."""
    label = layout.columns.label
    names = [str(position) for position in range(layout.columns.count)]
    types = {name: pa.string() if k == label else pa.float64() for k, name in enumerate(names)}
    reader = arrow_csv.open_csv(
        pa.BufferReader(pa.memory_map(str(path)).read_buffer().slice(start, end - start)),
        read_options=arrow_csv.ReadOptions(
            column_names=names, skip_rows=int(layout.columns.names is not None), block_size=block_bytes
        ),
        parse_options=arrow_csv.ParseOptions(delimiter=layout.separator, ignore_empty_lines=False),
        convert_options=arrow_csv.ConvertOptions(
            column_types=types, null_values=[], strings_can_be_null=False
        ),
    )
    positions = layout.columns.tables
    tables = {field: np.empty((rows, len(columns))) for field, columns in positions.items()}
    labels: list[str] = []
    for batch in reader:
        stop = len(labels) + len(batch)
        if stop > rows:
            raise pa.ArrowInvalid("the file mixes different line endings")
        for field, columns in positions.items():
            values = [batch.column(k).to_numpy() for k in columns]
            np.stack(values, axis=1, out=tables[field][len(labels) : stop])
        labels += pc.utf8_trim_whitespace(batch.column(label)).to_pylist()
    return {field: table[: len(labels)] for field, table in tables.items()}, labels
