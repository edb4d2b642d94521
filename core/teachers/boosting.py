"""Boosted trees: scikit-learn fits them, a few iterations at a time, and also without the rows of each fold.

Every fit uses a single thread, because sums over several threads depend on their number; fits run in
parallel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

import numpy as np

from core.data.fold_assignment import fold_assignment, scored_folds
from core.errors import Fault, InvalidProblem
from core.packed import TreesBasis
from core.parameters import Doc, Ge, Gt, Le, check_parameters
from core.teachers.base import FitShape, Task
from core.teachers.binning import Bins
from core.teachers.grown_trees import GrownTree, ScoredFolds, TreeFits, TreeSpec, assembled
from core.types import FloatArray, IntArray

if TYPE_CHECKING:
    from core.run import Run
    from core.teachers.tree_teacher import TreeTeacher

_STEP: Final = 10
"""Number of iterations between two cancel checks."""
_ABSENT: Final = -100.0
"""The score of a class without rows."""
_NODE_BYTES: Final = 100
"""Approximate bytes of a node of scikit-learn, and of what is made from it."""


@dataclass(frozen=True, slots=True)
class Boosting(TreeSpec):
    """Gradient boosting: S is the sum of the class's trees, each fitted to what those before have left.

    Friedman (2001), grown on histograms of binned columns; S is the class's logit up to a term that all
    classes share. Dense rows only. Held-out scores take a further fit for each fold. Raises InvalidProblem
    naming every wrong field.
    """

    name: ClassVar[str] = "boosting"

    iterations: Annotated[int, Ge(1), Le(2000), Doc("Trees of each class.")] = 100
    learning_rate: Annotated[float, Gt(0), Le(1), Doc("Factor of every tree's values.")] = 0.1
    leaves: Annotated[int, Ge(2), Le(1024), Doc("Most leaves of a tree.")] = 31
    min_leaf: Annotated[int, Ge(1), Le(100_000), Doc("Fewest rows in a leaf.")] = 20
    ridge: Annotated[float, Ge(0), Le(1e6), Doc("Weight of the squares of a tree's values.")] = 0.0
    max_depth: Annotated[int, Ge(1), Le(128), Doc("Most tests from the root to a leaf.")] = 64
    bins: Annotated[int, Ge(2), Le(255), Doc("Bins of a column at most, between which thresholds lie.")] = 128
    folds: Annotated[int, Ge(2), Le(10), Doc("Further fits, for scores of rows that were held out.")] = 3
    scored_folds: ScoredFolds = None

    def __post_init__(self) -> None:
        check_parameters(self, "teacher")

    def fit_bytes(self, shape: FitShape) -> int:
        """Bytes of the rows' codes; copy, gradients and trees of each parallel fit; all trees twice."""
        leaves = min(self.leaves, max(1, shape.rows // self.min_leaf))
        trees = self.iterations * shape.classes * 2 * leaves * _NODE_BYTES
        of_fit = 20 * shape.rows * shape.columns + 32 * shape.cells + trees
        return (
            12 * shape.rows * shape.columns
            + 16 * shape.cells
            + min(shape.threads, 1 + self.folds) * of_fit
            + trees
        )

    def fits(self, task: Task, seed: int) -> BoostingFits:
        """The fits to all rows, and without each fold."""
        return BoostingFits(self, task, seed)


@dataclass(frozen=True, slots=True, eq=False)
class _Boosted:
    """A classifier fitted to the classes ``present``, of K; None if only one class is present."""

    classifier: Any
    present: IntArray
    n_classes: int

    def scores(self, codes: FloatArray) -> FloatArray:
        """S of binned rows, (n, K)."""
        from core.solvers.threads import one_openmp_thread

        scores = np.full((len(codes), self.n_classes), _ABSENT)
        with one_openmp_thread():
            known = 0.0 if self.classifier is None else self.classifier.decision_function(codes)
        if len(self.present) == 2:
            known = np.column_stack([-known, known])
        scores[:, self.present] = known
        return scores

    def depths(self) -> list[int]:
        """The depths of all trees."""
        rounds = [] if self.classifier is None else self.classifier._predictors
        return [tree.get_max_depth() for trees in rounds for tree in trees] or [0]

    def as_sums(self, bins: Bins) -> TreesBasis:
        """The same as sums of trees; the first tree of each class is boosting's initial constant."""
        K, present = self.n_classes, self.present
        absent = np.setdiff1d(np.arange(K), present)
        start = self.classifier._baseline_prediction.ravel()
        rounds = self.classifier._predictors
        if len(present) == 2:
            values = np.full((1, K), _ABSENT)
            values[0, present] = [-start[0], start[0]]
            signs = np.array([-1.0, 1.0])
            grown = [_constant(values)]
            grown += [_grown(tree.nodes, bins, signs).spread(present, K) for (tree,) in rounds]
            return assembled(grown, bins, sums=K)
        grown = [_constant(np.array([[value]])) for value in (*start, *(_ABSENT for _ in absent))]
        grown += [_grown(tree.nodes, bins, np.ones(1)) for trees in rounds for tree in trees]
        output = np.concatenate([present, absent, np.tile(present, len(rounds))])
        return assembled(grown, bins, sums=K, output=output)


class BoostingFits(TreeFits):
    """Fits boosted trees to all rows, and without each fold; each fit uses one thread."""

    def __init__(self, spec: Boosting, task: Task, seed: int) -> None:
        n = len(task.labels)
        if len(np.unique(task.labels)) < 2:
            raise InvalidProblem(Fault("y", "single_class", "boosting needs rows of two classes at least"))
        fold_of = fold_assignment(task.labels, min(spec.folds, n), seed)
        super().__init__(spec, task, seed, scored_folds(fold_of, spec.scored_folds))
        self._spec = spec

    @property
    def cost(self) -> float:
        """The mean depth of the trees so far, and the additions of their leaves, as cost of a query."""
        classes = self.left_out.shape[1]
        trees, sums = (1, classes) if classes == 2 else (classes, 1)
        return self._spec.iterations * trees * (float(np.mean(self._steps)) + sums) + classes

    def score_fold(self, fold: int, run: Run) -> None:
        """Boost without the rows of a fold, and score these rows. Raises Cancelled."""
        held_out = self.rows_of(fold)
        boosted = self._boosted(np.flatnonzero(self._fold_of != fold), run)
        self._steps += boosted.depths()
        self.left_out[held_out] = boosted.scores(self._codes[held_out])

    def teacher(self, run: Run) -> TreeTeacher:
        """The teacher; makes the fits that are still missing. Raises Cancelled."""
        from joblib import Parallel, delayed

        folds = self._missing_folds()
        pool = Parallel(n_jobs=run.threads, prefer="threads")
        grown, *_ = pool([delayed(self._grown)(run), *(delayed(self.score_fold)(one, run) for one in folds)])
        return self._teacher(grown, self._spec.iterations)

    def _grown(self, run: Run) -> TreesBasis:
        """The trees fitted to all rows, on the columns that were binned."""
        boosted = self._boosted(np.arange(len(self._labels)), run)
        return boosted.as_sums(self._bins)

    def _boosted(self, rows: IntArray, run: Run) -> _Boosted:
        """A classifier fitted to these rows. Raises Cancelled."""
        from core.solvers.threads import one_openmp_thread
        from core.teachers.binned_boosting import BinnedBoosting

        spec, labels, n_classes = self._spec, self._labels[rows], self.left_out.shape[1]
        present = np.unique(labels)
        if len(present) < 2:
            return _Boosted(None, present, n_classes)
        classifier = BinnedBoosting(
            learning_rate=spec.learning_rate,
            max_leaf_nodes=spec.leaves,
            max_depth=spec.max_depth,
            min_samples_leaf=spec.min_leaf,
            l2_regularization=spec.ridge,
            categorical_features=None,
            early_stopping=False,
            warm_start=True,
            random_state=self._seed,
        )
        codes, done = self._codes[rows].astype(np.float64), 0
        while done < spec.iterations:
            run.check_cancel()
            step = min(_STEP, spec.iterations - done)
            done += step
            with one_openmp_thread():
                classifier.set_params(max_iter=done).fit(codes, labels)
            self._report(step, spec.iterations, run)
        return _Boosted(classifier, present, n_classes)


def _grown(nodes: Any, bins: Bins, signs: FloatArray) -> GrownTree:
    """One tree made from scikit-learn's records of nodes, with values times ``signs`` (q,)."""
    children = np.column_stack([nodes["left"], nodes["right"]]).astype(np.int64)
    test = bins.first[nodes["feature_idx"]] + np.floor(nodes["num_threshold"]).astype(np.int64)
    weight = nodes["count"].astype(np.float64)
    return GrownTree.of_nodes(children, test, weight, nodes["value"][:, np.newaxis] * signs)


def _constant(values: FloatArray) -> GrownTree:
    """A tree that is a leaf with ``values`` (1, q)."""
    none = np.zeros(0, dtype=np.int64)
    return GrownTree(-1, none, none.reshape(0, 2), np.zeros(0), values)
