"""Rows by the names of their columns, in any form: they are read quickly, and again if that fails."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

from app.domain.errors import InputFault, InvalidRequest
from app.serving.columns.base import Block, Columns, Rows
from app.serving.columns.decoders import REFUSED, Lists, Named, Unsure
from app.serving.columns.faults import invalid, json_value
from app.serving.json_keys import malformed
from core.data.validation import MAX_FAULTS, row_blocks
from core.errors import InvalidProblem
from core.packed.record_rows import Values

Result = TypeVar("Result")

_TEXT: Final = msgspec.json.Decoder(str)


class RecordRows(Rows):
    """named: reads them. quoted: whether texts like NaN were put into quotes."""

    def __init__(
        self, columns: Columns, named: Named, field: str, *, single: bool = False, quoted: bool = False
    ) -> None:
        super().__init__(columns, field, single=single)
        self.named, self._quoted = named, quoted

    @abstractmethod
    def quick(self, i: int) -> Values:
        """The values of a well-formed record. Raises the errors in `REFUSED`."""

    @abstractmethod
    def thorough(self, i: int) -> tuple[Values, list[InputFault]]:
        """The values of any record, and its faults."""

    @abstractmethod
    def lists(self, first: int, stop: int) -> tuple[Lists, Unsure]:
        """The values of well-formed records, by columns, and the columns that may have unusual values.

        Raises the errors in `REFUSED`.
        """

    def each(self, work: Callable[[Values], Result], rows: Iterable[int]) -> list[Result]:
        """The results of ``work`` for some records, which are counted; it raises InvalidProblem for values
        that no row can have.

        Raises InvalidRequest naming rows and columns.
        """
        results: list[Result] = []
        taken: list[Values] = []
        faults: list[InputFault] = []
        quick = self.quick
        for i in rows:
            try:
                values = quick(i)
                results.append(work(values))
                taken.append(values)
            except REFUSED:
                faults += self._again(i, work, results, taken)
                if len(faults) >= MAX_FAULTS:
                    break
        if faults:
            raise invalid(faults)
        if self._quoted:
            raise malformed(ValueError("it has NaN or Infinity"))
        tally = self.named.tally
        if tally is not None:
            if len(taken) == 1:
                tally.look(taken[0])
            else:
                tally.add([*zip(*taken, strict=True)])
        return results

    def _again(
        self, i: int, work: Callable[[Values], Result], results: list[Result], taken: list[Values]
    ) -> list[InputFault]:
        values, faults = self.thorough(i)
        if not faults:
            try:
                results.append(work(values))
                taken.append(values)
            except InvalidProblem as error:
                faults = [self.named.reader.problem_fault(error, self.field, self.row(i))]
        return faults

    def blocks(self, width: int = 1, some: Sequence[int] | None = None) -> Iterator[Block]:
        numbers = range(len(self)) if some is None else some
        columns = self.named.encoder.layout.columns
        for part in row_blocks(len(numbers), max(columns, width)):
            block = numbers[part]
            yield block, self._table(block)

    def _table(self, numbers: Sequence[int]) -> NDArray[Any]:
        return np.array(self.each(self.named.full_row, numbers))

    def error(self, error: InvalidProblem, numbers: Sequence[int], table: NDArray[Any]) -> InvalidRequest:
        del table
        i = numbers[error.faults[0].row or 0]
        _, faults = self.thorough(i)
        return invalid(faults or [self.named.reader.problem_fault(error, self.field, self.row(i))])

    def row(self, i: int) -> int | None:
        """The number of a record in messages."""
        return None if self.single else i


class RawRecords(RecordRows):
    """Records that are JSON values, not yet decoded."""

    def __init__(
        self,
        columns: Columns,
        named: Named,
        raws: Sequence[Raw],
        field: str,
        *,
        single: bool = False,
        quoted: bool = False,
    ) -> None:
        super().__init__(columns, named, field, single=single, quoted=quoted)
        self._raws = raws

    def __len__(self) -> int:
        return len(self._raws)


class JsonRecords(RawRecords):
    """Records that are objects of JSON."""

    def body_of(self, i: int) -> bytes:
        return b'{"record":%s}' % bytes(self._raws[i])

    def quick(self, i: int) -> Values:
        if self._quoted:
            raise InvalidProblem
        return self.named.decode_row(self._raws[i])

    def lists(self, first: int, stop: int) -> tuple[Lists, Unsure]:
        if self._quoted:
            raise InvalidProblem
        text = b"[" + b",".join(self._raws[first:stop]) + b"]"
        return self.named.read_columns(lambda decoders: decoders.decode_rows(text))

    def thorough(self, i: int) -> tuple[Values, list[InputFault]]:
        return self.named.reader.read(bytes(self._raws[i]), self.field, self.row(i), quoted=self._quoted)


class TextRecords(RawRecords):
    """Texts of models whose only column is one of texts."""

    def body_of(self, i: int) -> bytes:
        return b'{"text":%s}' % bytes(self._raws[i])

    def quick(self, i: int) -> Values:
        if self._quoted:
            raise InvalidProblem
        return (_TEXT.decode(self._raws[i]),)

    def lists(self, first: int, stop: int) -> tuple[Lists, Unsure]:
        return [[self.quick(i)[0] for i in range(first, stop)]], None

    def thorough(self, i: int) -> tuple[Values, list[InputFault]]:
        cells = {str(self.named.encoder.text_column): json_value(bytes(self._raws[i]))}
        return self.named.reader.read_cells(cells, self.field, self.row(i), quoted=self._quoted)


class CellRecords(RecordRows):
    """Records by columns. cells: JSON values of each given column by name, ``n`` each.

    typed: whether all values have the types of their columns, and no needed one is missing. clean:
    names of columns without unusual values.
    """

    def __init__(
        self,
        columns: Columns,
        named: Named,
        cells: Mapping[str, Sequence[Any] | NDArray[Any]],
        n: int,
        field: str,
        *,
        typed: bool,
        quoted: bool = False,
        clean: Collection[str] = (),
    ) -> None:
        super().__init__(columns, named, field, quoted=quoted)
        self._n, self._typed = n, typed
        self._cells = {
            name: values.tolist() if isinstance(values, np.ndarray) else values
            for name, values in cells.items()
        }
        gaps = [None] * n
        self._lists = [self._cells.get(one.name, gaps) for one in named.rows.columns]
        self._unsure = {place for place, one in enumerate(named.rows.columns) if one.name not in clean}

    def __len__(self) -> int:
        return self._n

    def body_of(self, i: int) -> bytes:
        return msgspec.json.encode({"record": {name: values[i] for name, values in self._cells.items()}})

    def quick(self, i: int) -> Values:
        if not self._typed:
            raise InvalidProblem
        return tuple([values[i] for values in self._lists])

    def lists(self, first: int, stop: int) -> tuple[Lists, Unsure]:
        if not self._typed:
            raise InvalidProblem
        return [values[first:stop] for values in self._lists], self._unsure

    def thorough(self, i: int) -> tuple[Values, list[InputFault]]:
        cells = {name: values[i] for name, values in self._cells.items()}
        return self.named.reader.read_cells(cells, self.field, self.row(i), quoted=self._quoted)
