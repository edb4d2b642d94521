"""Whether a job takes kernel or linear students, or copies of trees: both are measured on held-out rows.

Kernel and linear students are stood in for by least squares on the features that they would have, whose
leave-one-out predictions have a closed form (compare ``quick_choice``): with Φ (n, m), G = ΦᵀΦ + λI and the
residuals r of the fit,

    y_i − prediction_i = r_i / (1 − φ_i G⁻¹ φ_i)

Where the maps were compared on all rows, these predictions are instead those of the map that other rows have
chosen (``quick_choice.FoldChoices``): the choice among a hundred flatters the chosen one, and no forest.
Forests of bootstrap samples have scores out of bag, others and boosted trees those of folds. Beside texts the
closed form is that of more columns than rows. Every class is measured by F where its margin
over the best other class is cut best, since a student has a threshold of its own. Of the families whose mean
F is within one standard error of the largest, the one whose queries cost least is taken. Of few rows, whose
standard errors are so large that most families are within them, it is the one whose probabilities have the
least Brier score: F counts the rows that cross a cut, of which few rows have a handful, and the Brier score
is a mean of what all rows say. With this and the maps that other rows choose, students of 14 tables of 100 to
1150 rows (thirds of training parts, three each) gained 0.2 points of mean F, 0.3 of ROC area and 0.1 of
Brier score.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from core.data.dataset import LabelledData
from core.errors import Fault, InvalidProblem
from core.features.examples import Examples
from core.features.maps import fit_feature_map
from core.features.spec import FeatureSpec
from core.features.tree_columns import TERMS, has_tree_columns
from core.model_selection.calibration import brier
from core.model_selection.metrics import mean_f1_shares, paired_error
from core.model_selection.quick_choice import QuickChoice
from core.model_selection.row_samples import some_rows
from core.run import Run
from core.solvers.jit import is_sparse
from core.solvers.threads import one_blas_thread
from core.students.difficulty import ScoreRanks
from core.students.sigmoid import fit_sigmoid
from core.teachers.base import Task, Teacher, TeacherSpec
from core.teachers.boosting import Boosting
from core.teachers.forest import Forest
from core.types import BoolArray, FloatArray, IntArray, Matrix

ROWS: Final = 10_000
"""Rows that families are compared on, about."""
ROWS_WITH_TERMS: Final = 2500
"""The same where there are terms of texts, which are more than the rows: a matrix of all pairs is solved."""
FEW_ROWS: Final = 500
"""Of fewer rows boosted and extra trees have 10 folds, of up to three times as many 5, otherwise 3."""
SETTLED_BY_BRIER: Final = 3 * FEW_ROWS
"""Of fewer rows the Brier score decides between families that are within one standard error."""
MOST_WORK: Final = 1e9
"""Boosted trees that would take more to compare, in values of rows that all fits read, are left out."""
MOST_FOREST_WORK: Final = 1e10
"""The same of forests, in rows of a column that are looked at for each class: about half a minute."""
_OF_TREE: Final = 125_000
"""Values that could be read in the time that a small tree takes."""
KERNEL: Final = "kernel"
LINEAR: Final = "linear"
_FUNCTIONS: Final = 9
"""Of a student with 8 rejections and its gate."""


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """One family with its mean F on held-out rows, in [0, 1], and the rows' shares in it, (n,).

    teacher: of trees; None for kernel and linear students. cost: of a query to a student, in multiplications
    or comparisons. fitted: the teacher of the compared rows. brier: ``mean_brier`` of few rows, else None.
    """

    name: str
    teacher: TeacherSpec | None
    f1: float
    shares: FloatArray
    cost: float
    fitted: Teacher | None = None
    brier: float | None = None

    @classmethod
    def of(
        cls,
        name: str,
        labels: IntArray,
        scores: FloatArray,
        cost: float,
        spec: TeacherSpec | None = None,
        fitted: Teacher | None = None,
    ) -> Family:
        """A family by its held-out scores (n, K) of rows with class codes (n,)."""
        f1, shares = f1_of_margins(labels, scores)
        brier = mean_brier(labels, scores) if len(labels) < SETTLED_BY_BRIER else None
        return cls(name, spec, f1, shares, cost, fitted, brier)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; ``brier`` of few rows."""
        figures = {"family": self.name, "f1": self.f1, "cost": self.cost}
        return figures if self.brier is None else figures | {"brier": self.brier}


def can_have_trees(data: LabelledData) -> bool:
    """Whether rows are dense, or have columns beside those of texts."""
    return has_tree_columns(data.X, data.layout)


