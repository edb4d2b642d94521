"""Rows without labels, read from files in the same way as data sets: by the same readers and options."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from app.domain.errors import UnsupportedFormat
from app.domain.file_formats import TABLE_LABELS, FileFormat, in_words
from app.ingest.formats import detect
from app.ingest.options import ReadingOptions
from app.ingest.raw import NOTHING, DatasetLimits, FeatureRows, Known

_LIMITS: Final = DatasetLimits(max_rows=10_000_000, max_columns=1_000_000, max_bytes=8 * 1024**3)
_OF_RECORDS: Final = ("null_values",)
"""Further options for files of records."""


def read_rows(path: Path, options: ReadingOptions, known: Known = NOTHING) -> FeatureRows:
    """The rows of a CSV, Parquet or .npy file, or records of a file of any format of tables.

    Columns are matched by their names, if file and model have names; a column of labels is left out.
    known: what the model knows about its columns. Raises InvalidRequest, TooLarge and UnsupportedFormat.
    """
    more = () if known.kinds is None else _OF_RECORDS
    match detect(path, declared=None, filename=path.name):
        case FileFormat.CSV:
            from app.ingest.csv import reader

            options.only("a CSV file of rows", (*reader.OPTIONS_OF_ROWS, *more))
            return reader.read_csv_rows(path, _LIMITS, options, known)
        case FileFormat.PARQUET:
            from app.ingest import parquet

            options.only("a Parquet file of rows", (*parquet.OPTIONS_OF_ROWS, *more))
            return parquet.read_parquet_rows(path, _LIMITS, options, known)
        case FileFormat.NPY if known.kinds is None:
            from app.ingest import npz

            options.only("a table of numbers in an .npy file", npz.OPTIONS_OF_TABLES)
            return npz.read_npy_rows(path, _LIMITS, options)
        case FileFormat.JSONL if known.kinds is not None:
            from app.ingest.jsonl import read_jsonl_records

            options.only("a file of JSON lines of records", more)
            return read_jsonl_records(path, _LIMITS, options, known)
        case FileFormat.ARROW if known.kinds is not None:
            from app.ingest.arrow_file import read_arrow_records

            options.only("an Arrow file of records", more)
            return read_arrow_records(path, _LIMITS, options, known)
        case FileFormat.ARFF if known.kinds is not None:
            from app.ingest.arff import read_arff_records

            options.only("an ARFF file of records", more)
            return read_arff_records(path, _LIMITS, options, known)
        case other:
            labels = ("CSV", "Parquet", ".npy") if known.kinds is None else TABLE_LABELS
            taken = in_words(labels, "and")
            text = f"{path} is of the format {other}; rows to ask about come from {taken} files."
            raise UnsupportedFormat(text)
