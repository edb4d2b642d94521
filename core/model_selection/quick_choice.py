"""Chooses feature map and loss weight from the training rows, at a small share of the cost of one fit.

Least squares on a kernel, one class against the rest, has leave-one-out predictions in closed form. With the
kernel matrix K (n, n), targets Y = ±1 (n, K) and G = K + λI,

    y_i − prediction_i = (G⁻¹Y)_i / (G⁻¹)_ii                                   Cawley (IJCNN 2006)

so that one eigenvalue decomposition measures a map for every λ. The answer is the class with the largest
prediction; the map and λ with the largest mean F of the classes are taken. An SVM bounds the weight of a row
by C/n, while least squares divide its residual by λ. Residuals are about a tenth of the targets if classes
are separated, hence C/n = 0.1/λ. This factor and its least values were set by hand on thirds of training
parts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
import scipy.sparse as sp
from joblib import Parallel, delayed
from scipy.spatial.distance import cdist

from core.data.fold_assignment import fold_assignment
from core.data.scaling import fit_standardisation
from core.data.scaling_kind import Scaling
from core.features.base import before_terms, kernel_standardisation
from core.features.choice import MOST_KERNEL_ROWS, USUAL_LANDMARKS, WIDE, rbf_features
from core.features.spec import MAX_GAMMA, FeatureSpec
from core.model_selection.row_samples import comparison_rows
from core.model_selection.time_budget import budget_text
from core.run import Run
from core.solvers.threads import one_blas_thread
from core.students.automatic import Automatic
from core.students.base import StudentSpec
from core.teachers.base import TeacherSpec
from core.teachers.boosting import Boosting
from core.teachers.forest import Forest
from core.types import FloatArray, IntArray, Matrix

ROWS_WITH_TERMS: Final = 2000
"""The same for rows with terms of texts, whose value shows only on more rows."""
_LAST_MAPS: Final = 3
"""Number of RBF maps with terms that are compared again on all comparison rows."""
WIDTHS: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Factors for γ = 1/(d·variance)."""
RIDGES: Final = tuple(10.0 ** (power / 2) for power in range(-6, 1))
"""λ, as multiples of the mean diagonal of the kernel matrix."""
CHOICE_FOLDS: Final = 10
"""Number of folds; the map and λ that the other folds choose score the rows of each."""
_C_PER_RIDGE: Final = 0.1
_LEAST_WEIGHT: Final = 2.0
"""Least C/n times the mean diagonal of the kernel matrix, so that the features' unit does not matter.

With a smaller C/n, the hinge loss of rare classes is least with "no" for every row.
"""
_MOST_PER_RIDGE: Final = 0.25
"""With terms of texts, the least C/n times λ is at most this: if a large λ is best, so is a small weight.

This gains a point of F on thirds of the training part of ag_news, and nothing on those of language; for six
other sets of texts λ is so small that it changes nothing.
"""

_FAMILIES: Final[Mapping[str, str]] = {
    "linear": "a linear model",
    "kernel": "an RBF kernel",
    "forest, best splits": "a random forest",
    "forest, random splits": "extra trees",
    "boosting": "boosted trees",
}
"""Names of the families of ``family_choice`` in reasons."""


_Map: TypeAlias = tuple[FeatureSpec, FloatArray]
"""A map, and the kernel matrix (n, n) of the compared rows, which includes the constant feature."""


@dataclass(frozen=True, slots=True)
class MeasuredMap:
    """A measured map. f1: its largest mean leave-one-out F, in [0, 1]. ridge: the λ that gives it.

    features: the map. scale: mean diagonal of its kernel matrix.
    """

    features: FeatureSpec
    f1: float
    ridge: float
    scale: float

    @property
    def C_per_row(self) -> float:  # noqa: N802
        """C/n of an SVM that corresponds to λ."""
        least = _LEAST_WEIGHT / self.scale
        if self.features.has_terms:
            least = min(least, _MOST_PER_RIDGE / self.ridge)
        return max(_C_PER_RIDGE / self.ridge, least)