def choose_family(
    data: LabelledData, choice: QuickChoice, run: Run = Run(), scores: FloatArray | None = None
) -> tuple[QuickChoice, Teacher | None]:
    """The choice with the family that is taken, and the teacher if it was fitted to all rows on the way.

    data: checked and dense. scores: see ``without_trees``. run: reports stage ``"families"``. The same data,
    scores and seed give the same choice. Raises Cancelled.
    """
    families = list(compare_families(data, choice, run, scores))
    if not families:
        return choice, None
    taken = chosen(families)
    compared = tuple(one.as_dict() | {"taken": one is taken} for one in families)
    return with_family(replace(choice, families=compared), taken, data.n)


def with_family(choice: QuickChoice, taken: Family, n: int) -> tuple[QuickChoice, Teacher | None]:
    """The choice of a family for n rows, and its teacher if that was fitted to all of them."""
    if taken.teacher is None:
        return choice, None
    return with_trees(choice, taken.teacher), taken.fitted if len(taken.shares) == n else None


def with_trees(choice: QuickChoice, spec: TeacherSpec) -> QuickChoice:
    """The choice with a teacher of trees."""
    # Distilled scores, which copies of trees do not need, are cheapest on the columns as they are.
    features = replace(choice.features, kind="linear", gamma=None)
    return replace(choice, features=features, teacher={"method": spec.name, **spec.params()})


def compared_part(data: LabelledData, seed: int) -> LabelledData:
    """The rows that families are compared on."""
    return data.take(some_rows(data.y, ROWS_WITH_TERMS if is_sparse(data.X) else ROWS, seed))


def compare_families(
    data: LabelledData, choice: QuickChoice, run: Run = Run(), scores: FloatArray | None = None
) -> Iterator[Family]:
    """Every family that is compared, kernel or linear students first; none where trees are too much work.

    scores: see ``without_trees``. Raises Cancelled.
    """
    part = compared_part(data, run.seed)
    specs = candidates(part)
    if not specs:
        return
    run.report("families", 0, 1 + len(specs))
    yield without_trees(part, choice, run, scores)
    for done, spec in enumerate(specs, 1):
        run.report("families", done, 1 + len(specs))
        yield of_trees(part, spec, run)
    run.report("families", 1 + len(specs), 1 + len(specs))


def candidates(data: LabelledData) -> tuple[TeacherSpec, ...]:
    """Forests with the best and with random splits, and boosted trees, each unless it is too much work.

    Few rows have more folds if these are not, since two thirds of them make worse trees than all.
    """
    n, K = data.n, data.K
    d = min(data.d, TERMS + data.layout.dense) if is_sparse(data.X) and data.layout else data.d
    least = (10, 5, 3)[0 if n < FEW_ROWS else 1 if n < 3 * FEW_ROWS else 2 :]
    forests = (Forest(splits="best"), Forest(splits="random", sample="all", folds=least[0]))
    if forests[0].trees * n * np.log2(n + 1) * np.sqrt(d) * K > MOST_FOREST_WORK:
        return ()
    for folds in least:
        boosting = Boosting(folds=folds)
        trees = boosting.iterations * (K if K > 2 else 1) * (1 + folds)
        if trees * (n * d + _OF_TREE) <= MOST_WORK:
            return (*forests, boosting)
    return forests


def chosen(families: Sequence[Family]) -> Family:
    """Of those within one standard error of the largest F the one with the cheapest queries.

    Of few rows it is the one with the least Brier score, and of equal ones the cheapest.
    """
    best = max(families, key=lambda one: one.f1)

    def is_close(one: Family) -> bool:
        return best.f1 - one.f1 <= paired_error(best.shares, one.shares)

    return min(filter(is_close, families), key=lambda one: (one.brier or 0.0, one.cost))


def without_trees(
    data: LabelledData, choice: QuickChoice, run: Run, scores: FloatArray | None = None
) -> Family:
    """Kernel or linear students on the features of the choice. Raises Cancelled.

    scores: of all rows, (n, K), by maps that other rows have chosen (``FoldChoices``), where these are known.
    """
    run.check_cancel()
    features = choice.features
    with one_blas_thread():
        fitted = fit_feature_map(data.X, features, run.seed)
        if scores is None:
            mapped = fitted.transform(data.X)
            of_features = left_out_scores_of_terms if is_sparse(mapped) else left_out_scores
            scores = of_features(mapped, data.y, data.K, choice.ridge)
    terms = 0 if data.layout is None else data.layout.terms
    # Of terms a query has few.
    is_linear, m = features.kind == "linear", fitted.n_features_out - terms
    cost = m * ((0 if is_linear else data.d - terms) + _FUNCTIONS)
    name = LINEAR if is_linear else KERNEL
    return Family.of(name, data.y, scores, float(cost))


