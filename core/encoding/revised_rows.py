"""The rows of a data set, without some of them, followed by those of another data set.

Rows that are kept come first, in their order, so only deletions change their numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias, cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from core.data.column_kinds import infer_column
from core.data.dataset import LabelledData, check_counts
from core.data.labels import encode_labels
from core.data.repeated_rows import Digests, matrix_digests, table_digests
from core.data.schema import ColumnSchema, Kind, KindSpec, cells_as
from core.data.table import GAP, Cells, NumberCells, Table, TextCells, Texts, VectorCells
from core.encoding.labelled_table import LabelledTable
from core.errors import Fault, InvalidProblem
from core.types import IntArray, Matrix

Rows: TypeAlias = LabelledData | LabelledTable

_FIELD: Final = "append_dataset_id"
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)
"""Factor that makes a digest depend on the order of values, labels and extras."""


@dataclass(frozen=True, slots=True)
class RevisedRows:
    """The revised data. train, test: the parts. added: number of rows taken from the other data set.

    equal: number of its rows that were not taken because the data set had them already. changed: names of
    the classes that gained or lost rows, in order.
    """

    train: Rows
    test: Rows | None
    added: int
    equal: int
    changed: tuple[str, ...]


def revised_rows(
    train: Rows, test: Rows | None, *, deleted: IntArray, other: Rows | None, min_per_class: int = 2
) -> RevisedRows:
    """Delete some rows, then append those of another data set; the test part stays.

    deleted: different numbers of rows of ``train``. other: rows with the same columns; a row is left out if
    its values, label and extras equal those of a row that was kept. Neither has scores of a teacher, whose
    columns belong to the classes. min_per_class: least number of rows of each class; a class that loses all
    its rows is removed.

    Raises InvalidProblem: ``wrong_columns``, ``test_part_without_class``, ``empty``, ``single_class`` and
    ``class_too_small``.
    """
    rows = train.take(np.delete(np.arange(train.n), deleted)) if len(deleted) else train
    touched = _names_of(train, train.y[deleted])
    added = equal = 0
    if other is not None and rows.n:
        rows, other, test = _of_one_form(rows, other, test)
        names = _ordered({*rows.classes, *other.classes}, rows.classes)
        rows, other = _coded(rows, names), _coded(other, names)
        test = None if test is None else _coded(test, names)
        kept, rows = rows.n, _followed_by(rows, other)
        numbers = _numbers(rows)
        is_new = ~np.isin(numbers[kept:], numbers[:kept])
        added, equal = int(is_new.sum()), int((~is_new).sum())
        touched |= _names_of(other, other.y[is_new])
        if equal:
            rows = rows.take(np.concatenate([np.arange(kept), kept + np.flatnonzero(is_new)]))
    if rows.n == 0:
        raise InvalidProblem(Fault("delete", "empty", "No row would be left."))
    changed = tuple(
        name for name in _ordered({*train.classes, *rows.classes}, train.classes) if name in touched
    )
    rows, test = _without_empty(rows, test)
    if rows.classes:
        check_counts(rows.y[rows.y >= 0], rows.classes, min_per_class)
    if isinstance(rows, LabelledTable):
        rows = replace(rows, schema=_schema(rows.table, rows.schema))
        test = replace(test, schema=rows.schema) if isinstance(test, LabelledTable) else test
    return RevisedRows(rows, test, added, equal, changed)


def _names_of(rows: Rows, codes: NDArray[np.int32]) -> set[str]:
    return {rows.classes[int(code)] for code in np.unique(codes[codes >= 0])}


def _ordered(names: set[str], first: Sequence[str]) -> tuple[str, ...]:
    """The names in the order of ``first`` if it has exactly these; otherwise in the usual order."""
    if names == set(first):
        return tuple(first)
    listed = sorted(names)
    return tuple(listed[int(k)] for k in np.argsort(encode_labels(listed)[0], kind="stable"))


def _coded(rows: Rows, names: Sequence[str]) -> Rows:
    """The rows with codes for all ``names``, which include the rows' classes."""
    place = {name: code for code, name in enumerate(names)}
    # The last entry is for the code −1.
    table = np.array([*(place[name] for name in rows.classes), -1], dtype=np.int32)
    return replace(rows, y=table[rows.y], classes=tuple(names))


def _without_empty(rows: Rows, test: Rows | None) -> tuple[Rows, Rows | None]:
    """Both parts without the classes that have no training row left. Raises InvalidProblem."""
    kept = np.flatnonzero(rows.class_counts)
    if len(kept) == rows.K:
        return rows, test
    codes = np.full(rows.K + 1, -1, dtype=np.int32)
    codes[kept] = np.arange(len(kept), dtype=np.int32)
    if test is not None:
        gone = np.flatnonzero(codes[test.y] < 0)
        if len(gone):
            name = rows.classes[int(test.y[gone[0]])]
            message = f"The test part has rows of the class {name!r:.80}, which is gone."
            raise InvalidProblem(Fault("delete", "test_part_without_class", message))
        test = test.of_classes(codes[test.y], kept)
    return rows.of_classes(codes[rows.y], kept), test


def _of_one_form(rows: Rows, other: Rows, test: Rows | None) -> tuple[Rows, Rows, Rows | None]:
    """All as numbers or all as tables, with the columns of the first in their order."""
    if isinstance(rows, LabelledData) and isinstance(other, LabelledData):
        return rows, _with_columns_of(rows, other), test
    rows, other = _as_table(rows), _as_table(other)
    names = rows.table.names
    _check_names(names, other.table.names)
    table = Table(names, tuple(other.table.column(name) for name in names))
    return rows, replace(other, table=table), None if test is None else _as_table(test)


