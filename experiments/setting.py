"""What teacher and students share, chosen on the training part: feature map, its scaling and γ, teacher's C.

Every candidate map is judged by cross-validated teachers, as binary classifiers of each class: the overall
score of accuracy, F and AUC (means over classes). Multi-class accuracy would not see the rare classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from joblib import Parallel, delayed

from core.data.dataset import LabelledData
from core.data.scaling import fit_standardisation
from core.data.scaling_kind import Scaling
from core.features.maps import fit_feature_map, scale_rule
from core.features.spec import FeatureSpec
from core.model_selection.joint import overall_score
from core.model_selection.metrics import binary_metrics
from core.run import Run
from core.solvers.threads import one_blas_thread
from core.students.difficulty import ScoreRanks
from core.teachers.ssvm import LinearTeacher, fit_ssvm
from core.types import BoolArray, FloatArray, IntArray, Matrix
from experiments.folds import folds_of

Tell = Callable[[str], None]

# Enough to rank: teachers at their full precision are fitted once the choice is made.
_TOLERANCE = 1e-2
_MAX_EPOCHS = 300
_KEPT_OF_A_CLASS = 60


@dataclass(frozen=True, slots=True)
class Search:
    """Which settings to try.

    features: the map to start from. scalings, gamma_factors: all combinations are tried, γ as multiples of
    ``scale_rule``; none of both keeps ``features`` as it is. teacher_C: values to try.
    folds: of the cross-validation. rows: how many rows maps are compared on at most; the teacher's C is
    chosen on all of them.
    """

    features: FeatureSpec
    teacher_C: tuple[float, ...]  # noqa: N815
    scalings: tuple[Scaling, ...] = ()
    gamma_factors: tuple[float, ...] = ()
    folds: int = 5
    rows: int = 4000

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One map and teacher's C with its score, in [0, 1]."""

    features: FeatureSpec
    teacher_C: float  # noqa: N815
    score: float

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Setting:
    """What was chosen, and everything that was tried."""

    features: FeatureSpec
    teacher_C: float  # noqa: N815
    trace: tuple[Candidate, ...]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "features": asdict(self.features),
            "teacher_C": self.teacher_C,
            "trace": [one.as_dict() for one in self.trace],
        }

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Setting:
        """The setting of ``as_dict``. Raises InvalidProblem for values out of bounds."""
        trace = tuple(
            Candidate(FeatureSpec(**one["features"]), one["teacher_C"], one["score"])
            for one in record["trace"]
        )
        return cls(FeatureSpec(**record["features"]), record["teacher_C"], trace)


def choose_setting(
    data: LabelledData,
    search: Search,
    *,
    groups: IntArray | None = None,
    seed: int,
    n_threads: int,
    tell: Tell,
) -> Setting:
    """The best map on at most ``search.rows`` rows, then the best C of its teacher on all rows.

    groups: of each row, (n,), where rows that belong together shall share a fold.
    Of equal candidates the first is taken: the order is that of ``search``, C rising. Nothing but the
    training part is used. Raises InvalidProblem.
    """
    trace: list[Candidate] = []
    specs = candidate_specs(data, search)
    fold_of = folds_of(data.y, groups, search.folds, seed)
    if len(specs) > 1:
        rows = some_rows(data.y, search.rows, seed)
        part = replace(data, X=data.X[rows], y=data.y[rows])
        # C/n weighs one example: on a part of the rows the same weight needs a smaller C.
        share = len(rows) / data.n
        for spec in specs:
            Cs = [C * share for C in search.teacher_C]
            found = _judge(part, fold_of[rows], spec, Cs, seed, n_threads)
            trace += [replace(one, teacher_C=one.teacher_C / share) for one in found]
            tell(_line(trace[-len(found) :]))
        specs = [_best(trace).features]
    if len(search.teacher_C) == 1:
        return Setting(specs[0], search.teacher_C[0], tuple(trace))
    final = _judge(data, fold_of, specs[0], search.teacher_C, seed, n_threads)
    tell(_line(final))
    return Setting(specs[0], _best(final).teacher_C, (*trace, *final))


