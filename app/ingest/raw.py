"""Definitions that all format readers share: limits, unvalidated data, and errors about a file."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from app.domain.errors import InputFault, InvalidRequest, TooLarge, Unavailable
from app.ingest.options import Decision
from core.data.extras import NO_RAW_EXTRAS, RawExtras
from core.data.labels import alike
from core.data.reading_hints import reading_hint
from core.data.row_marks import NO_MARKS, RowMarks
from core.data.schema import KindSpec
from core.data.table import Table
from core.errors import Fault, InvalidProblem

LinesOf: TypeAlias = Callable[[Collection[int]], Mapping[int, int]]

MAX_FAULTS = 10
"""Most faults reported for one file."""
MOST_LEFT_OUT: Final = 1000
"""Up to this many faulty rows, the other rows of a file are answered."""
_OF_A_PART = frozenset({"X", "y", "privileged", "teacher_scores"})
RARE_HINT = (
    f"To leave the rows of such classes out, send {reading_hint('rare_classes', 'drop')}; in a file to test"
    f" on, keep them: {reading_hint('rare_classes', 'keep')}."
)
UNLABELLED_HINT = f"To keep training rows without a label, send {reading_hint('unlabelled', 'accept')}."


@dataclass(frozen=True, slots=True)
class DatasetLimits:
    """Largest data set that a reader accepts.

    max_bytes: size of the arrays in memory, independent of the size of the file.
    temp_folder: for large arrays, see `app.ingest.mapped_arrays`.
    """

    max_rows: int
    max_columns: int
    max_bytes: int
    temp_folder: Path | None = None

    def check(self, rows: int, columns: int, *, itemsize: int = 8) -> None:
        """Raise TooLarge for a dense table over a limit. Call it before the table is allocated."""
        self.check_shape(rows, columns)
        self.check_bytes(rows * columns * itemsize)

    def check_bytes(self, size: int) -> None:
        """Raise TooLarge if the arrays would take more than ``max_bytes``."""
        if size > self.max_bytes:
            text = f"The numbers of the file take {size} bytes in memory; the limit is {self.max_bytes}."
            raise TooLarge(text, code="table_too_large")

    def check_shape(self, rows: int, columns: int) -> None:
        """Raise TooLarge for too many rows or columns."""
        for count, limit, what in ((rows, self.max_rows, "rows"), (columns, self.max_columns, "columns")):
            if count > limit:
                raise TooLarge(f"The file has {count} {what}; the limit is {limit}.", code=f"too_many_{what}")


@dataclass(frozen=True, slots=True)
class RawTable:
    """Columns of raw cells, instead of a table of numbers.

    nulls: of each column, by its name, the tokens that were read as missing values, with their counts. cut:
    cells of each column that were longer than a text may be. kinds: given by the file or its sender. known:
    names of further columns of the file. views: names of the columns of each view. usage: how numbers are
    written in the file, see `core.data.column_kinds.infer_column`.
    """

    table: Table
    nulls: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    cut: Mapping[str, int] = field(default_factory=dict)
    kinds: Mapping[str, KindSpec] = field(default_factory=dict)
    known: tuple[str, ...] = ()
    views: tuple[tuple[str, tuple[str, ...]], ...] = ()
    usage: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RawPart:
    """Rows (n, d), their labels (n,) and extras, not yet validated; marks. X: numbers, or a `RawTable`."""

    X: Any
    labels: Any
    extras: RawExtras = NO_RAW_EXTRAS
    marks: RowMarks = NO_MARKS


@dataclass(frozen=True, slots=True)
class RawData:
    """Content of a file, not yet validated.

    class_names: names of the classes if labels are numbers and the file names them. label_column: its name.
    decisions: choices of the reader and their reasons. variant: how this reading of the file differs from the
    usual one. warnings: code and text of each. ignored: names of the arrays in the file that are not used.
    lines_of: the lines of the file, counted from 1, of some rows, as far as they are found in limited time;
    None for formats without lines.
    """

    train: RawPart
    test: RawPart | None = None
    feature_names: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None
    label_column: str | None = None
    decisions: tuple[Decision, ...] = ()
    variant: tuple[str, ...] = ()
    warnings: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()
    lines_of: LinesOf | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """Knowledge about rows without labels: the names of the model's columns in order, and of its labels.

    kinds: of the columns of records, by name; None if rows are numbers. required: the columns that every
    record must have.
    """

    columns: Sequence[str] | None = None
    label: str | None = None
    kinds: Mapping[str, KindSpec] | None = None
    required: Collection[str] = ()


NOTHING: Final = Known()
"""The columns of the model have no names."""


@dataclass(frozen=True, slots=True)
class FeatureRows:
    """Rows without labels: X (n, d) numbers, or a table of records. names: of the columns, or None.

    lines: the line of the file of each row, counted from 1; None for formats without lines. decisions:
    choices of the reader and their reasons. ignored: names of the columns that were not read. numbers: of the
    rows in the file, from 0; None if all are present. faults: of rows that were left out.
    """

    X: NDArray[Any] | Table
    names: tuple[str, ...] | None
    lines: Sequence[int] | None
    decisions: tuple[Decision, ...]
    ignored: tuple[str, ...]
    numbers: Sequence[int] | None = None
    faults: tuple[InputFault, ...] = ()

    @property
    def n(self) -> int:
        """Rows."""
        return self.X.n if isinstance(self.X, Table) else len(self.X)

    def without(self, faults: Sequence[InputFault]) -> FeatureRows:
        """The other rows if some are faulty. faults: of rows by their numbers in this table.

        Raises InvalidRequest if none is left, or if more than `MOST_LEFT_OUT` are faulty.
        """
        wrong = {fault.row for fault in faults if fault.row is not None}
        kept = [row for row in range(self.n) if row not in wrong]
        of_rows = list({fault.row: fault for fault in reversed(faults)}.values())[::-1]
        every = [*self.faults, *of_rows]
        if not kept or len(every) > MOST_LEFT_OUT:
            raise invalid_rows(every[:MAX_FAULTS])
        numbers = range(self.n) if self.numbers is None else self.numbers
        places = np.array(kept, dtype=np.int64)
        return replace(
            self,
            X=self.X.take(places) if isinstance(self.X, Table) else self.X[places],
            lines=None if self.lines is None else [self.lines[row] for row in kept],
            numbers=[numbers[row] for row in kept],
            faults=tuple(every),
        )

    @property
    def body(self) -> dict[str, Any]:
        """The rows as a query has them."""
        if isinstance(self.X, Table):
            records = [self.X.record(row) for row in range(self.n)]
            return {"columns": {name: [record[name] for record in records] for name in self.X.names}}
        return {"rows": self.X.tolist()}


def invalid_file(message: str, *, code: str, faults: Sequence[InputFault] = ()) -> InvalidRequest:
    """The error for a file of a supported format with invalid content."""
    return InvalidRequest(message, code=code, faults=faults)


def invalid_rows(faults: Sequence[InputFault]) -> InvalidRequest:
    """The error for a file with faults in its rows; the message is that of the first fault."""
    more = f" ({len(faults)} faults are listed.)" if len(faults) > 1 else ""
    return invalid_file(faults[0].message + more, code="invalid_dataset", faults=faults)


def input_faults(error: InvalidProblem, part: str = "") -> list[InputFault]:
    """Faults of core as faults of a file. part: suffix of the fields of a part of the file."""
    return [
        InputFault(fault.field + part if fault.field in _OF_A_PART else fault.field, *_rest(fault))
        for fault in error.faults
    ]


def _rest(fault: Fault) -> tuple[str, str, int | None, int | None]:
    text = fault.message
    if fault.code in {"missing_label", "empty_label"}:
        text += f" {UNLABELLED_HINT}"
    if fault.code == "class_too_small":
        text += f" {RARE_HINT}"
    return fault.code, text, fault.row, fault.column


def in_lines(faults: Sequence[InputFault], lines_of: LinesOf | None) -> list[InputFault]:
    """Faults of rows by the lines of the file, if it has lines."""
    if lines_of is None:
        return list(faults)
    lines = lines_of({fault.row for fault in faults if fault.row is not None})
    return [_in_lines(fault, lines) for fault in faults]


def _in_lines(fault: InputFault, lines: Mapping[int, int]) -> InputFault:
    """A fault whose message counts as editors do: by the lines of the file, from 1."""
    if fault.row is None or fault.row not in lines:
        return fault
    line = lines[fault.row]

    def place(found: re.Match[str]) -> str:
        return ("L" if found[0][0] == "R" else "l") + f"ine {line}"

    return replace(
        fault, message=re.sub(rf"\b[Rr]ow {fault.row}\b( \(counted from 0\))?", place, fault.message)
    )


@contextmanager
def disk_full_as_unavailable() -> Iterator[None]:
    """Convert the OSError of a full disk to Unavailable."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        text = "The server's disk has no space left for this file."
        raise Unavailable(text, code="storage_full", retry_after=10.0) from error


def unlabelled_warning(rows: int, *, has_classes: bool) -> tuple[str, str]:
    """Code and text of the warning that ``rows`` rows have no label. has_classes: whether others have one."""
    if has_classes:
        return "unlabelled_rows", f"{rows} rows have no label: students learn the teacher's answers on them."
    return "unlabelled_rows", "No row has a label: a job needs a labelling, which clusters them."


def alike_labels(classes: Sequence[str]) -> list[tuple[str, str]]:
    """The warning that different classes have names which people take for one."""
    groups = alike(classes)
    if not groups:
        return []
    shown = "; ".join(", ".join(f"{name!a:.80}" for name in group[:5]) for group in groups[:5])
    more = f" and {len(groups) - 5} more" if len(groups) > 5 else ""
    return [
        ("labels_alike", f"These names are different classes, but are equal or look alike: {shown}{more}.")
    ]
