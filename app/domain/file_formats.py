"""The formats of the files of data sets, and their descriptions. Their readers are in `app.ingest`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class FileFormat(StrEnum):
    """The names under which senders say a format, in the order of all lists."""

    CSV = "csv"
    JSONL = "jsonl"
    PARQUET = "parquet"
    ARROW = "arrow"
    ARFF = "arff"
    SVMLIGHT = "svmlight"
    NPZ = "npz"
    NPY = "npy"
    SAFETENSORS = "safetensors"
    ZIP = "zip"


@dataclass(frozen=True, slots=True)
class Traits:
    """What is known of a format.

    label: what people call it. endings: of the names of its files. media_types: of requests with its files.
    magic: the first bytes of its files, where these tell the format. is_text: whether its files are text.
    is_table: whether its columns may hold texts, categories, dates and gaps, so that senders can say kinds of
    columns, and records to ask about can come from its files.
    """

    label: str
    endings: tuple[str, ...]
    media_types: tuple[str, ...] = ()
    magic: tuple[bytes, ...] = ()
    is_text: bool = False
    is_table: bool = False


TRAITS: Final[Mapping[FileFormat, Traits]] = {
    FileFormat.CSV: Traits(
        "CSV",
        endings=(".csv", ".tsv"),
        media_types=("text/csv", "text/tab-separated-values"),
        is_text=True,
        is_table=True,
    ),
    FileFormat.JSONL: Traits(
        "JSON Lines",
        endings=(".jsonl", ".ndjson"),
        media_types=("application/x-ndjson", "application/jsonl"),
        is_text=True,
        is_table=True,
    ),
    FileFormat.PARQUET: Traits(
        "Parquet",
        endings=(".parquet", ".pq"),
        media_types=("application/vnd.apache.parquet",),
        magic=(b"PAR1",),
        is_table=True,
    ),
    FileFormat.ARROW: Traits(
        "Arrow",
        endings=(".arrow", ".arrows", ".feather", ".ipc"),
        media_types=("application/vnd.apache.arrow.file", "application/vnd.apache.arrow.stream"),
        # Of files, and of streams.
        magic=(b"ARROW1", b"\xff\xff\xff\xff"),
        is_table=True,
    ),
    FileFormat.ARFF: Traits(
        "ARFF", endings=(".arff",), media_types=("text/x-arff",), is_text=True, is_table=True
    ),
    FileFormat.SVMLIGHT: Traits(
        "svmlight",
        endings=(".svm", ".svmlight", ".libsvm"),
        media_types=("application/x-svmlight",),
        is_text=True,
    ),
    FileFormat.NPZ: Traits(
        ".npz", endings=(".npz",), media_types=("application/x-npz",), magic=(b"PK\x03\x04",)
    ),
    FileFormat.NPY: Traits(".npy", endings=(".npy",), magic=(b"\x93NUMPY",)),
    # Its files begin with a length, see `app.ingest.formats.is_safetensors`.
    FileFormat.SAFETENSORS: Traits(
        "safetensors", endings=(".safetensors",), media_types=("application/x-safetensors",)
    ),
    # Told from .npz by the names of its members, see `app.ingest.other_files.is_picture_archive`.
    FileFormat.ZIP: Traits("ZIP of pictures", endings=(".zip",), media_types=("application/zip",)),
}
KIND_KEY: Final = "x-stms-kind"
"""Key of a property in the schema of records: kind and pattern of a column, written as in file options."""
NULLS_KEY: Final = "x-stms-nulls"
"""Key of a property: the texts that mark a gap in the column, besides those that mark one in every column."""
LABELS: Final = tuple(traits.label for traits in TRAITS.values())
TABLES: Final = tuple(kind for kind, traits in TRAITS.items() if traits.is_table)
TABLE_LABELS: Final = tuple(TRAITS[kind].label for kind in TABLES)
MEDIA_TYPES: Final = {name: kind for kind, traits in TRAITS.items() for name in traits.media_types}
"""Formats by media type."""
ENDINGS: Final = {ending: kind for kind, traits in TRAITS.items() for ending in traits.endings}
"""Formats by the ending of a file's name."""
MAGIC: Final = {magic: kind for kind, traits in TRAITS.items() for magic in traits.magic}
"""Formats by the first bytes of a file."""


def in_words(names: Iterable[str], conjunction: str = "or") -> str:
    """At least two names as part of a sentence: ``a, b or c``."""
    *most, last = names
    return f"{', '.join(most)} {conjunction} {last}"