class FoldChoices:
    """Scores of rows by the map and λ that other rows choose, so that the choice does not bias the scores.

    The best of a hundred maps and λ owes a part of its leave-one-out F to chance. So the rows are divided
    into ten folds, and the best map and λ for the rows outside of a fold score the fold's rows, by the same
    leave-one-out predictions (Tsamardinos et al., Machine Learning 2018, use bootstrap samples).

    labels: class codes of the compared rows, (n,), for K classes.
    """

    def __init__(self, labels: IntArray, n_classes: int, seed: int) -> None:
        self._labels, self._K = labels, n_classes
        self._fold_of = fold_assignment(labels, min(CHOICE_FOLDS, len(labels)), seed)
        self._best = np.full(int(self._fold_of.max()) + 1, -1.0)
        self.scores: FloatArray = np.zeros((len(labels), n_classes))

    def offer(self, scores: FloatArray) -> None:
        """Add leave-one-out predictions of one map and λ, (n, K); among equal ones the first is kept."""
        predicted = scores.argmax(axis=1)
        for fold in range(len(self._best)):
            inside = self._fold_of == fold
            f1 = _mean_f1(self._labels[~inside], predicted[~inside], self._K)
            if f1 > self._best[fold]:
                self._best[fold] = f1
                self.scores[inside] = scores[inside]


@dataclass(frozen=True, slots=True, eq=False)
class MapComparison:
    """Results of all maps. measured: every map. rows: number of rows they were compared on.

    scores: of all rows by ``FoldChoices``, (n, K), if all rows were compared; otherwise None.
    """

    measured: Sequence[MeasuredMap]
    rows: int
    scores: FloatArray | None


@dataclass(frozen=True, slots=True)
class StudentKinds:
    """Mean F of polytopes, and of copies of the teacher's scores, as students of some classes.

    It is measured for ``classes`` classes on held-out rows, in [0, 1]. standard_error: of the paired
    difference.
    """

    classes: int
    polytope_f1: float
    copy_f1: float
    standard_error: float

    @property
    def are_copies(self) -> bool:
        """Whether students are copies, because polytopes are not better by a standard error."""
        return self.polytope_f1 - self.copy_f1 <= self.standard_error

    @property
    def text(self) -> str:
        """One sentence with the figures."""
        if not self.classes:
            return (
                "Students are copies of the teacher's scores: no class has as many rows as there are folds."
            )
        copies = f"copies of the teacher's scores, with a mean F of {self.copy_f1:.3f}"
        polytopes = f"polytopes, with {self.polytope_f1:.3f}"
        first, second = (copies, polytopes) if self.are_copies else (polytopes, copies)
        return f"Students are {first} on held-out rows of {self.classes} classes ({second})."


