"""A report on the records of queries to a version, compared with the version's training rows."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final

from app.domain.document import Document
from app.domain.entities import ModelVersion
from app.domain.errors import NotFound
from app.domain.figures import UNUSUAL, InputRow
from app.serving.columns.base import Columns
from app.serving.columns.tally import WIDTH
from core.packed.encoded_columns import CategoryColumn, ColumnEncoder, DateColumn, NumberColumn, TextColumn
from core.packed.input_profile import (
    GAP_BIN,
    OTHERS,
    TEXT_BINS,
    ColumnProfile,
    parts_of,
    stability_index,
)

DRIFTED: Final = 0.25
"""A larger index of stability means another distribution."""
LEAST_SAMPLED: Final = 1000
"""Sampled records from which on an index is telling."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class BinInputs(Document):
    """Which part of the rows of training, and of the sampled records, is in a bin. name: what is in it."""

    name: str
    training: float
    sampled: float


@dataclass(frozen=True, slots=True)
class ColumnInputs(Document):
    """A column of the records of queries.

    gaps, unseen, outside, cut: how many of all records had no value, a category that training did not have, a
    number or date outside its range in training, or a text that was cut. training_gaps: part of the rows of
    training without a value. psi: population stability index of the sampled records against training: the sum
    of (p − q) ln(p / q) over the bins, or null without any. drifted: whether it is above 0.25, with at least
    1000 sampled records. A version that came without a profile has null for training_gaps and psi, and no
    bins.
    """

    name: str
    kind: str
    gaps: int
    unseen: int
    outside: int
    cut: int
    training_gaps: float | None
    psi: float | None
    drifted: bool
    bins: list[BinInputs]


@dataclass(frozen=True, slots=True)
class Inputs(Document):
    """The records of the last whole hours and the present one. sampled: how many of them were put into bins.

    columns: the first 64. left_out: further columns, which are not counted.
    """

    model: str
    version: int
    hours: int
    records: int
    sampled: int
    columns: list[ColumnInputs]
    left_out: int


def input_report(asked: Columns, version: ModelVersion, rows: Sequence[InputRow], hours: int) -> Inputs:
    """The report of a version. rows: its counts of some hours. Raises NotFound if it takes no records."""
    tally = None if asked.named is None else asked.named.tally
    if tally is None:
        text = f"Rows of {asked.where} are lists of numbers: only the inputs of records are counted."
        raise NotFound(text, code="no_records")
    sampled = sum(row.sampled for row in rows)
    found = zip(*(struct.unpack(f"<{len(row.counts) // 4}I", row.counts) for row in rows), strict=True)
    totals = [*map(sum, found)] or [0] * WIDTH * len(tally.columns)
    profiles: Sequence[ColumnProfile | None] = [None] * len(tally.columns)
    if tally.profile is not None:
        profiles = tally.profile.columns
    columns = [
        _of_column(column, profile, totals[place * WIDTH : (place + 1) * WIDTH], sampled)
        for place, (column, profile) in enumerate(zip(tally.columns, profiles, strict=True))
    ]
    left_out = asked.n_columns - len(columns)
    return Inputs(
        version.model, version.version, hours, sum(row.records for row in rows), sampled, columns, left_out
    )


def _of_column(
    column: ColumnEncoder, profile: ColumnProfile | None, counts: Sequence[int], sampled: int
) -> ColumnInputs:
    gaps, unseen, outside, cut, *_ = counts
    psi: float | None = None
    bins: list[BinInputs] = []
    if profile is not None:
        counted = counts[len(UNUSUAL) :]
        psi = stability_index(column, profile.counts, counted)
        shares = [*zip(_parts(column, profile.counts), _parts(column, counted), strict=True)]
        bins = [BinInputs(name, *shares[number]) for number, name in _names(column, profile)]
    return ColumnInputs(
        column.name,
        str(column.kind),
        gaps,
        unseen,
        outside,
        cut,
        training_gaps=bins[-1].training if bins else None,
        psi=psi,
        drifted=psi is not None and psi > DRIFTED and sampled >= LEAST_SAMPLED,
        bins=bins,
    )


def _parts(column: ColumnEncoder, counts: Sequence[int]) -> list[float]:
    """Which part of the rows each bin has, (BINS,)."""
    found: list[float] = []
    for part in parts_of(column):
        rows = max(sum(counts[part]), 1)
        found += (count / rows for count in counts[part])
    return found


def _names(column: ColumnEncoder, profile: ColumnProfile) -> Iterator[tuple[int, str]]:
    """The numbers and names of the bins that a column has."""
    if isinstance(column, CategoryColumn):
        yield from enumerate(column.values[place][:100] for place in profile.top)
        yield OTHERS, "other values"
    elif isinstance(column, TextColumn):
        for tenth in range(TEXT_BINS):
            yield tenth, f"{10 * tenth} to {10 * tenth + 10} % of the words known"
        yield from enumerate(_ranges([f"{edge:g}" for edge in profile.edges], " words"), TEXT_BINS)
    elif isinstance(column, DateColumn):
        yield from enumerate(
            _ranges([f"{_EPOCH + timedelta(microseconds=at):%Y-%m-%d}" for at in profile.edges])
        )
    elif isinstance(column, NumberColumn) and column.is_truth:
        yield from enumerate(("false", "true"))
    else:
        yield from enumerate(_ranges([f"{edge:.6g}" for edge in profile.edges]))
    yield GAP_BIN, "missing"


def _ranges(edges: Sequence[str], unit: str = "") -> Iterator[str]:
    if not edges:
        yield "any value"
        return
    yield f"below {edges[0]}{unit}"
    for low, high in pairwise(edges):
        yield f"{low} to {high}{unit}"
    yield f"from {edges[-1]}{unit}"
