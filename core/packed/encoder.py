"""Converts records and tables to rows of numbers. A fitted encoder is pure data; to apply it, NumPy suffices.

    number      x, and 1 where it is missing if gaps were frequent; a gap becomes the median
    boolean     1 and 0, otherwise as a number
    category    1 in the column of its value; in one for all rare and unseen values, in one for gaps; else 0
    date        years since the first day, sines and cosines of the hour, the day of the week and of the year
    text        its terms, weighted as ``core.packed.term_table`` says
    vector      its numbers
    image       the numbers that an encoder makes of the picture, scaled together

A category with many values also has the terms of its values. Columns of terms follow all others. A row is
encoded to the same bits alone and among other rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from core.data.column_layout import ColumnLayout
from core.data.schema import Kind, cells_as
from core.data.table import Cells, Table
from core.data.validation import MAX_FAULTS
from core.errors import Fault, InvalidPackage, InvalidProblem
from core.packed.codec import Arrays, Buffer, Header, decode, encode, package_errors, take_array
from core.packed.column_packages import column_from
from core.packed.embedded_column import EmbeddedColumn
from core.packed.encoded_columns import (
    FILLS,
    MAX_COLUMNS,
    ColumnEncoder,
    Floats,
    NumberColumn,
)
from core.packed.gap_fill import GapFill
from core.packed.term_table import MAX_TERMS, Entries


@dataclass(frozen=True, slots=True, eq=False)
class EncodedRows:
    """dense: (n, dense columns). entries: terms, None if the encoder has none; their columns start from 0."""

    dense: Floats
    entries: Entries | None


@final
@dataclass(frozen=True, eq=False)
class Encoder:
    """columns: encoders of used columns in the order of the table. ignored: names of unused columns of the
    table, which rows of queries may contain. means: mean of each dense column in training, (dense columns,).
    takes_others: whether rows may have further columns, which are not used. gaps: fills gaps of columns that
    had none in training; None: their usual values are used.

    Raises InvalidProblem if these do not fit together.
    """

    FORMAT: ClassVar[str] = "stms.encoder.1"

    columns: tuple[ColumnEncoder, ...]
    ignored: tuple[str, ...]
    means: Floats
    takes_others: bool = False
    gaps: GapFill | None = None

    def __post_init__(self) -> None:
        names = [*(column.name for column in self.columns), *self.ignored]
        if not self.columns or len(names) > MAX_COLUMNS or len(set(names)) != len(names):
            raise InvalidProblem(
                Fault("columns", "bad_names", "the names of an encoder's columns are unusable")
            )
        if self.means.shape != (self.layout.dense,) or not np.isfinite(self.means).all():
            raise InvalidProblem(
                Fault("means", "wrong_shape", "the means of an encoder do not fit its columns")
            )
        if self.gaps is not None and self.gaps.means is not self.means:
            raise InvalidProblem(
                Fault("gaps", "wrong_shape", "gaps are filled from the means of the encoder")
            )
        if not self.layout.columns >= 1 or self.layout.terms > MAX_TERMS:
            raise InvalidProblem(
                Fault("columns", "out_of_range", "an encoder has too few or too many columns")
            )

    @cached_property
    def layout(self) -> ColumnLayout:
        """The positions of numbers, indicators and terms among the encoded columns."""
        numbers: list[int] = []
        dense = terms = 0
        for column in self.columns:
            numbers += range(dense, dense + column.numbers)
            dense += column.width
            terms += sum(map(len, column.tables))
        return ColumnLayout(dense + terms, dense, tuple(numbers))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the used columns."""
        return tuple(column.name for column in self.columns)

    @property
    def text_column(self) -> str | None:
        """The name of the only column, if it is one of texts; otherwise None."""
        only = self.columns[0]
        return only.name if len(self.columns) == 1 and only.kind is Kind.TEXT else None

    @property
    def picture_columns(self) -> tuple[EmbeddedColumn, ...]:
        """The columns of pictures."""
        return tuple(column for column in self.columns if isinstance(column, EmbeddedColumn))

    @property
    def takes_numbers(self) -> bool:
        """Whether all columns are numbers or truth values without gaps: a list of numbers is then a row."""
        return all(
            isinstance(column, NumberColumn) and (column.required or column.fills) and not column.marks_gaps
            for column in self.columns
        )

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The first dense column of each column."""
        return tuple(accumulate((column.width for column in self.columns[:-1]), initial=0))

    @cached_property
    def filling(self) -> int:
        """Number of columns that fill gaps."""
        return sum(column.fills for column in self.columns)

    def encode(self, table: Table) -> EncodedRows:
        """The rows of a table, whose columns are found by name.

        Raises InvalidProblem if columns are missing, or if cells are not of their column's kind.
        """
        cells = self._cells(table)
        dense = np.zeros((table.n, self.layout.dense))
        for column, start, of_column in zip(self.columns, self.starts, cells, strict=True):
            column.fill(of_column, dense[:, start : start + column.width])
        if self.filling:
            pairs = zip(self.columns, cells, strict=True)
            self.fill_gaps(dense, np.column_stack([column.fills & one.is_gap for column, one in pairs]))
        if not self.layout.terms:
            return EncodedRows(dense, None)
        parts, first = [], 0
        for column, of_column in zip(self.columns, cells, strict=True):
            parts.append(column.entries(of_column).shifted(0, first))
            first += sum(map(len, column.tables))
        return EncodedRows(dense, Entries.joined(parts))

    def filled_shares(self, table: Table) -> Floats:
        """For each row of a table, (n,), the share of gap-filling columns in which it has a gap."""
        if not self.filling:
            return np.zeros(table.n)
        pairs = zip(self.columns, self._cells(table), strict=True)
        gaps: Floats = np.sum([cells.is_gap for column, cells in pairs if column.fills], axis=0)
        return gaps / self.filling

    def dense_places(self, columns: Iterable[int]) -> list[int]:
        """The dense columns of some columns, ascending."""
        spans = ((self.starts[place], self.columns[place].width) for place in sorted(columns))
        return [place for start, width in spans for place in range(start, start + width)]

    def fill_gaps(self, dense: Floats, is_gap: NDArray[np.bool_]) -> None:
        """Fill gaps in dense rows (n, k). is_gap: (n, columns), true only for columns that fill gaps."""
        for row in np.flatnonzero(is_gap.any(axis=1)):
            missing = np.flatnonzero(is_gap[row]).tolist()
            for number in missing:
                column, start = self.columns[number], self.starts[number]
                dense[row, start : start + column.width] = column.row(None)
            if self.gaps is not None:
                self.gaps.fill(dense[row], self.dense_places(missing))

    def _cells(self, table: Table) -> list[Cells]:
        faults: list[Fault] = []
        found: list[Cells] = []
        for column in self.columns:
            if column.name not in table.names:
                message = f"The table has no column {column.name!r:.80}."
                faults.append(Fault("X", "missing_column", message))
                continue
            try:
                found.append(cells_as(column.name, table.column(column.name), column.spec))
            except InvalidProblem as error:
                faults += error.faults
        if faults:
            raise InvalidProblem(*faults[:MAX_FAULTS])
        return found

    def to_bytes(self) -> bytes:
        """The encoder as safetensors; the same encoder always gives the same bytes."""
        arrays: Arrays = {"means": self.means}
        described = []
        for place, column in enumerate(self.columns):
            arrays |= {f"{place}.{name}": array for name, array in column.arrays().items()}
            families = []
            for table in column.tables:
                families.append({"family": table.family, "unknown_idf": table.unknown_idf})
                arrays[f"{place}.{table.family}.terms"] = table.terms.view(np.int64)
                arrays[f"{place}.{table.family}.idf"] = table.idf
            entry: Header = {"name": column.name, "kind": str(column.kind), **column.header()}
            entry |= {FILLS: True} if column.fills else {}
            described.append(entry | ({"terms": families} if families else {}))
        if self.gaps is not None:
            arrays |= {"gaps.scales": self.gaps.scales, "gaps.precision": self.gaps.precision}
        header = [described, list(self.ignored), self.takes_others]
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":"))
        arrays["columns"] = np.frombuffer(text.encode(), dtype=np.uint8)
        return encode({"format": self.FORMAT}, arrays)

    @classmethod
    def from_bytes(cls, data: Buffer) -> Encoder:
        """The encoder that ``to_bytes`` stored; its arrays are views of ``data``. Raises InvalidPackage."""
        _, arrays = decode(data, cls.FORMAT)
        with package_errors("encoder"):
            try:
                described, ignored, takes_others = json.loads(take_array(arrays, "columns").tobytes())
                columns = tuple(column_from(entry, place, arrays) for place, entry in enumerate(described))
                if not all(isinstance(name, str) for name in ignored) or type(takes_others) is not bool:
                    raise InvalidPackage("The encoder in the package says nothing usable of other columns.")
            except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
                if isinstance(error, InvalidProblem | InvalidPackage):
                    raise
                raise InvalidPackage(f"The encoder in the package is not usable: {error}.") from error
            means, gaps = take_array(arrays, "means"), None
            if "gaps.scales" in arrays:
                gaps = GapFill(
                    means, *(take_array(arrays, f"gaps.{name}") for name in ("scales", "precision"))
                )
            return cls(columns, tuple(ignored), means, takes_others, gaps)
