"""Chooses kernel or linear students, or copies of trees, for a job by measuring them on held-out rows.

Least squares on the features of kernel and linear students represent these students, because its
leave-one-out predictions have a closed form (compare ``quick_choice``). With Φ (n, m), G = ΦᵀΦ + λI and the
residuals r of the fit,

    y_i − prediction_i = r_i / (1 − φ_i G⁻¹ φ_i)

If the maps were compared on all rows, the predictions are instead those of the maps that other rows chose
(``quick_choice.FoldChoices``), because the best of a hundred maps looks better than it is, and no forest is
chosen in this way. Forests of bootstrap samples have out-of-bag scores; other forests and boosted trees have
scores from folds. With texts, the closed form is that for more columns than rows. Each class is measured by F
at the best cut of its margin over the best other class, because each student has its own threshold. Among the
families whose mean F is within one standard error of the largest, the one with the cheapest queries is taken.
If rows are few, most families are within the large standard errors, and the one whose probabilities have the
least Brier score is taken: F counts the rows near a cut, which are only a handful, while the Brier score is a
mean over all rows. By this rule and by maps that other rows choose, students of 14 tables of 100 to 1150 rows
(thirds of training parts, three each) gained 0.2 points of mean F, 0.3 of ROC area and 0.1 of Brier score.

To save the time of families that are not taken, those with folds are first fitted in one fold and compared
there. A family that is more than a standard error behind the best other one on the same rows is not fitted
again. Neither is the only remaining family, if it is as far ahead of all others.
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
"""Approximate number of rows on which families are compared."""
ROWS_WITH_TERMS: Final = 2500
"""The same for rows with terms of texts: these outnumber the rows, so a matrix of row pairs is solved."""
FEW_ROWS: Final = 500
"""With fewer rows, boosted and extra trees have 10 folds; with up to three times as many 5, otherwise 3."""
SETTLED_BY_BRIER: Final = 3 * FEW_ROWS
"""With fewer rows, the Brier score decides between families that are within one standard error."""
ENOUGH_SCORED: Final = 1000
"""If each class has this many held-out rows, more of them change neither thresholds nor calibrations."""
MOST_WORK: Final = 1e9
"""Boosted trees are left out if their fits read more values of rows than this."""
MOST_FOREST_WORK: Final = 1e10
"""The same for forests, in rows of a column that are read for each class: about half a minute."""
_OF_TREE: Final = 125_000
"""Number of values that can be read in the time that a small tree takes."""
KERNEL: Final = "kernel"
LINEAR: Final = "linear"
_FUNCTIONS: Final = 9
"""Number of functions of a student with 8 rejections and its gate."""


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """One family with its mean F on held-out rows, in [0, 1], and the rows' shares in it, (n,).

    teacher: for trees; None for kernel and linear students. cost: of a query to a student, in multiplications
    or comparisons. fitted: the teacher fitted to the compared rows. brier: ``mean_brier`` if the rows are
    few, otherwise None. scores: of the held-out rows, (n, K).
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
        """A family from its held-out scores (n, K) for rows with class codes (n,)."""
        f1, shares = f1_of_margins(labels, scores)
        brier = mean_brier(labels, scores) if len(labels) < SETTLED_BY_BRIER else None
        return cls(name, spec, f1, shares, cost, fitted, brier, scores)

    def of_rows(self, rows: IntArray, labels: IntArray) -> Family:
        """The family measured on some of the rows. labels: of all rows, (n,)."""
        scores = np.zeros((0, 0)) if self.scores is None else self.scores[rows]
        return Family.of(self.name, labels[rows], scores, self.cost, self.teacher)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; ``brier`` only if the rows are few."""
        figures = {"family": self.name, "f1": self.f1, "cost": self.cost}
        return figures if self.brier is None else figures | {"brier": self.brier}


def can_have_trees(data: LabelledData) -> bool:
    """Whether the rows are dense, or have other columns besides those of texts."""
    return has_tree_columns(data.X, data.layout)


def choose_family(
    data: LabelledData, choice: QuickChoice, run: Run = Run(), scores: FloatArray | None = None
) -> tuple[QuickChoice, Teacher | None]:
    """The choice with the family that is taken, and its teacher if it was already fitted to all rows.

    data: checked and dense. scores: see ``without_trees``. run: its threads fit the families; reports
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
        """JSON-ready; has the number of scored rows if the family was not scored on all rows."""
        return self.family.as_dict() | ({} if self.is_scored else {"rows": len(self.family.shares)})


@dataclass(frozen=True, slots=True, eq=False)
class _Begun:
    """A family after its first fold, and the families without folds, measured on the same rows."""

    fits: TreeFits
    family: Family
    others: list[Family]

    @property
    def is_ahead(self) -> bool:
        """Whether it is over a standard error ahead of all others, so that further folds decide nothing."""
        return all(_is_behind(one, [self.family]) for one in self.others)


class _Race:
    """Fits all families: first one fold each, then the other folds of those that may still be taken."""

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
        """is_all: whether ``part`` has all rows, so that a teacher fitted to it is the final teacher."""
        self._part, self._choice, self._run, self._scores = part, choice, run, scores
        self._is_all = is_all
        # With fits of one thread each, all threads are busy until the end.
        self._alone = replace(run.silent(), n_threads=1)
        self._fits = [spec.fits(_task_of_trees(part), run.seed) for spec in specs]
        self._done, self._total = 0, 1 + sum(max(1, one.n_folds) for one in self._fits)

    def families(self) -> list[_Raced]:
        """All families, with kernel or linear students first. Raises Cancelled."""
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
        """The family measured on some rows, which have scores, or on all."""
        spec = fits.spec
        labels, scores = self._part.y, neutral_scores(fits.left_out)
        if rows is not None:
            labels, scores = labels[rows], scores[rows]
        return Family.of(family_name(spec), labels, scores, fits.cost, spec, teacher)


