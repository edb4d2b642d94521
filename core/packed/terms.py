"""Terms of texts as 64-bit numbers: words, pairs of words, and short runs of characters.

A text is converted to lower case and to Unicode's form NFC. Its words are maximal runs of letters and digits:
ASCII letters and digits, and all characters from U+0080 on except punctuation. Words of one ASCII character
are left out. In scripts without spaces (Chinese, Japanese, Thai, Lao, Khmer, Burmese) each character and each
two neighbouring characters are words.

    words         each word
    pairs         each two words that follow each other
    characters3   each three characters of a word, with a blank before and after it; also 4 and 5

A term c_1 … c_m of code points has the number Σ_j (c_j + 1) B^(j−1) mod 2^64, mixed so that similar terms
have different numbers. Prefix sums give the numbers of all terms of many texts without a loop. Whole numbers
do not depend on the order of additions, so a text has the same terms alone and among others, on every
machine.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from core.data.characters import PUNCTUATION, SPACELESS

Family: TypeAlias = Literal["words", "pairs", "characters3", "characters4", "characters5"]
"""A kind of terms; the digit is the length of a run of characters."""
FAMILIES: Final[tuple[Family, ...]] = ("words", "pairs", "characters3", "characters4", "characters5")

MAX_TEXT_BYTES: Final = 64 * 1024
"""Largest number of UTF-8 bytes of a text; the rest is cut off."""
MAX_BATCH: Final = 1 << 20
"""Largest number of characters of a batch of texts; a single text may have more."""

_BASE: Final = 0x9E3779B97F4A7C15
_MODULUS: Final = 1 << 64
_MIX: Final = np.uint64(0xD6E8FEB86659FD93)
_SHIFT: Final = np.uint64(32)
_SALT: Final = {family: np.uint64(1 + 2 * place) for place, family in enumerate(FAMILIES)}
PAIR: Final = np.uint64(0xC2B2AE3D27D4EB4F)

_BLANK: Final = ord(" ")
_ASCII: Final = 0x80
_BEYOND: Final = 0x10000
_ONE: Final = np.uint64(1)
_BETWEEN, _WORD, _ALONE = 0, 1, 2
"""Classes of characters: between words, part of a word, a word of its own."""

Whole: TypeAlias = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class TermCounts:
    """How often each text has each of its terms; entries are ordered by text, then by term.

    rows: numbers of the texts. terms: numbers of the terms. counts: at least 1. All are (m,).
    """

    rows: NDArray[np.int64]
    terms: Whole
    counts: NDArray[np.int64]


def cut_text(text: str) -> str:
    """The first `MAX_TEXT_BYTES` of a text, whole characters."""
    if len(text) * 4 <= MAX_TEXT_BYTES:
        return text
    encoded = text.encode("utf-8", "surrogatepass")
    return text if len(encoded) <= MAX_TEXT_BYTES else encoded[:MAX_TEXT_BYTES].decode(errors="ignore")


def normalized(text: str) -> str:
    """The part of a text that is used, in lower case and in NFC."""
    lowered = cut_text(text).lower()
    return lowered if lowered.isascii() else unicodedata.normalize("NFC", lowered)


class TextBatch:
    """Some texts, each at most `MAX_TEXT_BYTES` long, prepared for terms of all families.

    n: number of texts. The characters between two words are reduced to one blank; there is also one before
    each text and after the last.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self.n = len(texts)
        points, rows = _code_points(texts)
        classes = class_table()[np.minimum(points, _BEYOND)]
        is_word = classes != _BETWEEN
        kept = is_word.copy()
        kept[0] = True
        kept[1:] |= is_word[:-1]
        self._classes = classes[kept]
        self._letters = np.where(self._classes == _BETWEEN, _BLANK, points[kept])
        self._rows = rows[kept] if self.n > 1 else rows
        self._powers, self._inverse = powers(len(self._letters))
        self._sums = np.zeros(len(self._letters) + 1, dtype=np.uint64)
        np.cumsum((self._letters.astype(np.uint64) + _ONE) * self._powers, out=self._sums[1:])

    def count(self, family: Family) -> TermCounts:
        """How often each text has each of its terms of a family."""
        starts, _, terms = self.occurrences(family)
        if self.n == 1:
            return _counted(terms)
        # The blank before a word may belong to the end of the previous text.
        return _counted_of_rows(self._rows[starts + family.startswith("characters")], terms)

    def occurrences(self, family: Family) -> tuple[NDArray[np.intp], NDArray[np.intp], Whole]:
        """Start and end of each term of a family among the remaining characters, and its number."""
        if family == "words":
            starts, stops = self.words
            return starts, stops, self._numbers(starts, stops, family)
        if family == "pairs":
            return self._pairs()
        length = int(family[-1])
        starts = self._inside(length)
        return starts, starts + length, self._numbers(starts, starts + length, family)

    @cached_property
    def words(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Start and end of each word among the remaining characters."""
        classes = self._classes
        edges = np.flatnonzero(np.diff(classes == _WORD))
        starts, stops = edges[::2] + 1, edges[1::2] + 1
        # A single ASCII letter or digit is not a word; any other single character is.
        is_word = (stops - starts > 1) | (self._letters[starts] >= _ASCII)
        starts, stops = starts[is_word], stops[is_word]
        is_alone = classes == _ALONE
        if not is_alone.any():
            return starts, stops
        alone, double = np.flatnonzero(is_alone), np.flatnonzero(is_alone[:-1] & is_alone[1:])
        starts = np.concatenate([starts, alone, double])
        stops = np.concatenate([stops, alone + 1, double + 2])
        order = np.argsort(starts, kind="stable")
        return starts[order], stops[order]

    @cached_property
    def pieces(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Start and end of each run of letters and digits, or of each single ideograph and the like."""
        inside = self._classes != _BETWEEN
        alone = self._classes == _ALONE
        edges = np.ones(len(inside) + 1, dtype=bool)
        edges[1:-1] = (inside[1:] != inside[:-1]) | alone[1:] | alone[:-1]
        at = np.flatnonzero(edges)
        kept = inside[at[:-1]]
        return at[:-1][kept], at[1:][kept]

    def spelled(self, start: int, stop: int) -> str:
        """Some of the remaining characters."""
        return "".join(map(chr, self._letters[start:stop].tolist()))

    def _pairs(self) -> tuple[NDArray[np.intp], NDArray[np.intp], Whole]:
        starts, stops = self.words
        # Two neighbouring characters of a script without spaces are already words.
        is_spaced = self._classes[starts] == _WORD
        starts, stops = starts[is_spaced], stops[is_spaced]
        words = self._numbers(starts, stops, "words")
        pairs = words[:-1] * PAIR + words[1:]
        firsts, lasts = starts[:-1], stops[1:]
        if self.n > 1:
            same = self._rows[starts[1:]] == self._rows[firsts]
            firsts, lasts, pairs = firsts[same], lasts[same], pairs[same]
        return firsts, lasts, mixed(pairs, "pairs")

    def _inside(self, length: int) -> NDArray[np.intp]:
        """Starts of the runs of characters within a word and the blanks around it."""
        n = len(self._letters) - length + 1
        if n <= 0:
            return np.empty(0, dtype=np.intp)
        blanks = np.zeros(len(self._letters) + 1, dtype=np.int64)
        np.cumsum(self._classes == _BETWEEN, out=blanks[1:])
        return np.flatnonzero(blanks[length - 1 : length - 1 + n] == blanks[1 : n + 1])

    def _numbers(self, starts: NDArray[np.intp], stops: NDArray[np.intp], family: Family) -> Whole:
        """Mixed numbers Σ_j (c_j + 1) B^(j−1) mod 2^64 of some runs."""
        return mixed((self._sums[stops] - self._sums[starts]) * self._inverse[starts], family)


def _counted(terms: Whole) -> TermCounts:
    terms = np.sort(terms)
    first = np.ones(len(terms), dtype=bool)
    np.not_equal(terms[1:], terms[:-1], out=first[1:])
    at = np.flatnonzero(first)
    return TermCounts(np.zeros(len(at), dtype=np.int64), terms[at], np.diff(at, append=len(terms)))


def _counted_of_rows(rows: NDArray[np.int64], terms: Whole) -> TermCounts:
    order = np.lexsort((terms, rows))
    rows, terms = rows[order], terms[order]
    first = np.ones(len(terms), dtype=bool)
    first[1:] = (terms[1:] != terms[:-1]) | (rows[1:] != rows[:-1])
    at = np.flatnonzero(first)
    return TermCounts(rows[at], terms[at], np.diff(at, append=len(terms)))


def count_terms(texts: Sequence[str], family: Family) -> TermCounts:
    """The terms of ``texts``, each at most `MAX_TEXT_BYTES` long, of one family."""
    return TextBatch(texts).count(family)


def words_of(text: str) -> list[str]:
    """The words of a text in order, in the form that terms have."""
    batch = TextBatch([text])
    return [batch.spelled(place, end) for place, end in zip(*batch.words, strict=True)]


def batches(texts: Iterable[str]) -> Iterable[list[str]]:
    """The texts in lists that `count_terms` processes in bounded memory."""
    batch: list[str] = []
    size = 0
    for text in texts:
        if batch and size + len(text) > MAX_BATCH:
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += len(text) + 1
    if batch:
        yield batch


def _code_points(texts: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The characters of all texts in lower case, and the number of each character's text.

    A character that is in no word comes before each text and after the last.
    """
    cleaned = [*map(normalized, texts)]
    joined = "\0".join(["", *cleaned, ""])
    points = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype="<i4")
    if len(texts) == 1:
        return points, np.empty(0, dtype=np.int64)
    lengths = np.array([*(len(text) + 1 for text in cleaned), 1], dtype=np.int64)
    return points, np.repeat(np.arange(len(texts) + 1), lengths)


@cache
def class_table() -> NDArray[np.uint8]:
    """The class of each character of the basic plane; the last entry is for all other characters."""
    table = np.full(_BEYOND + 1, _WORD, dtype=np.uint8)
    table[:_ASCII] = [_WORD if chr(point).isalnum() else _BETWEEN for point in range(_ASCII)]
    for ranges, value in ((PUNCTUATION, _BETWEEN), (SPACELESS, _ALONE)):
        for first, last in ranges:
            table[first : last + 1] = value
    # Beyond the basic plane, texts mostly have ideographs and emoji.
    table[_BEYOND] = _ALONE
    table.setflags(write=False)
    return table


def mixed(numbers: Whole, family: Family) -> Whole:
    mixed = numbers * _SALT[family]
    mixed ^= mixed >> _SHIFT
    mixed *= _MIX
    mixed ^= mixed >> _SHIFT
    mixed *= _MIX
    mixed ^= mixed >> _SHIFT
    return mixed


def powers(n: int) -> tuple[Whole, Whole]:
    """B^i and B^−i mod 2^64 for i = 0 to n − 1."""
    powers, inverse = _power_tables(max(12, (n - 1).bit_length()))
    return powers[:n], inverse[:n]


@cache
def _power_tables(bits: int) -> tuple[Whole, Whole]:
    both = []
    for base in (_BASE, pow(_BASE, -1, _MODULUS)):
        powers = np.full(1 << bits, base, dtype=np.uint64)
        powers[0] = 1
        np.multiply.accumulate(powers, out=powers)
        powers.setflags(write=False)
        both.append(powers)
    return both[0], both[1]