@dataclass(frozen=True, slots=True)
class QuickChoice:
    """A choice of features and loss weight. C_per_row: C/n of teacher and students.

    features: the map. f1: mean leave-one-out F, in [0, 1]. rows: number of rows that maps were compared on.
    maps: number of maps that were compared. ridge: λ of the least squares.
    teacher: hyper-parameters of a tree teacher with its ``method``, if one was taken instead.
    families: families that were compared, JSON-ready, see ``core.model_selection.family_choice``.
    tuning: result of a search and the contest that it lost (``Setting.search``); empty if there was nothing
    to search for, None if no search was requested.
    budget: of seconds, and what was left out for lack of time (``TimeBudget.as_dict``); None without one.
    student_kinds: comparison of students of many classes (``core.training.student_kinds``); None without one.
    """

    features: FeatureSpec
    C_per_row: float
    f1: float
    rows: int
    maps: int
    ridge: float = 0.0
    teacher: dict[str, Any] | None = None
    families: tuple[dict[str, Any], ...] = ()
    tuning: dict[str, Any] | None = None
    budget: dict[str, Any] | None = None
    student_kinds: StudentKinds | None = None

    def __post_init__(self) -> None:
        # A preparation restored from JSON has lists and mappings here.
        object.__setattr__(self, "families", tuple(self.families))
        if isinstance(self.student_kinds, dict):
            object.__setattr__(self, "student_kinds", StudentKinds(**self.student_kinds))

    @property
    def tree_teacher(self) -> TeacherSpec | None:
        """The tree teacher that was taken, or None."""
        if self.teacher is None:
            return None
        kinds: dict[str, type[TeacherSpec]] = {kind.name: kind for kind in (Forest, Boosting)}
        values = dict(self.teacher)
        return kinds[values.pop("method")](**values)

    def student(self, spec: StudentSpec) -> StudentSpec:
        """``spec`` or, if copies of the teacher's scores were chosen, such a copy."""
        if isinstance(spec, Automatic) and self.student_kinds is not None and self.student_kinds.are_copies:
            return spec.copying(spec.pieces)
        return spec

    @property
    def reason(self) -> str:
        """One to five sentences."""
        said = [self._of_families() if self.families else self._of_maps()]
        if self.student_kinds is not None:
            said.append(self.student_kinds.text)
        if self.tuning is not None:
            said.append(self._kept())
        if self.budget is not None:
            said.append(budget_text(self.budget))
        return " ".join(said)

    def _of_maps(self) -> str:
        """A sentence about the map, if no families were compared."""
        kind = "a linear model" if self.features.kind == "linear" else "an RBF kernel"
        others = f", the best of {self.maps} that were compared" if self.maps > 1 else ""
        return (
            f"Chosen: {kind}, with a mean F of {self.f1:.3f} on {self.rows} rows, each left out once{others}."
        )

    def _of_families(self) -> str:
        """A sentence about the family that was taken, with the figures of the others."""
        taken = next(one for one in self.families if one["taken"])
        others = ", ".join(
            f"{_FAMILIES.get(one['family'], one['family'])} {one['f1']:.3f}"
            + (f" on {one['rows']} of them" if "rows" in one else "")
            for one in self.families
            if one is not taken
        )
        beside = f" ({others})" if others else ""
        name = _FAMILIES.get(taken["family"], taken["family"])
        return (
            f"Chosen: {name}, with a mean F of {taken['f1']:.3f} on held-out rows{beside}{self._why(taken)}."
        )

    def _why(self, taken: dict[str, Any]) -> str:
        """Why a family without the largest F was taken; empty if a budget may have left out the best one."""
        if self.budget is not None or taken["f1"] >= max(one["f1"] for one in self.families):
            return ""
        has = "the most accurate probabilities" if "brier" in taken else "the cheapest queries"
        return f"; it has {has} of those within one standard error of the largest F"

    def _kept(self) -> str:
        """Why a search changed nothing."""
        contest = (self.tuning or {}).get("contest")
        if contest:
            return f"This is kept after a search: {contest_text(contest)}."
        if self.teacher is not None:
            return "Trees have nothing that is searched, so they are kept."
        return "There are too few rows to hold some out, so nothing is searched."

    def search(self) -> dict[str, Any]:
        """The result of a search and the contest that it lost, JSON-ready; empty if nothing was searched."""
        return self.tuning or {}

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        told = {"reason": self.reason} | ({} if self.budget is None else {"budget": self.budget})
        if self.teacher is not None:
            return {"kind": "trees", "teacher": self.teacher, **told}
        return self.features.summary() | {"C_per_row": self.C_per_row, **told}


def contest_text(contest: dict[str, Any]) -> str:
    """The figures of a contest between ``automatic`` and a search, as text."""
    gain = contest["searched_f1"] - contest["automatic_f1"]
    return (
        f"on {contest['rows']} rows that chose neither, students of the search have a mean F of"
        f" {contest['searched_f1']:.3f}, {gain:+.3f} against those of automatic,"
        f" with a standard error of {contest['standard_error']:.3f}"
    )


def choose_quickly(
    spec: FeatureSpec, X: Matrix, labels: IntArray, n_classes: int, run: Run = Run()
) -> QuickChoice:
    """Kind, scaling and width of the features, and C, for checked rows X (n, d) with class codes (n,).

    spec: only its number format is used. Wide rows and very many rows get linear features. Raises Cancelled.
    """
    compared = measure_maps(spec, X, labels, n_classes, run)
    return best_of_maps(compared.measured, X, compared.rows)


