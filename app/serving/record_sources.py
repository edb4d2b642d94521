"""The records of one request, in whichever form they came: read quickly, and again where that fails."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from app.domain.errors import InputFault, InvalidRequest
from app.serving.records import REFUSED, Columns, Records, Unsure
from core.data.validation import MAX_FAULTS
from core.errors import InvalidProblem
from core.packed.record_rows import Values

Result = TypeVar("Result")

_TEXT = msgspec.json.Decoder(str)


class RecordSource(ABC):
    """field: of the request that the records are in. single: whether there is one, which has no number."""

    def __init__(self, records: Records, field: str, *, single: bool = False, quoted: bool = False) -> None:
        self.records, self.field, self.single = records, field, single
        self._quoted = quoted

    @abstractmethod
    def __len__(self) -> int:
        """How many records there are."""

    @abstractmethod
    def quick(self, i: int) -> Values:
        """The values of a record of good form. Raises as `REFUSED` says."""

    @abstractmethod
    def thorough(self, i: int) -> tuple[Values, list[InputFault]]:
        """The values of any record, and what is wrong with them."""

    @abstractmethod
    def columns(self, first: int, stop: int) -> tuple[Columns, Unsure]:
        """The values of some records of good form, by columns, and in which columns something may be unusual.

        Raises as `REFUSED` says.
        """

    def each(self, work: Callable[[Values], Result], rows: Iterable[int]) -> list[Result]:
        """What ``work`` makes of some records, which are counted; it raises InvalidProblem for values that no
        row can have.

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
                found = self._again(i, work, results, taken)
                faults += found
                if len(faults) >= MAX_FAULTS:
                    break
        if faults:
            faults = faults[:MAX_FAULTS]
            raise InvalidRequest(faults[0].message, code=faults[0].code, faults=faults)
        if self._quoted:
            raise InvalidRequest(
                "The body cannot be read as JSON: it has NaN or Infinity.", code="malformed_json"
            )
        if len(taken) == 1:
            self.records.tally.look(taken[0])
        else:
            self.records.tally.add([*zip(*taken, strict=True)])
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
                faults = [self.records.reader.problem_fault(error, self.field, self.row(i))]
        return faults

    def row(self, i: int) -> int | None:
        """The number of a record in messages."""
        return None if self.single else i


class _RawSource(RecordSource):
    """Records of which each is a value of JSON, not yet decoded."""

    def __init__(
        self, records: Records, raws: Sequence[Raw], field: str, *, single: bool, quoted: bool
    ) -> None:
        super().__init__(records, field, single=single, quoted=quoted)
        self._raws = raws

    def __len__(self) -> int:
        return len(self._raws)


class JsonSource(_RawSource):
    """Records that are objects of JSON."""

    def quick(self, i: int) -> Values:
        if self._quoted:
            raise InvalidProblem
        return self.records.decode_row(self._raws[i])

    def columns(self, first: int, stop: int) -> tuple[Columns, Unsure]:
        if self._quoted:
            raise InvalidProblem
        text = b"[" + b",".join(self._raws[first:stop]) + b"]"
        return self.records.read_columns(lambda decoders: decoders.decode_rows(text))

    def thorough(self, i: int) -> tuple[Values, list[InputFault]]:
        return self.records.reader.read(bytes(self._raws[i]), self.field, self.row(i), quoted=self._quoted)


class TextSource(_RawSource):
    """Texts of models whose only column is one of texts."""

    def quick(self, i: int) -> Values:
        if self._quoted:
            raise InvalidProblem
        return (_TEXT.decode(self._raws[i]),)

    def columns(self, first: int, stop: int) -> tuple[Columns, Unsure]:
        return [[self.quick(i)[0] for i in range(first, stop)]], None

    def thorough(self, i: int) -> tuple[Values, list[InputFault]]:
        value = self.records.reader.value(bytes(self._raws[i]))
        name = str(self.records.encoder.text_column)
        return self.records.reader.read_cells({name: value}, self.field, self.row(i), quoted=self._quoted)


class CellSource(RecordSource):
    """Records by columns. cells: values of JSON of each given column by name, ``n`` of each.

    typed: whether all values are of the types of their columns, and none is missing that is needed. clean:
    names of columns in which nothing is unusual.
    """

    def __init__(
        self,
        records: Records,
        cells: Mapping[str, Sequence[Any]],
        n: int,
        field: str,
        *,
        typed: bool,
        quoted: bool = False,
        clean: Collection[str] = (),
    ) -> None:
        super().__init__(records, field, quoted=quoted)
        gaps = [None] * n
        self._cells, self._n = cells, n
        self._columns = [cells.get(one.name, gaps) for one in records.rows.columns]
        self._typed = typed
        self._unsure = {place for place, one in enumerate(records.rows.columns) if one.name not in clean}

    def __len__(self) -> int:
        return self._n

    def quick(self, i: int) -> Values:
        if not self._typed:
            raise InvalidProblem
        return tuple([values[i] for values in self._columns])

    def columns(self, first: int, stop: int) -> tuple[Columns, Unsure]:
        if not self._typed:
            raise InvalidProblem
        return [values[first:stop] for values in self._columns], self._unsure

    def thorough(self, i: int) -> tuple[Values, list[InputFault]]:
        cells = {name: values[i] for name, values in self._cells.items()}
        return self.records.reader.read_cells(cells, self.field, self.row(i), quoted=self._quoted)