def of_trees(data: LabelledData, spec: TeacherSpec, run: Run) -> Family:
    """Copies of the trees that a teacher grows. Raises InvalidProblem, Cancelled."""
    examples = Examples(data.X, np.empty((data.n, 0)), None, FeatureSpec(layout=data.layout))
    teacher = spec.fit(Task(examples, data.y, data.K), run.silent())
    held_out, trees = teacher.own_scores, teacher.trees
    if held_out is None or trees is None:
        raise InvalidProblem(Fault("teacher", "no_trees", f"{spec.name} has no trees to compare"))
    return Family.of(family_name(spec), data.y, held_out, float(trees.cost), spec, teacher)


def family_name(spec: TeacherSpec) -> str:
    """What the family of a teacher of trees is called in reports."""
    return f"{spec.name}, {spec.splits} splits" if isinstance(spec, Forest) else spec.name


def left_out_scores(features: FloatArray, labels: IntArray, n_classes: int, ridge: float) -> FloatArray:
    """Leave-one-out predictions (n, K) of ±1 by least squares with λ = ``ridge`` on Φ (n, m) and 1."""
    rows = np.column_stack([features, np.ones(len(features))])
    targets = np.where(labels[:, np.newaxis] == np.arange(n_classes), 1.0, -1.0)
    gram = rows.T @ rows
    gram[np.diag_indices_from(gram)] += ridge
    factor = cho_factor(gram, lower=True, overwrite_a=True, check_finite=False)
    weights = cho_solve(factor, rows.T @ targets, check_finite=False)
    leverage = np.einsum("ij,ji->i", rows, cho_solve(factor, rows.T, check_finite=False))
    residuals = (targets - rows @ weights) / np.maximum(1.0 - leverage, 1e-12)[:, np.newaxis]
    left_out: FloatArray = targets - residuals
    return left_out


def left_out_scores_of_terms(features: Matrix, labels: IntArray, n_classes: int, ridge: float) -> FloatArray:
    """``left_out_scores`` of sparse features, which are more than the rows, by G = ΦΦᵀ + 1 + λI, (n, n).

    With α = G⁻¹Y the residual of a row that is left out is α_i / (G⁻¹)_ii.
    """
    targets = np.where(labels[:, np.newaxis] == np.arange(n_classes), 1.0, -1.0)
    products: Any = features @ features.T
    gram: FloatArray = products.toarray() + 1.0
    gram[np.diag_indices_from(gram)] += max(ridge, np.finfo(np.float64).eps * float(np.trace(gram)))
    factor = cho_factor(gram, lower=True, overwrite_a=True, check_finite=False)
    inverse = cho_solve(factor, np.eye(len(labels)), overwrite_b=True, check_finite=False)
    left_out: FloatArray = targets - (inverse @ targets) / np.diagonal(inverse)[:, np.newaxis]
    return left_out


def f1_of_margins(labels: IntArray, scores: FloatArray) -> tuple[float, FloatArray]:
    """Mean F of the classes that occur, each cut where it is largest, and the rows' shares in it, (n,).

    scores: (n, K). What is cut is the margin of a class over the best other one.
    """
    return mean_f1_shares(
        (truth, margin >= best_cut(truth, margin)) for truth, margin in _margins(labels, scores)
    )


def mean_brier(labels: IntArray, scores: FloatArray) -> float:
    """Mean over the classes that occur of the Brier score of a sigmoid of their margins, in [0, 1].

    scores: (n, K). The sigmoid has two parameters, so that it is fitted to the rows that it is measured on.
    """
    measured = [
        brier(truth, fit_sigmoid(truth, margin).probabilities(margin))
        for truth, margin in _margins(labels, scores)
    ]
    return float(np.mean(measured))


def _margins(labels: IntArray, scores: FloatArray) -> Iterator[tuple[BoolArray, FloatArray]]:
    """The truth of every class that occurs, (n,), and its margin over the best other class, (n,)."""
    ranks = ScoreRanks.of(scores)
    for target in np.unique(labels).tolist():
        yield labels == target, scores[:, target] - ranks.rival(target)


def best_cut(truth: BoolArray, margin: FloatArray) -> float:
    """The margin from which on rows are accepted, so that F is largest; of equal ones the largest."""
    order = np.argsort(-margin, kind="stable")
    falling, found = margin[order], np.cumsum(truth[order])
    f1 = 2.0 * found / (np.arange(1, len(order) + 1) + truth.sum())
    # Rows of the same margin are accepted together.
    f1[:-1][falling[1:] == falling[:-1]] = -1.0
    return float(falling[f1.argmax()])
