"""Adds a class from a few examples, in closed form; all other students stay as they are.

On features φ of a Nyström map the new student v minimises Σ_i c_i (v·φ_i − t_i)² + λ‖v‖². This is ridge
regression with targets t = −1 for the n rows of the model and +1 for the q examples. Each example has the
weight c = n/q, so both sides count the same. The n rows enter the equations by their Gram matrix, which is
the same for every class that is added.

The leave-one-out score of row i follows from the same solution (Allen 1974; Cook and Weisberg, Residuals and
Influence in Regression, 1982, 2.2):

    s_(−i) = (s_i − h_i t_i)/(1 − h_i),        h_i = c_i φ_iᵀ (A + λI)⁻¹ φ_i,        A = Σ_i c_i φ_i φ_iᵀ.

So λ and threshold are chosen on leave-one-out scores of all rows. The threshold keeps a budget of false
positives, for which there are n rows; a threshold for F from about ten examples would be mostly noise.

Where the classes of the rows are known, one matrix A gives every class, the new one included, such a solution
v_k, with targets 1 and −1/K and the same weight for each class. The score of the new student is then the
margin over its rivals, min_k (v − v_k)·φ, where k runs over the classes that the examples resemble most. Ten
examples say little about the new class, but the rows of the other classes say well what is theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import scipy.linalg

from core.data.column_layout import ColumnLayout
from core.data.dataset import validate_rows
from core.data.validation import not_whole, refuse, row_blocks
from core.errors import Fault, InvalidPackage, InvalidProblem
from core.features.choice import choose_features, rbf_features
from core.features.maps import FeatureMap, NystroemMap, feature_map_from_bytes
from core.features.spec import FeatureSpec
from core.model_selection.calibration import fit_calibration
from core.model_selection.threshold import Promise, choose_threshold
from core.monitoring.interval import Interval
from core.monitoring.intervals import exact_interval
from core.packed import LinearForm, PackedStudent, PolytopeForm
from core.packed.codec import Buffer, decode, encode, take, take_array
from core.packed.maps import frozen_array
from core.run import Run
from core.solvers.threads import one_blas_thread
from core.students.base import folded
from core.types import BoolArray, FloatArray, IntArray, Matrix

FEWEST: Final = 5
MOST: Final = 10_000
"""Largest number of examples of a class that is added."""
LANDMARKS: Final = 300
FEW: Final = "few_examples"
REPEATED: Final = "repeated_rows"
_ENOUGH: Final = 20
_RIDGES: Final = 10.0 ** np.arange(-6, 2)
"""Values of λ to try, in mean eigenvalues of A."""
RIVALS: Final = 16
"""Number of classes with which the score of a new class is compared."""
MOST_CLASSES: Final = 1000
"""With more classes than these there are no rivals: all other rows are one side."""
_LEAST_LEFT: Final = 1e-9
"""Least 1 − h: a row that alone decides its own score has no useful leave-one-out score."""


@dataclass(frozen=True, slots=True, eq=False)
class AdditionBase:
    """The values shared by all classes that are added to one version.

    feature_map: φ with m features, fitted to the rows of the model. gram: ΦᵀΦ, (m, m). sums: Φᵀ1, (m,). rows:
    n.
    """

    FORMAT: ClassVar[str] = "stms.addition.1"

    feature_map: FeatureMap
    gram: FloatArray
    sums: FloatArray
    rows: int

    @classmethod
    def fit(
        cls, X: Matrix, layout: ColumnLayout | None = None, seed: int = 0, run: Run = Run()
    ) -> AdditionBase:
        """Fit the base to the rows of the model (n, d), as its students see them, of any family.

        layout: of encoded rows. Raises InvalidProblem for unusable rows, Cancelled.
        """
        rows = validate_rows(X, None)
        chosen = choose_features(FeatureSpec("auto", layout=layout), rows).spec
        with one_blas_thread():
            fitted = NystroemMap.fit(rows, rbf_features(chosen, rows.shape[0], LANDMARKS), seed)
        return cls.of(fitted, rows, run)

    @classmethod
    def of(cls, feature_map: FeatureMap, X: Matrix, run: Run = Run()) -> AdditionBase:
        """The base for an existing map with dense features. Raises Cancelled."""
        m = feature_map.n_features_out
        gram, sums = np.zeros((m, m)), np.zeros(m)
        with one_blas_thread():
            for rows in row_blocks(X.shape[0], m):
                run.check_cancel()
                features = _features(feature_map, X[rows])
                gram += features.T @ features
                sums += features.sum(axis=0)
        return cls(feature_map, gram, sums, X.shape[0])

    def to_bytes(self) -> bytes:
        """The base as safetensors; the same base gives the same bytes. Of the rows, it stores only what the
        map stores.
        """
        arrays = {
            "feature_map": np.frombuffer(self.feature_map.to_bytes(), dtype=np.uint8),
            "gram": self.gram,
            "sums": self.sums,
        }
        return encode({"format": self.FORMAT, "rows": self.rows}, arrays)

    @classmethod
    def from_bytes(cls, stored: Buffer) -> AdditionBase:
        """The base that ``to_bytes`` stored. Raises InvalidPackage."""
        header, arrays = decode(stored, cls.FORMAT)
        feature_map = feature_map_from_bytes(take_array(arrays, "feature_map").tobytes())
        m, rows = feature_map.n_features_out, take(header, "rows", int)
        if rows < 1:
            raise InvalidPackage("The package has an unusable number of rows.")
        try:
            gram = frozen_array(take_array(arrays, "gram"), "gram", (m, m))
            sums = frozen_array(take_array(arrays, "sums"), "sums", (m,))
        except InvalidProblem as error:
            raise InvalidPackage(str(error)) from error
        return cls(feature_map, gram, sums, rows)


@dataclass(frozen=True, slots=True, eq=False)
class AddedClass:
    """A student of an added class, and what leave-one-out scores tell about it.

    student: ready for queries, as any other. examples: q. recall: share of the examples that it accepts by
    their leave-one-out scores; its interval is wide. promise: of its false positives, from the n rows of
    other classes. warnings: ``few_examples`` below 20 examples; ``repeated_rows`` if some are equal, which
    makes recall look better than it is. ridge: λ in mean eigenvalues. truth, left_out: truth and
    leave-one-out scores of the n rows followed by the q examples, (n + q,).
    """

    student: PackedStudent
    examples: int
    recall: Interval
    promise: Promise
    warnings: tuple[str, ...]
    ridge: float
    truth: BoolArray
    left_out: FloatArray

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready, without student and scores."""
        return {
            "accepted": round(self.recall.estimate * self.examples),
            "of": self.examples,
            "recall": self.recall.as_dict(),
            "false_positives": self.promise.as_dict(),
            "warnings": list(self.warnings),
        }


