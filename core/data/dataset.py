"""Labelled data. Its arrays are validated here once, so that later code need not check them again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from core.data.column_layout import ColumnLayout
from core.data.extras import NO_EXTRAS, NO_RAW_EXTRAS, Extras, RawExtras, View
from core.data.labels import Coded, encode_labels, encode_with, missing_labels
from core.data.repeated_rows import Digests, matrix_digests
from core.data.row_marks import NO_MARKS, RowMarks
from core.data.validation import (
    MAX_FAULTS,
    as_dense,
    largest_value,
    value_fault,
    value_faults,
    wrong_columns,
)
from core.errors import Fault, InvalidProblem
from core.types import FloatArray, IntArray, Matrix

MAX_COLUMN_NAME: Final = 400
"""Characters in the name of a column."""


class LabelledRows:
    """Rows with class codes y, (n,) int32, −1 without a label, and the names of their K classes."""

    __slots__ = ()
    y: NDArray[np.int32]
    classes: tuple[str, ...]

    @property
    def K(self) -> int:  # noqa: N802
        """Classes."""
        return len(self.classes)

    @property
    def class_counts(self) -> IntArray:
        """Rows of each class, (K,), without rows that have no label."""
        return np.bincount(self.y[self.y >= 0], minlength=self.K)

    @property
    def unlabelled(self) -> int:
        """Rows without a label."""
        return int(np.count_nonzero(self.y < 0))


@dataclass(frozen=True, eq=False)
class LabelledData(LabelledRows):
    """n examples of d columns, each of one of K classes.

    X: (n, d) float32 or float64, C-ordered or CSR, finite. y: (n,) int32 codes 0..K−1, −1 for a row without
    a label.
    classes: K names exactly as given, see ``core.data.labels``: numbers by value, other names by code points.
    feature_names: d names, or None. extras: privileged columns, views and scores of a teacher, if any.
    layout: which columns are numbers, indicators and terms, of rows that an encoder made. marks: ids,
    subjects and test rows, which no learner sees.
    """

    X: Matrix
    y: NDArray[np.int32]
    classes: tuple[str, ...]
    feature_names: tuple[str, ...] | None = None
    extras: Extras = NO_EXTRAS
    layout: ColumnLayout | None = None
    marks: RowMarks = NO_MARKS

    @classmethod
    def from_arrays(
        cls,
        X: Any,
        labels: Any,
        feature_names: Sequence[str] | None = None,
        classes: Sequence[str] | None = None,
        *,
        min_per_class: int = 2,
        extras: RawExtras = NO_RAW_EXTRAS,
        unlabelled: bool = False,
    ) -> LabelledData:
        """Training data from raw arrays.

        X: rows of numbers (n, d): array, nested lists or SciPy sparse.
        labels: (n,) text, whole numbers or booleans.
        classes: the classes and their order, if they are not to be read from the labels.
        min_per_class: examples that every class must have.
        extras: privileged columns, views and scores of a teacher, to be checked.
        unlabelled: whether labels may be missing: None, NaN or blank text; if all are, there are no classes.
        Raises InvalidProblem with the faults of X, of the labels and of the names together.
        """

        def coded() -> Coded:
            y, names = _encoded(labels, classes, missing_labels(labels) if unlabelled else None)
            if names or not unlabelled:
                check_counts(y[y >= 0], names, min_per_class)
            return y, names

        return cls._checked(X, coded, feature_names, None, extras)

    @classmethod
    def with_codes(
        cls,
        X: Any,
        labels: Any,
        classes: Sequence[str],
        feature_names: Sequence[str] | None = None,
        *,
        n_columns: int | None = None,
        extras: RawExtras = NO_RAW_EXTRAS,
    ) -> LabelledData:
        """A test part: labels coded by the ``classes`` of training, which need not all occur here.

        n_columns: d of the training part, if it is to be checked.
        Raises InvalidProblem, with code ``unknown_class`` for a label that training did not have.
        """
        return cls._checked(X, lambda: encode_with(labels, classes), feature_names, n_columns, extras)

    @classmethod
    def _checked(
        cls,
        X: Any,
        coded: Callable[[], Coded],
        feature_names: Sequence[str] | None,
        n_columns: int | None,
        extras: RawExtras,
    ) -> LabelledData:
        faults: list[Fault] = []
        columns = None
        with _gathering(faults):
            columns = None if feature_names is None else checked_names(feature_names)
        with _gathering(faults):
            rows = validate_rows(X, n_columns, feature_names=columns)
        with _gathering(faults):
            y, classes = coded()
        if faults:
            raise InvalidProblem(*faults)
        if len(y) != rows.shape[0]:
            raise _fault("y", "wrong_length", f"X has {rows.shape[0]} rows, but there are {len(y)} labels.")
        return cls(rows, y, classes, columns, extras.checked(rows.shape[0], rows.shape[1], classes))

    def take(self, rows: IntArray) -> LabelledData:
        """Some of the rows, given by their numbers, with their extras; the classes stay."""
        return replace(
            self,
            X=self.X[rows],
            y=self.y[rows],
            extras=self.extras.take(rows),
            marks=self.marks.take(rows),
        )

    def row_digests(self) -> Digests:
        """A number for each row, (n,), equal for equal rows and almost certainly different for others."""
        return matrix_digests(self.X)

    def of_classes(self, y: NDArray[np.int32], kept: IntArray) -> LabelledData:
        """The same rows with the codes y of the classes ``kept``, given by their codes before."""
        classes = tuple(self.classes[int(k)] for k in kept)
        return replace(self, y=y, classes=classes, extras=self.extras.of_classes(kept))

    @property
    def privileged(self) -> FloatArray | None:
        """Columns that are known in training only, (n, p), or None."""
        return self.extras.privileged

    @property
    def views(self) -> tuple[View, ...]:
        """Named ranges of columns of X."""
        return self.extras.views

    @property
    def teacher_scores(self) -> FloatArray | None:
        """S of a teacher from outside, (n, K), or None."""
        return self.extras.teacher_scores

    @property
    def n(self) -> int:
        """Examples."""
        return int(self.X.shape[0])

    @property
    def d(self) -> int:
        """Raw columns."""
        return int(self.X.shape[1])

    def labelled(self) -> LabelledData:
        """The rows with a label; the same data if all have one."""
        return self.take(np.flatnonzero(self.y >= 0)) if self.unlabelled else self


def validate_rows(
    X: Any, d: int | None = None, *, field: str = "X", feature_names: Sequence[str] | None = None
) -> Matrix:
    """Rows of numbers as a C-ordered array or canonical CSR array, float32 or float64, (n ≥ 1, d ≥ 1).

    d: required number of columns, None for any. feature_names: d names for the messages of faults, or None.
    Other real types become float64. Valid arrays are not copied, and the caller's X is never modified.
    Raises InvalidProblem naming the first ten values that are NaN, infinite or beyond ±1e100.
    """
    rows = _canonical_csr(X, field) if sp.issparse(X) else as_dense(X, field)
    n, columns = rows.shape
    if n == 0:
        raise _fault(field, "empty", f"{field} has no rows.")
    if columns == 0:
        raise _fault(field, "no_columns", f"{field} has no columns.")
    if d is not None and columns != d:
        raise wrong_columns(field, columns, d)
    if feature_names is not None and len(feature_names) != columns:
        message = f"There are {len(feature_names)} feature names, but {field} has {columns} columns."
        raise _fault("feature_names", "wrong_length", message)
    dense = isinstance(rows, np.ndarray)
    faults = (value_faults if dense else _sparse_value_faults)(rows, field, feature_names)
    if faults:
        raise InvalidProblem(*faults)
    return rows


def _canonical_csr(X: Any, field: str) -> sp.csr_array:
    """CSR with sorted, unique, checked indices: the compiled kernels do no bounds checks."""
    if X.ndim != 2 or X.dtype.kind not in "biuf":
        raise _fault(field, "not_numeric", f"{field} must be a sparse table of real numbers.")
    rows = sp.csr_array(X)
    try:
        rows.check_format(full_check=True)
    except ValueError as error:
        raise _fault(field, "bad_sparse", f"{field} is not a well-formed sparse table: {error}.") from error
    # SciPy does not check this of a table without stored values.
    if np.any(np.diff(rows.indptr) < 0):
        raise _fault(field, "bad_sparse", f"{field} is not a well-formed sparse table: its rows overlap.")
    wanted = rows.dtype if rows.dtype in (np.float32, np.float64) and rows.dtype.isnative else np.float64
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    index_type = np.int32 if max(rows.nnz, *rows.shape) < 2**31 else np.int64
    parts = (
        rows.data.astype(wanted, copy=False),
        rows.indices.astype(index_type, copy=False),
        rows.indptr.astype(index_type, copy=False),
    )
    return sp.csr_array(parts, shape=rows.shape)


def _sparse_value_faults(X: sp.csr_array, field: str, names: Sequence[str] | None) -> tuple[Fault, ...]:
    usable = np.abs(X.data) <= largest_value(X.dtype)
    if usable.all():
        return ()
    entries = np.flatnonzero(~usable)[:MAX_FAULTS]
    rows = np.searchsorted(X.indptr, entries, side="right") - 1
    return tuple(
        value_fault(float(X.data[entry]), field, int(row), int(X.indices[entry]), names)
        for entry, row in zip(entries, rows, strict=True)
    )


_UNUSABLE = re.compile(r"[\0\ud800-\udfff]")
"""U+0000, which databases do not store, and lone surrogates, which UTF-8 does not have."""


def checked_names(names: Sequence[str]) -> tuple[str, ...]:
    """The names of columns. Raises InvalidProblem for one that is blank, too long or there twice."""
    seen: set[str] = set()
    for column, name in enumerate(names):
        if not isinstance(name, str) or not name.strip() or _UNUSABLE.search(name):
            text = f"The name of column {column} (counted from 0) is not text, is blank or has U+0000."
            raise InvalidProblem(Fault("feature_names", "bad_name", text, column=column))
        if len(name) > MAX_COLUMN_NAME:
            text = f"The name {name:.40}… of a column is longer than {MAX_COLUMN_NAME} characters."
            raise InvalidProblem(Fault("feature_names", "name_too_long", text, column=column))
        if name in seen:
            text = f"Two columns are named {name!r:.80}; give one of them another name in the file."
            raise InvalidProblem(Fault("feature_names", "duplicate", text, column=column))
        seen.add(name)
    return tuple(names)


def _encoded(labels: Any, classes: Sequence[str] | None, missing: NDArray[np.bool_] | None) -> Coded:
    """Codes and names; code −1 for a missing label.

    Raises InvalidProblem with row numbers counted over all labels.
    """
    if missing is None or not missing.any():
        return encode_labels(labels) if classes is None else encode_with(labels, classes)
    known = np.flatnonzero(~missing)
    if len(known) == 0:
        return np.full(len(missing), -1, dtype=np.int32), ()
    given = [labels[row] for row in known] if isinstance(labels, list | tuple) else np.asarray(labels)[known]
    try:
        codes, names = encode_labels(given) if classes is None else encode_with(given, classes)
    except InvalidProblem as error:
        raise InvalidProblem(*(_at_row(fault, known) for fault in error.faults)) from error
    y = np.full(len(missing), -1, dtype=np.int32)
    y[known] = codes
    return y, names


def _at_row(fault: Fault, rows: IntArray) -> Fault:
    """The fault of a selection of rows, changed so that its row number counts all rows."""
    if fault.row is None:
        return fault
    row = int(rows[fault.row])
    return replace(fault, row=row, message=re.sub(rf"\brow {fault.row}\b", f"row {row}", fault.message))


def check_counts(y: NDArray[np.int32], classes: Sequence[str], min_per_class: int) -> None:
    """Raise InvalidProblem for classes of fewer rows, and for a single class, unless they may have one row.

    y: codes of labelled rows.
    """
    if len(classes) < 2 <= min_per_class:
        raise _fault("y", "single_class", f"All rows are of the class {classes[0]!r}; two are needed.")
    counts = np.bincount(y, minlength=len(classes))
    small = np.flatnonzero(counts < min_per_class)[:MAX_FAULTS]
    if len(small):
        raise InvalidProblem(
            *(
                Fault(
                    "y",
                    "class_too_small",
                    f"The class {classes[k]!r} has {_examples(counts[k], min_per_class)}.",
                )
                for k in small
            )
        )


def _examples(count: int, wanted: int) -> str:
    return f"{count} example{'' if count == 1 else 's'}; at least {wanted} are needed"


@contextmanager
def _gathering(faults: list[Fault]) -> Iterator[None]:
    """Collect the faults of one check instead of raising, so that one error reports those of all checks."""
    try:
        yield
    except InvalidProblem as error:
        faults.extend(error.faults)


def _fault(field: str, code: str, message: str) -> InvalidProblem:
    return InvalidProblem(Fault(field, code, message))
