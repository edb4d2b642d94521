"""Measures on held-out rows how gaps in a record change the score of a student, and corrects for it.

Teacher and student of the same kinds are fitted to two thirds of at most 3000 training rows. Each row of the
other third is scored whole, and with random gaps in a share f of the columns whose gaps are filled. A fit to
their labels gives A, B, A' and B' of

    log odds of the class = (A + f A') s + B + f B'

With a = A'/A and c = B'/A, a row with gaps and score s gets the score s + f (a s + c), which has the same log
odds as an equal score of a whole row: threshold and calibration of the student hold for both. If a rate of
false positives is promised, c is lowered until the rate among rows with gaps is at most that of whole rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import scipy.sparse as sp

from core.data.fold_assignment import fold_assignment
from core.errors import InvalidProblem
from core.features.examples import Examples
from core.model_selection.row_samples import some_rows
from core.packed.encoder import Encoder
from core.run import Run
from core.solvers.threads import one_blas_thread
from core.students.base import StudentSpec
from core.students.sigmoid import fit_sigmoid
from core.training.config import TrainingConfig
from core.training.preparation import Preparation, prepare_as_given
from core.training.student_training import TrainedStudent
from core.types import BoolArray, FloatArray, IntArray, Matrix

_MOST_ROWS: Final = 3000
_PARTS: Final = 3
"""One of this many parts is held out."""
_DRAWS: Final = 4
"""Number of random gap patterns for each held-out row."""
_FEW: Final = 1 / 3
"""In every second pattern at most this share of the columns has gaps."""
_FEWEST: Final = 5
"""Fewest held-out rows of the class, and of the other classes, for a correction."""
_STEPS: Final = 30
_PRIOR: Final = 1e-2


@dataclass(frozen=True, slots=True, eq=False)
class Rehearsal:
    """A second teacher and the held-out rows, for all students of one kind.

    made: teacher and features, fitted to the training rows. whole: the held-out rows. gapped: the same rows
    with gaps, `_DRAWS` times. filled: the share of columns with gaps of each. labels: of the held-out rows.
    budget: largest rate of false positives; None without a budget.
    """

    made: Preparation
    whole: Examples
    gapped: Examples
    filled: FloatArray
    labels: IntArray
    budget: float | None

    @classmethod
    def of(cls, preparation: Preparation, spec: StudentSpec, encoder: Encoder, run: Run) -> Rehearsal | None:
        """The rehearsal for students of ``spec``; None if there are too few rows for a second teacher."""
        known, config = preparation.labelled, preparation.config
        rows = some_rows(known.labels, _MOST_ROWS, config.seed)
        labels = known.labels[rows]
        if len(rows) < _PARTS * _FEWEST:
            return None
        is_held_out = fold_assignment(labels, _PARTS, config.seed) == 0
        data = preparation.labelled_data()
        try:
            made = prepare_as_given(data.take(rows[~is_held_out]), _as_chosen(config, spec), run)
            measured = data.take(rows[is_held_out])
            gapped, filled = _with_gaps(measured.X, encoder, np.random.default_rng(config.seed))
            return cls(
                made,
                made.examples_of(measured),
                made.examples_of(replace(measured.take(_repeated(measured.n)), X=gapped)),
                filled,
                labels[is_held_out],
                config.budget if config.threshold == "fpr" else None,
            )
        except InvalidProblem:
            # The rows have too few classes, views or scores for a second teacher.
            return None

    def correction(self, trained: TrainedStudent, own: FloatArray) -> tuple[float, float] | None:
        """a and c of a student; None if the held-out rows do not determine them.

        own: the student's scores of the rows it was fitted to, (n,). Raises Cancelled.
        """
        truth = self.labels == trained.target
        if min(truth.sum(), (~truth).sum()) < _FEWEST:
            return None
        run, spec = Run(self.made.config.seed, n_threads=1), trained.spec
        try:
            spec.prepare(self.made.examples, run)
            student = spec.fit(self.made.problem(trained.target), run)
        except InvalidProblem:
            return None
        whole, gapped = student.scores(self.whole), student.scores(self.gapped)
        fitted = _fit(truth, whole, gapped, self.filled)
        if fitted is None:
            return None
        slope, offset = fitted
        if self.budget is not None:
            negative = np.tile(~truth, _DRAWS)
            offset = self._within_budget(self.budget, whole[~truth], gapped, negative, slope, offset)
        # Scores of the student that was fitted to all rows have another mean and spread.
        learnt = student.scores(self.made.examples)
        scale = own.std() / learnt.std() if learnt.std() > 0.0 else 1.0
        moved = own.mean() - scale * learnt.mean()
        return slope, float(scale * offset - slope * moved)

    def _within_budget(
        self,
        budget: float,
        whole: FloatArray,
        gapped: FloatArray,
        negative: BoolArray,
        slope: float,
        offset: float,
    ) -> float:
        """The largest c up to ``offset`` that keeps the budget both for rows with few and with many gaps.

        whole: scores of negatives without gaps. gapped: scores of all rows with gaps. negative: whether the
        row is not of the class.
        """
        level = np.quantile(whole, 1.0 - budget, method="higher")
        for are_few in (True, False):
            rows = negative & ((self.filled <= _FEW) == are_few)
            scores, share = gapped[rows], self.filled[rows]
            if len(scores):
                # Each row is above the level if c is at least this.
                least = (level - scores) / share - slope * scores
                offset = min(offset, float(np.quantile(least, budget, method="lower")))
        return offset


def with_gaps(
    trained: TrainedStudent, preparation: Preparation, encoder: Encoder, run: Run
) -> TrainedStudent:
    """Add the correction for gaps to the student, if its encoder fills gaps and the rows determine it.

    Raises Cancelled.
    """
    if not encoder.filling:
        return trained
    spec = trained.spec
    # Students of one kind share a rehearsal, because a copy of scores needs fold teachers.
    with one_blas_thread():
        rehearsal = preparation.examples.shared.get(
            f"rehearsal.{spec.name}", lambda: Rehearsal.of(preparation, spec, encoder, run.silent())
        )
        if rehearsal is None:
            return trained
        gaps = rehearsal.correction(trained, trained.fitted.scores(preparation.labelled.examples))
    return trained if gaps is None else replace(trained, packed=replace(trained.packed, gaps=gaps))


def _as_chosen(config: TrainingConfig, spec: StudentSpec) -> TrainingConfig:
    """The configuration with these students only, nothing left to choose, and folds only for copies.

    Teachers of trees use the fewest folds that they allow.
    """
    teacher: Any = config.teacher
    few = replace(teacher, folds=2) if config.teacher.grows_trees else teacher
    open_parts: Any = {"automatic": False, "tuning": None, "threshold": "zero", "calibration": "none"}
    return replace(config, teacher=few, students=(spec,), guard="off", **open_parts)


def _fit(
    truth: BoolArray, whole: FloatArray, gapped: FloatArray, filled: FloatArray
) -> tuple[float, float] | None:
    """A'/A and B'/A by Newton's method, with a weak prior at 0; None if scores do not rise with the truth."""
    sigmoid = fit_sigmoid(truth, whole)
    if sigmoid.slope <= 0.0:
        return None
    centre, spread = float(whole.mean()), float(whole.std())
    columns = np.column_stack([filled * (gapped - centre) / spread, filled])
    fixed, target = sigmoid.slope * gapped + sigmoid.offset, np.tile(truth, _DRAWS)
    weights = np.zeros(2)
    for _ in range(_STEPS):
        p = 1.0 / (1.0 + np.exp(-np.clip(fixed + columns @ weights, -40.0, 40.0)))
        gradient = columns.T @ (p - target) + _PRIOR * len(p) * weights
        hessian = (columns * (p * (1.0 - p))[:, np.newaxis]).T @ columns + _PRIOR * len(p) * np.eye(2)
        step = np.linalg.solve(hessian, gradient)
        weights -= step
        if np.abs(step).max() < 1e-8:
            break
    slope = float(np.clip(weights[0] / spread / sigmoid.slope, -1.0, 0.0))
    offset = float((weights[1] - weights[0] * centre / spread) / sigmoid.slope)
    return slope, offset