def best_of_maps(measured: Sequence[MeasuredMap], X: Matrix, n_rows: int) -> QuickChoice:
    """The choice of the map with the largest F among those measured on ``n_rows`` rows of X (n, d)."""
    best = max(measured, key=lambda one: one.f1)
    features = sized(best.features, X)
    return QuickChoice(features, best.C_per_row, best.f1, n_rows, len(measured), best.ridge)


def measure_maps(
    spec: FeatureSpec,
    X: Matrix,
    labels: IntArray,
    n_classes: int,
    run: Run = Run(),
    admits: Callable[[], bool] | None = None,
) -> MapComparison:
    """Measure the leave-one-out F of every map; see ``choose_quickly``.

    Linear maps come first. admits: called before each map but the first; once it is False, no more are
    measured. Without it, and with terms of texts in many rows, RBF maps are first measured on a part of the
    rows, and then the best of them on all.
    """
    spec = replace(spec, gamma=None)
    rows = comparison_rows(labels, n_classes, run.seed, ROWS_WITH_TERMS if spec.has_terms else None)
    few = comparison_rows(labels, n_classes, run.seed)
    wanted = None
    if admits is None and len(few) < len(rows):
        measured = _compare(_kernels(spec, X, few), labels[few], n_classes, run).measured
        rising = sorted(measured, key=lambda one: one.f1)
        best = [one for one in rising if one.features.kind != "linear"][-_LAST_MAPS:]
        wanted = [one.features for one in measured if one.features.kind == "linear" or one in best]
    is_all = len(rows) == len(labels)
    return _compare(_kernels(spec, X, rows, wanted), labels[rows], n_classes, run, admits, is_all=is_all)


def best_f1_of_block(block: FloatArray, labels: IntArray, run: Run = Run()) -> float:
    """The largest mean leave-one-out F, in [0, 1], that maps of a block of columns (n, w) give.

    The block is taken as it is, scaled already. labels: class codes (n,). Compared are a linear map and RBF
    maps, each with several λ, on all rows: the caller has taken few enough. Raises Cancelled.
    """
    classes, codes = np.unique(labels, return_inverse=True)
    distances = cdist(block, block, "sqeuclidean")
    # γ of ``kernel_standardisation``: the mean squared distance is twice the variance of all columns.
    usual = 2.0 / max(float(distances.mean()), 1e-12)
    linear = replace(FeatureSpec(), kind="linear", scaling=Scaling.NONE)
    maps: list[_Map] = [(linear, _products(block) + 1.0)]
    if block.shape[1] <= WIDE:
        # Wider rows get linear features, see ``core.features.choice``.
        maps += [(linear, np.exp(-factor * usual * distances) + 1.0) for factor in WIDTHS]
    best = 0.0
    with one_blas_thread():
        for one in maps:
            run.check_cancel()
            best = max(best, _measured(one, codes, len(classes))[0].f1)
    return best


def _compare(
    maps: Iterable[_Map],
    labels: IntArray,
    n_classes: int,
    run: Run,
    admits: Callable[[], bool] | None = None,
    *,
    is_all: bool = False,
) -> MapComparison:
    """Measure maps on the rows of their kernel matrices. is_all: whether these are all rows."""
    classes, codes = np.unique(labels, return_inverse=True)
    choices = FoldChoices(codes, n_classes, run.seed) if is_all and len(classes) == n_classes else None
    measured: list[MeasuredMap] = []

    def admitted() -> Iterator[Any]:
        for one in maps:
            run.check_cancel()
            if measured and admits is not None and not admits():
                return
            yield delayed(_measured)(one, codes, len(classes))

    # With a budget, maps are measured one by one, because the budget is checked after each.
    pool = Parallel(n_jobs=run.threads if admits is None else 1, prefer="threads", return_as="generator")
    with one_blas_thread():
        for one, predictions in pool(admitted()):
            measured.append(one)
            if choices is not None:
                for scores in predictions:
                    choices.offer(scores)
    return MapComparison(measured, len(labels), None if choices is None else choices.scores)


