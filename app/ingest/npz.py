"""NumPy files: .npz archives of named arrays, and tables in .npy files.

Sizes and offsets in the file are untrusted, and pickled objects are refused.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from app.domain.errors import TooLarge, UnsupportedFormat
from app.domain.npy_header import ArrayHeader, read_header
from app.ingest.columns import Columns, ambiguous_label, label_doubt, likely_labels
from app.ingest.mapped_arrays import as_floats, mapped
from app.ingest.named_arrays import read_arrays
from app.ingest.options import ReadingOptions
from app.ingest.raw import DatasetLimits, FeatureRows, RawData, RawPart, invalid_file

OPTIONS_OF_TABLES = ("label_column", "index_column")
"""Options for an .npy file; an archive has none, because its arrays have names."""
_SAMPLE_ROWS = 100
_SAMPLE_COLUMNS = 1000
_MAX_ARRAYS = 1000
_MAX_DIRECTORY_BYTES = 512 * 1024
"""Largest ZIP directory that is parsed: enough for `_MAX_ARRAYS` entries with long names."""
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Compression methods that NumPy writes; others can take far more memory or time than their size shows."""


def read_npz(path: Path, limits: DatasetLimits) -> RawData:
    """Read an archive of the arrays that `app.ingest.named_arrays` lists; others are not decompressed.

    Raises InvalidRequest, TooLarge, UnsupportedFormat.
    """
    with npz_archive(path) as archive:
        return read_arrays(archive, limits, archive.sizes)


def read_npy(path: Path, limits: DatasetLimits, options: ReadingOptions) -> RawData:
    """Read one table (n, d + 1) of numbers, one of whose columns holds the labels.

    Raises InvalidRequest, also if the last column hardly holds classes, and TooLarge.
    """
    table = _npy_table(path, limits)
    columns = table.shape[1]
    layout = Columns.of(None, columns, options)
    label = layout.label or 0
    labels = np.array(table[:, label])
    if layout.label_is_guessed and (doubt := label_doubt(labels.tolist())) is not None:
        reason = f"The table names no columns, and the last one, {label}, hardly holds classes: {doubt}."
        sample = [list(map(str, row)) for row in table[:_SAMPLE_ROWS, :_SAMPLE_COLUMNS].tolist()]
        raise ambiguous_label(None, likely_labels(sample, {label}), reason, columns, sample)
    X = as_floats(table, limits.temp_folder, without=label)
    return RawData(
        RawPart(X if not layout.index else np.delete(X, _places(layout), axis=1), labels),
        label_column=str(label),
        decisions=layout.decisions,
        variant=layout.variant,
    )


def read_npy_rows(path: Path, limits: DatasetLimits, options: ReadingOptions) -> FeatureRows:
    """Read a table (n, d) of numbers without labels. Raises InvalidRequest, TooLarge."""
    table = _npy_table(path, limits)
    layout = Columns.of_rows(None, table.shape[1], options)
    X = np.array(table[:, layout.features], dtype=np.float64)
    return layout.rows(X, layout.decisions, None)


def _npy_table(path: Path, limits: DatasetLimits) -> NDArray[Any]:
    with path.open("rb") as file:
        header = read_header(file, "table")
        if len(header.shape) != 2 or header.dtype.kind not in "biuf":
            shape = " × ".join(map(str, header.shape)) or "()"
            raise invalid_file(
                f"An .npy file must hold a table of numbers with the labels in one column; this is {shape} "
                f"of {header.dtype}. To send labels as a separate array, use an .npz file.",
                code="no_labels",
            )
        rows, columns = header.shape
        limits.check(rows, columns)
        missing = header.size - (path.stat().st_size - file.tell())
        if missing > 0:
            text = (
                f"The .npy file is cut off: {missing} of the {header.size} bytes of its numbers are missing."
            )
            raise invalid_file(text, code="truncated_upload")
        return mapped(file, header.dtype, header.shape, header.order)


def _places(layout: Columns) -> list[int]:
    """Positions of the columns that are left out, in the table without the labels."""
    return [k - (k > (layout.label or 0)) for k in layout.index]


@dataclass(frozen=True, slots=True)
class NpzArchive:
    """An open archive. entries: its ZIP entries by array name."""

    archive: zipfile.ZipFile
    entries: Mapping[str, zipfile.ZipInfo]

    @property
    def sizes(self) -> dict[str, int]:
        """Decompressed bytes of each array as the ZIP directory declares them."""
        return {name: info.file_size for name, info in self.entries.items()}

    @contextmanager
    def open(self, name: str) -> Iterator[tuple[ArrayHeader, IO[bytes]]]:
        """Header and decompressed bytes of an array. Raises InvalidRequest."""
        info = self.entries[name]
        with self.archive.open(info) as stream:
            header = read_header(stream, name)
            # The .npy header and the ZIP directory are both untrusted, so their sizes must agree.
            if header.size != info.file_size - stream.tell():
                raise invalid_file(
                    f"Array {name!r:.80} does not have the size of its shape.", code="unreadable_file"
                )
            yield header, stream


@contextmanager
def npz_archive(path: Path) -> Iterator[NpzArchive]:
    """Open the archive at ``path``. Errors of zipfile and zlib in the block become InvalidRequest.

    Raises TooLarge for too many entries, and UnsupportedFormat if an entry is not an .npy array.
    """
    try:
        with _DirectoryLimit(path.open("rb")) as file, zipfile.ZipFile(file) as archive:
            file.directory_read = True
            yield NpzArchive(archive, _entries(archive))
    except zipfile.BadZipFile as error:
        raise invalid_file(
            f"The .npz file is cut off or damaged: {error}.", code="truncated_upload"
        ) from error
    except (EOFError, OSError, zlib.error, NotImplementedError, RuntimeError, UnicodeDecodeError) as error:
        # Offsets outside of the file, unsupported compression, passwords, names that are not UTF-8.
        raise invalid_file(f"The .npz file cannot be unpacked: {error}.", code="unreadable_file") from error


class _DirectoryLimit(io.BufferedReader):
    """Refuses large reads until the ZIP directory has been parsed.

    `zipfile.ZipFile` reads the whole directory and makes an object for every entry before the entries can
    be counted.
    """

    directory_read = False

    def __init__(self, file: io.BufferedReader) -> None:
        super().__init__(file.detach())

    def read(self, size: int | None = -1, /) -> bytes:
        if not self.directory_read and size is not None and size > _MAX_DIRECTORY_BYTES:
            message = f"The archive's list of entries has {size} bytes; the limit is {_MAX_DIRECTORY_BYTES}."
            raise TooLarge(message, code="too_many_arrays")
        return super().read(size)


def _entries(archive: zipfile.ZipFile) -> Mapping[str, zipfile.ZipInfo]:
    infos = archive.infolist()
    if len(infos) > _MAX_ARRAYS:
        raise TooLarge(
            f"The archive has {len(infos)} entries; the limit is {_MAX_ARRAYS}.", code="too_many_arrays"
        )
    if not infos or not all(info.filename.endswith(".npy") for info in infos):
        raise UnsupportedFormat("The file is a ZIP archive, but not one of NumPy arrays (.npz).")
    if not all(info.compress_type in _METHODS for info in infos):
        raise invalid_file(
            "The archive uses a compression that NumPy does not write.", code="unreadable_file"
        )
    entries = {info.filename.removesuffix(".npy"): info for info in infos}
    if len(entries) != len(infos):
        raise invalid_file("The archive has two arrays of the same name.", code="ambiguous_array")
    return entries