def add_class(
    base: AdditionBase,
    X: Matrix,
    label: str,
    examples: Matrix,
    *,
    classes: IntArray | None = None,
    budget: float = 0.01,
    confidence: float | None = None,
    run: Run = Run(),
) -> AddedClass:
    """The student of a class with few examples.

    X: the rows of the base, (n, d). examples: of the class, (q, d), 5 to 10 000. classes: of the rows, (n,)
    codes, −1 without a label; None, or fewer than two of them, takes all rows for one side. budget,
    confidence: of false positives, see ``choose_threshold``.

    Raises InvalidProblem for unusable rows, too few or too many examples, and rows that are not those of the
    base; Cancelled.
    """
    d = base.feature_map.n_columns
    rows, new = validate_rows(X, d), validate_rows(examples, d)
    refuse(not_whole("examples", new.shape[0], FEWEST, MOST))
    if rows.shape[0] != base.rows:
        message = f"the base was made of {base.rows} rows, not of {rows.shape[0]}"
        raise InvalidProblem(Fault("X", "other_data", message))
    with one_blas_thread():
        positives = _features(base.feature_map, new)
        has_rivals = classes is not None and 2 <= len(np.unique(classes[classes >= 0])) <= MOST_CLASSES
        if classes is not None and has_rivals:
            ridge, weights, left_out = _solve_beside(base, rows, classes, positives, run)
        else:
            ridge, one, left_out = _solve(base, rows, positives, run)
            weights = one[None, :]
    truth = np.arange(len(left_out)) >= base.rows
    threshold = choose_threshold(truth, left_out, "fpr", budget, confidence)
    map_, coef, intercept, gate = folded(base.feature_map, weights, np.zeros(weights.shape[1]))
    form = LinearForm(coef[0], float(intercept[0]), *gate)
    student = PackedStudent(
        map=map_,
        form=form if len(coef) == 1 else PolytopeForm(coef, intercept, *gate),
        threshold=threshold,
        label=label,
        metadata={"method": "addition", "examples": len(positives), "ridge": ridge, "threshold_rule": "fpr"},
        calibration=fit_calibration(truth, left_out),
    )
    q, accepted = len(positives), int((left_out[truth] >= threshold).sum())
    repeated = len(np.unique(positives.round(9), axis=0)) < q
    return AddedClass(
        student=student,
        examples=q,
        recall=exact_interval(accepted, q),
        promise=Promise.of(truth, left_out, threshold, budget, confidence),
        warnings=(*([FEW] if q < _ENOUGH else []), *([REPEATED] if repeated else [])),
        ridge=ridge,
        truth=truth,
        left_out=left_out,
    )


