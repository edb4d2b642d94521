"""Makes the columns of a version, in its form."""

from __future__ import annotations

from collections.abc import Callable

from app.domain.entities import ModelVersion
from app.serving.columns.base import Columns
from app.serving.columns.encoded import Encoded
from app.serving.columns.numbers import Numbers
from app.serving.columns.outside import RowCount
from app.serving.columns.tally import InputTally
from core.packed.encoder import Encoder
from core.packed.record_rows import RecordRows


def columns_of(
    version: ModelVersion,
    row_count: RowCount | None = None,
    encoder: Encoder | None = None,
    make_tally: Callable[[RecordRows], InputTally] = InputTally,
) -> Columns:
    """The columns of a version. encoder: None if it has none. make_tally: makes a counter of its records."""
    if encoder is None:
        return Numbers(version, row_count)
    return Encoded(version, row_count, encoder, make_tally)
