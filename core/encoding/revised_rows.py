"""The rows of a data set with other labels, without some of them, and followed by those of another one.

Rows that are kept come first, in their order, so only deletions change their numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias, cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from core.data.column_kinds import infer_column
from core.data.dataset import LabelledData, check_counts
from core.data.labels import encode_labels
from core.data.repeated_rows import Digests, matrix_digests, table_digests
from core.data.row_marks import RowMarks, nobody
from core.data.schema import ColumnSchema, Kind, KindSpec, cells_as
from core.data.table import (
    GAP,
    ByteStrings,
    Cells,
    NumberCells,
    PictureCells,
    Table,
    TextCells,
    Texts,
    VectorCells,
)
from core.data.test_part import Split
from core.encoding.labelled_table import LabelledTable
from core.errors import Fault, InvalidProblem
from core.types import IntArray, Matrix

Rows: TypeAlias = LabelledData | LabelledTable

_FIELD: Final = "append_dataset_id"
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)
"""Factor that makes a digest depend on the order of values, labels and extras."""


@dataclass(frozen=True, slots=True)
class RevisedRows:
    """train, test: the parts. added: rows of the other data set that were taken. equal: those that were not,
    because the data set had them. relabelled: rows whose label has changed. changed: names of the classes
    that have gained or lost rows, in order. next_id: greater than the ids of all rows that there have been.
    """

    train: Rows
    test: Rows | None
    added: int
    equal: int
    relabelled: int
    changed: tuple[str, ...]
    next_id: int


def revised_rows(
    train: Rows,
    test: Rows | None,
    *,
    deleted: IntArray,
    other: Rows | None,
    min_per_class: int = 2,
    relabelled: Mapping[int, str | None] | None = None,
    deleted_test: IntArray | None = None,
    split: Split | None = None,
    digests: Digests | None = None,
    next_id: int = 0,
    renamed: Mapping[str, str] | None = None,
) -> RevisedRows:
    """Some rows get other labels first, some are deleted, then those of another data set are added.

    deleted: different numbers of rows of ``train``; deleted_test: of ``test``. other: rows of the same
    columns; those with the values, the label, the subject and the extras of a row that was kept are left out.
    Neither has scores of a teacher, whose columns belong to the classes. min_per_class: rows that each class
    must have; classes that lose all of theirs are gone. relabelled: new labels by numbers of rows of
    ``train``; None takes one away. split: marks the rows that it holds out as such for good, unless ``train``
    has marks already, and deals those that are added; None without such rows. digests: by which the job of
    the split tells rows apart, (n,); None for `row_digests`. next_id: as of `RevisedRows`. renamed: new
    names of classes of both parts, before everything else; classes of one name become one.

    Raises InvalidProblem: ``wrong_columns``, ``test_part_without_class``, ``empty``, ``single_class`` and
    ``class_too_small``, and those of `encode_labels` and `Split.rows`.
    """
    rows = _marked(train, split, digests)
    next_id = max(next_id, 1 + int(rows.marks.ids.max(initial=-1)) if rows.marks.ids is not None else 0)
    given = _names_of(rows, rows.y).intersection(renamed or {})
    if renamed and given:
        test = None if test is None else _renamed(test, rows.classes, renamed)
        rows = _renamed(rows, rows.classes, renamed)
    rows, touched, count = _relabelled(rows, relabelled or {})
    touched |= given | {(renamed or {})[name] for name in given}
    if test is not None:
        test = _coded(test, rows.classes)
    touched |= _names_of(rows, rows.y[deleted])
    if len(deleted):
        rows = rows.take(np.delete(np.arange(rows.n), deleted))
    if deleted_test is not None and test is not None and len(deleted_test):
        test = test.take(np.delete(np.arange(test.n), deleted_test))
        test = test if test.n else None
    added = equal = 0
    if other is not None and rows.n:
        rows, other, test = _of_one_form(rows, other, test)
        names = _ordered({*rows.classes, *other.classes}, rows.classes)
        rows, other = _coded(rows, names), _coded(other, names)
        test = None if test is None else _coded(test, names)
        kept, rows = rows.n, _followed_by(rows, other, next_id)
        next_id += other.n
        numbers = _numbers(rows)
        is_new = ~np.isin(numbers[kept:], numbers[:kept])
        added, equal = int(is_new.sum()), int((~is_new).sum())
        touched |= _names_of(other, other.y[is_new])
        if equal:
            rows = rows.take(np.concatenate([np.arange(kept), kept + np.flatnonzero(is_new)]))
        rows = _dealt(rows, kept, split, is_dealt=other.marks.held_out is not None)
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
    return RevisedRows(rows, test, added, equal, count, changed, next_id)


def _marked(rows: Rows, split: Split | None, digests: Digests | None) -> Rows:
    """The rows with ids, and with marks of those that are held out."""
    marks = rows.marks
    if marks.ids is None:
        marks = replace(marks, ids=np.arange(rows.n, dtype=np.int64))
    if marks.held_out is None and split is not None:
        held_out = np.zeros(rows.n, dtype=np.uint8)
        held_out[split.rows(rows.y, rows.row_digests() if digests is None else digests, marks)] = 1
        marks = replace(marks, held_out=held_out)
    return replace(rows, marks=marks)


def _renamed(rows: Rows, classes: Sequence[str], renamed: Mapping[str, str]) -> Rows:
    """The rows with other names of their classes. Raises InvalidProblem for names that no class may have."""
    new = [renamed.get(name, name) for name in classes]
    encode_labels(sorted(set(new)))
    names = _ordered(set(new), list(dict.fromkeys(new)))
    place = {name: code for code, name in enumerate(names)}
    table = np.array([*(place[name] for name in new), -1], dtype=np.int32)
    return replace(rows, y=table[rows.y], classes=names)


def _relabelled(rows: Rows, labels: Mapping[int, str | None]) -> tuple[Rows, set[str], int]:
    """The rows with other labels, the names of the classes before and after, and how many have changed."""
    present = [*rows.classes, None]
    given = {row: label for row, label in labels.items() if present[int(rows.y[row])] != label}
    if not given:
        return rows, set(), 0
    new = {label for label in given.values() if label is not None}
    # Raises InvalidProblem for names that no class may have.
    encode_labels(sorted(new | set(rows.classes)))
    coded = _coded(rows, _ordered(new | set(rows.classes), rows.classes))
    place: dict[str | None, int] = {name: code for code, name in enumerate(coded.classes)}
    place[None] = -1
    y, numbers = coded.y.copy(), list(given)
    touched = _names_of(rows, rows.y[numbers]) | new
    y[numbers] = [place[label] for label in given.values()]
    return replace(coded, y=y), touched, len(given)


def _dealt(rows: Rows, kept: int, split: Split | None, *, is_dealt: bool) -> Rows:
    """The rows, of which those after the first ``kept`` are dealt to test rows and others, if needed."""
    marks = rows.marks
    if split is None or marks.held_out is None or is_dealt or kept == rows.n:
        return rows
    held_out = marks.held_out.copy()
    further = split.further_rows(rows.y, rows.row_digests(), marks, held_out.astype(bool), kept)
    held_out[further] = 1
    return replace(rows, marks=replace(marks, held_out=held_out))


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


def _followed_by(rows: Rows, other: Rows, next_id: int) -> Rows:
    """next_id: the id of the first of the other rows."""
    y = np.concatenate([rows.y, other.y])
    marks = _marks(rows, other, next_id)
    try:
        extras = rows.extras.followed_by(other.extras)
    except InvalidProblem as error:
        raise _wrong("The two data sets have different privileged columns.") from error
    if isinstance(rows, LabelledData):
        X = _stacked(rows.X, cast(LabelledData, other).X)
        return replace(rows, X=X, y=y, extras=extras, marks=marks)
    second = cast(LabelledTable, other).table
    cells = tuple(map(_joined, rows.schema, rows.table.cells, second.cells))
    return replace(rows, table=Table(rows.table.names, cells), y=y, extras=extras, marks=marks)


def _marks(rows: Rows, other: Rows, next_id: int) -> RowMarks:
    first, second = rows.marks, other.marks
    if first.ids is None:
        raise RuntimeError("the rows of a revision have ids")
    subjects = held_out = None
    if first.subjects is not None or second.subjects is not None:
        both = (nobody(one.n) if one.marks.subjects is None else one.marks.subjects for one in (rows, other))
        subjects = np.concatenate([*both])
    if first.held_out is not None:
        of_other = np.zeros(other.n, dtype=np.uint8) if second.held_out is None else second.held_out
        held_out = np.concatenate([first.held_out, of_other])
    ids = np.concatenate([first.ids, np.arange(next_id, next_id + other.n, dtype=np.int64)])
    return RowMarks(ids, subjects, held_out)


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
    if isinstance(first, PictureCells) and isinstance(second, PictureCells):
        return _joined_pictures(first, second)
    first, second = cast(VectorCells, first), cast(VectorCells, second)
    width, other = first.values.shape[1], second.values.shape[1]
    if width != other:
        raise _wrong(
            f"The lists in column {column.name!r:.80} have {width} numbers, those to append {other}."
        )
    return VectorCells(np.concatenate([first.values, second.values]))


def _joined_pictures(first: PictureCells, second: PictureCells) -> PictureCells:
    """The cells of both; of equal pictures one is kept."""
    pictures = [*first.pictures, *second.pictures]
    place = {picture: code for code, picture in reversed([*enumerate(pictures)])}
    kept = sorted(place.values())
    new = {old: code for code, old in enumerate(kept)}
    # The last entry is that of a gap.
    table = np.array([*(new[place[picture]] for picture in pictures), GAP], dtype=np.int32)
    shifted = np.where(second.codes == GAP, len(pictures), second.codes + len(first.pictures))
    codes = np.concatenate([table[first.codes], table[shifted]])
    return PictureCells(codes, ByteStrings.of([pictures[old] for old in kept]))


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
    """A number for each row by all its cells, its label, its subject and its extras, (n,)."""
    numbers = table_digests(rows.table.cells) if isinstance(rows, LabelledTable) else matrix_digests(rows.X)
    subjects = rows.marks.subjects
    about = [] if subjects is None else [subjects]
    for array in (rows.y[:, None], *about, *rows.extras.arrays.values()):
        numbers = numbers * _ODD + matrix_digests(array)
    return numbers


def _other_kind(column: ColumnSchema, error: InvalidProblem) -> InvalidProblem:
    return _wrong(f"The column {column.name!r:.80} is of kind {column.kind}: {error.faults[0].message}")


def _wrong(message: str) -> InvalidProblem:
    return InvalidProblem(Fault(_FIELD, "wrong_columns", message))
