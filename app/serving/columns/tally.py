"""Counts properties of the records of queries, in this process, until they are written to the database.

For every column it counts gaps, values that training did not have, values outside the range, and cut texts.
One in 64 records is also put into bins, which are compared with the training rows. No value is stored.
records is also put into bins, to be compared with the rows of training. No value is kept.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count, filterfalse
from typing import Any, Final, NamedTuple
from weakref import ref

from app.domain.entities import ModelVersion
from app.domain.figures import UNUSUAL
from app.serving.columns.outside import ROUNDING
from core.data.cell_values import microseconds_of
from core.packed.encoded_columns import CategoryColumn, ColumnEncoder, DateColumn, NumberColumn, TextColumn
from core.packed.input_profile import BINS, MOST_COLUMNS, InputProfile, bins_of
from core.packed.record_rows import LONGER_THAN_NULLS, RecordRows, Values, is_missing
from core.packed.terms import MAX_TEXT_BYTES, cut_text

SAMPLED: Final = 64
"""One in this many records is put into bins."""
GAP, UNSEEN, OUTSIDE, CUT = range(len(UNUSUAL))
WIDTH: Final = len(UNUSUAL) + BINS
"""Number of counts of a column: of unusual values, then of its bins."""

SURELY_WHOLE: Final = MAX_TEXT_BYTES // 4
"""Texts of at most this many characters are not cut."""
_DAY: Final = 86_400_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Taken(NamedTuple):
    """Counts taken from a tally.

    counts: `WIDTH` numbers for each column of the encoder in order, uint32, little endian. unusual: totals of
    all columns, by kind.
    """

    records: int
    sampled: int
    counts: bytes
    unusual: Mapping[str, int]


class InputTally:
    """Counts of one version, thread-safe. columns: the columns that are counted.

    Every 64th of the records that are known to be clean is put into bins, and every 64th of all others.
    """

    def __init__(self, rows: RecordRows, profile: InputProfile | None = None) -> None:
        self.profile = profile
        self.columns = rows.encoder.columns[:MOST_COLUMNS]
        self._lock = threading.Lock()
        # Counting by `next` takes no lock, and loses nothing between threads. `take` uses a number, too.
        self._clean = count(1)
        self._clean_before = self._looked_at = self._looked_at_before = self._sampled = 0
        self._counts = [[0] * WIDTH for _ in self.columns]
        place_of = {column.name: place for place, column in enumerate(rows.columns)}
        self._parts = [
            (place_of[column.name], column, counts, usual_test(column))
            for column, counts in zip(self.columns, self._counts, strict=True)
        ]
        profiles = () if profile is None else profile.columns
        self._sampling = [
            (place, counts, bins_of(column, one))
            for (place, column, counts, _), one in zip(self._parts, profiles, strict=False)
        ]

    def clean(self, values: Values) -> None:
        """Count a record without anything unusual."""
        if not next(self._clean) % SAMPLED:
            with self._lock:
                self._sample(values)

    def look(self, values: Values) -> bool:
        """Count a record; returns whether nothing in it is unusual."""
        odd = [
            (counts, unusual(column, values[place]))
            for place, column, counts, is_usual in self._parts
            if not is_usual(values[place])
        ]
        kinds = [(counts, kind) for counts, kind in odd if kind is not None]
        with self._lock:
            for counts, kind in kinds:
                counts[kind] += 1
            self._looked_at += 1
            if not self._looked_at % SAMPLED:
                self._sample(values)
        return not kinds

    def add(self, columns: Sequence[Sequence[Any]], unsure: Collection[int] | None = None) -> None:
        """Count records by columns. unsure: positions of columns that must be checked; None for all."""
        odd = [
            (counts, [unusual(column, value) for value in filterfalse(is_usual, columns[place])])
            for place, column, counts, is_usual in self._parts
            if unsure is None or place in unsure
        ]
        n = len(columns[0])
        with self._lock:
            for counts, kinds in odd:
                for kind in kinds:
                    if kind is not None:
                        counts[kind] += 1
            for row in range(-(self._looked_at + 1) % SAMPLED, n, SAMPLED):
                self._sample([values[row] for values in columns])
            self._looked_at += n

    def _sample(self, values: Values) -> None:
        self._sampled += self.profile is not None
        for place, counts, find in self._sampling:
            for number in find(values[place]):
                counts[len(UNUSUAL) + number] += 1

    def take(self) -> Taken:
        """The counts since the last call."""
        with self._lock:
            clean = next(self._clean)
            records = clean - self._clean_before - 1 + self._looked_at - self._looked_at_before
            self._clean_before, self._looked_at_before = clean, self._looked_at
            totals = map(sum, zip(*self._counts, strict=True))
            unusual = {kind: total for kind, total in zip(UNUSUAL, totals, strict=False) if total}
            numbers = [number for counts in self._counts for number in counts]
            taken = Taken(records, self._sampled, struct.pack(f"<{len(numbers)}I", *numbers), unusual)
            self._sampled = 0
            for counts in self._counts:
                counts[:] = [0] * WIDTH
            return taken


class InputTallies:
    """The tallies of all versions in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tallies: dict[InputTally, tuple[ModelVersion, ref[RecordRows]]] = {}

    def make(self, version: ModelVersion, profile: InputProfile | None, rows: RecordRows) -> InputTally:
        """A tally of the records of a version, kept until ``rows`` are freed and its counts were taken."""
        tally = InputTally(rows, profile)
        with self._lock:
            self._tallies[tally] = version, ref(rows)
        return tally

    def take(self) -> Iterator[tuple[ModelVersion, Taken]]:
        """Counts since the last call; the counts of a version are taken when it is yielded."""
        with self._lock:
            tallies = [*self._tallies.items()]
        for tally, (version, rows) in tallies:
            can_count = rows() is not None
            taken = tally.take()
            if not can_count:
                with self._lock:
                    self._tallies.pop(tally, None)
            if taken.records:
                yield version, taken


