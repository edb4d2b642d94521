"""Describes the rows that a version of a model accepts, and which of them another version would refuse."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Final, final

from core.data.cell_values import number_of
from core.data.schema import Kind
from core.errors import InvalidProblem
from core.packed.embedded_column import EmbeddedColumn
from core.packed.encoded_columns import (
    MAX_VALUE_BYTES,
    CategoryColumn,
    ColumnEncoder,
    DateColumn,
    NumberColumn,
    TextColumn,
    VectorColumn,
)
from core.packed.encoder import Encoder
from core.packed.record_rows import canonical

_DAY: Final = date(2024, 5, 26)
"""No month has this number of the day, so patterns cannot confuse day and month."""


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A kind of rows that one version answers and another one refuses.

    code: ``column_required``, ``column_removed``, ``column_retyped``, ``class_removed``, or ``form_refused``
    for a whole form of rows. name: of the column, class or form. message: a sentence about the change.
    """

    code: str
    name: str
    message: str


@final
@dataclass(frozen=True, slots=True, eq=False)
class RowSchema:
    """The rows that a version answers.

    columns: its used columns by name, in order; None if they have no names. ignored: further names that a
    record may have. takes_others: whether it may have any name. width: how many numbers a list has; None
    if lists are refused. takes_texts: whether a text alone is a row. index_base: the first index of the
    svmlight file of training, if there was one.
    """

    columns: Mapping[str, ColumnEncoder] | None
    ignored: Collection[str] = ()
    takes_others: bool = False
    width: int | None = None
    takes_texts: bool = False
    index_base: int | None = None

    @classmethod
    def of_encoder(cls, encoder: Encoder) -> RowSchema:
        """The schema of the rows that an encoder accepts."""
        return cls(
            {column.name: column for column in encoder.columns},
            encoder.ignored,
            encoder.takes_others,
            len(encoder.columns) if encoder.takes_numbers else None,
            encoder.text_column is not None,
        )

    @classmethod
    def of_numbers(
        cls, width: int, names: Sequence[str] | None, label: str | None, index_base: int | None = None
    ) -> RowSchema:
        """The schema of rows of numbers. names: of their columns, if any. label: a further column that a row
        with names may have.
        """
        columns = None
        if names is not None:
            columns = {name: NumberColumn(name, True, 0.0, False, 0.0, 0.0) for name in names}
        return cls(columns, () if label is None else (label,), width=width, index_base=index_base)

    @property
    def used(self) -> int | None:
        """Number of used columns; None if unknown."""
        return self.width if self.columns is None else len(self.columns)


def schema_changes(before: RowSchema, after: RowSchema) -> list[SchemaChange]:
    """Rows that ``before`` accepts and ``after`` refuses: by form, then by column."""
    return [*_forms(before, after), *_columns(before, after)]


def _forms(before: RowSchema, after: RowSchema) -> Iterator[SchemaChange]:
    def refused(name: str, message: str) -> SchemaChange:
        return SchemaChange("form_refused", name, message)

    if before.width is not None:
        names = None if before.columns is None or after.columns is None else (*before.columns, *after.columns)
        if after.width is None:
            yield refused("x", "Lists of numbers are refused: a row needs the names of its columns.")
        elif after.width != before.width:
            yield refused("x", f"A list must have {after.width} numbers, and had {before.width}.")
        elif names and len({*names}) == after.width and names[: after.width] != names[after.width :]:
            yield refused("x", "The numbers of a list belong to the same columns in another order.")
        elif after.index_base is not None and before.index_base != after.index_base:
            yield refused("index_base", f"The indices of sparse rows count from {after.index_base}.")
    if before.takes_texts and not after.takes_texts:
        yield refused("text", "A text alone is refused: a row needs the names of its columns.")
    if before.columns is not None and after.columns is None:
        yield refused("record", "Rows with names are refused: the columns have no names.")
    if before.takes_others and not after.takes_others:
        yield refused("record", "Columns that training did not have are refused.")


def _columns(before: RowSchema, after: RowSchema) -> Iterator[SchemaChange]:
    if before.columns is None or after.columns is None:
        return
    for name, column in after.columns.items():
        old = before.columns.get(name)
        if column.required and (old is None or not old.required):
            was = "could be missing" if old else "was not used" if name in before.ignored else "did not exist"
            yield SchemaChange("column_required", name, f"Column {name!r:.100} is required, and {was}.")
    if not after.takes_others:
        for name in (*before.columns, *before.ignored):
            if name not in after.columns and name not in after.ignored:
                message = f"Column {name!r:.100} is not known: rows that have it are refused."
                yield SchemaChange("column_removed", name, message)
    for name, old in before.columns.items():
        new = after.columns.get(name)
        refusal = None if new is None else _refusal(old, new)
        if refusal is not None:
            yield SchemaChange("column_retyped", name, refusal)


def _refusal(old: ColumnEncoder, new: ColumnEncoder) -> str | None:
    """Why a column refuses a value that it accepted before; None if it accepts all."""
    for value in _values(old, new):
        try:
            taken = canonical(new, value)
        except InvalidProblem as error:
            what = error.faults[0].message
        else:
            if taken is not None or not new.required or new.kind is Kind.TEXT:
                continue
            what = "has no value"
        return (
            f"Column {new.name!r:.100} was {old.spec} and is {new.spec}: with {value!r:.40}, as before, it"
            f" {what}."
        )
    return None


def _values(column: ColumnEncoder, new: ColumnEncoder) -> Iterator[Any]:
    """Values that a column accepts, for testing whether another column accepts them all."""
    if isinstance(column, NumberColumn):
        yield from (True, False) if column.is_truth else (column.low, column.high)
        if column.takes_texts:
            yield column.pattern or f"{column.high:g}"
    elif isinstance(column, CategoryColumn):
        if isinstance(new, CategoryColumn) and not new.refuses_unseen:
            return
        for key in column.places:
            number = number_of(key)
            yield from (key,) if number is None else (key, number)
        if not column.refuses_unseen:
            yield "a value that training did not have"
    elif isinstance(column, DateColumn):
        yield _DAY.strftime(column.pattern or "%Y-%m-%d")
    elif isinstance(column, VectorColumn):
        yield [0.0] * len(column.fallback)
    elif isinstance(column, EmbeddedColumn) and not isinstance(new, EmbeddedColumn):
        # A picture suits any encoder, so that a version with another one refuses vectors only.
        yield [0.0] * column.vector_width
    elif isinstance(column, TextColumn):
        yield from ("some words", "some words " * (MAX_VALUE_BYTES // 8))
    if not column.required:
        yield from column.nulls
