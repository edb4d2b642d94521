"""What people should look at next, so that few labels make rates exact.

Samples were chosen with known probabilities, and those that stay without an answer are made up for within
cells of equal answers and similar probabilities (``core.monitoring.estimates``). So the order between cells
is free, while the order within a cell must have nothing to do with the truth: it is left to the caller, who
draws it at random. All yes answers of a class are one cell, since precision is a plain share of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from core.data.validation import not_whole, out_of_bounds, refuse
from core.monitoring.intervals import MOST

BINS: Final = 5
"""Cells of the no answers of a class, by equal ranges of the probability."""
_LEAST_DOUBT: Final = 0.02


@dataclass(frozen=True, slots=True)
class Cell:
    """Sampled answers of a class that are alike. Raises InvalidProblem.

    waiting: without an answer by people, at least 0. answered: with one, at least 0. share: the answers that
    the cell stands for, Σ 1/q, in units of the expected rows of the class, at least 0. probability: mean
    probability of the class, in [0, 1].
    """

    waiting: int
    answered: int
    share: float
    probability: float

    def __post_init__(self) -> None:
        refuse(
            not_whole("waiting", self.waiting, 0, MOST),
            not_whole("answered", self.answered, 0, MOST),
            out_of_bounds("share", self.share, 0.0, float("inf"), open_high=True),
            out_of_bounds("probability", self.probability, 0.0, 1.0),
        )

    def use(self, more: int) -> float:
        """By how much the variance of the estimate falls with one label after ``more`` further ones.

        The part of a cell is share² p (1 − p) / n for n labels; n begins at 1, so that a cell without labels
        has a finite one. p is kept away from 0 and 1, since a probability may be wrong.
        """
        p = min(max(self.probability, _LEAST_DOUBT), 1.0 - _LEAST_DOUBT)
        n = self.answered + more + 1
        return self.share**2 * p * (1.0 - p) / (n * (n + 1))


def review_order(cells: Sequence[Cell], most: int) -> list[int]:
    """The cells to take samples from, one after the other: each time that whose next label is of most use.

    This is Neyman's allocation (Neyman 1934), label by label. most: of the result, at least 0. Raises
    InvalidProblem.
    """
    refuse(not_whole("most", most, 0, MOST))
    heap = [(-cell.use(0), number, 0) for number, cell in enumerate(cells) if cell.waiting]
    heapq.heapify(heap)
    order: list[int] = []
    while heap and len(order) < most:
        _, number, taken = heapq.heappop(heap)
        order.append(number)
        if taken + 1 < cells[number].waiting:
            heapq.heappush(heap, (-cells[number].use(taken + 1), number, taken + 1))
    return order
