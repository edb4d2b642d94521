"""Compares maps and values of C by teachers on held-out rows, with the standard error of a difference.

The mean F over the classes of the teachers' answers is measured in folds; if there are few rows, several
divisions into folds are used. The standard error of the difference of two entries comes from their rows'
shares in F (``metrics.f1_shares``). It is paired: rows that both answer in the same way add nothing to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from joblib import Parallel, delayed

from core.data.dataset import LabelledData
from core.data.fold_assignment import fold_assignment
from core.features.examples import Examples
from core.features.maps import fit_feature_map
from core.features.spec import FeatureSpec
from core.model_selection.column_factors import learn_column_factors
from core.model_selection.metrics import mean_f1_shares, paired_error
from core.run import Run
from core.solvers.threads import one_blas_thread
from core.teachers.base import Task
from core.teachers.linear import LinearTeacher
from core.teachers.ssvm import SSVM
from core.types import BoolArray, FloatArray, IntArray, Matrix

FOLDS: Final = 3
ENOUGH_ROWS: Final = 1500
"""If there are fewer rows, further divisions into folds are made until so many held-out answers exist."""
MOST_REPEATS: Final = 4
LANDMARKS: Final = 500
"""Number of landmarks of the compared RBF maps; the chosen map has as many as suit all rows."""
STANDARD_ERRORS: Final = 2.0
"""A new entry must be better by this many standard errors. With one, satimage and vowel lost 0.7 and 0.3
points of F on rows held out of the training part, because the best of twenty entries is chosen mainly by
noise."""
LOOSE: Final = 1e-2
"""Tolerance for comparing entries; the chosen entry is fitted with its own tolerance afterwards."""
LOOSE_EPOCHS: Final = 300


@dataclass(frozen=True, slots=True)
class Entry:
    """A map, and C/n of the teacher. ridge: λ that suits the map, used for learning factors.

    learnt_from: the map for which factors of the columns are learnt; None if no factors are learnt.
    """

    features: FeatureSpec
    C_per_row: float
    ridge: float
    learnt_from: FeatureSpec | None = None

    def is_like(self, other: Entry) -> bool:
        """Whether the two differ by rounding only."""
        same = replace(other, C_per_row=self.C_per_row) == self
        return same and abs(np.log(self.C_per_row / other.C_per_row)) < 1e-6

    def with_factors(self, data: LabelledData, run: Run) -> FeatureSpec:
        """The map, with factors learnt from these rows if the entry learns any. Raises Cancelled."""
        if self.learnt_from is None:
            return self.features
        factors = learn_column_factors(self.learnt_from, data.X, data.y, data.K, self.ridge, run)
        return replace(self.features, column_factors=factors)


@dataclass(frozen=True, slots=True, eq=False)
class Rated:
    """An entry with its mean F on held-out rows, in [0, 1], and the rows' shares in it, (n,)."""

    entry: Entry
    f1: float
    shares: FloatArray

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        spec, width = self.entry.features, self.entry.features.gamma
        return {
            "kind": spec.kind,
            "scaling": str(spec.scaling),
            **({} if width is None else {"gamma": width}),
            "learnt_factors": self.entry.learnt_from is not None,
            "C_per_row": self.entry.C_per_row,
            "f1": self.f1,
        }


def is_better(new_f1: float, new: FloatArray, old_f1: float, old: FloatArray) -> bool:
    """Whether a mean F is two standard errors above another. new, old: the rows' shares in each, (n,)."""
    return new_f1 - old_f1 > STANDARD_ERRORS * paired_error(new, old)


def mean_f1(labels: IntArray, accepted: BoolArray, targets: Sequence[int]) -> tuple[float, FloatArray]:
    """Mean F over the classes ``targets``, and the rows' shares in it, (n,).

    accepted: whether each class was the answer for each row, (len(targets), n).
    """
    return mean_f1_shares((labels == target, says) for target, says in zip(targets, accepted, strict=True))


