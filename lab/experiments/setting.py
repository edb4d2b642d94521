"""Search for the feature map, its scaling and γ, and the teacher's C, by cross-validated teachers.

A candidate's teachers are rated on held-out rows as binary classifiers of each class, by the overall score of
accuracy, F and AUC (means over classes). Multi-class accuracy would ignore the rare classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from joblib import Parallel, delayed

from core.data.dataset import LabelledData
from core.data.fold_assignment import fold_assignment
from core.data.scaling import fit_standardisation
from core.data.scaling_kind import Scaling
from core.features.base import before_terms
from core.features.examples import Examples
from core.features.maps import fit_feature_map, scale_rule
from core.features.spec import FeatureSpec
from core.model_selection.joint import overall_score
from core.model_selection.metrics import binary_metrics
from core.model_selection.row_samples import some_rows
from core.run import Run
from core.solvers.threads import one_blas_thread
from core.students.difficulty import ScoreRanks
from core.teachers.base import Task
from core.teachers.linear import LinearTeacher
from core.teachers.ssvm import SSVM
from core.types import BoolArray, FloatArray, IntArray, Matrix

Report = Callable[[str], None]

# Sufficient to rank candidates; the chosen teacher is fitted with its own tolerance afterwards.
_TOLERANCE = 1e-2
_MAX_EPOCHS = 300


@dataclass(frozen=True, slots=True)
class Search:
    """The settings to try.

    features: the map to start from. scalings, gamma_factors: all combinations are tried, γ as multiples of
    ``scale_rule``; without both, ``features`` is used as it is. teacher_C: values to try.
    folds: of the cross-validation. rows: maps are compared on at most this many rows; the teacher's C is
    chosen on all of them.
    """

    features: FeatureSpec
    teacher_C: tuple[float, ...]  # noqa: N815
    scalings: tuple[Scaling, ...] = ()
    gamma_factors: tuple[float, ...] = ()
    folds: int = 5
    rows: int = 4000


@dataclass(frozen=True, slots=True)
class Candidate:
    """One map and teacher's C with its score, in [0, 1]."""

    features: FeatureSpec
    teacher_C: float  # noqa: N815
    score: float


def choose_setting(
    data: LabelledData, search: Search, run: Run, report: Report, groups: IntArray | None = None
) -> dict[str, Any]:
    """The best map on at most ``search.rows`` rows, then the best C of its teacher on all rows.

    report: called with a line about each map. groups: of each row, (n,), where rows that belong together
    share a fold. Of equal candidates the first is taken, in the order of ``search`` with C rising.

    Returns ``features``, ``teacher_C`` and ``trace``, all candidates in order, JSON-ready. Raises
    InvalidProblem.
    """
    trace: list[Candidate] = []
    specs = candidate_specs(data, search)
    fold_of = folds_of(data.y, groups, search.folds, run.seed)
    if len(specs) > 1:
        rows = some_rows(data.y, search.rows, run.seed)
        part = data.take(rows)
        # C/n weighs one example: on a part of the rows the same weight needs a smaller C.
        share = len(rows) / data.n
        for spec in specs:
            scored = judge(part, fold_of[rows], spec, [C * share for C in search.teacher_C], run)
            trace += [replace(one, teacher_C=one.teacher_C / share) for one in scored]
            report(_line(trace[-len(scored) :]))
        specs = [best_of(trace).features]
    chosen_C = search.teacher_C[0]
    if len(search.teacher_C) > 1:
        final = judge(data, fold_of, specs[0], search.teacher_C, run)
        report(_line(final))
        chosen_C, trace = best_of(final).teacher_C, trace + final
    return {
        "features": specs[0].as_dict(),
        "teacher_C": chosen_C,
        "trace": [asdict(candidate) for candidate in trace],
    }


def candidate_specs(data: LabelledData, search: Search) -> list[FeatureSpec]:
    """The maps of a search, γ as numbers."""
    specs = []
    for scaling in search.scalings or (search.features.scaling,):
        base = replace(search.features, scaling=scaling)
        if not search.gamma_factors:
            specs.append(base)
            continue
        X, of_kernel = before_terms(data.X, base)
        rule = scale_rule(X, fit_standardisation(X, scaling, of_kernel.layout))
        specs += [replace(base, gamma=float(f"{factor * rule:.4g}")) for factor in search.gamma_factors]
    return specs


def judge(
    data: LabelledData, fold_of: IntArray, spec: FeatureSpec, Cs: Sequence[float], run: Run
) -> list[Candidate]:
    """The map with each C, rising, in cross-validation, until two in a row are not better.

    fold_of: the fold of each row, (n,). Raises InvalidProblem, Cancelled.
    """
    held_out = [np.flatnonzero(fold_of == fold) for fold in np.unique(fold_of)]
    order = np.concatenate(held_out)
    candidates: list[Candidate] = []
    with one_blas_thread():
        features = fit_feature_map(data.X, spec, run.seed).transform(data.X)
        fits = [_Fold(features, data, fold_of != fold, run.seed) for fold in np.unique(fold_of)]
        for C in Cs:
            run.check_cancel()
            teachers = Parallel(n_jobs=run.n_threads or -1, prefer="threads")(
                delayed(one.fit)(C) for one in fits
            )
            scores = [
                one.feature_scores(features[rows]) for one, rows in zip(teachers, held_out, strict=True)
            ]
            candidates.append(Candidate(spec, C, _judged(data.y[order], np.concatenate(scores))))
            if len(candidates) > 2 and best_of(candidates) not in candidates[-2:]:
                break
    return candidates


class _Fold:
    """The training rows of one fold; each teacher starts from the one before."""

    def __init__(self, features: Matrix, data: LabelledData, training: BoolArray, seed: int) -> None:
        self._task = Task(Examples.of_features(features[training]), data.y[training], data.K)
        self._run = Run(seed)
        self._last: LinearTeacher | None = None

    def fit(self, C: float) -> LinearTeacher:
        self._last = SSVM(C, _TOLERANCE, _MAX_EPOCHS).fit(self._task, self._run, self._last)
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


def best_of(candidates: Sequence[Candidate]) -> Candidate:
    """The candidate with the largest score; of equal ones the first."""
    return max(candidates, key=lambda one: one.score)


def _line(candidates: Sequence[Candidate]) -> str:
    best = best_of(candidates)
    gamma = "" if best.features.gamma is None else f", gamma {best.features.gamma:g}"
    return f"{best.features.scaling.value}{gamma}: {100 * best.score:.2f} at teacher C {best.teacher_C:g}"


def folds_of(labels: IntArray, groups: IntArray | None, n_folds: int, seed: int) -> IntArray:
    """The fold of each row, (n,): ``grouped_folds`` if there are groups, otherwise stratified.

    Raises InvalidProblem for a number of folds that cannot be made of the rows.
    """
    return fold_assignment(labels, n_folds, seed) if groups is None else grouped_folds(groups, n_folds)


def grouped_folds(groups: IntArray, n_folds: int) -> IntArray:
    """The fold of each row, (n,), all rows of a group in one fold; fewer folds if there are fewer groups.

    The largest group goes first, each to the fold with the fewest rows so far. Where the test part has other
    speakers than the training part, only held-out speakers show how good a student will be.
    """
    names, group_of, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    filled = np.zeros(min(n_folds, len(names)), dtype=np.int64)
    fold_of_group = np.empty(len(names), dtype=np.int64)
    for group in np.argsort(-sizes, kind="stable"):
        fold = int(np.argmin(filled))
        fold_of_group[group] = fold
        filled[fold] += sizes[group]
    fold_of: IntArray = fold_of_group[group_of]
    return fold_of
