"""Reads the columns of a CSV file as raw cells: numbers with gaps, and texts.

Arrow reads columns that seem to hold numbers as numbers, and all others as texts, each of which is stored
once. Arrow does not tell which tokens were read as missing values, or whether digits began with a zero. The
texts of such columns are searched for this.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from app.ingest.cells import (
    LEADING_ZERO,
    NUMBER_PATTERN,
    Column,
    keeps_texts,
    may_be_thousands,
    number_column,
    text_column,
)
from app.ingest.csv.arrow import open_rows, read_rows, text_columns, texts_of
from app.ingest.csv.layout import CsvLayout
from core.data.schema import KindSpec
from core.data.validation import MAX_MAGNITUDE

_TEXTS: Final = pa.dictionary(pa.int32(), pa.string())
_BLOCK_BYTES: Final = 1024**2
_LONGEST_START: Final = 4
"""Letters before the digits of a number, about: blanks, a quote and a sign."""


@dataclass(frozen=True, slots=True)
class CellReader:
    """kinds: given kinds of columns, by position. nulls: tokens of missing values. are_known: whether they
    are the columns of a model.
    """

    text: pa.Buffer
    layout: CsvLayout
    kinds: Mapping[int, KindSpec]
    nulls: frozenset[str]
    block_bytes: int
    has_line_breaks: bool
    are_known: bool = False

    def read(self) -> tuple[dict[int, Column], dict[int | None, list[str]]]:
        """The columns of features and extras, and the labels and indices, by position.

        Raises ArrowInvalid for files that are no table of UTF-8.
        """
        positions = [k for table in self.layout.columns.tables.values() for k in table]
        numbers = {k for k in positions if self._seems_number(k)}
        tokens: dict[int, Counter[str]] = {}
        try:
            found = self._read(numbers, set(positions) - numbers)
        except pa.ArrowInvalid:
            wrong, tokens = self._looked_up(numbers, None)
            if not wrong:
                raise
            numbers -= wrong
            found = self._read(numbers, set(positions) - numbers)
        wrong = set(found.unusable)
        if not self.are_known:
            wrong |= {k for k in numbers - wrong if may_be_thousands(found.numbers[k], self._sample(k))}
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(self._text_columns, found.texts)
            if not tokens and numbers and _has_leading_zero(self.text, self.layout.separator):
                more, tokens = self._looked_up(numbers, None)
                wrong |= more
            elif not tokens:
                gaps = {k: rows for k, rows in found.gaps.items() if len(rows)}
                _, tokens = self._looked_up(set(gaps), gaps)
            columns = waiting.result()
        columns |= {k: number_column(found.numbers[k], dict(tokens.get(k, {}))) for k in numbers - wrong}
        return columns | self._text_columns(self._read(set(), wrong, labels=False).texts), found.labels

    def _text_columns(self, texts: dict[int, list[pa.Array]]) -> dict[int, Column]:
        """Columns from chunks of texts, which are removed from ``texts``."""
        return {
            k: text_column(texts.pop(k), self.nulls, self.kinds.get(k), self.layout.decimal) for k in [*texts]
        }

    def _seems_number(self, position: int) -> bool:
        """Whether the first cells of a column are numbers and gaps, so that it is first read as numbers."""
        if position in self.layout.booleans:
            return False
        if keeps_texts(self.kinds.get(position)):
            return False
        known = self._sample(position)
        return bool(known) and all(self.layout.is_value(cell, position) for cell in known)

    def _sample(self, position: int) -> list[str]:
        """The first cells of a column, without gaps."""
        return [cell for row in self.layout.rows if (cell := row[position]) not in self.nulls]

    def _read(self, numbers: set[int], texts: set[int], *, labels: bool = True) -> _Found:
        types: dict[int, pa.DataType] = dict.fromkeys(numbers, pa.float64()) | dict.fromkeys(texts, _TEXTS)
        read_as_text = text_columns(self.layout) if labels else []
        types |= dict.fromkeys(read_as_text, pa.string())
        found = _Found({}, {}, {}, {}, set())
        if not types:
            return found
        table = read_rows(
            self.text,
            self.layout,
            block_bytes=self.block_bytes,
            types=types,
            nulls=self._null_cells,
            has_line_breaks=self.has_line_breaks,
        )
        for k in numbers:
            found.add_numbers(k, table.column(str(k)))
        for k in texts:
            found.texts[k] = table.column(str(k)).chunks
        for k in read_as_text:
            found.labels[k] = texts_of(table, k).to_pylist()
        return found

    def _looked_up(
        self, positions: set[int], gaps: Mapping[int, NDArray[np.intp]] | None
    ) -> tuple[set[int], dict[int, Counter[str]]]:
        """Among columns that seem to hold numbers, those that do not, and the tokens of missing values.

        gaps: rows of these tokens, for columns that do hold numbers; None if all are in doubt.
        """
        wrong: set[int] = set()
        tokens: dict[int, Counter[str]] = {k: Counter() for k in positions}
        start = 0
        for batch in self._batches(dict.fromkeys(positions, pa.string())):
            for k in positions - wrong:
                if gaps is None:
                    texts = texts_of(batch, k)
                    is_null = pc.is_in(texts, value_set=pa.array(sorted(self.nulls), pa.string()))
                    missing = pc.filter(texts, is_null)
                    if not self._are_numbers(pc.filter(texts, pc.invert(is_null))):
                        wrong.add(k)
                else:
                    first, stop = np.searchsorted(gaps[k], (start, start + len(batch)))
                    rows = pa.array(gaps[k][first:stop] - start)
                    missing = pc.utf8_trim_whitespace(batch.column(str(k)).take(rows))
                counts = pc.value_counts(missing)
                tokens[k].update({one["values"].as_py(): one["counts"].as_py() for one in counts})
            start += len(batch)
        return wrong, {k: counts for k, counts in tokens.items() if k not in wrong}

    def _are_numbers(self, texts: pa.Array) -> bool:
        pattern = NUMBER_PATTERN.replace(r"\.", re.escape(self.layout.decimal))
        is_number = pc.match_substring_regex(texts, pattern)
        is_code = pc.match_substring_regex(texts, LEADING_ZERO)
        return not len(texts) or bool(pc.all(pc.and_not(is_number, is_code)).as_py())

    @property
    def _null_cells(self) -> set[str]:
        """The tokens of missing values in the forms that a cell may have."""
        return {f"{before}{token}{after}" for token in self.nulls for before in _SIDES for after in _SIDES}

    def _batches(self, types: Mapping[int, pa.DataType]) -> Iterator[pa.RecordBatch]:
        if types:
            yield from open_rows(
                self.text,
                self.layout,
                skip_header=self.layout.has_header,
                block_bytes=self.block_bytes,
                types=types,
                nulls=self._null_cells,
                has_line_breaks=self.has_line_breaks,
            )


_SIDES: Final = ("", " ")


@dataclass(frozen=True, slots=True)
class _Found:
    """Columns by position. texts: in chunks. gaps: rows of the gaps of number columns. unusable: columns with
    others than finite numbers.
    """

    numbers: dict[int, NDArray[np.float64]]
    texts: dict[int, list[pa.Array]]
    labels: dict[int | None, list[str]]
    gaps: dict[int, NDArray[np.intp]]
    unusable: set[int]

    def add_numbers(self, position: int, column: pa.ChunkedArray) -> None:
        """A column of numbers."""
        values: NDArray[Any] = column.to_numpy()
        is_gap = column.is_null().to_numpy() if column.null_count else np.empty(0, bool)
        self.gaps[position] = np.flatnonzero(is_gap)
        # NaN fails the comparison, so that only numbers of usable size pass.
        if np.count_nonzero(np.abs(values) <= MAX_MAGNITUDE) + column.null_count < len(values):
            self.unusable.add(position)
        self.numbers[position] = values


def _has_leading_zero(text: pa.Buffer, separator: str) -> bool:
    """Whether a cell may begin with a zero before another digit."""
    cells = np.frombuffer(text, dtype=np.uint8)
    is_end, is_before = np.zeros(256, dtype=bool), np.zeros(256, dtype=bool)
    is_end[[*map(ord, f"{separator}\n\r")]] = True
    is_before[[*map(ord, ' "+-')]] = True
    for start in range(0, len(cells), _BLOCK_BYTES):
        block = cells[max(0, start - _LONGEST_START) : start + _BLOCK_BYTES]
        # Differences of unsigned bytes wrap around, so only digits are small.
        places = np.flatnonzero((block[:-1] == ord("0")) & (block[1:] - np.uint8(ord("0")) < 10)) - 1
        for _ in range(_LONGEST_START - 1):
            places = np.where((places >= 0) & is_before[block[places]], places - 1, places)
        # A cell at the beginning of a later block stands in the block before it, too.
        if is_end[block[places[places >= 0]]].any() or (start == 0 and (places < 0).any()):
            return True
    return False