def _with_gaps(X: Matrix, encoder: Encoder, rng: np.random.Generator) -> tuple[Matrix, FloatArray]:
    """The rows (n, d) `_DRAWS` times with gaps, and the share of filling columns with gaps, (n · draws,)."""
    filling = np.flatnonzero([column.fills for column in encoder.columns])
    rows: Any
    n, k = X.shape[0], encoder.layout.dense
    most = np.tile(np.repeat([max(1, int(_FEW * len(filling))), len(filling)], n), _DRAWS // 2)
    counts = rng.integers(1, most + 1)
    order = rng.random((len(counts), len(filling))).argsort(axis=1)
    hidden = np.zeros((len(counts), len(encoder.columns)), dtype=bool)
    hidden[:, filling] = order < counts[:, np.newaxis]
    rows = X[_repeated(n)]
    dense = rows[:, :k].toarray() if sp.issparse(rows) else rows[:, :k].copy()
    encoder.fill_gaps(dense, hidden)
    if not encoder.layout.terms:
        return dense, counts / len(filling)
    lengths = [sum(map(len, column.tables)) for column in encoder.columns]
    owner = np.repeat(np.arange(len(lengths)), lengths)
    terms = rows[:, k:].tocoo()
    kept = ~hidden[terms.row, owner[terms.col]]
    shown = sp.coo_array((terms.data[kept], (terms.row[kept], terms.col[kept])), shape=terms.shape)
    joined = sp.csr_array(sp.hstack([sp.csr_array(dense), shown], format="csr"))
    return joined.astype(X.dtype), counts / len(filling)


def _repeated(n: int) -> IntArray:
    return np.tile(np.arange(n), _DRAWS)