def conflicts(students: Mapping[str, PackedStudent], examples: Matrix) -> dict[str, int]:
    """The other students that accept many of the examples (q, d) of a new class, and how many they accept.

    A student is included if it accepts more than 1 example and more than 5 %. It does not know the class yet,
    and should be trained again with the examples. Raises InvalidProblem for unusable rows.
    """
    accepted = {
        label: int((_scores(student, examples) >= student.threshold).sum())
        for label, student in students.items()
    }
    return {label: count for label, count in accepted.items() if count > max(1.0, 0.05 * examples.shape[0])}


def _scores(student: PackedStudent, X: Matrix) -> FloatArray:
    """Scores of dense or sparse rows, (n,)."""
    if isinstance(X, np.ndarray):
        return student.scores(X)
    return student.scores_sparse(X.indices, X.data, X.indptr)


def _features(feature_map: FeatureMap, X: Matrix) -> FloatArray:
    features = feature_map.transform(X)
    if not isinstance(features, np.ndarray):
        raise InvalidProblem(Fault("features", "sparse", "a class can only be added to dense features"))
    return features.astype(np.float64, copy=False)


def _solve(
    base: AdditionBase, X: Matrix, positives: FloatArray, run: Run
) -> tuple[float, FloatArray, FloatArray]:
    """The best λ in mean eigenvalues, v (m,), and the leave-one-out scores of all rows, (n + q,).

    λ minimises the squared error of these scores, in which the mean over the rows and that over the examples
    have equal weight.
    """
    n, q = base.rows, len(positives)
    weight = n / q
    system = base.gram + weight * (positives.T @ positives)
    eigenvalues, vectors = scipy.linalg.eigh(system, check_finite=False)
    ridges = _RIDGES * (np.trace(system) / len(system))
    inverse = 1.0 / (np.maximum(eigenvalues, 0.0)[:, None] + ridges)
    solutions = inverse * (vectors.T @ (weight * positives.sum(axis=0) - base.sums))[:, None]

    def left_out(features: FloatArray, target: float, c: float) -> FloatArray:
        turned = features @ vectors
        h = c * (turned**2 @ inverse)
        scores: FloatArray = (turned @ solutions - h * target) / np.maximum(1.0 - h, _LEAST_LEFT)
        return scores

    scores = np.empty((n + q, len(ridges)))
    for rows in row_blocks(n, len(system)):
        run.check_cancel()
        scores[rows] = left_out(_features(base.feature_map, X[rows]), -1.0, 1.0)
    scores[n:] = left_out(positives, 1.0, weight)
    errors = ((scores[:n] + 1.0) ** 2).mean(axis=0) + ((scores[n:] - 1.0) ** 2).mean(axis=0)
    best = int(np.argmin(errors))
    return float(_RIDGES[best]), vectors @ solutions[:, best], scores[:, best].copy()


