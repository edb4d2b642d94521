"""NumPy files: .npz archives of named arrays, and .npy tables. Pickles are refused, sizes not believed."""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from app.domain.errors import InputFault
from app.ingest.mapped_arrays import as_floats, mapped
from app.ingest.npy import read_header
from app.ingest.npz_archive import NpzArchive, npz_archive
from app.ingest.raw import DatasetLimits, RawData, RawPart, choose_label_column, invalid_file

_CSR = ("data", "indices", "indptr", "shape")


def read_npz(path: Path, limits: DatasetLimits) -> RawData:
    """Read an archive with ``X`` and ``y`` (or ``X_train``, ``y_train``), and maybe ``X_test``, ``y_test``.

    A table X may be given as CSR by ``X_data``, ``X_indices``, ``X_indptr`` and ``X_shape``. ``class_names``
    and ``feature_names`` are optional, other arrays are not even inflated. Raises InvalidRequest, TooLarge,
    UnsupportedFormat.
    """
    with npz_archive(path) as archive:
        return _Archive(archive, limits, set()).read()


def read_npy(path: Path, limits: DatasetLimits, label_column: str | None) -> RawData:
    """Read one table (n, d + 1) of numbers, one column of which holds the labels: by index, else the last."""
    with path.open("rb") as file:
        declared = read_header(file, "table")
        if len(declared.shape) != 2 or declared.dtype.kind not in "biuf":
            shape = " × ".join(map(str, declared.shape)) or "()"
            raise invalid_file(
                f"An .npy file must hold a table of numbers, labels in one column; this is {shape} of "
                f"{declared.dtype}. Labels of their own go with X into an .npz file.",
                code="no_labels",
            )
        rows, columns = declared.shape
        limits.check(rows, columns)
        if path.stat().st_size - file.tell() < declared.size:
            raise invalid_file("The .npy file is cut off.", code="truncated_upload")
        table = mapped(file, declared.dtype, declared.shape, declared.order)
    label = choose_label_column(None, columns, label_column)
    return RawData(
        RawPart(as_floats(table, limits.temp_folder, without=label), np.array(table[:, label])),
        label_column=str(label),
        label_is_default=label == columns - 1,
    )


@dataclass(frozen=True, slots=True)
class _Archive:
    """The arrays of an archive, inflated one by one when asked for; ``used`` are those that were."""

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
        class_names, feature_names = self._names("class_names"), self._names("feature_names")
        ignored = tuple(sorted(set(self.entries) - self.used))
        return RawData(train, test, feature_names, class_names, ignored=ignored)

    def _has_table(self, name: str) -> bool:
        return name in self.entries or f"{name}_data" in self.entries

    def _check_sizes(self) -> None:
        """Refuse an archive that would inflate beyond the limit, before anything is inflated."""
        self.limits.check_bytes(
            sum(info.file_size for name, info in self.entries.items() if name.startswith(("X", "y")))
        )

    def _part(self, suffix: str) -> RawPart:
        labels = self._array(f"y{suffix}")
        if labels.dtype.kind == "S":
            labels = self._text(f"y{suffix}", labels)
        return RawPart(self._table(f"X{suffix}"), labels)

    def _table(self, name: str) -> Any:
        if name in self.entries:
            X = self._array(name)
            if X.ndim != 2:
                return X
            self.limits.check(*X.shape)
            return as_floats(X, self.limits.temp_folder) if X.dtype.kind in "biuf" else X
        data, indices, indptr, shape = (self._array(f"{name}_{part}") for part in _CSR)
        if shape.shape != (2,) or shape.dtype.kind not in "iu" or shape.min() < 0:
            text = f"{name}_shape must hold two whole numbers: rows and columns."
            raise invalid_file(text, code="bad_sparse", faults=[InputFault(name, "bad_sparse", text)])
        self.limits.check_shape(int(shape[0]), int(shape[1]))
        try:
            return sp.csr_array((data, indices, indptr), shape=(int(shape[0]), int(shape[1])))
        except (ValueError, TypeError, IndexError) as error:
            text = f"{name} is not a well-formed CSR table: {error}."
            raise invalid_file(
                text, code="bad_sparse", faults=[InputFault(name, "bad_sparse", text)]
            ) from error

    def _names(self, name: str) -> tuple[str, ...] | None:
        if name not in self.entries:
            return None
        names = self._array(name)
        if names.ndim != 1 or names.dtype.kind not in "US":
            text = f"{name} must be one list of text."
            raise invalid_file(text, code="bad_names", faults=[InputFault(name, "bad_names", text)])
        return tuple(self._text(name, names).tolist())

    def _text(self, name: str, values: NDArray[Any]) -> NDArray[np.str_]:
        try:
            return np.char.decode(values, "utf-8") if values.dtype.kind == "S" else values
        except UnicodeDecodeError as error:
            text = f"{name} is not UTF-8 text."
            raise invalid_file(
                text, code="bad_encoding", faults=[InputFault(name, "bad_encoding", text)]
            ) from error

    def _array(self, name: str) -> NDArray[Any]:
        if name not in self.entries:
            raise self._missing(name)
        self.used.add(name)
        with self.archive.opened(name) as (declared, stream):
            self.limits.check_bytes(declared.size)
            return declared.read(stream, self.limits.temp_folder)

    def _missing(self, name: str) -> Exception:
        found: Collection[str] = sorted(self.entries)[:20]
        text = f"The archive has no array {name!r}. It has {', '.join(found)[:400]}."
        return invalid_file(text, code="missing_array", faults=[InputFault(name, "missing_array", text)])
