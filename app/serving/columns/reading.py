"""Reads and scores records quickly, for a version with an encoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Final

from app.http.types import Body
from app.serving.columns.decoders import REFUSED, Decoders, Lists, Named, Unsure
from app.serving.columns.notes import RecordNote, RecordNotes
from app.serving.columns.outside import RowCount
from app.serving.columns.tally import InputTally
from core.packed import PackedStudent
from core.packed.contributions import Baseline
from core.packed.encoder import Encoder
from core.packed.record_rows import RecordRows, Values
from core.packed.work import record_work

_COLUMN_BYTES: Final = 4096
_TEXT_BYTES: Final = 512 * 1024
_TIMES_VALUES: Final = 4
_TIMES_TERMS: Final = 3
"""How much more memory values of categories, and terms, take than their arrays in the package."""


class Records(Named):
    """Shared by the students of a version.

    clean: decoders of records without anything unusual. count: the tally, which is always there.
    """

    def __init__(
        self,
        encoder: Encoder,
        row_count: RowCount | None = None,
        make_tally: Callable[[RecordRows], InputTally] = InputTally,
    ) -> None:
        super().__init__(encoder)
        self.clean = Decoders(self.rows, clean=True)
        self.notes = RecordNotes(self.rows)
        self.tally = self.count = make_tally(self.rows)
        self._expects_clean = True
        self._row_count = row_count or RowCount()

    def scorer(self, score: Callable[[Values], float]) -> Callable[[Body], float | None]:
        """A function that scores the one record or text in the body of a query; it returns None for any other
        body, and for a record whose answer has a note.
        """
        decode_clean, count_clean = self.clean.decode_one, self.count.clean

        def score_one(data: Body) -> float | None:
            if self._expects_clean:
                try:
                    values = decode_clean(data)
                    score_of = score(values)
                except REFUSED:
                    # Records come from the same sources, so the next one is probably like this one.
                    self._expects_clean = False
                else:
                    count_clean(values)
                    return score_of
            try:
                values = self.decode_one(data)
                if self.notes.is_unusual(values):
                    return None
                score_of = score(values)
            except REFUSED:
                # Other code reports the faults of the record.
                return None
            self._expects_clean = self.count.look(values)
            return score_of

        return score_one

    def read_columns(self, read: Callable[[Decoders], Lists]) -> tuple[Lists, Unsure]:
        with suppress(*REFUSED):
            return read(self.clean), ()
        return super().read_columns(read)

    def read_list(self, name: str, text: bytes) -> tuple[list[Any], bool]:
        with suppress(*REFUSED):
            return self.clean.list_decoders[name](text), name in self.clean.sure
        return super().read_list(name, text)

    def work(self, students: Sequence[PackedStudent], *, explain: bool) -> int:
        """Multiply-adds of a record."""
        return record_work(students, self.rows, explain=explain)

    @cached_property
    def baseline(self) -> Baseline:
        """The baseline of explanations of records."""
        return Baseline.of_encoder(self.encoder)

    @property
    def nbytes(self) -> int:
        """Memory of the encoder, about."""
        arrays = [array for column in self.encoder.columns for array in column.arrays().values()]
        tables = [table for column in self.encoder.columns for table in column.tables]
        texts = sum(bool(column.tables) for column in self.encoder.columns)
        return (
            _TIMES_VALUES * sum(array.nbytes for array in arrays)
            + _TIMES_TERMS * sum(table.terms.nbytes + table.idf.nbytes for table in tables)
            + _TEXT_BYTES * texts
            + _COLUMN_BYTES * len(self.encoder.columns)
        )

    def note(self, values: Values) -> RecordNote:
        """The note of an explained answer about a record; counts values outside the range of training."""
        note = self.notes.explained(values)
        self._row_count.outside += note.outside.total > 0
        return note
