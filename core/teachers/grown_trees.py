"""Fits of tree teachers, whose trees scikit-learn grows on binned columns, and the trees as sums."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from core.packed.tree_references import distinct_rows
from core.packed.trees import TreesBasis
from core.parameters import Doc, Ge, Le
from core.teachers.base import Task, Teacher, TeacherSpec
from core.teachers.binning import Bins
from core.types import FloatArray, IntArray

if TYPE_CHECKING:
    from core.packed.codec import Arrays
    from core.run import Run
    from core.solvers.solution import Summary
    from core.teachers.tree_teacher import TreeTeacher

ScoredFolds: TypeAlias = Annotated[
    int | None,
    Ge(1),
    Le(20),
    Doc("Folds whose rows get held-out scores, each of which takes a further fit; null: all of them."),
]


class TreeSpec(TeacherSpec):
    """Base of the specifications of tree teachers: they need dense rows and give a ``TreeTeacher``."""

    needs: ClassVar[frozenset[Literal["teacher_scores", "dense"]]] = frozenset({"dense"})
    grows_trees: ClassVar[bool] = True

    bins: int

    @abstractmethod
    def fits(self, task: Task, seed: int) -> TreeFits:
        """The fits that make the teacher; none of them has been done yet. Raises InvalidProblem."""

    def fit(self, task: Task, run: Run, start: Teacher | None = None) -> TreeTeacher:
        """Bin the columns, grow the trees, and score the rows by trees that have not seen them.

        run: reports stage ``"trees"`` in trees or iterations of all fits. Raises InvalidProblem, Cancelled.
        """
        del start
        return self.fits(task, run.seed).teacher(run)

    def metadata(self) -> dict[str, str | float | int]:
        """Name and the hyper-parameters that are set."""
        return {"method": self.name, **{k: v for k, v in self.params().items() if v is not None}}

    def restore(
        self, arrays: Arrays, n_classes: int, n_features: int, summary: Summary | None
    ) -> TreeTeacher:
        """The teacher with these trees."""
        from core.teachers.tree_teacher import TreeTeacher

        del n_features
        return TreeTeacher.restore(arrays, n_classes, summary)


class TreeFits(ABC):
    """The fits of a tree teacher, which can be made one by one: to all rows, and without each fold.

    spec: hyper-parameters. left_out: S of the rows by trees that have not seen them, (n, K); NaN for rows
    that no fit has left out so far. n_folds: number of folds with scores; 0 if the fit to all rows gives
    them.
    """

    def __init__(self, spec: TreeSpec, task: Task, seed: int, fold_of: IntArray) -> None:
        """fold_of: the fold of each row, (n,); −1 for rows in no fold."""
        from core.features.tree_columns import tree_rows

        self._started, self.spec = time.perf_counter(), spec
        self._columns, X = tree_rows(task.examples)
        self._width = task.examples.X.shape[1]
        self._bins = Bins.of(X, spec.bins)
        self._codes = self._bins.codes(X)
        self._labels, self._seed, self._fold_of = task.labels, seed, fold_of
        self._lock, self._done, self._steps = threading.Lock(), 0, list[int]()
        self.left_out = np.full((len(fold_of), task.n_classes), np.nan)
        self.n_folds = int(fold_of.max()) + 1

    @property
    @abstractmethod
    def cost(self) -> float:
        """``TreesBasis.cost`` of the teacher, estimated from the fits so far; at least one must be made."""

    @abstractmethod
    def score_fold(self, fold: int, run: Run) -> None:
        """Fit without the rows of a fold, and score these rows. Thread-safe. Raises Cancelled."""

    @abstractmethod
    def teacher(self, run: Run) -> TreeTeacher:
        """The teacher; makes the fits that are still missing. Raises Cancelled."""

    def rows_of(self, fold: int) -> IntArray:
        """The rows of a fold, rising."""
        return np.flatnonzero(self._fold_of == fold)

    def _missing_folds(self) -> list[int]:
        return [fold for fold in range(self.n_folds) if np.isnan(self.left_out[self.rows_of(fold)]).all()]

    def _report(self, done: int, size: int, run: Run) -> None:
        """Report progress. done: trees or iterations made since the last report. size: of each fit."""
        with self._lock:
            self._done += done
            run.report("trees", self._done, size * (1 + self.n_folds))

    def _teacher(self, grown: TreesBasis, iterations: int) -> TreeTeacher:
        from core.solvers.solution import Summary
        from core.teachers.tree_teacher import TreeTeacher, error_rate

        summary = Summary(
            objective=error_rate(self.left_out, self._labels),
            gap=None,
            relative_gap=None,
            iterations=iterations,
            seconds=time.perf_counter() - self._started,
            status=None,
        )
        return TreeTeacher(grown.on_columns(self._columns, self._width), self.left_out, summary)


@dataclass(frozen=True, slots=True, eq=False)
class GrownTree:
    """One tree: its inner nodes, in an order in which children come after their parents.

    root: a reference: a number ≥ 0 is an inner node, −1 − v a leaf with row v of the values. test: numbers of
    edges of the bins, (M,). children: references, (M, 2). share: share of the node's training weight that
    goes to the first child, (M,). values: (V, q); no two rows are equal.
    """

    root: int
    test: IntArray
    children: IntArray
    share: FloatArray
    values: FloatArray

    @classmethod
    def of_nodes(
        cls,
        children: IntArray,
        test: IntArray,
        weight: FloatArray,
        values: FloatArray,
    ) -> GrownTree:
        """A tree made from all its N nodes, including leaves; the root is the first.

        children: (N, 2), not positive for leaves. test, weight: (N,). values: (N, q). Tests of leaves and
        values of inner nodes are ignored.
        """
        is_leaf = children[:, 0] <= 0
        distinct, value = distinct_rows(values[is_leaf])
        reference = np.cumsum(~is_leaf) - 1
        reference[is_leaf] = ~value
        inner = children[~is_leaf]
        share = weight[inner[:, 0]] / (weight[inner[:, 0]] + weight[inner[:, 1]])
        return cls(int(reference[0]), test[~is_leaf], reference[inner], share, distinct)

    def spread(self, present: IntArray, sums: int) -> GrownTree:
        """The same tree for ``sums`` sums: 0 for those that are not ``present``, (q,)."""
        values = np.zeros((len(self.values), sums))
        values[:, present] = self.values
        return replace(self, values=values)


def assembled(
    trees: Sequence[GrownTree],
    bins: Bins,
    *,
    sums: int,
    output: NDArray[Any] | None = None,
    divisor: float = 1.0,
) -> TreesBasis:
    """``trees`` on raw columns. output: the first sum that each tree adds to, (T,); None: sum 0 for all."""
    nodes = np.cumsum([0, *(len(tree.test) for tree in trees)])
    rows = np.cumsum([0, *(len(tree.values) for tree in trees)])

    def moved(references: Any, tree: int) -> IntArray:
        found: IntArray = np.where(
            np.asarray(references) >= 0, references + nodes[tree], references - rows[tree]
        )
        return found

    return TreesBasis.tidy(
        columns=bins.columns,
        sums=sums,
        feature=bins.feature,
        threshold=bins.edges,
        roots=np.array([moved(tree.root, number) for number, tree in enumerate(trees)]),
        test=np.concatenate([tree.test for tree in trees]),
        children=np.concatenate([moved(tree.children, number) for number, tree in enumerate(trees)]),
        share=np.concatenate([tree.share for tree in trees]),
        values=np.concatenate([tree.values for tree in trees]),
        output=np.zeros(len(trees), dtype=np.int32) if output is None else output,
        divisor=divisor,
    )
