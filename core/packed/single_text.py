"""Finds the terms of one text, with compiled code if the package was built with a C compiler, or with NumPy.

There are only few NumPy calls, because each takes longer than some hundred numbers do. Terms and weights are
those of ``core.packed.term_table``, to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from core.packed.term_table import LARGEST_COUNT, UNIT_BITS, TermTable, frequencies, term_entries
from core.packed.terms import FAMILIES, PAIR, Whole, class_table, cut_text, mixed, normalized, powers

try:
    from core.packed._text_terms import find_terms, prepare

    IS_COMPILED = True
except ImportError:
    IS_COMPILED = False

Places: TypeAlias = NDArray[np.int64]
Found: TypeAlias = tuple[Places, NDArray[np.float64]]
"""Columns and values of terms, each (m,)."""

_BLANK: Final = 32
_SHORTEST: Final = 2
_ALPHABET: Final = b" 0123456789abcdefghijklmnopqrstuvwxyz"
"""Characters of lower-case ASCII words, and the blank between words."""
_N: Final = len(_ALPHABET)
_WORDS: Final = bytes(point if point in _ALPHABET else _BLANK for point in range(256))
_PLUS_ONE: Final = np.arange(1, 257, dtype=np.uint64)
_DIGITS: Final = np.array([max(_ALPHABET.find(bytes([point])), 0) for point in range(256)], dtype=np.uint16)
_RUNS: Final = "characters3"


class SingleTexts:
    """Finds the known terms of single texts. tables: the term tables of their column, by families.

    Compiled or not, the terms of a text have the same order, and so each score has the same bits.
    """

    def __init__(self, tables: Sequence[TermTable]) -> None:
        self._tables = tables
        families = [table.family for table in tables]
        unknown = {table.unknown_idf for table in tables}
        is_usual = (
            len(unknown) == 1
            and all(map(len, tables))
            and len(set(families)) == len(tables)
            and set(families) <= {"words", "pairs", _RUNS}
        )
        if IS_COMPILED:
            self._prepared = _prepared(tables)
        # NumPy finds runs in another order than compiled code; scores of stored versions must keep
        # their bits.
        self._is_by_numpy = is_usual and (_RUNS in families or not IS_COMPILED)
        if not self._is_by_numpy:
            return
        # Each table ends with a term of no text, so that searches beyond all terms find a number that is 0.
        self._terms = np.concatenate([np.append(table.terms, np.uint64(0)) for table in tables])
        self._idf = np.concatenate([np.append(table.idf, table.unknown_idf) for table in tables])
        self._nowhere = len(self._terms) - 1
        lengths = [len(table) + 1 for table in tables]
        self._starts = [sum(lengths[:place]) for place in range(len(tables))]
        self._columns = np.arange(len(self._terms)) - np.repeat(np.arange(len(tables)), lengths)
        self._of_run = self._places_of_runs(families.index(_RUNS)) if _RUNS in families else None

    def __reduce__(self) -> tuple[type[SingleTexts], tuple[Sequence[TermTable]]]:
        return SingleTexts, (self._tables,)

    def find(self, text: str) -> Found:
        """Columns and values of the known terms of a text."""
        text = cut_text(text)
        if not (self._is_by_numpy and text.isascii()):
            if IS_COMPILED:
                places, weights = find_terms(self._prepared, normalized(text))
                return np.frombuffer(places, dtype=np.int64), np.frombuffer(weights)
            _, columns, values = term_entries(self._tables, [text])
            return columns, values
        words = text.lower().encode().translate(_WORDS).split()
        letters = np.frombuffer(b" " + b" ".join(words) + b" " if words else b" ", dtype=np.uint8)
        of_words = self._words(letters)
        parts: list[tuple[Places, Places]] = []
        for table, start in zip(self._tables, self._starts, strict=True):
            if table.family == _RUNS:
                parts.append(self._runs(letters))
            elif table.family == "pairs":
                parts.append(self._counted(table, start, mixed(of_words[:-1] * PAIR + of_words[1:], "pairs")))
            else:
                parts.append(self._counted(table, start, of_words.copy()))
        return self._weighed(parts)

    @staticmethod
    def _words(letters: NDArray[np.uint8]) -> Whole:
        """The numbers of the words, in order."""
        up, down = powers(len(letters))
        sums = np.empty(len(letters), dtype=np.uint64)
        np.cumsum(_PLUS_ONE.take(letters) * up, out=sums)
        blanks = np.flatnonzero(letters == _BLANK)
        firsts, lasts = blanks[:-1], blanks[1:] - 1
        is_word = lasts - firsts >= _SHORTEST
        firsts, lasts = firsts[is_word], lasts[is_word]
        return mixed((sums.take(lasts) - sums.take(firsts)) * down.take(firsts + 1), "words")

    def _counted(self, table: TermTable, start: int, terms: Whole) -> tuple[Places, Places]:
        """Positions of different terms among all known ones, and how often each occurs."""
        terms.sort()
        first, counts = _distinct(terms)
        terms = terms.take(first)
        places = table.terms.searchsorted(terms)
        places += start
        places[self._terms.take(places) != terms] = self._nowhere
        return places, counts

    def _runs(self, letters: NDArray[np.uint8]) -> tuple[Places, Places]:
        """The same for runs of three characters within a word and the blanks around it."""
        assert self._of_run is not None  # noqa: S101 - there is a table of runs
        digits = _DIGITS.take(letters)
        codes = digits[:-2] * np.uint16(_N * _N) + digits[1:-1] * np.uint16(_N) + digits[2:]
        # The digit of a blank is 0.
        codes = codes[digits[1:-1] != 0]
        codes.sort(kind="stable")
        first, counts = _distinct(codes)
        return self._of_run.take(codes.take(first)), counts

    def _places_of_runs(self, number: int) -> Places:
        """The position of each run of three characters among all known terms, by its code."""
        table = self._tables[number]
        points = np.frombuffer(_ALPHABET, dtype=np.uint8).astype(np.uint64) + np.uint64(1)
        up, _ = powers(3)
        sums = points[:, np.newaxis, np.newaxis] * up[0] + points[:, np.newaxis] * up[1] + points * up[2]
        terms = mixed(sums.reshape(-1), _RUNS)
        places = table.terms.searchsorted(terms) + self._starts[number]
        places[self._terms[places] != terms] = self._nowhere
        return places

    def _weighed(self, parts: Sequence[tuple[Places, Places]]) -> Found:
        """The known terms; those of each family are divided by the norm over all its terms."""
        places = np.concatenate([part[0] for part in parts])
        counts = np.concatenate([part[1] for part in parts])
        np.minimum(counts, LARGEST_COUNT, out=counts)
        weights = frequencies().take(counts)
        weights *= self._idf.take(places)
        weights >>= UNIT_BITS
        values = np.empty(len(weights))
        families: Any = len(parts)
        bounds = [0]
        for part, _ in parts:
            bounds.append(bounds[-1] + len(part))
        for low, high in pairwise(bounds):
            own = weights[low:high]
            if high > low:
                np.divide(own, np.sqrt(np.float64(own.dot(own)) * families), out=values[low:high])
        known = np.flatnonzero(places != self._nowhere)
        return self._columns.take(places.take(known)), values.take(known)


def _prepared(tables: Sequence[TermTable]) -> object:
    """The tables in the form that compiled code uses."""
    known = (
        (FAMILIES.index(table.family), table.terms.tobytes(), table.idf.tobytes(), table.unknown_idf)
        for table in tables
    )
    classes, weights = _constants()
    return prepare(classes, weights, tuple(known))


@cache
def _constants() -> tuple[bytes, bytes]:
    """The classes of characters and the weights of counts, packed."""
    return class_table().tobytes(), frequencies().tobytes()


def _distinct(ascending: NDArray[Any]) -> tuple[Places, Places]:
    """The start of each different value among ascending ones, and its number of occurrences."""
    n = len(ascending)
    is_first = np.empty(n, dtype=bool)
    is_first[:1] = True
    np.not_equal(ascending[1:], ascending[:-1], out=is_first[1:])
    first = np.flatnonzero(is_first)
    counts = np.empty(len(first), dtype=np.int64)
    np.subtract(first[1:], first[:-1], out=counts[:-1])
    counts[-1:] = n - first[-1:]
    return first, counts
