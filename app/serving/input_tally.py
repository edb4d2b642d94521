"""Counts of what the records of queries are like, in this process, until they are written to the database.

Of every column: gaps, values that training did not have, values outside its range, and cut texts. One of 64
records is also put into bins, to be compared with the rows of training. No value is kept.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from app.domain.entities import ModelVersion
from app.domain.figures import UNUSUAL
from app.serving.outside import ROUNDING
from core.data.cell_values import microseconds_of
from core.packed.encoded_columns import CategoryColumn, ColumnEncoder, DateColumn, NumberColumn, TextColumn
from core.packed.input_profile import BINS, GAP_BIN, MOST_COLUMNS, Bins, InputProfile, bins_of
from core.packed.record_rows import RecordRows, Values, is_gap
from core.packed.terms import cut_text

SAMPLED: Final = 64
"""Of so many records one is put into bins."""
GAP, UNSEEN, OUTSIDE, CUT = range(len(UNUSUAL))
WIDTH: Final = len(UNUSUAL) + BINS
"""Counts of a column: of what is unusual, then of its bins."""


class Taken(NamedTuple):
    """What a tally has counted.

    counts: `WIDTH` numbers of each column of the encoder in order, uint32, little endian. unusual: of all
    columns together, by kind.
    """

    records: int
    sampled: int
    counts: bytes
    unusual: Mapping[str, int]


class InputTally:
    """Counts of one version, thread-safe. columns: those that are counted. on_first: called with the first
    record after each `take`.
    """

    def __init__(
        self,
        rows: RecordRows,
        profile: InputProfile | None = None,
        on_first: Callable[[InputTally], object] | None = None,
    ) -> None:
        self.profile = profile
        self._on_first = on_first
        self._lock = threading.Lock()
        self._before = self._records = self._sampled = 0
        self.columns = rows.encoder.columns[:MOST_COLUMNS]
        self._counts = [[0] * WIDTH for _ in self.columns]
        place_of = {column.name: place for place, column in enumerate(rows.columns)}
        self._places = [
            (place_of[column.name], column, counts)
            for column, counts in zip(self.columns, self._counts, strict=True)
        ]
        profiles = () if profile is None else profile.columns
        self._find = [bins_of(column, one) for column, one in zip(self.columns, profiles, strict=False)]

    def clean(self, values: Values) -> None:
        """Count a record without anything unusual."""
        with self._lock:
            records = self._records = self._records + 1
            if records == 1 and self._on_first is not None:
                self._on_first(self)
            if not (self._before + records) % SAMPLED:
                self._sample(values)

    def add(self, columns: Sequence[Sequence[Any]], *, clean: bool = False) -> None:
        """Count records by columns. clean: whether nothing in them is unusual."""
        n = len(columns[0])
        found = [] if clean else [unusual_in(column, columns[place]) for place, column, _ in self._places]
        with self._lock:
            if not self._records and self._on_first is not None:
                self._on_first(self)
            first = self._before + self._records
            self._records += n
            for (_, _, counts), kinds in zip(self._places, found, strict=False):
                for kind in kinds:
                    counts[kind] += 1
            for row in range(-(first + 1) % SAMPLED, n, SAMPLED):
                self._sample([values[row] for values in columns])

    def _sample(self, values: Values) -> None:
        self._sampled += self.profile is not None
        for (place, column, counts), find in zip(self._places, self._find, strict=False):
            value = values[place]
            bins: Bins = (GAP_BIN,) if is_missing(column, value) else find(value)
            for number in bins:
                counts[len(UNUSUAL) + number] += 1

    def take(self) -> Taken:
        """The counts since the last call."""
        with self._lock:
            totals = map(sum, zip(*self._counts, strict=True))
            unusual = {kind: total for kind, total in zip(UNUSUAL, totals, strict=False) if total}
            numbers = [number for counts in self._counts for number in counts]
            taken = Taken(self._records, self._sampled, struct.pack(f"<{len(numbers)}I", *numbers), unusual)
            self._before = (self._before + self._records) % SAMPLED
            self._records = self._sampled = 0
            for counts in self._counts:
                counts[:] = [0] * WIDTH
            return taken


class InputTallies:
    """The tallies of all versions in this process that have counted something."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counting: dict[InputTally, ModelVersion] = {}

    def make(self, version: ModelVersion, profile: InputProfile | None, rows: RecordRows) -> InputTally:
        """A tally of the records of a version."""
        return InputTally(rows, profile, partial(self._note, version))

    def _note(self, version: ModelVersion, tally: InputTally) -> None:
        with self._lock:
            self._counting[tally] = version

    def take(self) -> list[tuple[ModelVersion, Taken]]:
        """What has been counted since the last call."""
        with self._lock:
            counting, self._counting = self._counting, {}
        return [(version, tally.take()) for tally, version in counting.items()]


def is_missing(column: ColumnEncoder, value: Any) -> bool:
    """Whether the value of a usable record is a gap."""
    return value is None or (isinstance(value, str) and is_gap(column, value))


def unusual(column: ColumnEncoder, value: Any) -> int | None:
    """What is unusual about a value of a usable record, a place in `UNUSUAL`; None if nothing is."""
    if is_missing(column, value):
        return GAP
    if isinstance(column, CategoryColumn):
        return None if column.checked(value) in column.places else UNSEEN
    if isinstance(column, TextColumn):
        return None if cut_text(value) is value else CUT
    if isinstance(column, NumberColumn):
        low, high = range_of(column)
        return None if column.is_truth or low <= value <= high else OUTSIDE
    if isinstance(column, DateColumn):
        moment = microseconds_of(value.strip(), column.pattern)
        return None if moment is None or column.low <= moment <= column.high else OUTSIDE
    return None


def range_of(column: NumberColumn) -> tuple[float, float]:
    """The range of a column in training, beyond what rounding to float32 changes."""
    slack = ROUNDING * max(abs(column.low), abs(column.high))
    return column.low - slack, column.high + slack


def unusual_in(column: ColumnEncoder, values: Sequence[Any]) -> list[int]:
    """What is unusual about some values of a column; that nothing is shows at once for most of them."""
    try:
        if isinstance(column, CategoryColumn) and column.places.keys() >= set(values):
            return []
        if isinstance(column, NumberColumn):
            low, high = (0.0, 1.0) if column.is_truth else range_of(column)
            if low <= min(values) and max(values) <= high:
                return []
    except TypeError:
        # There are gaps.
        pass
    found = (unusual(column, value) for value in values)
    return [kind for kind in found if kind is not None]
