"""Labelled rows of raw cells, and their encoding once an encoder is chosen."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from core.data.column_kinds import infer_column
from core.data.dataset import LabelledData, LabelledRows
from core.data.extras import NO_EXTRAS, Extras, View
from core.data.repeated_rows import Digests, table_digests
from core.data.row_marks import NO_MARKS, RowMarks
from core.data.schema import ColumnSchema, Kind, KindSpec
from core.data.table import NumberCells, Table
from core.encoding.fit import fit_encoder, matrix_of
from core.encoding.profile import fit_profile
from core.encoding.rules import ColumnRules
from core.errors import Fault, InvalidProblem
from core.packed.encoder import Encoder
from core.packed.input_profile import InputProfile
from core.types import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class LabelledTable(LabelledRows):
    """n rows of raw cells, each of one of K classes.

    table: the columns that may be used, without labels. schema: one entry for each column. y: (n,) int32
    codes 0..K−1, −1 for a row without a label. classes: K names, as in `LabelledData`.
    known: names of further columns of the file, such as that of the labels, which rows to be asked about may
    have, too. views: names of the columns of each view by its name; the columns of a view stand side by side.
    extras: privileged columns and scores of a teacher, if any, without views. marks: as in `LabelledData`.
    """

    table: Table
    schema: tuple[ColumnSchema, ...]
    y: NDArray[np.int32]
    classes: tuple[str, ...]
    known: tuple[str, ...] = ()
    views: tuple[tuple[str, tuple[str, ...]], ...] = ()
    extras: Extras = NO_EXTRAS
    marks: RowMarks = NO_MARKS

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.table.n

    @property
    def d(self) -> int:
        """Number of columns."""
        return len(self.table.names)

    @classmethod
    def of_numbers(cls, data: LabelledData) -> LabelledTable:
        """The table for rows of numbers with named columns. Raises InvalidProblem if they have no names."""
        if data.feature_names is None or sp.issparse(data.X):
            what = "are sparse" if sp.issparse(data.X) else "have no names"
            message = f"The columns of the data set {what}, so nothing can be said of them by name."
            raise InvalidProblem(Fault("inputs.columns", "no_names", message))
        names = data.feature_names
        columns = tuple(NumberCells(data.X[:, k].astype(np.float64)) for k in range(data.d))
        number = KindSpec(Kind.NUMBER)
        schema = tuple(map(infer_column, names, columns, [number] * len(names)))
        views = tuple((view.name, names[view.columns]) for view in data.views)
        extras = replace(data.extras, views=())
        return cls(
            Table(names, columns), schema, data.y, data.classes, views=views, extras=extras, marks=data.marks
        )

    def take(self, rows: IntArray) -> LabelledTable:
        """Some of the rows, given by their numbers, with their extras; classes and schema stay."""
        return replace(
            self,
            table=self.table.take(rows),
            y=self.y[rows],
            extras=self.extras.take(rows),
            marks=self.marks.take(rows),
        )

    def row_digests(self) -> Digests:
        """A number for each row, (n,); rows have equal numbers if all columns in use are equal.

        If no column is in use, all numbers differ.
        """
        used = [k for k, column in enumerate(self.schema) if column.kind is not Kind.IGNORE]
        if not used:
            return np.arange(self.n, dtype=np.uint64)
        return table_digests([self.table.cells[k] for k in used])

    def of_classes(self, y: NDArray[np.int32], kept: IntArray) -> LabelledTable:
        """The same rows with class codes y. kept: the previous codes of the classes that remain."""
        classes = tuple(self.classes[int(k)] for k in kept)
        return replace(self, y=y, classes=classes, extras=self.extras.of_classes(kept))

    def labelled(self) -> LabelledTable:
        """The rows with a label; the same table if all have one."""
        return self.take(np.flatnonzero(self.y >= 0)) if self.unlabelled else self

    def with_kinds(self, said: Mapping[str, KindSpec]) -> LabelledTable:
        """The same rows with other kinds for some columns, by name. Raises InvalidProblem."""
        unknown = [name for name in said if name not in self.table.names]
        if unknown:
            message = f"The data set has no column {unknown[0]!r:.80}."
            raise InvalidProblem(Fault("inputs.columns", "unknown_column", message))
        schema = tuple(
            infer_column(column.name, self.table.column(column.name), said[column.name])
            if column.name in said
            else column
            for column in self.schema
        )
        return replace(self, schema=schema)

    def encoder(
        self,
        rules: Mapping[str, ColumnRules] | None = None,
        *,
        takes_others: bool = False,
        answers_gaps: bool = True,
    ) -> Encoder:
        """The encoder fitted to the rows with a label, or to all rows if none has one.

        rules: for some columns by name. takes_others: whether rows of queries may have any further columns.
        answers_gaps: whether they may have gaps in columns without gaps here. Raises InvalidProblem.
        """
        return fit_encoder(
            self._fitted_to,
            self.schema,
            rules,
            self.known,
            takes_others=takes_others,
            answers_gaps=answers_gaps,
            n_classes=len(self.classes),
        )

    def profile(self, encoder: Encoder) -> InputProfile:
        """The profile of the rows that the encoder was fitted to."""
        return fit_profile(self._fitted_to, encoder)

    @property
    def _fitted_to(self) -> Table:
        return (self.labelled() if self.unlabelled < self.n else self).table

    def encoded(self, encoder: Encoder) -> LabelledData:
        """The rows as numbers. Raises InvalidProblem if columns are missing or of another kind."""
        X = matrix_of(encoder.encode(self.table), encoder)
        extras = replace(self.extras, views=_ranges(self.views, encoder))
        return LabelledData(X, self.y, self.classes, extras=extras, layout=encoder.layout)


def _ranges(views: Collection[tuple[str, tuple[str, ...]]], encoder: Encoder) -> tuple[View, ...]:
    """The encoded columns of each view. Raises InvalidProblem for texts, whose terms are not adjacent."""
    if not views:
        return ()
    start, place = 0, {}
    for column in encoder.columns:
        place[column.name] = (start, start + column.width)
        start += column.width
    found = []
    for view, names in views:
        used = [name for name in names if name in place]
        texts = [column.name for column in encoder.columns if column.name in used and column.tables]
        if texts or not used:
            what = f"has the column of texts {texts[0]!r:.80}" if texts else "has no column that is used"
            message = f"The view {view!r:.80} {what}; its columns must be numbers, dates or few categories."
            raise InvalidProblem(Fault("views", "view_of_texts" if texts else "empty", message))
        found.append(View(view, place[used[0]][0], place[used[-1]][1]))
    return tuple(sorted(found, key=lambda one: one.start))
