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

Most of the time would go to families that are not taken. Hence those with folds are fitted in one of these
first, and race: one that is more than a standard error behind the best of the others there, on the same
rows, is not fitted again. Nor is the only one that is left, if it is as much ahead of all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from joblib import Parallel, delayed
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
from core.teachers.grown_trees import TreeFits, TreeSpec
from core.teachers.tree_teacher import neutral_scores
from core.types import BoolArray, FloatArray, IntArray, Matrix

ROWS: Final = 10_000
"""Rows that families are compared on, about."""
ROWS_WITH_TERMS: Final = 2500
"""The same where there are terms of texts, which are more than the rows: a matrix of all pairs is solved."""
FEW_ROWS: Final = 500
"""Of fewer rows boosted and extra trees have 10 folds, of up to three times as many 5, otherwise 3."""
SETTLED_BY_BRIER: Final = 3 * FEW_ROWS
"""Of fewer rows the Brier score decides between families that are within one standard error."""
ENOUGH_SCORED: Final = 1000
"""Held-out rows of each class from which on more of them change neither thresholds nor calibrations."""
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
    scores: of the held-out rows, (n, K).
    """

    name: str
    teacher: TeacherSpec | None
    f1: float
    shares: FloatArray
    cost: float
    fitted: Teacher | None = None
    brier: float | None = None
    scores: FloatArray | None = None

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
        return cls(name, spec, f1, shares, cost, fitted, brier, scores)

    def of_rows(self, rows: IntArray, labels: IntArray) -> Family:
        """The family by its scores of some rows; labels: of all, (n,)."""
        scores = np.zeros((0, 0)) if self.scores is None else self.scores[rows]
        return Family.of(self.name, labels[rows], scores, self.cost, self.teacher)

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

    data: checked and dense. scores: see ``without_trees``. run: families are fitted in its threads; reports
    stage ``"families"``. The same data, scores and seed give the same choice. Raises Cancelled.
    """
    part = compared_part(data, run.seed)
    specs = candidates(part)
    if not specs:
        return choice, None
    families = _Race(part, specs, choice, run, scores, is_all=part.n == data.n).families()
    taken = chosen([one.family for one in families if one.is_scored])
    compared = tuple(one.as_dict() | {"taken": one.family is taken} for one in families)
    fits = next(one.fits for one in families if one.family is taken)
    if fits is not None and part.n == data.n:
        taken = replace(taken, fitted=taken.fitted or fits.teacher(run.silent()))
    elif fits is not None and fits.n_folds:
        taken = replace(taken, teacher=with_scored_folds(fits.spec, data.y))
    return with_family(replace(choice, families=compared), taken, data.n)


@dataclass(frozen=True, slots=True, eq=False)
class _Raced:
    """A family, its fits (None for kernel and linear students), and whether all rows were scored."""

    family: Family
    fits: TreeFits | None = None
    is_scored: bool = True

    def as_dict(self) -> dict[str, Any]:
        """Of a family that was left behind with the number of rows that were scored."""
        return self.family.as_dict() | ({} if self.is_scored else {"rows": len(self.family.shares)})


@dataclass(frozen=True, slots=True, eq=False)
class _Begun:
    """A family after its first fold, and those without folds on the same rows."""

    fits: TreeFits
    family: Family
    others: list[Family]

    @property
    def is_ahead(self) -> bool:
        """Whether it is more than a standard error ahead of all others: further folds decide nothing."""
        return all(_is_behind(one, [self.family]) for one in self.others)


