"""The columns of a version's rows, and how rows are decided: `Columns`.

There are two forms. `Numbers`: a row is a list of numbers in the order of the columns. Numbers with names are
sorted into that order, and refused if the names do not fit: nothing is guessed. `Encoded`: a row is a record
of values of any kind, which an encoder converts to numbers. Code that reads requests and writes answers does
not depend on the form; it calls the columns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, NamedTuple, Protocol, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from app.domain.entities import ModelVersion
from app.domain.errors import InvalidRequest, Unprocessable
from app.domain.near_names import listed
from app.http.types import Body
from app.serving.columns.decoders import Named
from app.serving.columns.faults import invalid, refusal
from app.serving.columns.faulty_rows import FaultyRows
from app.serving.columns.notes import RecordNote
from app.serving.columns.outside import MAX_OUTSIDE, Outside, RowCount, widened
from app.serving.decision import Decisions, Explain, RowDecision
from app.serving.json_keys import place_of
from app.serving.work import RequestLimits
from core.errors import InvalidProblem
from core.packed import PackedStudent
from core.packed.contributions import Baseline
from core.packed.embedded_column import EmbeddedColumn
from core.packed.record_rows import Values

Block: TypeAlias = tuple[Sequence[int], NDArray[Any]]
"""Numbers of rows in the request, and their table (block, d)."""

_NAME_BYTES: Final = 250
_SHOWN_NUMBERS: Final = 6


class Scored(Protocol):
    """A student that decides rows. score_columns: see `ServableStudent`."""

    @property
    def student(self) -> PackedStudent:
        """The student."""

    @property
    def score_columns(self) -> Callable[[Sequence[Sequence[Any]]], list[float]] | None:
        """The scores of many records by columns."""


Students: TypeAlias = Sequence[Scored]
"""Students of one version."""


class Scorers(NamedTuple):
    """See `ServableStudent`; all are None if rows are scored as tables."""

    body: Callable[[Body], float | None] | None = None
    one: Callable[[Values], float] | None = None
    many: Callable[[Sequence[Sequence[Any]]], list[float]] | None = None


class RowAnswer(NamedTuple):
    """Each student's decision on one row, the notes about the row, and an explanation of each decision."""

    decisions: list[RowDecision]
    note: RecordNote | None
    effects: list[bytes] | None


class Decided(NamedTuple):
    """of_students: each student's decisions on all rows. notes: of each row; None for rows without a note, or
    instead of the list if no row has one.

    effects: for each student and row the explanation of the decision; None without explanations.
    """

    of_students: list[Decisions]
    notes: list[RecordNote | None] | None
    effects: list[list[bytes]] | None


class Rows(ABC):
    """The rows of a request, in any form. field: name of their field in the request. single: whether there is
    a single row that is not in a list.
    """

    def __init__(self, columns: Columns, field: str, *, single: bool) -> None:
        self.columns, self.field, self.single = columns, field, single

    @abstractmethod
    def __len__(self) -> int:
        """How many rows there are."""

    @abstractmethod
    def body_of(self, i: int) -> bytes:
        """The body of a query in JSON that asks about row ``i`` alone."""

    @abstractmethod
    def work(self, students: Students, explain: Explain) -> int:
        """Multiply-adds of each row."""

    @abstractmethod
    def one(self, students: Students, explain: Explain, limits: RequestLimits) -> RowAnswer:
        """The decisions on the only row. Raises InvalidRequest and TooLarge."""

    @abstractmethod
    def decide(
        self, students: Students, explain: Explain, limits: RequestLimits, some: Sequence[int] | None = None
    ) -> Decided:
        """The decisions on all rows, or some. Raises InvalidRequest naming rows and columns, and TooLarge."""

    @abstractmethod
    def decide_others(
        self, students: Students, explain: Explain, limits: RequestLimits
    ) -> tuple[Decided, FaultyRows]:
        """Like `decide`, on the rows that can be answered.

        Raises InvalidRequest if no row can be answered, or if very many cannot.
        """

    @abstractmethod
    def blocks(self, width: int = 1, some: Sequence[int] | None = None) -> Iterator[Block]:
        """All rows, or some, as tables of numbers. width: numbers per row that the caller computes; the size
        of a block is bounded for these as well. Raises InvalidRequest naming rows and columns.
        """

    @abstractmethod
    def error(self, error: InvalidProblem, numbers: Sequence[int], table: NDArray[Any]) -> InvalidRequest:
        """The error of the request for an error of the core in a block."""