def _first_fit(fits: TreeFits, run: Run) -> Teacher | None:
    """Fit the teacher and return it, if it has no folds; otherwise score the first fold and return None."""
    if not fits.n_folds:
        return fits.teacher(run)
    fits.score_fold(0, run)
    return None


def _is_behind(begun: Family, others: Sequence[Family]) -> bool:
    """Whether a family is more than a standard error behind the best other on the same rows.

    If the rows are few, its probabilities must be worse, too.
    """
    best = max(others, key=lambda one: one.f1)
    if best.f1 - begun.f1 <= paired_error(best.shares, begun.shares):
        return False
    return begun.brier is None or best.brier is None or begun.brier > best.brier


def with_scored_folds(spec: TreeSpec, labels: IntArray) -> TreeSpec:
    """The teacher with held-out scores of one fold only, if each class has `ENOUGH_SCORED` rows there.

    With so many rows, thresholds and calibrations are as good as with all rows, and fits of the other folds
    take longer than the teacher. labels: class codes of the rows of the fit, (n,).
    """
    assert isinstance(spec, Boosting | Forest)  # noqa: S101 - the only ones with folds
    rarest = int(np.bincount(labels).min())
    return replace(spec, scored_folds=1) if rarest // spec.folds >= ENOUGH_SCORED else spec


def with_family(choice: QuickChoice, taken: Family, n: int) -> tuple[QuickChoice, Teacher | None]:
    """The choice of a family for n rows, and its teacher if that was fitted to all n rows."""
    if taken.teacher is None:
        return choice, None
    return with_trees(choice, taken.teacher), taken.fitted if len(taken.shares) == n else None


def with_trees(choice: QuickChoice, spec: TeacherSpec) -> QuickChoice:
    """The choice with a teacher of trees."""
    # Copies of trees do not need distilled scores; these are cheapest on unchanged columns.
    features = replace(choice.features, kind="linear", gamma=None)
    return replace(choice, features=features, teacher={"method": spec.name, **spec.params()})


def compared_part(data: LabelledData, seed: int) -> LabelledData:
    """A sample of rows for comparing families; if it would omit few, all rows: a fit is then the teacher."""
    if not is_sparse(data.X) and data.n <= 3 * ROWS // 2:
        return data
    return data.take(some_rows(data.y, ROWS_WITH_TERMS if is_sparse(data.X) else ROWS, seed))


def candidates(data: LabelledData) -> tuple[TreeSpec, ...]:
    """Forests with best and with random splits, and boosted trees, without those that need too much work.

    With few rows there are more folds, unless the work gets too much, because trees of two thirds of few rows
    are worse than trees of all.
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
    """Of the families within one standard error of the largest F, the one with the cheapest queries.

    If the rows are few, it is the one with the least Brier score; among equal ones the cheapest.
    """
    best = max(families, key=lambda one: one.f1)

    def is_close(one: Family) -> bool:
        return best.f1 - one.f1 <= paired_error(best.shares, one.shares)

    return min(filter(is_close, families), key=lambda one: (one.brier or 0.0, one.cost))


def without_trees(
    data: LabelledData, choice: QuickChoice, run: Run, scores: FloatArray | None = None
) -> Family:
    """Kernel or linear students on the features of the choice. Raises Cancelled.

    scores: of all rows, (n, K), by maps that other rows chose (``FoldChoices``), if they are known.
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
    # A query has few terms, so they are not counted.
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
    """The task for trees, which use the raw rows."""
    examples = Examples(data.X, np.empty((data.n, 0)), None, FeatureSpec(layout=data.layout))
    return Task(examples, data.y, data.K)


def family_name(spec: TeacherSpec) -> str:
    """The name of the family of a tree teacher in reports."""
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
    """``left_out_scores`` for sparse features that outnumber the rows, by G = ΦΦᵀ + 1 + λI, (n, n).

    With α = G⁻¹Y, the leave-one-out residual of a row is α_i / (G⁻¹)_ii.
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
    """Mean F of the classes that occur, each at its best cut, and the rows' shares in it, (n,).

    scores: (n, K). The cut is one of the margin of a class over the best other class.
    """
    return mean_f1_shares(
        (truth, margin >= best_cut(truth, margin)) for truth, margin in _margins(labels, scores)
    )


def mean_brier(labels: IntArray, scores: FloatArray) -> float:
    """Mean over the classes that occur of the Brier score of a sigmoid of their margins, in [0, 1].

    scores: (n, K). The sigmoid is measured on the rows it is fitted to, because it has only two parameters.
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
    """The margin with the largest F if rows from it on are accepted; among equally good ones the largest."""
    order = np.argsort(-margin, kind="stable")
    falling, found = margin[order], np.cumsum(truth[order])
    f1 = 2.0 * found / (np.arange(1, len(order) + 1) + truth.sum())
    # Rows with equal margins are accepted together.
    f1[:-1][falling[1:] == falling[:-1]] = -1.0
    return float(falling[f1.argmax()])