def unusual(column: ColumnEncoder, value: Any) -> int | None:
    """The kind of a usable record's unusual value, a position in `UNUSUAL`; None for a usual value."""
    if is_missing(column, value):
        return GAP
    if isinstance(column, CategoryColumn):
        return None if column.checked(value) in column.places else UNSEEN
    if isinstance(column, TextColumn):
        return None if cut_text(value) is value else CUT
    if isinstance(column, NumberColumn):
        low, high = range_of(column)
        number = column.checked(value)
        return None if column.is_truth or number is None or low <= number <= high else OUTSIDE
    if isinstance(column, DateColumn):
        moment = microseconds_of(value.strip(), column.pattern)
        return None if moment is None or column.low <= moment <= column.high else OUTSIDE
    return None


def range_of(column: NumberColumn) -> tuple[float, float]:
    """The range of a column in training, widened by the rounding errors of float32."""
    slack = ROUNDING * max(abs(column.low), abs(column.high))
    return column.low - slack, column.high + slack


def usual_test(column: ColumnEncoder) -> Callable[[Any], bool]:
    """A quick test of values of usable records: values that pass it are usual."""
    if isinstance(column, CategoryColumn):
        return column.places.__contains__
    if isinstance(column, TextColumn):
        return lambda text: text is not None and LONGER_THAN_NULLS <= len(text) <= SURELY_WHOLE
    if isinstance(column, NumberColumn) and not column.is_truth:
        low, high = range_of(column)
        return lambda number: number is not None and not isinstance(number, str) and low <= number <= high
    if isinstance(column, DateColumn):
        if column.pattern is not None or column.high - column.low < 4 * _DAY:
            return lambda _: False
        # Two days within the range, so that times and offsets do not matter.
        first, last = (_day_of(moment) for moment in (column.low + 2 * _DAY, column.high - 2 * _DAY))
        return lambda text: text is not None and first <= text <= last
    return lambda value: value is not None


def _day_of(moment: int) -> str:
    return str((_EPOCH + timedelta(microseconds=moment)).date())