class Columns(ABC):
    """The columns of one version, shared by everything that is loaded from it.

    names: in the order of the columns; None if the version has not stored them. label: name of the label
    column of its data set, which rows with names may also have. index_base: the first index of the svmlight
    file that the version was trained on; None for other versions. low, high: range of each column (d,), or
    None.
    baseline: the baseline of explanations for rows of numbers, or None. row_count: counts the explained rows
    that are outside the range. pictures: the columns of pictures, whose values are vectors here.
    """

    is_table: ClassVar[bool]
    """Whether a single tensor of the Open Inference Protocol is a table of rows, whatever its name."""
    n_columns: int
    """Number of columns of a row; if rows are lists, the length of a list."""
    takes_lists: bool
    """Whether a list of numbers in the order of the columns is a row."""
    names: Sequence[str] | None
    baseline: Baseline | None

    def __init__(self, version: ModelVersion, row_count: RowCount | None) -> None:
        self.row_count = row_count or RowCount()
        self.where = f"version {version.version} of model {version.model!r}"
        known = version.inputs
        self.label: str | None = known.get("label_column")
        self.index_base: int | None = known.get("index_base")
        self.pictures: Sequence[EmbeddedColumn] = ()
        self.low: NDArray[np.float64] | None = None
        self.high: NDArray[np.float64] | None = None
        if len(ranges := known.get("ranges") or ()) == version.columns:
            self.low, self.high = widened(np.array(ranges, dtype=np.float64))

    @property
    @abstractmethod
    def named(self) -> Named | None:
        """Reads rows by names; None if the columns have no names."""

    @property
    @abstractmethod
    def forms(self) -> Sequence[str]:
        """The fields of a query that its rows may be in."""

    @abstractmethod
    def of_records(
        self, raws: Sequence[msgspec.Raw], field: str, *, single: bool, quoted: bool = False
    ) -> Rows:
        """Objects of JSON. quoted: whether texts like NaN were put into quotes. Raises InvalidRequest."""

    def of_texts(
        self, raws: Sequence[msgspec.Raw], field: str, *, single: bool, quoted: bool = False
    ) -> Rows:
        """Rows of texts, if the only column is one of texts. Raises InvalidRequest."""
        del raws, single, quoted
        text = f"{field!r} is for models whose only column is one of texts; this one takes"
        raise refusal("wrong_body", text, field)

    @abstractmethod
    def of_cells(
        self,
        cells: Mapping[str, Sequence[Any] | NDArray[Any]],
        n: int,
        field: str,
        *,
        typed: bool,
        quoted: bool = False,
        clean: Sequence[str] = (),
    ) -> Rows:
        """Rows by columns, see `CellSource`. Raises InvalidRequest."""

    @abstractmethod
    def work(self, students: Sequence[PackedStudent], *, explain: bool) -> int:
        """Multiply-adds of a row with names."""

    @abstractmethod
    def scorers(self, student: PackedStudent) -> Scorers:
        """Functions that score records one by one."""

    def at_once(self, served: Scored, data: Body, limits: RequestLimits) -> Decided | None:
        """The decisions of a student on a body of many records, if they can be read and scored by columns."""
        del served, data, limits
        return None

    @property
    def has_effects(self) -> bool:
        """Whether rows can be explained by columns."""
        return self.baseline is not None

    @property
    def encoder_digest(self) -> str | None:
        """Digest of the encoder's package, if there is an encoder."""
        return None

    def package(self) -> bytes | None:
        """The encoder as a package, if there is an encoder."""
        return None

    @property
    def nbytes(self) -> int:
        """Memory of names, positions and ranges, about."""
        of_names = 0 if self.names is None else _NAME_BYTES * len(self.names)
        of_ranges = 0 if self.low is None else 2 * self.low.nbytes
        return of_names + of_ranges + (0 if self.baseline is None else 4 * self.baseline.means.nbytes)

    def by_names(self, field: str, i: int | None = None) -> Named:
        """Reads rows by names. Raises InvalidRequest if the columns have none."""
        named = self.named
        if named is None:
            place = place_of(field, i).rstrip(",")
            text = (
                f"{place} names columns, but {self.where} has no names of columns: it"
                " was trained on rows without them, or on more columns than are kept by name, or was"
                f" imported. Give a list of its {self.n_columns} numbers in their order."
            )
            raise refusal("no_column_names", text, field, i)
        return named

    def check_lists(self, field: str) -> None:
        """Raise InvalidRequest if a list of numbers is not a row."""
        if not self.takes_lists:
            text = (
                f"{field} is for models whose columns are all numbers without gaps; this one needs a record"
                f" of the columns {listed(self.names or ())}: {self.example}"
            )
            raise refusal("needs_record", text, field)

    @property
    def example(self) -> str:
        """A body that asks about a row."""
        named = self.named
        if named is None:
            return f'{{"x": {[0.0] * min(self.n_columns, _SHOWN_NUMBERS)}}}'
        if named.encoder.text_column is not None:
            return '{"text": "some words"}'
        if self.pictures and self.n_columns == 1:
            return '{"image": "<base64>"}'
        return f'{{"record": {named.reader.example}}}'

    def order(self, given: Sequence[str], field: str) -> list[int]:
        """The place in ``given`` of each column. Raises InvalidRequest for names that do not fit."""
        reader = self.by_names(field).reader
        faults = [*reader.name_faults(given, field), *reader.missing_faults(given, field)]
        if faults:
            raise invalid(faults)
        places = {name: place for place, name in enumerate(given)}
        return [places[name] for name in reader.names]

    def first_index(self, stated: Literal[0, 1] | None, field: str, row: int | None = None) -> int:
        """The first index of a sparse row: 0, or 1 if the row says so.

        Raises Unprocessable if it is unknown, or contradicts the file of the training rows.
        """
        if stated is None and self.index_base == 1:
            text = (
                f"{field}: say whether the indices count from 1, as the svmlight file that {self.where} was "
                'trained on does ("index_base": 1), or are numbers of columns, which count from 0 '
                '("index_base": 0).'
            )
            raise _contradiction("index_base_missing", text, field, row)
        if stated == 1 and self.index_base == 0:
            text = (
                f"{field}: the svmlight file that {self.where} was trained on counts from 0, so indices that "
                "count from 1 would be of other columns."
            )
            raise _contradiction("wrong_index_base", text, field, row)
        return stated or 0

    def outside(self, table: NDArray[Any]) -> list[Outside] | None:
        """The columns of each row (n, d) that are outside their range; None if ranges are unknown."""
        if self.low is None or self.high is None:
            return None
        is_outside = self.is_outside(table)
        self.row_count.outside += int(is_outside.any(axis=1).sum())
        return [
            Outside([self.name_of(int(column)) for column in row.nonzero()[0][:MAX_OUTSIDE]], int(row.sum()))
            for row in is_outside
        ]

    def is_outside(self, table: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether each number of rows (n, d) is outside the range of its column, if the range is known."""
        if self.low is None or self.high is None:
            return np.zeros(table.shape, dtype=bool)
        return (table < self.low) | (table > self.high)

    def name_of(self, column: int) -> str | int:
        """The name of a column, otherwise its index in the svmlight file or its number, from 0."""
        return column + (self.index_base or 0) if self.names is None else self.names[column]


def _contradiction(code: str, text: str, field: str, row: int | None) -> Unprocessable:
    error = refusal(code, text, f"{field}.index_base", row)
    return Unprocessable(text, code=code, faults=error.faults)
