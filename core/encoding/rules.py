"""What a user may say of how columns are encoded; apart from the fit, which loads SciPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from core.packed.terms import Family

FAMILIES: Final[tuple[Family, ...]] = ("words", "pairs", "characters3")
"""Of eight open sets of texts, from tweets to news, these three together are best or nearly so on each."""


@dataclass(frozen=True, slots=True)
class ColumnRules:
    """What a sender says of how a column enters. missing: whether gaps are accepted; None: as in training.

    refuses_unseen: whether a category's value that training did not have is an error.
    families: of the terms of texts.
    """

    missing: bool | None = None
    refuses_unseen: bool = False
    families: tuple[Family, ...] = FAMILIES


USUAL_RULES: Final = ColumnRules()
