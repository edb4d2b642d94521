"""Boosted trees: scikit-learn fits them, some iterations at a time, and further ones in folds.

Every fit runs in a single thread, since sums over several depend on their number; the fits run side by side.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

import numpy as np

from core.data.fold_assignment import fold_assignment
from core.errors import Fault, InvalidProblem
from core.packed import TreesBasis
from core.parameters import Doc, Ge, Gt, Le, check_parameters
from core.teachers.base import Task, Teacher
from core.teachers.binning import Bins
from core.teachers.grown_trees import GrownTree, TreeSpec, assembled
from core.types import FloatArray, IntArray

if TYPE_CHECKING:
    from core.run import Run
    from core.teachers.tree_teacher import TreeTeacher

_STEP: Final = 10
"""Iterations between two looks at a cancel."""
_ABSENT: Final = -100.0
"""The score of a class without rows."""


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

    def __post_init__(self) -> None:
        check_parameters(self, "teacher")

    def fit(self, task: Task, run: Run, start: Teacher | None = None) -> TreeTeacher:
        """Bin the columns, and boost on all rows and without each fold.

        run: reports stage ``"trees"`` in iterations. Raises InvalidProblem, Cancelled.
        """
        from joblib import Parallel, delayed

        from core.features.tree_columns import tree_rows
        from core.solvers.solution import Summary
        from core.teachers.tree_teacher import TreeTeacher, error_rate

        del start
        started = time.perf_counter()
        (columns, X), labels = tree_rows(task.examples), task.labels
        if len(np.unique(labels)) < 2:
            raise InvalidProblem(Fault("y", "single_class", "boosting needs rows of two classes at least"))
        bins = Bins.of(X, self.bins)
        codes = bins.codes(X)
        fold_of = fold_assignment(labels, min(self.folds, len(labels)), run.seed)
        rows = [np.arange(len(labels)), *(np.flatnonzero(fold_of != fold) for fold in np.unique(fold_of))]
        fits = _Fits(self, codes, task, run, len(rows) * self.iterations)
        pool = Parallel(n_jobs=run.threads, prefer="threads")
        final, *of_folds = pool(delayed(fits.boosted)(one) for one in rows)
        left_out = np.full((len(labels), task.n_classes), np.nan)
        for fold, boosted in enumerate(of_folds):
            held_out = np.flatnonzero(fold_of == fold)
            left_out[held_out] = boosted.scores(codes[held_out])
        summary = Summary(
            objective=error_rate(left_out, labels),
            gap=None,
            relative_gap=None,
            iterations=self.iterations,
            seconds=time.perf_counter() - started,
            status=None,
        )
        trees = final.as_sums(bins).on_columns(columns, task.examples.X.shape[1])
        return TreeTeacher(trees, left_out, summary)


@dataclass(frozen=True, slots=True, eq=False)
class _Boosted:
    """A fitted classifier of the classes ``present``, of K; None where only one is present."""

    classifier: Any
    present: IntArray
    n_classes: int

    def scores(self, codes: FloatArray) -> FloatArray:
        """S of binned rows, (n, K)."""
        scores = np.full((len(codes), self.n_classes), _ABSENT)
        known = 0.0 if self.classifier is None else self.classifier.decision_function(codes)
        if len(self.present) == 2:
            known = np.column_stack([-known, known])
        scores[:, self.present] = known
        return scores

    def as_sums(self, bins: Bins) -> TreesBasis:
        """The same as sums of trees: of each class first the constant that boosting starts from."""
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


class _Fits:
    """Fits on some of the rows, whose iterations are reported together."""

    def __init__(self, spec: Boosting, codes: FloatArray, task: Task, run: Run, total: int) -> None:
        self._spec, self._codes, self._task, self._run = spec, codes, task, run
        self._lock, self._done, self._total = threading.Lock(), 0, total

    def boosted(self, rows: IntArray) -> _Boosted:
        """A classifier of these rows. Raises Cancelled."""
        from sklearn.ensemble import HistGradientBoostingClassifier
        from threadpoolctl import threadpool_limits

        spec, labels = self._spec, self._task.labels[rows]
        present = np.unique(labels)
        if len(present) < 2:
            return _Boosted(None, present, self._task.n_classes)
        classifier = HistGradientBoostingClassifier(
            learning_rate=spec.learning_rate,
            max_leaf_nodes=spec.leaves,
            max_depth=spec.max_depth,
            min_samples_leaf=spec.min_leaf,
            l2_regularization=spec.ridge,
            categorical_features=None,
            early_stopping=False,
            warm_start=True,
            random_state=self._run.seed,
        )
        codes, done = self._codes[rows].astype(np.float64), 0
        with threadpool_limits(1, user_api="openmp"):
            while done < spec.iterations:
                self._run.check_cancel()
                step = min(_STEP, spec.iterations - done)
                done += step
                classifier.set_params(max_iter=done).fit(codes, labels)
                self._report(step)
        return _Boosted(classifier, present, self._task.n_classes)

    def _report(self, iterations: int) -> None:
        with self._lock:
            self._done += iterations
            self._run.report("trees", self._done, self._total)


def _grown(nodes: Any, bins: Bins, signs: FloatArray) -> GrownTree:
    """One tree of scikit-learn's records of nodes, its values times ``signs`` (q,)."""
    children = np.column_stack([nodes["left"], nodes["right"]]).astype(np.int64)
    test = bins.first[nodes["feature_idx"]] + np.floor(nodes["num_threshold"]).astype(np.int64)
    weight = nodes["count"].astype(np.float64)
    return GrownTree.of_nodes(children, test, weight, nodes["value"][:, np.newaxis] * signs)


def _constant(values: FloatArray) -> GrownTree:
    """A tree that is a leaf with ``values`` (1, q)."""
    none = np.zeros(0, dtype=np.int64)
    return GrownTree(-1, none, none.reshape(0, 2), np.zeros(0), values)
