"""Rows to ask about, read from files as data sets are: by the same readers, with the same options."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from app.domain.errors import UnsupportedFormat
from app.ingest.formats import FileFormat, detect
from app.ingest.options import ReadingOptions
from app.ingest.raw import DatasetLimits, FeatureRows, Known, invalid_file

_LIMITS: Final = DatasetLimits(max_rows=10_000_000, max_columns=1_000_000, max_bytes=8 * 1024**3)
NOTHING: Final = Known()
"""The columns of the model have no names."""


def read_rows(path: Path, options: ReadingOptions, known: Known = NOTHING) -> FeatureRows:
    """The rows of a CSV, Parquet or .npy file; a label column that it has is left out.

    known: what the model knows of columns; where the file names its columns, they are put into this order.

    Raises InvalidRequest, TooLarge and UnsupportedFormat.
    """
    if path.stat().st_size == 0:
        raise invalid_file(f"{path} is empty.", code="empty_file")
    match detect(path, declared=None, filename=path.name):
        case FileFormat.CSV:
            from app.ingest.csv import reader

            options.only("a CSV file of rows", reader.OPTIONS_OF_ROWS)
            return reader.read_csv_rows(path, _LIMITS, options, known)
        case FileFormat.PARQUET:
            from app.ingest import parquet

            options.only("a Parquet file of rows", parquet.OPTIONS_OF_ROWS)
            return parquet.read_parquet_rows(path, _LIMITS, options, known)
        case FileFormat.NPY:
            from app.ingest import npz

            options.only("a table of numbers in an .npy file", npz.OPTIONS_OF_TABLES)
            return npz.read_npy_rows(path, _LIMITS, options)
        case other:
            text = (
                f"{path} is of the format {other}; rows to ask about come from CSV, Parquet and .npy files."
            )
            raise UnsupportedFormat(text)