class _Race:
    """Fits of all families: first in one fold each, then in the others of those that may still be taken."""

    def __init__(
        self,
        part: LabelledData,
        specs: Sequence[TreeSpec],
        choice: QuickChoice,
        run: Run,
        scores: FloatArray | None,
        *,
        is_all: bool,
    ) -> None:
        """is_all: whether these are all rows, so that what is fitted to them is the teacher."""
        self._part, self._choice, self._run, self._scores = part, choice, run, scores
        self._is_all = is_all
        # Of fits in one thread each, all threads are busy to the end.
        self._alone = replace(run.silent(), n_threads=1)
        self._fits = [spec.fits(_task_of_trees(part), run.seed) for spec in specs]
        self._done, self._total = 0, 1 + sum(max(1, one.n_folds) for one in self._fits)

    def families(self) -> list[_Raced]:
        """All families, kernel or linear students first. Raises Cancelled."""
        alone = self._alone
        first = delayed(without_trees)(self._part, self._choice, alone, self._scores)
        family, *teachers = self._fitted([first, *(delayed(_first_fit)(one, alone) for one in self._fits)])
        raced = [_Raced(family)]
        for fits, teacher in zip(self._fits, teachers, strict=True):
            if teacher is not None:
                raced.append(_Raced(self._family(fits, teacher=teacher), fits))
        others = [one.family for one in raced]
        lasting = []
        for fits in self._fits:
            if not fits.n_folds:
                continue
            rows = fits.rows_of(0)
            begun = self._family(fits, rows)
            here = [one.of_rows(rows, self._part.y) for one in others]
            if _is_behind(begun, here):
                raced.append(_Raced(begun, fits, is_scored=False))
                self._done += fits.n_folds - 1
            else:
                lasting.append(_Begun(fits, begun, here))
        if len(lasting) == 1 and not self._is_all and lasting[0].is_ahead:
            [leader] = lasting
            behind = [one for one in raced if not one.is_scored]
            return [*map(_Raced, leader.others), _Raced(leader.family, leader.fits), *behind]
        going = [one.fits for one in lasting]
        rest = [delayed(fits.score_fold)(fold, alone) for fits in going for fold in range(1, fits.n_folds)]
        self._fitted(rest)
        return raced + [_Raced(self._family(fits), fits) for fits in going]

    def _fitted(self, tasks: list[Any]) -> list[Any]:
        results = []
        for result in Parallel(n_jobs=self._run.threads, prefer="threads", return_as="generator")(tasks):
            results.append(result)
            self._done += 1
            self._run.report("families", self._done, self._total)
        return results

    def _family(self, fits: TreeFits, rows: IntArray | None = None, teacher: Teacher | None = None) -> Family:
        """The family of some rows, which have scores, or of all."""
        spec = fits.spec
        labels, scores = self._part.y, neutral_scores(fits.left_out)
        if rows is not None:
            labels, scores = labels[rows], scores[rows]
        return Family.of(family_name(spec), labels, scores, fits.cost, spec, teacher)


def _first_fit(fits: TreeFits, run: Run) -> Teacher | None:
    """The teacher, where it has no folds; otherwise the first of these is scored."""
    if not fits.n_folds:
        return fits.teacher(run)
    fits.score_fold(0, run)
    return None


def _is_behind(begun: Family, others: Sequence[Family]) -> bool:
    """Whether a family is more than a standard error behind the best other on the same rows.

    Of few rows its probabilities have to be worse, too.
    """
    best = max(others, key=lambda one: one.f1)
    if best.f1 - begun.f1 <= paired_error(best.shares, begun.shares):
        return False
    return begun.brier is None or best.brier is None or begun.brier > best.brier


def with_scored_folds(spec: TreeSpec, labels: IntArray) -> TreeSpec:
    """The teacher with held-out scores of one fold only, if each class has `ENOUGH_SCORED` rows there.

    Thresholds and calibrations of so many rows are as good as those of all, and the fits of the other folds
    take longer than the teacher. labels: class codes of the rows of the fit, (n,).
    """
    assert isinstance(spec, Boosting | Forest)  # noqa: S101 - the only ones with folds
    rarest = int(np.bincount(labels).min())
    return replace(spec, scored_folds=1) if rarest // spec.folds >= ENOUGH_SCORED else spec


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
    """The rows that families are compared on: of somewhat more all, since a fit of all is the teacher."""
    if not is_sparse(data.X) and data.n <= 3 * ROWS // 2:
        return data
    return data.take(some_rows(data.y, ROWS_WITH_TERMS if is_sparse(data.X) else ROWS, seed))


def candidates(data: LabelledData) -> tuple[TreeSpec, ...]:
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
    teacher = spec.fit(_task_of_trees(data), run.silent())
    held_out, trees = teacher.own_scores, teacher.trees
    if held_out is None or trees is None:
        raise InvalidProblem(Fault("teacher", "no_trees", f"{spec.name} has no trees to compare"))
    return Family.of(family_name(spec), data.y, held_out, float(trees.cost), spec, teacher)


def _task_of_trees(data: LabelledData) -> Task:
    """What trees learn, which see the rows as they are."""
    examples = Examples(data.X, np.empty((data.n, 0)), None, FeatureSpec(layout=data.layout))
    return Task(examples, data.y, data.K)


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
