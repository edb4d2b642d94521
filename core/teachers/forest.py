"""A forest: scikit-learn grows the trees, one by one, on samples that are known.

Tree t draws its sample and its choices from the seed (s, t), that of fold f from (s, t, f), whatever is the
number of threads. Its share in the scores of rows that it has not seen is added in the order of the trees.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np

from core.data.fold_assignment import fold_assignment
from core.parameters import Doc, Ge, Gt, Le, check_parameters
from core.teachers.base import Task, Teacher
from core.teachers.binning import Bins
from core.teachers.grown_trees import GrownTree, TreeSpec, assembled
from core.types import FloatArray, IntArray

if TYPE_CHECKING:
    from core.run import Run
    from core.teachers.tree_teacher import TreeTeacher


@dataclass(frozen=True, slots=True)
class Forest(TreeSpec):
    """Trees on bootstrap samples, or on all rows: S is the mean over trees of the class's share in a leaf.

    Breiman (2001); with random splits Geurts, Ernst and Wehenkel (2006), who take all rows. Dense rows only,
    whose columns are put into bins. Held-out scores of bootstrap samples are out of bag: of the trees whose
    sample has not the row. Where trees see all rows, they take a further forest for each fold. Equal rows are
    rows of their own. Raises InvalidProblem naming every wrong field.
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

    def fit(self, task: Task, run: Run, start: Teacher | None = None) -> TreeTeacher:
        """Bin the columns, grow the trees, and score the rows by trees that have not seen them.

        run: reports stage ``"trees"`` in trees of all fits. Raises InvalidProblem, Cancelled.
        """
        from core.features.tree_columns import tree_rows
        from core.solvers.solution import Summary
        from core.teachers.tree_teacher import TreeTeacher, error_rate

        del start
        started = time.perf_counter()
        columns, X = tree_rows(task.examples)
        bins = Bins.of(X, self.bins)
        codes = bins.codes(X)
        present, labels = np.unique(task.labels, return_inverse=True)
        votes, voters = np.zeros((len(codes), len(present))), np.zeros(len(codes))
        grown, growth = [], _Growth(self, bins, codes, labels, run)
        for done, (tree, outside, shares) in enumerate(growth.trees(), 1):
            votes[outside] += shares
            voters[outside] += 1.0
            if tree is not None:
                grown.append(tree.spread(present, task.n_classes))
            run.report("trees", done, self.trees * (1 + growth.n_folds))
        left_out = np.zeros((len(codes), task.n_classes))
        with np.errstate(invalid="ignore"):
            left_out[:, present] = votes / voters[:, np.newaxis]
        left_out[voters == 0.0] = np.nan
        summary = Summary(
            objective=error_rate(left_out, task.labels),
            gap=None,
            relative_gap=None,
            iterations=self.trees,
            seconds=time.perf_counter() - started,
            status=None,
        )
        trees = assembled(grown, bins, sums=task.n_classes, divisor=float(self.trees))
        return TreeTeacher(trees.on_columns(columns, task.examples.X.shape[1]), left_out, summary)

    def metadata(self) -> dict[str, str | float | int]:
        """Name and what the trees depend on."""
        return {"method": self.name, **{k: v for k, v in self.params().items() if v is not None}}


def grown_tree(nodes: Any, bins: Bins) -> GrownTree:
    """A tree from ``tree_`` of a classifier that was fitted to the codes of ``bins``."""
    children = np.column_stack([nodes.children_left, nodes.children_right])
    # A leaf has column −2, and its test is ignored.
    test = bins.first[np.maximum(nodes.feature, 0)] + np.floor(nodes.threshold).astype(np.int64)
    return GrownTree.of_nodes(children, test, nodes.weighted_n_node_samples, nodes.value[:, 0, :])


class _Growth:
    """The trees of the forest, and of the forests of the folds where each tree is grown on all rows.

    n_folds: 0 for bootstrap samples.
    """

    def __init__(self, spec: Forest, bins: Bins, codes: FloatArray, labels: IntArray, run: Run) -> None:
        self._spec, self._bins, self._codes, self._labels, self._run = spec, bins, codes, labels, run
        n = len(codes)
        self._fold_of = np.full(n, -1)
        if spec.sample == "all" and n > 1:
            self._fold_of = fold_assignment(labels, min(spec.folds, n), run.seed)
        self.n_folds = int(self._fold_of.max()) + 1

    def trees(self) -> Iterator[tuple[GrownTree | None, IntArray, FloatArray]]:
        """Of every tree, in order: the tree, rows that it has not seen, and its shares of their classes.

        Of trees of folds, which come behind those of the forest, there are scores only. Raises Cancelled.
        """
        from joblib import Parallel, delayed

        pool = Parallel(n_jobs=self._run.threads, prefer="threads", return_as="generator")
        numbers = range(self._spec.trees)
        folds = range(-1, self.n_folds)
        yield from pool(delayed(self._grown)(fold, number) for fold in folds for number in numbers)

    def _grown(self, fold: int, number: int) -> tuple[GrownTree | None, IntArray, FloatArray]:
        """Tree ``number`` of a fold; −1: of the forest itself."""
        from sklearn.tree import DecisionTreeClassifier, ExtraTreeClassifier

        self._run.check_cancel()
        spec, n = self._spec, len(self._codes)
        kind = DecisionTreeClassifier if spec.splits == "best" else ExtraTreeClassifier
        rng = np.random.default_rng((self._run.seed, number) if fold < 0 else (self._run.seed, number, fold))
        weight = np.ones(n)
        if spec.sample == "bootstrap":
            weight = np.bincount(rng.integers(n, size=n), minlength=n).astype(np.float64)
        elif fold >= 0:
            weight[self._fold_of == fold] = 0.0
        fitted = kind(
            max_features="sqrt" if spec.max_features is None else spec.max_features,
            min_samples_leaf=spec.min_leaf,
            max_depth=spec.max_depth,
            random_state=int(rng.integers(2**31)),
        ).fit(self._codes, self._labels, sample_weight=weight, check_input=False)
        outside = np.flatnonzero(weight == 0.0)
        shares = fitted.tree_.predict(self._codes[outside])
        return (grown_tree(fitted.tree_, self._bins) if fold < 0 else None), outside, shares
