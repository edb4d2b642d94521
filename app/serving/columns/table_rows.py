"""Rows of numbers in the order of the columns: lists, sparse rows, and tables from tensors.

A list of JSON is decoded row by row into tables of bounded size, so that neither a long list nor wide sparse
rows take much more memory than the body, and no single call holds the interpreter lock for long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from app.domain.errors import InputFault, InvalidRequest
from app.serving.columns.base import Block, Columns, Decided, RowAnswer, Rows, Students
from app.serving.columns.explanations import numbers_explainer
from app.serving.columns.faults import invalid, json_value, list_faults, refusal, written, wrong_width
from app.serving.columns.faulty_rows import FaultyRows
from app.serving.columns.notes import RecordNote
from app.serving.columns.outside import Outside
from app.serving.decision import COLUMNS, Decisions, Explain, RowDecision, decide_all, decide_row
from app.serving.json_keys import NO_JSON, check_once, malformed, may_repeat, place_of
from app.serving.row_decoder import decode_list
from app.serving.work import RequestLimits
from core.data.validation import MAX_FAULTS, MAX_MAGNITUDE, row_blocks
from core.errors import Fault, InvalidProblem
from core.packed import PackedStudent
from core.packed.work import students_work

Number = Annotated[float, Meta(extra_json_schema={"minimum": -MAX_MAGNITUDE, "maximum": MAX_MAGNITUDE})]
Index = Annotated[int | float, Meta(extra_json_schema={"minimum": 0, "multipleOf": 1})]
"""The bounds are documented here, and checked later, so that an error names row and column."""


class SparseRow(msgspec.Struct, forbid_unknown_fields=True):
    """A row by the columns and values of its stored entries; all others are 0.

    index_base: where the indices begin. 0 by default, which is refused where the svmlight file that a version
    was trained on counts from 1: such a row says what it means.
    """

    indices: list[Index]
    values: list[Number]
    index_base: Literal[0, 1] | None = None

    def __post_init__(self) -> None:
        if float in set(map(type, self.indices)):
            # In JSON 1.0 is an integer, too, and some programs write it like that.
            # An integer may be too large for a float; the bounds are checked later.
            if not all(isinstance(index, int) or index.is_integer() for index in self.indices):
                raise ValueError("indices must be whole numbers")
            self.indices = list(map(int, self.indices))


Row: TypeAlias = list[float] | SparseRow

_QUOTES: Final = 4
"""Quotation marks of a sparse row with no other keys than it must have."""
_SPARSE: Final = ("indices", "values")
_ROW: Final = msgspec.json.Decoder(list[float] | SparseRow)
_PARTS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def is_record(raw: bytes) -> bool:
    """Whether a row in JSON is an object by names: no list, and no sparse row."""
    if raw[:1] != b"{":
        return False
    if b'"indices"' not in raw and b'"values"' not in raw and b"\\" not in raw:
        return True
    try:
        row = _PARTS.decode(raw)
    except NO_JSON:
        return True
    return not any(bytes(row.get(name, b""))[:1] == b"[" for name in _SPARSE)


class TableRows(Rows):
    """given: one row, or many, as JSON or numbers; or a table (n, d) of float32 or float64. names: of the
    numbers in lists, if they are not in the order of the columns. quoted: whether texts like NaN were put
    into quotes. Raises InvalidRequest if lists are not rows.
    """

    def __init__(
        self,
        columns: Columns,
        given: Sequence[msgspec.Raw | Row] | NDArray[Any],
        field: str,
        *,
        single: bool = False,
        names: Sequence[str] | None = None,
        quoted: bool = False,
    ) -> None:
        super().__init__(columns, field, single=single)
        columns.check_lists(field)
        self._given, self._names, self._quoted = given, names, quoted

    def __len__(self) -> int:
        return len(self._given)

    def body_of(self, i: int) -> bytes:
        row = self._given[i]
        if isinstance(row, msgspec.Raw):
            if self._names is None:
                return b'{"x":%s}' % bytes(row)
            row = _ROW.decode(row)
        numbers = row.tolist() if isinstance(row, np.ndarray) else row
        if self._names is not None and isinstance(numbers, list):
            return msgspec.json.encode({"record": dict(zip(self._names, numbers, strict=True))})
        return msgspec.json.encode({"x": numbers})

    def work(self, students: Students, explain: Explain) -> int:
        return students_work([served.student for served in students], explain=bool(explain))

    def one(self, students: Students, explain: Explain, limits: RequestLimits) -> RowAnswer:
        return one_of_table(self, students, explain, limits, self._row())

    def decide(
        self, students: Students, explain: Explain, limits: RequestLimits, some: Sequence[int] | None = None
    ) -> Decided:
        return decide_table(self, students, explain, limits, some)

    def decide_others(
        self, students: Students, explain: Explain, limits: RequestLimits
    ) -> tuple[Decided, FaultyRows]:
        return decide_readable(self, students, explain, limits)

    def blocks(self, width: int = 1, some: Sequence[int] | None = None) -> Iterator[Block]:
        numbers = range(len(self)) if some is None else some
        order = None if self._names is None else self.columns.order(self._names, "columns")
        for part in row_blocks(len(numbers), max(self.columns.n_columns, width)):
            block = numbers[part]
            if isinstance(self._given, np.ndarray):
                self._check_width(self._given.shape[1])
                yield block, self._given[part if some is None else block]
            else:
                table = self._table(block)
                yield block, table if order is None else table[:, order]

    def error(self, error: InvalidProblem, numbers: Sequence[int], table: NDArray[Any]) -> InvalidRequest:
        return invalid([table_fault(self, fault, numbers, table) for fault in error.faults])

    def _check_width(self, width: int) -> None:
        if width != self.columns.n_columns:
            i = None if self.single else 0
            raise invalid([wrong_width(width, self.columns.n_columns, self.field, i)])

    def _row(self) -> list[float] | SparseRow | NDArray[Any] | None:
        """The only row if it can be scored unchanged; None if it must be sorted first."""
        if isinstance(self._given, np.ndarray):
            self._check_width(self._given.shape[1])
            row: NDArray[Any] = self._given[0]
            return row
        [given] = self._given
        if isinstance(given, list) and self._names is None:
            self._check_width(len(given))
        if self._names is not None or isinstance(given, msgspec.Raw):
            return None
        if isinstance(given, SparseRow) and self.columns.first_index(given.index_base, self.field):
            return None
        return given

    def _table(self, numbers: Sequence[int]) -> NDArray[np.float64]:
        """Rows of JSON as a table, of lists with names in the order of these."""
        width = self.columns.n_columns if self._names is None else len(self._names)
        table = np.zeros((len(numbers), width))
        faults: list[InputFault] = []
        for target, number in zip(table, numbers, strict=True):
            faults += self._fill(target, self._given[number], None if self.single else number)
            if len(faults) >= MAX_FAULTS:
                break
        if faults:
            raise invalid(faults)
        if self._quoted:
            raise malformed(ValueError("it has NaN or Infinity"))
        return table

    def _fill(self, target: NDArray[np.float64], given: msgspec.Raw | Row, i: int | None) -> list[InputFault]:
        """Decode row ``i`` into ``target``, which holds zeros; returns its faults. Raises InvalidRequest."""
        row: Any = given
        if isinstance(given, msgspec.Raw):
            text = bytes(given)
            numbers = decode_list(text, 0, len(target))
            if numbers is not None and numbers[1] == len(text):
                target[:] = np.frombuffer(numbers[0])
                return []
            if is_record(text):
                return self._fill_by_names(target, given, i)
            try:
                row = _ROW.decode(given)
            except UnicodeDecodeError as error:
                raise malformed(error) from error
            except (msgspec.DecodeError, RecursionError) as error:
                return self._row_faults(text, i, str(error))
        if isinstance(row, SparseRow):
            return self._scatter(target, row, given, i)
        if len(row) != len(target):
            return [wrong_width(len(row), len(target), self.field, i)]
        target[:] = row
        if not np.abs(target).max(initial=0.0) <= MAX_MAGNITUDE:
            return list_faults(row, self._names or self.columns.names, self.field, i)
        return []

    def _fill_by_names(
        self, target: NDArray[np.float64], raw: msgspec.Raw, i: int | None
    ) -> list[InputFault]:
        self._check_no_names(i)
        named = self.columns.by_names(self.field, i)
        values, faults = named.values_of(raw, self.field, i, quoted=self._quoted)
        if faults or None in values:
            return faults or named.reader.gap_faults(values, self.field, i)
        target[:] = values
        if not np.abs(target).max(initial=0.0) <= MAX_MAGNITUDE:
            return named.reader.read(bytes(raw), self.field, i, quoted=False)[1]
        return []

    def _check_no_names(self, i: int | None) -> None:
        if self._names is not None:
            place = place_of(self.field, i).rstrip(",")
            message = f"{place}: columns names the numbers of lists; this row is an object."
            raise refusal("wrong_body", message, self.field, i)

    def _row_faults(self, text: bytes, i: int | None, message: str) -> list[InputFault]:
        """The faults of a row in JSON that could not be decoded. message: of the decoder."""
        row = json_value(text)
        if text[:1] == b"{":
            # For a sparse row, the message of the decoder is precise.
            return [_sparse_fault(row, self.field, i, message)]
        if not isinstance(row, list):
            what = "must be a list of numbers, or an object of values by the names of the columns"
            return [InputFault(self.field, "wrong_type", f"{place_of(self.field, i)} {what}.", i or 0)]
        return list_faults(row, self._names or self.columns.names, self.field, i)

    def _scatter(
        self, target: NDArray[np.float64], row: SparseRow, given: msgspec.Raw | Row, i: int | None
    ) -> list[InputFault]:
        """Add the stored entries to a row of zeros; entries of the same column add up."""
        self._check_no_names(i)
        if isinstance(given, msgspec.Raw):
            text = bytes(given)
            if text.count(b'"') != _QUOTES and may_repeat(text, SparseRow.__struct_fields__):
                check_once(text, self.field, i)
        place = place_of(self.field, i).rstrip(",")
        first, n = self.columns.first_index(row.index_base, self.field, i), len(target)
        if len(row.indices) != len(row.values):
            message = f"{place}: {len(row.indices)} indices but {len(row.values)} values."
            return [InputFault(f"{self.field}.values", "wrong_length", message, i or 0)]
        outside = next((j for j in row.indices if not first <= j < first + n), None)
        if outside is not None:
            message = f"{place}: column index {outside} is outside {first} to {first + n - 1}."
            return [InputFault(f"{self.field}.indices", "wrong_columns", message, i or 0)]
        np.add.at(target, np.asarray(row.indices, dtype=np.int64) - first, row.values)
        return []


def _sparse_fault(row: Any, field: str, i: int | None, message: str) -> InputFault:
    """The fault of a sparse row that could not be decoded."""
    pairs = dict(row)
    indices = pairs.get("indices")
    broken = next(
        (
            j
            for j, value in enumerate(indices if isinstance(indices, list) else ())
            if isinstance(value, float) and not value.is_integer()
        ),
        None,
    )
    place = place_of(field, i).rstrip(",")
    if broken is not None:
        what = f"{place}: indices has a number that is not whole, at place {broken}."
        return InputFault(f"{field}.indices", "wrong_type", what, i or 0, broken)
    return InputFault(field, "wrong_type", f"{place}: {message}.", i or 0)


def decide_table(
    rows: Rows, students: Students, explain: Explain, limits: RequestLimits, some: Sequence[int] | None = None
) -> Decided:
    """The decisions of students on tables of numbers; see `Rows.decide`."""
    packed, columns = [served.student for served in students], rows.columns
    explainer = numbers_explainer(students, columns, len(rows), limits) if explain == COLUMNS else None
    parts: list[list[Decisions]] = []
    outside: list[Outside] = []
    effects: list[list[bytes]] = [[] for _ in students]
    for numbers, table in rows.blocks(some=some):
        try:
            parts.append(decide_all(packed, table, explain=bool(explain)))
            if explainer is not None:
                for of_student, own in zip(effects, explainer(table), strict=True):
                    of_student += own
        except InvalidProblem as error:
            raise rows.error(error, numbers, table) from error
        if explain:
            outside += columns.outside(table) or ()
    of_students = (
        parts[0]
        if len(parts) == 1
        else [Decisions.joined(of_student) for of_student in zip(*parts, strict=True)]
    )
    notes: list[RecordNote | None] | None = [*map(RecordNote.of_numbers, outside)] or None
    return Decided(of_students, notes, None if explainer is None else effects)


def one_of_table(
    rows: Rows,
    students: Students,
    explain: Explain,
    limits: RequestLimits,
    row: list[float] | SparseRow | NDArray[Any] | None = None,
) -> RowAnswer:
    """The decisions on the only row; see `Rows.one`. row: the row, if it needs no reading and sorting."""
    packed = [served.student for served in students]
    is_linear = not explain and all(student.map.kind == "linear" for student in packed)
    if isinstance(row, SparseRow) and is_linear:
        # Costs only the stored entries, however many columns there are.
        return RowAnswer(_of_sparse(rows, packed, row), None, None)
    if row is None or isinstance(row, SparseRow):
        [(_, table)] = rows.blocks()
        dense: list[float] | NDArray[Any] = table[0]
    else:
        dense = row
    try:
        decisions = decide_row(packed, dense, explain=bool(explain))
        if not explain:
            return RowAnswer(decisions, None, None)
        table = np.atleast_2d(np.asarray(dense))
        effects = None
        if explain == COLUMNS:
            explained = numbers_explainer(students, rows.columns, 1, limits)(table)
            effects = [of_student[0] for of_student in explained]
    except InvalidProblem as error:
        raise rows.error(error, [0], np.atleast_2d(np.asarray(dense))) from error
    outside = rows.columns.outside(table)
    return RowAnswer(decisions, None if outside is None else RecordNote.of_numbers(outside[0]), effects)


def _of_sparse(rows: Rows, students: Sequence[PackedStudent], row: SparseRow) -> list[RowDecision]:
    try:
        return [RowDecision(float(one.scores_sparse(row.indices, row.values)[0])) for one in students]
    except InvalidProblem as error:
        raise rows.error(error, [0], np.empty((1, 0))) from error


def decide_readable(
    rows: Rows, students: Students, explain: Explain, limits: RequestLimits
) -> tuple[Decided, FaultyRows]:
    """The decisions on the rows that can be read; see `Rows.decide_others`."""
    left_out = FaultyRows()
    for number in range(len(rows)):
        try:
            for _ in rows.blocks(some=[number]):
                left_out.numbers.append(number)
        except InvalidRequest as error:
            left_out.add(number, error)
    left_out.check()
    return rows.decide(students, explain, limits, left_out.numbers), left_out


def table_fault(rows: Rows, fault: Fault, numbers: Sequence[int], table: NDArray[Any]) -> InputFault:
    """Converts a fault of the core, which names a row x and a table X, to a fault of the request."""
    number = None if fault.row is None else numbers[fault.row]
    row = 0 if rows.single else number
    if fault.field not in {"x", "X"}:
        return InputFault(f"{rows.field}.{fault.field}", fault.code, fault.message, row, fault.column)
    if fault.column is not None and table.size:
        value = float(table[fault.row or 0, fault.column])
        [again] = list_faults(
            [written(value)], rows.columns.names, rows.field, None if rows.single else number, fault.column
        )
        return again
    if fault.code == "out_of_range":
        place = place_of(rows.field, None if rows.single else number)
        return InputFault(
            rows.field, fault.code, f"{place} has values so large that no finite score exists.", row
        )
    return InputFault(rows.field, fault.code, f"{rows.field}{fault.message[1:]}", row)
