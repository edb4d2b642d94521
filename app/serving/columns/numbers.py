"""Columns of numbers: a row is a list of them, and rows are decided as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from app.domain.entities import ModelVersion
from app.serving.columns.base import Columns, Decided, RowAnswer, Rows, Scorers, Students
from app.serving.columns.decoders import REFUSED, Named
from app.serving.columns.faults import number_column
from app.serving.columns.faulty_rows import FaultyRows
from app.serving.columns.outside import RowCount
from app.serving.columns.records import CellRecords, JsonRecords, RecordRows
from app.serving.columns.table_rows import TableRows, decide_readable, decide_table, one_of_table
from app.serving.decision import Explain
from app.serving.work import RequestLimits
from core.packed import PackedStudent
from core.packed.contributions import Baseline
from core.packed.encoded_columns import MAX_COLUMNS
from core.packed.encoder import Encoder
from core.packed.work import students_work

_FORMS: Final = ("x", "rows", "record", "records", "columns")


class Numbers(Columns):
    """The columns of a version whose rows are numbers."""

    is_table: ClassVar[bool] = True
    takes_lists = True

    def __init__(self, version: ModelVersion, row_count: RowCount | None = None) -> None:
        super().__init__(version, row_count)
        self.n_columns = version.columns
        names: list[str] | None = version.inputs.get("columns")
        # If two columns had one name, the name would be ambiguous.
        is_usable = names is not None and len(set(names)) == len(names) == self.n_columns <= MAX_COLUMNS
        self.names = names if is_usable else None
        means: list[float] = version.inputs.get("means") or []
        self.baseline = None
        if len(means) == version.columns:
            self.baseline = Baseline.of_numbers(np.array(means, dtype=np.float64))

    @cached_property
    def named(self) -> Named | None:
        if self.names is None:
            return None
        low = np.full(self.n_columns, -np.inf) if self.low is None else self.low
        high = np.full(self.n_columns, np.inf) if self.high is None else self.high
        columns = map(number_column, self.names, low.tolist(), high.tolist())
        ignored = () if self.label is None or self.label in self.names else (self.label,)
        return Named(Encoder((*columns,), ignored, np.zeros(self.n_columns)))

    @property
    def forms(self) -> Sequence[str]:
        return _FORMS

    def of_records(
        self, raws: Sequence[msgspec.Raw], field: str, *, single: bool, quoted: bool = False
    ) -> Rows:
        return _OfJson(self, self.by_names(field), raws, field, single=single, quoted=quoted)

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
        named = self.by_names(field)
        arrays = [cells.get(name) for name in named.encoder.names]
        tables = [values for values in arrays if isinstance(values, np.ndarray)]
        if typed and len(tables) == len(arrays):
            # As it is, without a number of Python for each.
            return TableRows(self, np.column_stack(tables), field)
        return _OfCells(self, named, cells, n, field, typed=typed, quoted=quoted, clean=clean)

    def work(self, students: Sequence[PackedStudent], *, explain: bool) -> int:
        return students_work(students, explain=explain)

    def scorers(self, student: PackedStudent) -> Scorers:
        del student
        return Scorers()


class _ByTables(RecordRows):
    """Rows with names that are decided as tables."""

    def work(self, students: Students, explain: Explain) -> int:
        return self.columns.work([served.student for served in students], explain=bool(explain))

    def one(self, students: Students, explain: Explain, limits: RequestLimits) -> RowAnswer:
        return one_of_table(self, students, explain, limits)

    def decide(
        self, students: Students, explain: Explain, limits: RequestLimits, some: Sequence[int] | None = None
    ) -> Decided:
        return decide_table(self, students, explain, limits, some)

    def decide_others(
        self, students: Students, explain: Explain, limits: RequestLimits
    ) -> tuple[Decided, FaultyRows]:
        return decide_readable(self, students, explain, limits)

    def _table(self, numbers: Sequence[int]) -> NDArray[Any]:
        if isinstance(numbers, range) and numbers.step == 1:
            try:
                lists, _ = self.lists(numbers.start, numbers.stop)
                return np.column_stack([np.array(values, dtype=np.float64) for values in lists])
            except REFUSED:
                # Row by row, to name the faults.
                return super()._table(numbers)
        return super()._table(numbers)


class _OfJson(_ByTables, JsonRecords):
    """Objects of JSON."""


class _OfCells(_ByTables, CellRecords):
    """Lists of values by the names of columns."""