def _as_table(rows: Rows) -> LabelledTable:
    if isinstance(rows, LabelledTable):
        return rows
    try:
        return LabelledTable.of_numbers(rows)
    except InvalidProblem as error:
        message = "One data set has texts or gaps, and the columns of the other are sparse or have no names."
        raise _wrong(message) from error


def _with_columns_of(rows: LabelledData, other: LabelledData) -> LabelledData:
    """The other rows with their columns in the order of ``rows``."""
    X, is_dense = other.X, isinstance(rows.X, np.ndarray)
    if is_dense != isinstance(X, np.ndarray):
        raise _wrong("The rows of one data set are sparse, and those of the other are not.")
    names, others = rows.feature_names, other.feature_names
    if (names is None) != (others is None):
        raise _wrong("The columns of one data set have names, and those of the other have none.")
    if names is not None and others is not None and names != others:
        _check_names(names, others)
        place = {name: k for k, name in enumerate(others)}
        X = X[:, [place[name] for name in names]]
        if not isinstance(X, np.ndarray):
            X.sort_indices()
    elif not isinstance(X, np.ndarray) and other.d < rows.d:
        # A sparse file ends with the last column that has a value.
        X = sp.csr_array((X.data, X.indices, X.indptr), shape=(other.n, rows.d))
    elif other.d != rows.d:
        raise _wrong(f"The data set has {rows.d} columns, and the rows to append have {other.d}.")
    return replace(other, X=X, feature_names=names)


def _check_names(names: Sequence[str], others: Sequence[str]) -> None:
    missing = [name for name in names if name not in set(others)]
    more = [name for name in others if name not in set(names)]
    if missing or more:
        what = f"lack the column {missing[0]!r:.80}" if missing else f"have another column, {more[0]!r:.80}"
        raise _wrong(f"The rows to append {what}.")


def _followed_by(rows: Rows, other: Rows) -> Rows:
    y = np.concatenate([rows.y, other.y])
    try:
        extras = rows.extras.followed_by(other.extras)
    except InvalidProblem as error:
        raise _wrong("The two data sets have different privileged columns.") from error
    if isinstance(rows, LabelledData):
        X = _stacked(rows.X, cast(LabelledData, other).X)
        return replace(rows, X=X, y=y, extras=extras)
    second = cast(LabelledTable, other).table
    cells = tuple(map(_joined, rows.schema, rows.table.cells, second.cells))
    return replace(rows, table=Table(rows.table.names, cells), y=y, extras=extras)


def _stacked(first: Matrix, second: Matrix) -> Matrix:
    if isinstance(first, np.ndarray):
        return cast(Matrix, np.concatenate([first, second]))
    both = sp.csr_array(sp.vstack([first, second], format="csr"))
    # Both are canonical; setting the flag saves SciPy a check of all entries.
    both.has_canonical_format = True
    return both


def _joined(column: ColumnSchema, first: Cells, second: Cells) -> Cells:
    """The cells of a column of both data sets, one after the other."""
    if type(first) is not type(second):
        # A column of numbers in one file may be texts in another, for example with n/a for a gap.
        spec = KindSpec(Kind.TEXT) if column.kind is Kind.IGNORE else column.spec
        try:
            first, second = (cells_as(column.name, cells, spec) for cells in (first, second))
        except InvalidProblem as error:
            raise _other_kind(column, error) from error
    if isinstance(first, TextCells) and isinstance(second, TextCells):
        return _joined_texts(first, second)
    if isinstance(first, NumberCells) and isinstance(second, NumberCells):
        return NumberCells(np.concatenate([first.values, second.values]), first.is_truth and second.is_truth)
    first, second = cast(VectorCells, first), cast(VectorCells, second)
    width, other = first.values.shape[1], second.values.shape[1]
    if width != other:
        raise _wrong(
            f"The lists in column {column.name!r:.80} have {width} numbers, those to append {other}."
        )
    return VectorCells(np.concatenate([first.values, second.values]))


def _joined_texts(first: TextCells, second: TextCells) -> TextCells:
    place = {text: code for code, text in enumerate(first.texts)}
    # The last entry is for a gap.
    codes = np.array([*(place.setdefault(text, len(place)) for text in second.texts), GAP], dtype=np.int32)
    return TextCells(np.concatenate([first.codes, codes[second.codes]]), Texts.of(place))


def _schema(table: Table, before: Sequence[ColumnSchema]) -> tuple[ColumnSchema, ...]:
    """The kinds of the columns stay; columns that were not usable may now be."""
    return tuple(map(_column, table.cells, before))


def _column(cells: Cells, before: ColumnSchema) -> ColumnSchema:
    try:
        if before.kind is Kind.IGNORE and before.code != "given":
            return infer_column(before.name, cells)
        column = infer_column(before.name, cells, before.spec)
        cells_as(column.name, cells, column.spec)
    except InvalidProblem as error:
        raise _other_kind(before, error) from error
    return replace(column, code=before.code, reason=before.reason, hint=before.hint)


def _numbers(rows: Rows) -> Digests:
    """A number for each row, from all its cells, its label and its extras, (n,)."""
    numbers = table_digests(rows.table.cells) if isinstance(rows, LabelledTable) else matrix_digests(rows.X)
    for array in (rows.y[:, None], *rows.extras.arrays.values()):
        numbers = numbers * _ODD + matrix_digests(array)
    return numbers


def _other_kind(column: ColumnSchema, error: InvalidProblem) -> InvalidProblem:
    return _wrong(f"The column {column.name!r:.80} is of kind {column.kind}: {error.faults[0].message}")


def _wrong(message: str) -> InvalidProblem:
    return InvalidProblem(Fault(_FIELD, "wrong_columns", message))
