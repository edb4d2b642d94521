"""The meaning of quotes in a CSV file: they enclose cells, possibly of several lines, or they are letters."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

_BLOCK_BYTES: Final = 1024**2


@dataclass(frozen=True, slots=True)
class Quotes:
    """enclose_line_breaks: whether cells have some. are_letters: whether quotes enclose nothing."""

    enclose_line_breaks: bool
    are_letters: bool


def quotes_of(text: mmap.mmap | bytes, start: int, end: int, separator: str) -> Quotes:
    """The meaning of the quotes in ``text[start:end]``.

    They are letters if some line has an odd number of them, every line has the same number of separators, and
    some quote is in a position where it can neither begin nor end a cell.
    """
    if text.find(b'"', start, end) < 0:
        return Quotes(enclose_line_breaks=False, are_letters=False)
    has_odd, counts = False, set[int]()
    for block in _blocks(text, start, end):
        cells = np.frombuffer(block, dtype=np.uint8)
        ends = np.flatnonzero(cells == ord("\n"))
        if not len(ends) or ends[-1] < len(cells) - 1:
            ends = np.append(ends, len(cells))
        has_odd = has_odd or bool((_per_line(cells, ord('"'), ends) % 2).any())
        if len(counts) < 2:
            counts.update(np.unique(_per_line(cells, ord(separator), ends)).tolist())
        if has_odd and len(counts) > 1:
            break
    is_even = len(counts) == 1 and counts != {0}
    are_letters = has_odd and is_even and not quotes_enclose(text, start, end, separator)
    return Quotes(enclose_line_breaks=has_odd and not are_letters, are_letters=are_letters)


def quotes_enclose(text: mmap.mmap | bytes, start: int, end: int, separator: str) -> bool:
    """Whether all quotes begin or end cells, or are two in a row that mean one."""
    is_border = np.zeros(256, dtype=bool)
    is_border[[*map(ord, f'{separator}\r\n"')]] = True
    before, seen = ord("\n"), 0
    for block in _blocks(text, start, end):
        cells = np.frombuffer(block, dtype=np.uint8)
        padded = np.concatenate(([before], cells, [ord("\n")])).astype(np.uint8)
        places = np.flatnonzero(cells == ord('"')) + 1
        opening = (np.arange(len(places)) + seen) % 2 == 0
        if not is_border[np.where(opening, padded[places - 1], padded[places + 1])].all():
            return False
        before, seen = int(cells[-1]), seen + len(places)
    return seen % 2 == 0


def _per_line(cells: np.ndarray, letter: int, ends: np.ndarray) -> np.ndarray:
    """How often a letter occurs in each line."""
    before = np.searchsorted(np.flatnonzero(cells == letter), ends)
    return np.diff(before, prepend=0)


def _blocks(text: mmap.mmap | bytes, start: int, end: int) -> Iterator[bytes]:
    """Pieces of whole lines."""
    while start < end:
        last = text.find(b"\n", min(start + _BLOCK_BYTES, end), end)
        stop = end if last < 0 else last + 1
        yield text[start:stop]
        start = stop
