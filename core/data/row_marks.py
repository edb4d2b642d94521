"""What is known of each row of a data set beside its values and its label, and is no input of any learner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from core.types import BoolArray, IntArray

SUBJECT_BYTES: Final = 16
"""Bytes of the pseudonym of a subject."""
_PSEUDONYM: Final = np.dtype((np.void, SUBJECT_BYTES))


@dataclass(frozen=True, slots=True, eq=False)
class RowMarks:
    """Marks of n rows; what is None is known of none.

    ids: (n,) int64 ≥ 0, different numbers that rows keep in later revisions of a data set. subjects: (n, 16)
    uint8, the pseudonym of whom a row is about, zeros for nobody. held_out: (n,) uint8, 1 for rows of which
    no job learns, since students are measured on them.
    """

    ids: NDArray[np.int64] | None = None
    subjects: NDArray[np.uint8] | None = None
    held_out: NDArray[np.uint8] | None = None

    @classmethod
    def of_part(cls, part: str, arrays: Mapping[str, NDArray[Any]]) -> RowMarks:
        """The marks of a part of a stored data set, among its arrays by name."""
        return cls(*(arrays.get(f"{part}.{name}") for name in ("ids", "subjects", "held_out")))

    @property
    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """The arrays that are present, by the names of their fields."""
        every: dict[str, NDArray[np.generic] | None] = {
            "ids": self.ids,
            "subjects": self.subjects,
            "held_out": self.held_out,
        }
        return {name: array for name, array in every.items() if array is not None}

    @property
    def test_rows(self) -> IntArray:
        """Ascending numbers of the rows that are held out."""
        return np.empty(0, dtype=np.intp) if self.held_out is None else np.flatnonzero(self.held_out)

    def take(self, rows: IntArray) -> RowMarks:
        """The marks of some of the rows, given by their numbers."""
        if not self.arrays:
            return self
        return RowMarks(
            None if self.ids is None else self.ids[rows],
            None if self.subjects is None else self.subjects[rows],
            None if self.held_out is None else self.held_out[rows],
        )

    def of_subjects(self, subjects: NDArray[np.uint8]) -> BoolArray:
        """Which rows are about one of some subjects, (m, 16) uint8, or fewer than n where none is marked."""
        if self.subjects is None:
            return np.zeros(0, dtype=np.bool_)
        return np.isin(pseudonyms(self.subjects), pseudonyms(subjects))


NO_MARKS: Final = RowMarks()


def pseudonyms(subjects: NDArray[np.uint8]) -> NDArray[np.void]:
    """Pseudonyms (n, 16) uint8 as values that can be compared, (n,)."""
    return np.ascontiguousarray(subjects, dtype=np.uint8).view(_PSEUDONYM).reshape(-1)


def nobody(n: int) -> NDArray[np.uint8]:
    """Pseudonyms of n rows that are about nobody."""
    return np.zeros((n, SUBJECT_BYTES), dtype=np.uint8)
