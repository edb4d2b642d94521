"""Detects the layout of a CSV file: separator, header and label column."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass

from app.ingest.raw import Columns, invalid_file

SEPARATORS = (",", ";", "\t")

_SAMPLE_LINES = 10
_LABEL_NAMES = frozenset({"label", "labels", "class", "target", "y"})


@dataclass(frozen=True, slots=True)
class CsvLayout:
    """Layout of a file; its columns have names if it has a header."""

    separator: str
    columns: Columns


def sniff(beginning: bytes, label_column: str | None, *, whole: bool) -> CsvLayout:
    """Detect the layout from the beginning of a file. Raises InvalidRequest.

    The separator is the one of ``, ; tab`` that splits the first lines into the largest equal number of
    cells. The first line is a header if none of its feature cells is a number, or if they are 0, 1, 2, …
    next to a cell with a usual name of a label column.
    whole: ``beginning`` is the whole file, so its last line is complete.
    """
    lines = _complete_lines(beginning, whole)
    if not lines[0].strip():
        raise invalid_file("The first line of the file is empty.", code="empty_row")
    separator = max(SEPARATORS, key=lambda mark: _split_quality(lines, mark))
    first = [cell.strip() for cell in _cells(lines[0], separator)]
    label = _likely_label(first, label_column)
    features = first[:label] + first[label + 1 :]
    if not _is_header(features, first[label]):
        return CsvLayout(separator, Columns.of(None, len(first), label_column))
    if not all(map(is_utf8, first)):
        raise invalid_file("The header of the file is not UTF-8 text.", code="bad_encoding")
    return CsvLayout(separator, Columns.of(first, len(first), label_column))


def is_number(cell: str) -> bool:
    """Whether the fast reader accepts a cell as a number: ASCII digits, point and exponent, nan or inf."""
    if not cell.isascii() or "_" in cell:
        return False
    try:
        float(cell)
    except ValueError:
        return False
    return True


def is_utf8(cell: str) -> bool:
    """Whether a cell that was decoded with ``surrogateescape`` contains no surrogates."""
    return not any("\udc80" <= letter <= "\udcff" for letter in cell)


def _likely_label(first: Sequence[str], wanted: str | None) -> int:
    """Probable index of the label column, before it is known whether the first line is a header."""
    if wanted is None:
        return len(first) - 1
    if is_number(wanted):
        return min(int(wanted), len(first) - 1) if wanted.isdigit() else len(first) - 1
    return first.index(wanted) if wanted in first else len(first) - 1


def _is_header(features: Sequence[str], label: str) -> bool:
    if not any(is_number(cell) for cell in features):
        return any(features)
    counting = all(cell == str(position) for position, cell in enumerate(features))
    return counting and label.lower() in _LABEL_NAMES


def _complete_lines(beginning: bytes, whole: bool) -> list[str]:
    lines = beginning.split(b"\n") if b"\n" in beginning else beginning.split(b"\r")
    if len(lines) > 1 and not whole:
        lines = lines[:-1]
    elif not whole:
        raise invalid_file(
            f"The first line is longer than {len(beginning)} bytes; is this a CSV file?", code="line_too_long"
        )
    # Rows that are not UTF-8 are reported later, with their position.
    return [line.decode(errors="surrogateescape").rstrip("\r") for line in lines[:_SAMPLE_LINES]]


def _split_quality(lines: Sequence[str], separator: str) -> tuple[bool, int]:
    """Sort key of a separator: whether it splits all lines into equally many cells, and how many."""
    try:
        counts = [len(_split(line, separator)) for line in lines]
    except csv.Error:
        # A long line without this separator is one cell, and exceeds the csv module's size limit.
        return False, 0
    return counts[0] > 1 and len(set(counts)) == 1, counts[0]


def _cells(line: str, separator: str) -> list[str]:
    try:
        return _split(line, separator)
    except csv.Error as error:
        raise invalid_file(
            f"The first line cannot be read as CSV: {error}.", code="unreadable_file"
        ) from error


def _split(line: str, separator: str) -> list[str]:
    return next(csv.reader([line], delimiter=separator), [])