class Contest:
    """Rates entries by the same folds of the same rows, which are divided into folds ``repeats`` times."""

    def __init__(self, data: LabelledData, run: Run, folds: int = FOLDS) -> None:
        """data: checked rows. run: its threads fit the folds. folds: how many of three folds are held out."""
        self._data, self._run = data, run.silent()
        repeats = min(max(1, ENOUGH_ROWS // data.n), MOST_REPEATS)
        self._folds = [
            assignment == fold
            for repeat in range(repeats)
            for assignment in [fold_assignment(data.y, FOLDS, (run.seed + repeat) % 2**32)]
            for fold in range(folds)
        ]
        self.repeats, self._n_folds = repeats, folds
        self._learnt: dict[tuple[FeatureSpec, float, int], tuple[float, ...]] = {}
        self.rated: list[Rated] = []

    @property
    def best(self) -> Rated:
        """The entry with the largest F; among equal ones the first."""
        return max(self.rated, key=lambda one: one.f1)

    def rate(self, entry: Entry, C_factors: Sequence[float] = (1.0,)) -> list[Rated]:
        """Rate the entry with its C multiplied by each factor, rising. Raises InvalidProblem, Cancelled."""
        data, run = self._data, self._run
        entries = [replace(entry, C_per_row=entry.C_per_row * factor) for factor in C_factors]
        with one_blas_thread():
            shared = self._mapped(entry.features) if entry.learnt_from is None else None
            answers = Parallel(n_jobs=run.threads, prefer="threads")(
                delayed(self._answers)(number, entries, shared) for number in range(len(self._folds))
            )
        rated = []
        for place, one in enumerate(entries):
            values, shares = [], []
            for repeat in range(self.repeats):
                predicted = np.full(data.n, -1)
                for number in range(repeat * self._n_folds, (repeat + 1) * self._n_folds):
                    predicted[self._folds[number]] = answers[number][place]
                rows = predicted >= 0
                accepted = predicted[rows] == np.arange(data.K)[:, None]
                present = np.unique(data.y[rows]).tolist()
                f1, of_rows = mean_f1(data.y[rows], accepted[present], present)
                values.append(f1)
                shares.append(of_rows)
            rated.append(Rated(one, float(np.mean(values)), np.mean(shares, axis=0)))
        self.rated += rated
        return rated

    def _answers(self, number: int, entries: Sequence[Entry], shared: Matrix | None) -> list[IntArray]:
        """The answers of each teacher for the held-out rows of a fold."""
        held_out, data = self._folds[number], self._data
        features = self._mapped(self._in_fold(entries[0], number)) if shared is None else shared
        task = Task(Examples.of_features(features[~held_out]), data.y[~held_out], data.K)
        last: LinearTeacher | None = None
        answers = []
        for entry in entries:
            self._run.check_cancel()
            spec = SSVM(entry.C_per_row * len(task.labels), LOOSE, LOOSE_EPOCHS)
            last = spec.fit(task, Run(self._run.seed), last)
            answers.append(last.feature_scores(features[held_out]).argmax(axis=1))
        return answers

    def _in_fold(self, entry: Entry, number: int) -> FeatureSpec:
        """The map with factors learnt from the fold's training rows; they are learnt once for all widths."""
        if entry.learnt_from is None:
            return entry.features
        key = (entry.learnt_from, entry.ridge, number)
        if key not in self._learnt:
            data, training = self._data, ~self._folds[number]
            fitted = entry.with_factors(data.take(np.flatnonzero(training)), self._run)
            self._learnt[key] = fitted.column_factors or ()
        return replace(entry.features, column_factors=self._learnt[key])

    def _mapped(self, spec: FeatureSpec) -> Matrix:
        X = self._data.X
        return fit_feature_map(X, comparable(spec), self._run.seed).transform(X)


def comparable(spec: FeatureSpec) -> FeatureSpec:
    """The map with few landmarks, for a comparison on a part of the rows."""
    return spec if spec.kind == "linear" else replace(spec, kind="nystroem", n_components=LANDMARKS)
