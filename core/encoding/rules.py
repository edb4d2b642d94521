"""What a user may say of how columns are encoded; apart from the fit, which loads SciPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from core.data.column_kinds import mean_words
from core.data.table import Texts
from core.packed.terms import Family

FAMILIES: Final[tuple[Family, ...]] = ("words", "pairs", "characters3")
"""Of eight open sets of texts, from tweets to news, these three together are best or nearly so on each."""
FAMILIES_OF_LONG: Final[tuple[Family, ...]] = ("words", "pairs")
LONG_WORDS: Final = 50.0
"""In texts of so many words on average, runs of characters say hardly more than their words."""


@dataclass(frozen=True, slots=True)
class ColumnRules:
    """What a sender says of how a column enters. missing: whether gaps are accepted; None: as in training.

    refuses_unseen: whether a category's value that training did not have is an error.
    families: of the terms of texts; None: by the length of the texts.
    """

    missing: bool | None = None
    refuses_unseen: bool = False
    families: tuple[Family, ...] | None = None

    def families_of(self, texts: Texts) -> tuple[Family, ...]:
        """The families of the terms of a column with these different texts."""
        if self.families is not None:
            return self.families
        is_long = len(texts) > 0 and mean_words(texts) >= LONG_WORDS
        return FAMILIES_OF_LONG if is_long else FAMILIES


USUAL_RULES: Final = ColumnRules()
