"""Rules that a user may set for the encoding of columns, in a module without the fit, which imports SciPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from core.data.column_kinds import mean_words
from core.data.table import Texts
from core.packed.term_table import MAX_TERMS
from core.packed.terms import Family

FAMILIES: Final[tuple[Family, ...]] = ("words", "pairs", "characters3")
"""On eight open sets of texts, from tweets to news, these three together are the best or nearly so."""
FAMILIES_OF_LONG: Final[tuple[Family, ...]] = ("words", "pairs")
LONG_WORDS: Final = 50.0
"""With this many words on average, runs of characters tell hardly more than words."""
BYTES_OF_STUDENTS: Final = 192 * 1024**2
"""Bytes of the packages of all students of texts together, with a float32 for each term and rival."""
FEWEST_TERMS: Final = 8192
"""Least limit of terms for any number of classes: with 5700, 77 intents lose 0.3 points of held-out F."""


@dataclass(frozen=True, slots=True)
class ColumnRules:
    """A user's rules for the encoding of a column. missing: whether gaps are accepted; None: as in training.

    refuses_unseen: whether a category's value that was not in training is an error.
    families: families of the terms of texts; None: by the length of the texts.
    """

    missing: bool | None = None
    refuses_unseen: bool = False
    families: tuple[Family, ...] | None = None

    def families_of(self, texts: Texts) -> tuple[Family, ...]:
        """The families of terms for a column with these different texts."""
        if self.families is not None:
            return self.families
        is_long = len(texts) > 0 and mean_words(texts) >= LONG_WORDS
        return FAMILIES_OF_LONG if is_long else FAMILIES


USUAL_RULES: Final = ColumnRules()


def most_terms(n_classes: int) -> int:
    """Number of terms for which students of all classes may have all others as rivals.

    See ``core.students.rivals``. With many classes rivals are worth more than rare terms: for 77 intents,
    students with 76 rivals gain 0.8 points of held-out F over those with 32. With the 8000 most frequent of
    26 000 terms, half of which occur in one row, their teacher loses 0.1.
    """
    fitting = BYTES_OF_STUDENTS // (4 * max(n_classes, 1) ** 2) - 1
    return min(MAX_TERMS, max(FEWEST_TERMS, fitting))