def candidate_specs(data: LabelledData, search: Search) -> list[FeatureSpec]:
    """The maps of a search, γ as numbers."""
    specs = []
    for scaling in search.scalings or (search.features.scaling,):
        base = replace(search.features, scaling=scaling)
        if not search.gamma_factors:
            specs.append(base)
            continue
        rule = scale_rule(data.X, fit_standardisation(data.X, scaling))
        specs += [replace(base, gamma=float(f"{factor * rule:.4g}")) for factor in search.gamma_factors]
    return specs


def some_rows(labels: IntArray, limit: int, seed: int) -> IntArray:
    """At most about ``limit`` rows, rising: of each class its share, but no fewer than 60 if it has them."""
    n = len(labels)
    if n <= limit:
        return np.arange(n)
    shuffled = np.random.default_rng(seed).permutation(n)
    kept = []
    for code in np.unique(labels):
        rows = shuffled[labels[shuffled] == code]
        kept.append(rows[: max(_KEPT_OF_A_CLASS, len(rows) * limit // n)])
    return np.sort(np.concatenate(kept))


def _judge(
    data: LabelledData, fold_of: IntArray, spec: FeatureSpec, Cs: Sequence[float], seed: int, n_threads: int
) -> list[Candidate]:
    """The map with each C, rising, in cross-validation, until two in a row have not been better."""
    held_out = [np.flatnonzero(fold_of == fold) for fold in np.unique(fold_of)]
    order = np.concatenate(held_out)
    candidates: list[Candidate] = []
    with one_blas_thread():
        features = fit_feature_map(data.X, spec, seed).transform(data.X)
        fits = [_Fold(features, data, fold_of != fold, seed) for fold in np.unique(fold_of)]
        for C in Cs:
            teachers = Parallel(n_jobs=n_threads, prefer="threads")(delayed(one.fit)(C) for one in fits)
            scores = [one.scores(features[rows]) for one, rows in zip(teachers, held_out, strict=True)]
            candidates.append(Candidate(spec, C, _judged(data.y[order], np.concatenate(scores))))
            if len(candidates) > 2 and _best(candidates) not in candidates[-2:]:
                break
    return candidates


class _Fold:
    """The training rows of one fold; each teacher is started from the one before."""

    def __init__(self, features: Matrix, data: LabelledData, training: BoolArray, seed: int) -> None:
        self._features, self._labels = features[training], data.y[training]
        self._K, self._seed = data.K, seed
        self._last: LinearTeacher | None = None

    def fit(self, C: float) -> LinearTeacher:
        self._last = fit_ssvm(
            self._features,
            self._labels,
            self._K,
            C=C,
            tolerance=_TOLERANCE,
            max_epochs=_MAX_EPOCHS,
            warm_start=self._last,
            run=Run(self._seed),
        )
        return self._last


def _judged(labels: IntArray, scores: FloatArray) -> float:
    """``overall_score`` of a teacher as binary classifier of each class, on pooled held-out rows."""
    ranks = ScoreRanks.of(scores)
    values = []
    for target in range(scores.shape[1]):
        margin = scores[:, target] - ranks.rival(target)
        measured = binary_metrics(labels == target, ranks.predicted == target, margin)
        values.append((measured.accuracy, measured.f1 or 0.0, measured.auc or 0.0))
    return float(overall_score(np.mean(values, axis=0)))


def _best(candidates: Sequence[Candidate]) -> Candidate:
    return max(candidates, key=lambda one: one.score)


def _line(candidates: Sequence[Candidate]) -> str:
    best = _best(candidates)
    gamma = "" if best.features.gamma is None else f", gamma {best.features.gamma:g}"
    return f"{best.features.scaling.value}{gamma}: {100 * best.score:.2f} at teacher C {best.teacher_C:g}"
