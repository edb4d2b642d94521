"""The lines of a CSV file: where its rows begin, and how many there are."""

from __future__ import annotations

import csv
import mmap
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

import numpy as np

from app.ingest.csv.layout import CsvLayout, rows_of
from app.ingest.raw import invalid_file

_BLOCK_BYTES = 1024**2
_SECONDS = 1.0
"""Limit of the processor time for finding the lines of some rows."""
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class LineNumbers:
    """The lines of a file, counted from 1, by rows of data. rows: how many there are."""

    path: Path
    layout: CsvLayout
    rows: int

    def of(self, wanted: Collection[int]) -> dict[int, int]:
        """The lines on which some rows begin, as far as they are found in `_SECONDS`."""
        if self._is_row_a_line():
            return {row: self._first_line + row for row in wanted}
        end, last, found = time.process_time() + _SECONDS, max(wanted, default=-1), {}
        for row, line in enumerate(self._begins()):
            if row in wanted:
                found[row] = line
            if row >= last or time.process_time() > end:
                break
        return found

    def all(self) -> Sequence[int]:
        """The lines on which the rows begin."""
        if self._is_row_a_line():
            return range(self._first_line, self._first_line + self.rows)
        return list(islice(self._begins(), self.rows))

    @property
    def _first_line(self) -> int:
        return 1 + self.layout.has_header + self.layout.skipped

    def _is_row_a_line(self) -> bool:
        """Whether no cell holds a line break."""
        with mapped(self.path, self.layout.skipped) as (text, start, end):
            return count_lines(text, start, end) == self.rows + self.layout.has_header

    def _begins(self) -> Iterator[int]:
        """The line on which each row begins, and that below the last; the file is read again to find them."""
        with self.path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
            skipped = self.layout.skipped
            for _ in range(skipped):
                stream.readline()
            reader = rows_of(stream, self.layout.separator, self.layout.has_quotes)
            for number in count():
                if number >= self.layout.has_header:
                    yield reader.line_num + 1 + skipped
                try:
                    next(reader)
                except csv.Error:
                    # A cell that is longer than this module takes still has a line.
                    continue
                except StopIteration:
                    return


@contextmanager
def mapped(path: Path, skipped: int = 0) -> Iterator[tuple[mmap.mmap, int, int]]:
    """The mapped file with start and end of its text, without byte order mark and trailing empty lines.

    skipped: number of lines at the beginning to leave out.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        start = len(_BOM) if text[: len(_BOM)] == _BOM else 0
        end = len(text)
        mark = b"\n" if text.find(b"\n") >= 0 else b"\r"
        for _ in range(skipped):
            start = text.find(mark, start) + 1 or end
        while end > start and text[end - 1] in b"\r\n":
            end -= 1
        if end == start:
            raise invalid_file("The file contains only empty lines.", code="empty_file")
        yield text, start, end


def count_lines(text: mmap.mmap, start: int, end: int) -> int:
    """Number of lines between two positions of the text, with any line ends."""
    line_feeds = returns = 0
    for position in range(start, end, _BLOCK_BYTES):
        block = np.frombuffer(text[position : min(end, position + _BLOCK_BYTES)], dtype=np.uint8)
        line_feeds += int(np.count_nonzero(block == ord("\n")))
        returns += int(np.count_nonzero(block == ord("\r")))
    return max(line_feeds, returns) + 1
