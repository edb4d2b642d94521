"""Columns of any kind, of whose values an encoder makes numbers: a row is a record, and decided alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec
from numpy.typing import NDArray

from app.domain.entities import ModelVersion
from app.http.types import Body
from app.serving.columns.base import Columns, Decided, Rows, Scored, Scorers
from app.serving.columns.decisions import EncodedCells, EncodedJson, EncodedTexts, decide_at_once
from app.serving.columns.outside import RowCount
from app.serving.columns.reading import Records
from app.serving.columns.tally import InputTally
from app.serving.work import RequestLimits
from core.packed import PackedStudent
from core.packed.contributions import Baseline
from core.packed.encoder import Encoder
from core.packed.record_rows import RecordRows, record_scorers

_FORMS: Final = ("record", "records", "text", "texts", "columns", "x", "rows")


class Encoded(Columns):
    """The columns of a version with an encoder. make_tally: makes a counter of its records."""

    is_table: ClassVar[bool] = False

    def __init__(
        self,
        version: ModelVersion,
        row_count: RowCount | None,
        encoder: Encoder,
        make_tally: Callable[[RecordRows], InputTally] = InputTally,
    ) -> None:
        super().__init__(version, row_count)
        self.records = Records(encoder, self.row_count, make_tally)
        self.takes_lists = encoder.takes_numbers
        self.pictures = encoder.picture_columns
        self.n_columns = len(encoder.columns)
        self.names = encoder.names
        self._digest = version.encoder_digest
        self.baseline = Baseline.of_encoder(encoder) if self.takes_lists else None

    @property
    def named(self) -> Records:
        return self.records

    @property
    def forms(self) -> Sequence[str]:
        encoder = self.records.encoder
        without = [*(() if encoder.takes_numbers else ("x", "rows"))]
        without += () if encoder.text_column is not None else ("text", "texts")
        return [form for form in _FORMS if form not in without]

    def of_records(
        self, raws: Sequence[msgspec.Raw], field: str, *, single: bool, quoted: bool = False
    ) -> Rows:
        return EncodedJson(self, self.records, raws, field, single=single, quoted=quoted)

    def of_texts(
        self, raws: Sequence[msgspec.Raw], field: str, *, single: bool, quoted: bool = False
    ) -> Rows:
        if self.records.encoder.text_column is None:
            return super().of_texts(raws, field, single=single)
        return EncodedTexts(self, self.records, raws, field, single=single, quoted=quoted)

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
        return EncodedCells(self, self.records, cells, n, field, typed=typed, quoted=quoted, clean=clean)

    def work(self, students: Sequence[PackedStudent], *, explain: bool) -> int:
        return self.records.work(students, explain=explain)

    def scorers(self, student: PackedStudent) -> Scorers:
        one, many = record_scorers(student, self.records.rows)
        return Scorers(self.records.scorer(one), one, many)

    def at_once(self, served: Scored, data: Body, limits: RequestLimits) -> Decided | None:
        return decide_at_once(served, self.records, data, limits)

    @property
    def has_effects(self) -> bool:
        return True

    @property
    def encoder_digest(self) -> str | None:
        return self._digest

    def package(self) -> bytes | None:
        return self.records.encoder.to_bytes()

    @property
    def nbytes(self) -> int:
        return super().nbytes + self.records.nbytes