def _solve_beside(
    base: AdditionBase, X: Matrix, classes: IntArray, positives: FloatArray, run: Run
) -> tuple[float, FloatArray, FloatArray]:
    """As `_solve`, beside the classes of the rows: the best λ, the differences v − v_k of the rivals (r, m),
    and the least of their scores for each row when it is left out, (n + q,).

    λ is the one with the least squared error over all classes, which weigh alike. Rows without a label weigh
    nothing.
    """
    n, q, m = base.rows, len(positives), base.feature_map.n_features_out
    names, codes = np.unique(classes, return_inverse=True)
    is_known = names[codes] >= 0
    codes, count = codes - int(names[0] < 0), int((names >= 0).sum())
    sizes = np.bincount(codes[is_known], minlength=count).astype(np.float64)
    weight, own = 1.0 / sizes, 1.0 / q
    gram, sums = np.zeros((m, m)), np.zeros((count, m))
    for rows in row_blocks(n, m):
        run.check_cancel()
        features = _features(base.feature_map, X[rows])[is_known[rows]]
        own_codes = codes[rows][is_known[rows]]
        gram += (features * weight[own_codes, None]).T @ features
        np.add.at(sums, own_codes, features * weight[own_codes, None])
    system = gram + own * (positives.T @ positives)
    eigenvalues, vectors = scipy.linalg.eigh(system, check_finite=False)
    ridges = _RIDGES * (np.trace(system) / len(system))
    inverse = 1.0 / (np.maximum(eigenvalues, 0.0)[:, None] + ridges)
    # Targets of 1 for its own class and −1/K for the others: all is −1/K, and its own 1 + 1/K more.
    low = -1.0 / count
    every = np.vstack([sums, own * positives.sum(axis=0)])
    moments = vectors.T @ (low * every.sum(axis=0)[:, None] + (1.0 - low) * every.T)
    turned_positives = positives @ vectors
    solutions, rivals = [], []
    for number in range(len(ridges)):
        solution = inverse[:, number, None] * moments
        nearest = (turned_positives.mean(axis=0) @ solution)[:count]
        solutions.append(solution)
        rivals.append(np.sort(np.argsort(-nearest, kind="stable")[:RIVALS]))

    def left_out(turned: FloatArray, code: IntArray, c: FloatArray, number: int) -> tuple[FloatArray, float]:
        """Margins of rows over the rivals, and their weighted squared error. code: −1 without a label."""
        target = np.where(code[:, None] == np.arange(count + 1), 1.0, low)
        h = c * (turned**2 @ inverse[:, number])
        scores = turned @ solutions[number] - h[:, None] * target
        scores /= np.maximum(1.0 - h, _LEAST_LEFT)[:, None]
        error = float((c[:, None] * (scores - target) ** 2).sum())
        return scores[:, count] - scores[:, rivals[number]].max(axis=1), error

    margins, errors = np.empty((n + q, len(ridges))), np.zeros(len(ridges))
    for rows in row_blocks(n, m):
        run.check_cancel()
        turned = _features(base.feature_map, X[rows]) @ vectors
        code = np.where(is_known[rows], codes[rows], -1)
        c = np.where(is_known[rows], weight[code], 0.0)
        for number in range(len(ridges)):
            margins[rows, number], error = left_out(turned, code, c, number)
            errors[number] += error
    for number in range(len(ridges)):
        mine = np.full(q, count)
        margins[n:, number], error = left_out(turned_positives, mine, np.full(q, own), number)
        errors[number] += error
    best = int(np.argmin(errors))
    weights = vectors @ (solutions[best][:, [count]] - solutions[best][:, rivals[best]])
    return float(_RIDGES[best]), weights.T, margins[:, best].copy()
