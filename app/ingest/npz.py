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

from app.domain.errors import InputFault, InvalidRequest, TooLarge, UnsupportedFormat
from app.domain.npy_header import ArrayHeader, read_header
from app.ingest.mapped_arrays import as_floats, mapped
from app.ingest.npy import read_array
from app.ingest.raw import DatasetLimits, RawData, RawPart, choose_label_column, invalid_file, invalid_rows

_MAX_ARRAYS = 1000
_MAX_DIRECTORY_BYTES = 512 * 1024
"""Largest ZIP directory that is parsed: enough for `_MAX_ARRAYS` entries with long names."""
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Compression methods that NumPy writes; others can take far more memory or time than their size shows."""
_CSR = ("data", "indices", "indptr")
_NAME_LISTS = ("class_names", "feature_names")
_MAX_UNUSED_NAMES = 100_000
"""Class names that a file may list although it has fewer rows."""
_LONGEST_TEXT = 10_000
"""Most characters for which a text of an array may have room; a class name has at most 256."""
_STR_BYTES = 64
"""Memory of a short text as a Python object, and of the reference to it."""


def read_npz(path: Path, limits: DatasetLimits) -> RawData:
    """Read an archive with ``X`` and ``y`` (or ``X_train``, ``y_train``), optionally ``X_test``, ``y_test``.

    A table X may be stored as CSR in ``X_data``, ``X_indices``, ``X_indptr`` and ``X_shape``. ``class_names``
    and ``feature_names`` are optional; other arrays are not decompressed. Raises InvalidRequest, TooLarge,
    UnsupportedFormat.
    """
    with npz_archive(path) as archive:
        return _DatasetReader(archive, limits, set()).read()


def read_npy(path: Path, limits: DatasetLimits, label_column: str | None) -> RawData:
    """Read one table (n, d + 1) of numbers. label_column: index of the labels; None means the last column."""
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
        if path.stat().st_size - file.tell() < header.size:
            raise invalid_file("The .npy file is cut off.", code="truncated_upload")
        table = mapped(file, header.dtype, header.shape, header.order)
    label = choose_label_column(None, columns, label_column)
    return RawData(
        RawPart(as_floats(table, limits.temp_folder, without=label), np.array(table[:, label])),
        label_column=str(label),
        label_is_default=label == columns - 1,
    )


@dataclass(frozen=True, slots=True)
class NpzArchive:
    """An open archive. entries: its ZIP entries by array name."""

    archive: zipfile.ZipFile
    entries: Mapping[str, zipfile.ZipInfo]

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


@dataclass(frozen=True, slots=True)
class _DatasetReader:
    """Reads the arrays of a data set one at a time. used: names of the arrays read so far."""

    archive: NpzArchive
    limits: DatasetLimits
    used: set[str]

    @property
    def entries(self) -> Mapping[str, zipfile.ZipInfo]:
        return self.archive.entries

    def read(self) -> RawData:
        suffix = "_train" if self._has_table("X_train") else ""
        self._check_sizes()
        train = self._part(suffix)
        test = self._part("_test") if self._has_table("X_test") else None
        if test is None and "y_test" in self.entries:
            raise self._missing("X_test")
        rows, columns = train.X.shape
        class_names = self._names("class_names", max(rows, _MAX_UNUSED_NAMES))
        feature_names = self._names("feature_names", columns)
        ignored = tuple(sorted(set(self.entries) - self.used))
        return RawData(train, test, feature_names, class_names, ignored=ignored)

    def _has_table(self, name: str) -> bool:
        return name in self.entries or f"{name}_data" in self.entries

    def _check_sizes(self) -> None:
        """Raise TooLarge if the arrays exceed the limit, before any of them is decompressed."""
        self.limits.check_bytes(
            sum(
                info.file_size
                for name, info in self.entries.items()
                if name.startswith(("X", "y")) or name in _NAME_LISTS
            )
        )

    def _part(self, suffix: str) -> RawPart:
        labels, rows, _ = self._header(f"y{suffix}"), *self._shape(f"X{suffix}")
        # Compared before either is decompressed: a long array of equal labels takes a thousandth in the file.
        if len(labels.shape) == 1 and labels.shape[0] != rows:
            text = f"X{suffix} has {rows} rows, but there are {labels.shape[0]} labels."
            raise _dataset_error(labels.name, "wrong_length", text)
        if len(labels.shape) != 1:
            text = f"{labels.name} must be one list of labels; it has {len(labels.shape)} axes."
            raise _dataset_error(labels.name, "wrong_shape", text)
        return RawPart(self._table(f"X{suffix}"), self._texts(labels))

    def _shape(self, name: str) -> tuple[int, int]:
        """Rows and columns of a table, from its header or from ``X_shape``, checked against the limits."""
        if name in self.entries:
            header = self._header(name)
            if len(header.shape) != 2:
                text = f"{name} must be a table with one row for each example."
                raise _dataset_error(name, "wrong_shape", text)
            rows, columns = header.shape
        else:
            header = self._header(f"{name}_shape")
            shape = self._array(header.name) if header.shape == (2,) else None
            if shape is None or shape.dtype.kind not in "iu" or shape.min() < 0:
                text = f"{name}_shape must hold two whole numbers: rows and columns."
                raise _array_error(name, "bad_sparse", text)
            rows, columns = int(shape[0]), int(shape[1])
        self.limits.check_shape(rows, columns)
        return rows, columns

    def _table(self, name: str) -> Any:
        shape = self._shape(name)
        if name in self.entries:
            self.limits.check(*shape)
            X = self._array(name)
            return as_floats(X, self.limits.temp_folder) if X.dtype.kind in "biuf" else X
        # Imported here because heads are read from this format without SciPy.
        from scipy.sparse import csr_array

        data, indices, indptr = (self._array(f"{name}_{part}") for part in _CSR)
        try:
            return csr_array((data, indices, indptr), shape=shape)
        except (ValueError, TypeError, IndexError) as error:
            raise _array_error(
                name, "bad_sparse", f"{name} is not a well-formed CSR table: {error}."
            ) from error

    def _names(self, name: str, most: int) -> tuple[str, ...] | None:
        if name not in self.entries:
            return None
        header = self._header(name)
        if len(header.shape) != 1 or header.dtype.kind not in "US":
            raise _array_error(name, "bad_names", f"{name} must be a one-dimensional array of text.")
        if header.shape[0] > most:
            text = f"{name} has {header.shape[0]} names; at most {most} can be used."
            raise _dataset_error(name, "wrong_length", text)
        return tuple(self._texts(header).tolist())

    def _texts(self, header: ArrayHeader) -> NDArray[Any]:
        """A list of labels or names; text is decoded, other types stay as they are."""
        if header.dtype.kind not in "US":
            return self._array(header.name)
        # NumPy stores every text of an array with the width of the longest, and four bytes a character.
        letters = header.dtype.itemsize // (1 if header.dtype.kind == "S" else 4)
        if letters > _LONGEST_TEXT:
            text = f"{header.name} has room for {letters} characters a text; the limit is {_LONGEST_TEXT}."
            raise _dataset_error(header.name, "label_too_long", text)
        self.limits.check_bytes(header.shape[0] * (4 * letters + _STR_BYTES))
        values = self._array(header.name)
        try:
            return np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values
        except UnicodeDecodeError as error:
            raise _array_error(header.name, "bad_encoding", f"{header.name} is not UTF-8 text.") from error

    def _header(self, name: str) -> ArrayHeader:
        if name not in self.entries:
            raise self._missing(name)
        with self.archive.open(name) as (header, _):
            return header

    def _array(self, name: str) -> NDArray[Any]:
        if name not in self.entries:
            raise self._missing(name)
        self.used.add(name)
        with self.archive.open(name) as (header, stream):
            self.limits.check_bytes(header.size)
            return read_array(header, stream, self.limits.temp_folder)

    def _missing(self, name: str) -> InvalidRequest:
        names = ", ".join(sorted(self.entries)[:20])
        return _array_error(
            name, "missing_array", f"The archive has no array {name!r}. It has {names[:400]}."
        )


def _array_error(name: str, code: str, message: str) -> InvalidRequest:
    return invalid_file(message, code=code, faults=[InputFault(name, code, message)])


def _dataset_error(name: str, code: str, message: str) -> InvalidRequest:
    """The error for arrays that do not make a data set together, with the code that all such errors have."""
    return invalid_rows([InputFault(name, code, message)])
