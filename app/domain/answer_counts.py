"""Counts of the answers of queries by class and hour. No row and no score is stored."""

from __future__ import annotations

from typing import Final, NamedTuple

PROBABILITY_BINS: Final = 20
"""Bin i holds the probabilities p with i <= 20 √p < i + 1; the last bin also holds 1.

The bins are narrow where p is small, as it is for nearly all queries of a rare class.
"""
MOST_COUNTED_CLASSES: Final = 1000
"""Largest number of classes of a version whose answers one process counts."""


class ClassCounts(NamedTuple):
    """The answers of one class.

    asked: all of them. yes: those that were yes. p, p_yes: sums of the probabilities of all, and of the yes
    answers. bins: answers by probability, `PROBABILITY_BINS` numbers.
    """

    label: str
    asked: int
    yes: int
    p: float
    p_yes: float
    bins: tuple[int, ...]


class AnswerHour(NamedTuple):
    """The answers of a version in an hour since the epoch, by class."""

    hour: int
    classes: tuple[ClassCounts, ...]


def bin_edges() -> tuple[float, ...]:
    """The lower bounds of the bins, and 1."""
    return tuple((number / PROBABILITY_BINS) ** 2 for number in range(PROBABILITY_BINS + 1))
