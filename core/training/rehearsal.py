"""What gaps in a record change in the score of a student, measured on rows that a rehearsal holds out.

Teacher and student of the same kinds are fitted to two thirds of at most 3000 training rows. Each row of the
last third is scored whole, and with random gaps in the share f of the columns that fill gaps. From their
labels follow A, B, A' and B' of

    log odds of the class = (A + f A') s + B + f B'

and with a = A'/A and c = B'/A the score s + f (a s + c) of a row with gaps has the log odds of an equal score
of a whole row: threshold and calibration of the student hold for both. Where a rate of false positives is
promised, c is lowered until the rate among rows with gaps is no larger than among whole ones.
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
"""One of so many is held out."""
_DRAWS: Final = 4
"""Patterns of gaps for each held-out row."""
_FEW: Final = 1 / 3
"""The share of columns up to which every second pattern has gaps."""
_FEWEST: Final = 5
"""Held-out rows of the class, and of the rest, from which anything is concluded."""
_STEPS: Final = 30
_PRIOR: Final = 1e-2


@dataclass(frozen=True, slots=True, eq=False)
class Rehearsal:
    """made: teacher and features of the rows that were learnt. whole: the held-out rows. gapped: the same
    with gaps, `_DRAWS` times. filled: their shares of columns with gaps. labels: of the held-out rows.
    budget: of false positives; None without one.
    """

    made: Preparation
    whole: Examples
    gapped: Examples
    filled: FloatArray
    labels: IntArray
    budget: float | None

    @classmethod
    def of(cls, preparation: Preparation, spec: StudentSpec, encoder: Encoder, run: Run) -> Rehearsal | None:
        """The rehearsal of such students; None where the rows are too few for a second teacher."""
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
            # Classes, views or scores of the rows do not suffice for a second teacher.
            return None

    def correction(self, trained: TrainedStudent, own: FloatArray) -> tuple[float, float] | None:
        """a and c of a student; None where the rows say nothing.

        own: scores of the student of the rows that it was fitted to, (n,). Raises Cancelled.
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
        # The student of all rows has scores of another mean and spread.
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
        """The largest c up to ``offset`` with which rows with few gaps, and with many, keep the budget.

        whole: scores of negatives without gaps. gapped: of all rows with gaps. negative: their truth.
        """
        level = np.quantile(whole, 1.0 - budget, method="higher")
        for are_few in (True, False):
            rows = negative & ((self.filled <= _FEW) == are_few)
            scores, share = gapped[rows], self.filled[rows]
            if len(scores):
                # Each row is above the level from this c on.
                least = (level - scores) / share - slope * scores
                offset = min(offset, float(np.quantile(least, budget, method="lower")))
        return offset


def with_gaps(
    trained: TrainedStudent, preparation: Preparation, encoder: Encoder, run: Run
) -> TrainedStudent:
    """The student with what gaps change in its scores, if its encoder fills gaps and the rows tell.

    Raises Cancelled.
    """
    if not encoder.filling:
        return trained
    spec = trained.spec
    # Students of one kind share a rehearsal, since a copy of scores needs teachers of folds.
    with one_blas_thread():
        rehearsal = preparation.examples.shared.get(
            f"rehearsal.{spec.name}", lambda: Rehearsal.of(preparation, spec, encoder, run.silent())
        )
        if rehearsal is None:
            return trained
        gaps = rehearsal.correction(trained, trained.fitted.scores(preparation.labelled.examples))
    return trained if gaps is None else replace(trained, packed=replace(trained.packed, gaps=gaps))


def _as_chosen(config: TrainingConfig, spec: StudentSpec) -> TrainingConfig:
    """The configuration with such students alone, nothing left to choose, and no folds but for copies.

    Trees take the fewest folds that they may.
    """
    teacher: Any = config.teacher
    few = replace(teacher, folds=2) if config.teacher.grows_trees else teacher
    open_parts: Any = {"automatic": False, "tuning": None, "threshold": "zero", "calibration": "none"}
    return replace(config, teacher=few, students=(spec,), guard="off", **open_parts)


def _fit(
    truth: BoolArray, whole: FloatArray, gapped: FloatArray, filled: FloatArray
) -> tuple[float, float] | None:
    """A'/A and B'/A by Newton's method, with a weak prior at 0; None where scores fall with the truth."""
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
    """The rows (n, d) `_DRAWS` times with gaps, and the share of the columns that have one, (n · draws,)."""
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
