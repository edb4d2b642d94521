"""Data sets of named arrays, as .npz archives and safetensors files hold them.

X, y                                rows and labels; or X_train, y_train, and optionally X_test, y_test
X_data, X_indices, X_indptr, X_shape   instead of X: a table as CSR
class_names, feature_names          names, optional
privileged, privileged_names        columns known in training only (n, p), and their names; optional
Xpriv                               another name of privileged
views, view_names                   first column and end of each view (v, 2), and its name; optional
view_offsets                        instead of views: first columns, and the end of the last one (v + 1,)
teacher_scores                      scores of a teacher (n, K), optional; columns in the order of the classes,
teacher_score_classes               or of these names
Other usual names of rows and labels are accepted (`_OTHER_NAMES`), such as x_train and y_train of Keras,
and arr_0, arr_1, … of numpy.savez, if the shapes fit. Rows with more than one axis, such as images, are
flattened. Labels (n, 1) are read as a list, and so are labels (n, K) with a single 1 in each row.
privileged, Xpriv and teacher_scores have the same suffix as X, if it has one. Missing labels are NaN or
empty text, or −1 if class_names gives names to whole numbers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import IO, Any, Final, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from app.domain.errors import InputFault, InvalidRequest
from app.domain.npy_header import ArrayHeader
from app.ingest.columns import index_candidates, index_reason
from app.ingest.mapped_arrays import as_floats
from app.ingest.npy import read_array
from app.ingest.options import Decision
from app.ingest.raw import DatasetLimits, RawData, RawPart, invalid_file, invalid_rows
from app.ingest.safetensors import safetensors_file
from core.data.extras import MAX_VIEWS, RawExtras

_CSR: Final = ("data", "indices", "indptr")
_NAME_LISTS: Final = (
    "class_names",
    "feature_names",
    "privileged_names",
    "view_names",
    "teacher_score_classes",
)
_EXTRAS: Final = ("privileged", "Xpriv", "teacher_scores")
_SUFFIXES: Final = ("", "_train", "_test")
_NAMES: Final = (
    *(f"{name}{suffix}" for name in ("X", "y", *_EXTRAS) for suffix in _SUFFIXES),
    *(f"X{suffix}_{part}" for suffix in _SUFFIXES for part in (*_CSR, "shape")),
    "views",
    "view_offsets",
)
"""Arrays of numbers."""
_OTHER_NAMES: Final[Mapping[str, frozenset[str]]] = {
    "X_train": frozenset({"xtrain", "trainx", "trainimages", "traindata", "trainfeatures", "imagestrain"}),
    "y_train": frozenset({"ytrain", "trainy", "trainlabels", "traintarget", "traintargets", "labelstrain"}),
    "X_test": frozenset({"xtest", "testx", "testimages", "testdata", "testfeatures", "imagestest"}),
    "y_test": frozenset({"ytest", "testy", "testlabels", "testtarget", "testtargets", "labelstest"}),
    "X": frozenset({"x", "data", "features", "images", "inputs"}),
    "y": frozenset({"y", "label", "labels", "target", "targets"}),
}
"""Other usual names of the arrays of rows and labels: their letters, in lower case."""
_UNNAMED: Final = re.compile(r"arr_[0-9]")
_MAX_UNUSED_NAMES: Final = 100_000
"""Class names that a file may list although it has fewer rows."""
_LONGEST_TEXT: Final = 10_000
"""Longest accepted length of texts of an array; a class name has at most 256 characters."""
_STR_BYTES: Final = 64
"""Memory of a short text as a Python object, and of the reference to it."""
_TEXT: Final = msgspec.json.Decoder(str)
_LIST: Final = msgspec.json.Decoder(list[str])


class _Arrays(Protocol):
    """Interface of both container formats."""

    @property
    def entries(self) -> Collection[str]: ...

    def open(self, name: str) -> AbstractContextManager[tuple[ArrayHeader, IO[bytes]]]: ...


def read_safetensors(path: Path, limits: DatasetLimits) -> RawData:
    """Read a data set from a safetensors file; lists of names are JSON lists of text in its metadata.

    Labels are numbers, which class_names may name. Raises InvalidRequest, TooLarge.
    """
    with safetensors_file(path, _NAMES, _NAME_LISTS) as file:
        sizes = {name: header.size for name, (header, _) in file.entries.items()}
        names = {name: _list_of(name, value) for name, value in file.metadata.items()}
        return read_arrays(file, limits, sizes, names)


def read_arrays(
    arrays: _Arrays,
    limits: DatasetLimits,
    sizes: Mapping[str, int],
    names: Mapping[str, list[str]] | None = None,
) -> RawData:
    """Read the arrays of a data set. sizes: bytes of each. names: lists that are not arrays of the file.

    Raises InvalidRequest and TooLarge.
    """
    renamed = _Renamed(arrays, _usual_names(arrays))
    sizes = {**sizes, **{name: sizes[own] for name, own in renamed.names.items()}}
    return _DatasetReader(renamed, limits, sizes, names or {}, set(), []).read()


@dataclass(frozen=True, slots=True)
class _Renamed:
    """Arrays under the names of this module. names: names that differ in the file, and those in the file."""

    arrays: _Arrays
    names: Mapping[str, str]

    @property
    def entries(self) -> set[str]:
        return set(self.arrays.entries) - set(self.names.values()) | set(self.names)

    @contextmanager
    def open(self, name: str) -> Iterator[tuple[ArrayHeader, IO[bytes]]]:
        """Header, under this name, and bytes of an array. Raises InvalidRequest."""
        with self.arrays.open(self.names.get(name, name)) as (header, stream):
            yield replace(header, name=name), stream


def _usual_names(arrays: _Arrays) -> dict[str, str]:
    """The arrays of rows and labels that have another usual name in the file. Raises InvalidRequest."""
    entries, found = set(arrays.entries), dict[str, str]()
    if any(name in entries for name in ("X_data", "X_train_data", "indptr")):
        return found
    is_split = False
    for name, others in _OTHER_NAMES.items():
        if name in entries or (is_split and name in ("X", "y")):
            is_split = is_split or name == "X_train"
            continue
        given = sorted(one for one in entries if re.sub("[^a-z]", "", one.lower()) in others)
        if len(given) > 1:
            text = f"The file has {' and '.join(given)}, which may all be {name}; name one of them {name}."
            raise _dataset_error(name, "ambiguous_array", text)
        if given and given[0] not in _NAMES:
            found[name] = given[0]
            is_split = is_split or name == "X_train"
    if not found and entries and all(map(_UNNAMED.fullmatch, entries)):
        return _by_shape(arrays)
    return found


def _by_shape(arrays: _Arrays) -> dict[str, str]:
    """Rows and labels among the arrays that numpy.savez names by their order; empty if shapes do not tell."""
    orders = (
        ("X", "y"),
        ("X_train", "y_train", "X_test", "y_test"),
        ("X_train", "X_test", "y_train", "y_test"),
    )
    own = sorted(arrays.entries)
    shapes = []
    for name in own:
        with arrays.open(name) as (header, _):
            shapes.append(header.shape)
    for names in orders:
        given = dict(zip(names, shapes, strict=False))
        fits = len(names) == len(own) and all(
            (len(shape) > 1) == name.startswith("X") and shape[:1] == given[f"y{name[1:]}"][:1]
            for name, shape in given.items()
        )
        if fits:
            return dict(zip(names, own, strict=True))
    return {}


@dataclass(frozen=True, slots=True)
class _DatasetReader:
    """Reads the arrays of a data set one at a time.

    used: names of the arrays read so far. warnings: code and text about their conversions.
    """

    arrays: _Renamed
    limits: DatasetLimits
    sizes: Mapping[str, int]
    lists: Mapping[str, list[str]]
    used: set[str]
    warnings: list[tuple[str, str]]

    @property
    def entries(self) -> Collection[str]:
        return self.arrays.entries

    def read(self) -> RawData:
        suffix = "_train" if self._has_table("X_train") else ""
        self._check_sizes()
        views = self._views()
        train = self._part(suffix, views)
        test = self._part("_test", views) if self._has_table("X_test") else None
        if test is None and "y_test" in self.entries:
            raise self._missing("X_test")
        rows, columns = train.X.shape
        class_names = self._names("class_names", max(rows, _MAX_UNUSED_NAMES))
        feature_names = self._names("feature_names", columns)
        raw = RawData(
            train,
            test,
            feature_names,
            class_names,
            decisions=(self._decision(f"y{suffix}"),),
            warnings=tuple(dict.fromkeys(self.warnings)),
            ignored=tuple(sorted(set(self.entries) - self.used)),
        )
        return raw if views else _without_index(raw)

    def _decision(self, labels: str) -> Decision:
        own = self.arrays.names
        reason = "the array of labels has this name"
        if own:
            reason += f"; rows and labels are {', '.join(own.values())}"
        return Decision("label_column", own.get(labels, labels), reason)

    def _has_table(self, name: str) -> bool:
        return name in self.entries or f"{name}_data" in self.entries

    def _check_sizes(self) -> None:
        """Raise TooLarge if the arrays exceed the limit, before any of them is decompressed."""
        self.limits.check_bytes(
            sum(
                size
                for name, size in self.sizes.items()
                if name.startswith(("X", "y", *_EXTRAS)) or name in _NAME_LISTS
            )
        )

    def _part(self, suffix: str, views: list[tuple[str, int, int]]) -> RawPart:
        labels, rows, _ = self._header(f"y{suffix}"), *self._shape(f"X{suffix}")
        # Compared before either is decompressed: a long array of equal labels takes a thousandth in the file.
        if len(labels.shape) in (1, 2) and labels.shape[0] != rows:
            text = f"X{suffix} has {rows} rows, but there are {labels.shape[0]} labels."
            raise _dataset_error(labels.name, "wrong_length", text)
        if len(labels.shape) not in (1, 2):
            text = f"{labels.name} must be one list of labels; it has {len(labels.shape)} axes."
            raise _dataset_error(labels.name, "wrong_shape", text)
        extras = RawExtras(
            privileged=(
                privileged := self._extra(self._either(f"privileged{suffix}", f"Xpriv{suffix}"), rows)
            ),
            privileged_names=None
            if privileged is None
            else self._names("privileged_names", self.limits.max_columns),
            views=views,
            teacher_scores=(scores := self._extra(f"teacher_scores{suffix}", rows)),
            score_classes=None
            if scores is None
            else self._names("teacher_score_classes", self.limits.max_columns),
        )
        return RawPart(self._table(f"X{suffix}"), self._labels(labels), extras)

    def _labels(self, header: ArrayHeader) -> NDArray[Any]:
        """The labels (n,) of an array (n,), (n, 1), or (n, K) with one 1 in each row.

        Raises InvalidRequest.
        """
        if len(header.shape) == 1 or header.shape[1] == 1:
            return self._texts(header).reshape(-1)
        table = self._array(header.name) if header.dtype.kind in "biuf" else None
        if table is None or not (
            ((table == 0) | (table == 1)).all() and (np.count_nonzero(table, axis=1) == 1).all()
        ):
            text = (
                f"{header.name} must be one list of labels; it has {header.shape[1]} columns, which are not"
                f" one 1 among zeros in each row. Of scores, send {header.name}.argmax(axis=1)."
            )
            raise _dataset_error(header.name, "wrong_shape", text)
        text = f"{header.name} has one 1 in each row: the class is its column, counted from 0."
        self.warnings.append(("labels_from_columns", text))
        codes: NDArray[Any] = table.argmax(axis=1)
        return codes

    def _extra(self, name: str, rows: int) -> Any:
        """A table of numbers with one row for each row of X, or None. Raises InvalidRequest, TooLarge."""
        if name not in self.entries:
            return None
        if self._shape(name)[0] != rows:
            text = f"{name} has {self._shape(name)[0]} rows; X has {rows}."
            raise _dataset_error(name, "wrong_length", text)
        return self._table(name)

    def _either(self, name: str, other: str) -> str:
        """``other`` if the file has it, else ``name``. Raises InvalidRequest if it has both."""
        if other in self.entries and name in self.entries:
            text = f"The file has {name} and {other}, which mean the same; send one of them."
            raise _dataset_error(other, "ambiguous_array", text)
        return other if other in self.entries else name

    def _views(self) -> list[tuple[str, int, int]]:
        """Name, first column and end of each view, not yet compared with X."""
        field = self._either("views", "view_offsets")
        if field not in self.entries:
            return []
        header = self._header(field)
        if field == "views":
            fits = len(header.shape) == 2 and header.shape[1] == 2
            text = "views must hold two whole numbers for each view: its first column and its end."
            count = header.shape[0] if fits else 0
        else:
            fits = len(header.shape) == 1 and header.shape[0] > 1
            text = "view_offsets must hold the first column of each view, then the end of the last."
            count = header.shape[0] - 1 if fits else 0
        if not fits or header.dtype.kind not in "iu":
            raise _dataset_error(field, "wrong_shape", text)
        if count > MAX_VIEWS:
            text = f"There are {count} views; the limit is {MAX_VIEWS}."
            raise _dataset_error(field, "too_many", text)
        names = self._names("view_names", count)
        if names is None or len(names) != count:
            text = f"view_names must hold the names of the {count} views."
            raise _dataset_error("view_names", "wrong_length", text)
        numbers = self._array(field).tolist()
        ranges = numbers if field == "views" else pairwise(numbers)
        return [(name, start, stop) for name, (start, stop) in zip(names, ranges, strict=True)]

    def _shape(self, name: str) -> tuple[int, int]:
        """Rows and columns of a table, from its header or from ``X_shape``, checked against the limits."""
        if name in self.entries:
            header = self._header(name)
            if len(header.shape) < 2:
                text = f"{name} must be a table with one row for each example."
                raise _dataset_error(name, "wrong_shape", text)
            rows, columns = header.shape[0], prod(header.shape[1:])
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
            if X.ndim > 2:
                axes = " × ".join(map(str, X.shape[1:]))
                text = (
                    f"Each row of X is an array of {axes}: its {shape[1]} numbers are the columns, in order."
                )
                self.warnings.append(("rows_flattened", text))
                X = X.reshape(shape)
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
        if name in self.lists:
            return tuple(self.lists[name])
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
        with self.arrays.open(name) as (header, _):
            return header

    def _array(self, name: str) -> NDArray[Any]:
        if name not in self.entries:
            raise self._missing(name)
        self.used.add(name)
        with self.arrays.open(name) as (header, stream):
            self.limits.check_bytes(header.size)
            return read_array(header, stream, self.limits.temp_folder)

    def _missing(self, name: str) -> InvalidRequest:
        names = ", ".join(sorted(self.entries)[:20])
        text = (
            f"The file has no array {name!r}. It has {names[:400]}. Rows and labels are called X and y, or"
            " X_train, y_train, X_test and y_test: np.savez(FILE, X=X, y=y)."
        )
        return _array_error(name, "missing_array", text)


def _without_index(raw: RawData) -> RawData:
    """The data without a first column that has the name of an index and numbers the rows."""
    names, X = raw.feature_names, raw.train.X
    if not index_candidates(names) or names is None or not isinstance(X, np.ndarray) or X.shape[1] < 2:
        return raw
    reason = index_reason(names[0], X[:, 0].tolist())
    if reason is None:
        return raw
    test = raw.test
    if test is not None:
        test = replace(test, X=test.X[:, 1:])
    return replace(
        raw,
        train=replace(raw.train, X=X[:, 1:]),
        test=test,
        feature_names=names[1:],
        decisions=(*raw.decisions, Decision("index_column", names[0].strip() or "0", reason)),
        warnings=(("index_left_out", f"Column {names[0]!r:.80} is left out: {reason}."),),
    )


def _array_error(name: str, code: str, message: str) -> InvalidRequest:
    return invalid_file(message, code=code, faults=[InputFault(name, code, message)])


def _dataset_error(name: str, code: str, message: str) -> InvalidRequest:
    """The error for arrays that do not make a data set together, with the code that all such errors have."""
    return invalid_rows([InputFault(name, code, message)])


def _list_of(name: str, value: bytes) -> list[str]:
    """Decode a metadata value: a JSON string that contains a JSON list of text. Raises InvalidRequest."""
    try:
        return _LIST.decode(_TEXT.decode(value))
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise _array_error(name, "bad_json", f"The metadata {name} are not a JSON list of text.") from error