def sized(spec: FeatureSpec, X: Matrix, *, richer: bool = False) -> FeatureSpec:
    """The RBF map to fit to rows X: exact, or with as many landmarks as suit the number of rows.

    richer: use twice the usual number of landmarks, as far as memory allows; exact for up to as many rows.
    """
    if spec.kind == "linear":
        return spec
    return rbf_features(spec, X.shape[0], (2 if richer else 1) * USUAL_LANDMARKS)


def _squared_distances(X: Matrix, spec: FeatureSpec, rows: IntArray) -> tuple[float, FloatArray]:
    """γ of the map, and the squared distances between the scaled rows, (rows, rows)."""
    standardisation, gamma = kernel_standardisation(X, spec)
    scaled = standardisation.apply(X[rows])
    dense = scaled if isinstance(scaled, np.ndarray) else scaled.toarray()
    return gamma, cdist(dense, dense, "sqeuclidean")


def _kernels(
    spec: FeatureSpec, X: Matrix, rows: IntArray, wanted: Collection[FeatureSpec] | None = None
) -> Iterator[_Map]:
    """Every map to compare, or only the wanted ones."""
    for scaling in _linear_scalings(spec, X):
        scaled = fit_standardisation(X, scaling, spec.layout).apply(X[rows])
        yield replace(spec, kind="linear", scaling=scaling), _products(scaled) + 1.0
    if X.shape[0] > MOST_KERNEL_ROWS:
        return
    dense, of_dense = before_terms(X, spec)
    if not 0 < dense.shape[1] <= WIDE:
        return
    beside = 1.0 if dense is X else _products(X[rows][:, dense.shape[1] :]) + 1.0
    for scaling in (Scaling.ZSCORE, Scaling.MINMAX, Scaling.NONE):
        gamma, distances = _squared_distances(dense, replace(of_dense, scaling=scaling), rows)
        for factor in WIDTHS:
            width = min(factor * gamma, MAX_GAMMA)
            features = replace(spec, kind="kernel", scaling=scaling, gamma=width)
            if wanted is None or features in wanted:
                yield features, np.exp(-width * distances) + beside


def _linear_scalings(spec: FeatureSpec, X: Matrix) -> tuple[Scaling, ...]:
    if spec.layout is not None:
        return (Scaling.ZSCORE, Scaling.MINMAX) if spec.layout.numbers else (Scaling.NONE,)
    return (Scaling.IDF, Scaling.NONE, Scaling.ZSCORE) if sp.issparse(X) else (Scaling.ZSCORE, Scaling.MINMAX)


def _products(rows: Matrix) -> FloatArray:
    """Inner products of all rows, (n, n)."""
    product: Any = rows @ rows.T
    dense: FloatArray = product if isinstance(product, np.ndarray) else product.toarray()
    return dense


def _measured(one: _Map, labels: IntArray, n_classes: int) -> tuple[MeasuredMap, list[FloatArray]]:
    """A map with its largest mean leave-one-out F (largest λ if equal), and predictions for each λ."""
    features, kernel = one
    scale = float(np.mean(np.diag(kernel)))
    values, vectors = np.linalg.eigh(kernel)
    squares = vectors**2
    targets = np.where(labels[:, None] == np.arange(n_classes), 1.0, -1.0)
    projected = vectors.T @ targets
    best, all_predictions = (-1.0, 0.0), []
    for part in reversed(RIDGES):
        ridge = part * scale
        inverse = 1.0 / (np.maximum(values, 0.0) + ridge)
        residuals = vectors @ (inverse[:, None] * projected) / (squares @ inverse)[:, None]
        predictions = targets - residuals
        all_predictions.append(predictions)
        f1 = _mean_f1(labels, predictions.argmax(axis=1), n_classes)
        if f1 > best[0]:
            best = f1, ridge
    return MeasuredMap(features, *best, scale), all_predictions


def _mean_f1(labels: IntArray, predicted: IntArray, n_classes: int) -> float:
    """Mean F over the classes that occur."""
    truth = np.bincount(labels, minlength=n_classes)
    answers = np.bincount(predicted, minlength=n_classes)
    right = np.bincount(labels[labels == predicted], minlength=n_classes)
    present = truth > 0
    return float(np.mean(2.0 * right[present] / (truth + answers)[present]))
