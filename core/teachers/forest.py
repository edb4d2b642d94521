"""A forest: scikit-learn grows the trees one by one, on samples that this module draws.

The seed (s, t) determines the sample and the choices of tree t, and (s, t, f) those of tree t of fold f, for
any number of threads. Scores of rows that trees have not seen are summed in the order of the trees.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

from core.data.fold_assignment import fold_assignment, scored_folds
from core.parameters import Doc, Ge, Gt, Le, check_parameters
from core.teachers.base import FitShape, Task
from core.teachers.binning import Bins
from core.teachers.grown_trees import GrownTree, ScoredFolds, TreeFits, TreeSpec, assembled
from core.types import FloatArray, IntArray

if TYPE_CHECKING:
    from core.run import Run
    from core.teachers.tree_teacher import TreeTeacher


@dataclass(frozen=True, slots=True)
class Forest(TreeSpec):
    """Trees on bootstrap samples, or on all rows: S is the mean over trees of the class's share in a leaf.

    Breiman (2001); with random splits Geurts, Ernst and Wehenkel (2006), who use all rows. Dense rows only;
    their columns are binned. With bootstrap samples, held-out scores are out of bag: they come from the trees
    whose sample does not contain the row. If trees see all rows, a further forest is fitted for each fold.
    Equal rows are counted as separate rows. Raises InvalidProblem naming every wrong field.
    """

    name: ClassVar[str] = "forest"

    trees: Annotated[int, Ge(1), Le(2000), Doc("Number of trees.")] = 200
    splits: Annotated[
        Literal["random", "best"],
        Doc(
            "Of each column that is tried at a node: the best threshold, as in a random forest, or a random"
            " one, as in extra trees."
        ),
    ] = "best"
    sample: Annotated[
        Literal["bootstrap", "all"],
        Doc(
            "What each tree is grown on: as many rows as there are, drawn with repetitions, or all rows,"
            " which suits random splits and takes further fits in folds."
        ),
    ] = "bootstrap"
    folds: Annotated[
        int, Ge(2), Le(20), Doc("Folds of the held-out scores where each tree is grown on all rows.")
    ] = 3
    scored_folds: ScoredFolds = None
    max_features: Annotated[
        float | None, Gt(0), Le(1), Doc("Share of the columns that is tried at a node; null: √d of them.")
    ] = None
    min_leaf: Annotated[int, Ge(1), Le(100_000), Doc("Fewest rows of the sample in a leaf.")] = 1
    max_depth: Annotated[int, Ge(1), Le(128), Doc("Most tests from the root to a leaf.")] = 64
    bins: Annotated[
        int,
        Ge(2),
        Le(255),
        Doc("Bins of a column at most, between which thresholds lie: few make queries fast."),
    ] = 64

    def __post_init__(self) -> None:
        check_parameters(self, "teacher")

    def fit_bytes(self, shape: FitShape) -> int:
        """Bytes of codes, votes, finished trees with the shares of all classes, and trees that are growing.

        A leaf of one row has one of K values, and equal leaves are stored once.
        """
        leaves = min(max(1, shape.rows // self.min_leaf), 1 << min(self.max_depth, 40))
        values = min(leaves, shape.classes) if self.min_leaf == 1 else leaves
        growing = 3 * shape.threads * 2 * leaves * (8 * shape.classes + 64)
        kept = self.trees * 3 * (8 * shape.classes * values + 40 * leaves)
        return 12 * shape.rows * shape.columns + 24 * shape.cells + growing + kept

    def fits(self, task: Task, seed: int) -> ForestFits:
        """The fits of the forest and, if each tree is grown on all rows, of the folds' forests."""
        return ForestFits(self, task, seed)


def grown_tree(nodes: Any, bins: Bins) -> GrownTree:
    """A tree made from ``tree_`` of a classifier that was fitted to the codes of ``bins``."""
    children = np.column_stack([nodes.children_left, nodes.children_right])
    # A leaf has the column −2; its test is ignored.
    test = bins.first[np.maximum(nodes.feature, 0)] + np.floor(nodes.threshold).astype(np.int64)
    return GrownTree.of_nodes(children, test, nodes.weighted_n_node_samples, nodes.value[:, 0, :])


