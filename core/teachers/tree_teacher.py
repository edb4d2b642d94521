"""A fitted teacher whose scores are sums of trees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from core.errors import InvalidPackage
from core.features.tree_sums import sums_of_trees
from core.packed import PackedTeacher, TreesBasis
from core.packed.codec import Arrays, take_array
from core.run import Run
from core.solvers.solution import Summary
from core.teachers.base import Teacher
from core.types import FloatArray

if TYPE_CHECKING:
    from core.features.examples import Examples


@dataclass(frozen=True, slots=True, eq=False)
class TreeTeacher(Teacher):
    """S_c is the sum c of the trees, on raw rows.

    grown: the trees, with K sums. left_out: S of the rows of the fit by trees that have not seen them,
    (n, K); NaN for rows that every tree has seen. summary: its objective is the share of wrong answers of
    ``left_out``, or 1 if no row has such scores.
    """

    grown: TreesBasis
    left_out: FloatArray
    summary: Summary | None = None

    @classmethod
    def restore(cls, arrays: Arrays, n_classes: int, summary: Summary | None) -> TreeTeacher:
        """The teacher with these ``arrays``. Raises InvalidPackage, InvalidProblem."""
        columns, left_out = take_array(arrays, "columns"), take_array(arrays, "left_out")
        if columns.shape != (1,) or left_out.ndim != 2 or left_out.shape[1] != n_classes:
            raise InvalidPackage("The arrays of the teacher are not those of trees.")
        return cls(TreesBasis.from_arrays(int(columns[0]), n_classes, arrays), left_out, summary)

    def scores(self, examples: Examples, run: Run = Run()) -> FloatArray:
        """S, (n, K), with cancel checks between blocks of rows."""
        return sums_of_trees(self.grown, examples, run)

    @property
    def own_scores(self) -> FloatArray:
        """``left_out``; rows without such scores have equal scores for all classes."""
        return neutral_scores(self.left_out)

    @property
    def trees(self) -> TreesBasis:
        """The trees."""
        return self.grown

    @property
    def held_out(self) -> FloatArray:
        """``left_out``."""
        return self.left_out

    def pack(
        self, examples: Examples, classes: tuple[str, ...], metadata: Mapping[str, Any]
    ) -> PackedTeacher:
        """The trees, whose sums are the scores."""
        del examples
        K = len(classes)
        return PackedTeacher(self.grown, np.eye(K), np.zeros(K), classes, metadata)

    def arrays(self) -> Arrays:
        """The arrays of the trees, and the held-out scores of the rows of the fit."""
        columns = np.array([self.grown.columns], dtype=np.int64)
        return {**self.grown.arrays(), "columns": columns, "left_out": self.left_out}


def neutral_scores(left_out: FloatArray) -> FloatArray:
    """Held-out scores (n, K); rows without such scores have equal scores for all classes."""
    return np.where(np.isnan(left_out), 1.0 / left_out.shape[1], left_out)


def error_rate(left_out: FloatArray, labels: Any) -> float:
    """Share of wrong answers of held-out scores (n, K), over the rows that have scores; 1 if none has."""
    known = ~np.isnan(left_out[:, 0])
    wrong = left_out[known].argmax(axis=1) != labels[known]
    return float(wrong.mean()) if len(wrong) else 1.0