class ForestFits(TreeFits):
    """Fits the forest; also the forests of the folds, if trees see all rows."""

    def __init__(self, spec: Forest, task: Task, seed: int) -> None:
        n = len(task.labels)
        fold_of = np.full(n, -1)
        if spec.sample == "all" and n > 1:
            fold_of = scored_folds(fold_assignment(task.labels, min(spec.folds, n), seed), spec.scored_folds)
        super().__init__(spec, task, seed, fold_of)
        self._spec = spec
        self._present, codes = np.unique(task.labels, return_inverse=True)
        self._class_column = codes.astype(np.float64)[:, np.newaxis]

    @property
    def cost(self) -> float:
        """The mean depth of the trees so far, and the additions of their leaves, as cost of a query."""
        trees, classes = self._spec.trees, len(self._present)
        return trees * (float(np.mean(self._steps)) + classes) + self.left_out.shape[1]

    def score_fold(self, fold: int, run: Run) -> None:
        """Grow a forest without the rows of a fold, and score these rows. Raises Cancelled."""
        for _ in self._trees(fold, run):
            pass

    def teacher(self, run: Run) -> TreeTeacher:
        """The teacher; makes the fits that are still missing. Raises Cancelled."""
        sums, trees = self.left_out.shape[1], self._trees(-1, run)
        grown = [grown_tree(tree, self._bins).spread(self._present, sums) for tree in trees]
        for fold in self._missing_folds():
            self.score_fold(fold, run)
        whole = assembled(grown, self._bins, sums=sums, divisor=float(self._spec.trees))
        return self._teacher(whole, self._spec.trees)

    def _trees(self, fold: int, run: Run) -> Iterator[Any]:
        """Yield the trees of a fold (−1: of the forest itself) in order, then store the held-out scores.

        Raises Cancelled.
        """
        from joblib import Parallel, delayed

        # Trees of a fold leave out all of its rows; other trees leave out some of all rows.
        held_out = self.rows_of(fold) if fold >= 0 else np.arange(len(self._codes))
        votes, voters = np.zeros((len(held_out), len(self._present))), np.zeros(len(held_out))
        pool = Parallel(n_jobs=run.threads, prefer="threads", return_as="generator")
        numbers = range(self._spec.trees)
        for tree, outside, shares in pool(delayed(self._fitted)(fold, number, run) for number in numbers):
            voting = slice(None) if fold >= 0 else outside
            votes[voting] += shares
            voters[voting] += 1.0
            self._steps.append(tree.max_depth)
            self._report(1, self._spec.trees, run)
            yield tree
        scored = np.flatnonzero(voters)
        shares = votes[scored] / voters[scored, np.newaxis]
        self.left_out[held_out[scored]] = 0.0
        self.left_out[np.ix_(held_out[scored], self._present)] = shares

    def _fitted(self, fold: int, number: int, run: Run) -> tuple[Any, IntArray, FloatArray]:
        """Tree ``number`` of a fold, the rows that it has not seen, and its class shares for these rows."""
        from core.teachers.single_trees import grow_tree

        run.check_cancel()
        spec, n = self._spec, len(self._codes)
        rng = np.random.default_rng((self._seed, number) if fold < 0 else (self._seed, number, fold))
        weight = np.ones(n)
        if spec.sample == "bootstrap":
            weight = np.bincount(rng.integers(n, size=n), minlength=n).astype(np.float64)
        elif fold >= 0:
            weight[self._fold_of == fold] = 0.0
        d = self._codes.shape[1]
        tree = grow_tree(
            self._codes,
            self._class_column,
            weight,
            classes=len(self._present),
            splits=spec.splits,
            columns=max(1, int(np.sqrt(d) if spec.max_features is None else spec.max_features * d)),
            min_leaf=spec.min_leaf,
            max_depth=spec.max_depth,
            seed=int(rng.integers(2**31)),
        )
        outside = np.flatnonzero(weight == 0.0)
        return tree, outside, tree.predict(self._codes[outside])
