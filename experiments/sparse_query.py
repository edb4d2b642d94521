"""One query of sparse text: its time against the non-zeros of the row, and against the row written out.

A student on linear features needs the stored values of a row and the coefficients of their columns only.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import scipy.sparse as sp

from core.packed import PackedStudent
from core.solvers.threads import one_blas_thread
from core.training.pipeline import train_student
from core.types import IntArray
from experiments.classroom import Classroom
from experiments.data import TEXT_SETS, Split
from experiments.effort import Effort
from experiments.plans import Plan
from experiments.probabilities import chosen_spec, stored_setting, stored_student
from experiments.results import Record, ResultStore, Run, recipe_of
from experiments.resumable import Resumable
from experiments.timing import Floats, dense_rows, seconds_in_turns, stored_entries

DATA_SETS = TEXT_SETS
NAME = "sparse-query"

_GROUPS = 5
_ROWS_OF_A_GROUP = 40
_VERSION = 1
_CLASS = 0


class SparseQuery(Resumable):
    """The measurement on one data set, with the gSVM student of its first class."""

    def __init__(
        self, protocol: str, plan: Plan, run: Run, data: Split, store: ResultStore, effort: Effort
    ) -> None:
        super().__init__(run, store, recipe_of([NAME, _VERSION, protocol]))
        self._protocol, self._plan, self._data, self._effort = protocol, plan, data, effort

    def costs(self) -> dict[str, float]:
        return {NAME: 1000.0 * self._data.train.n}

    def _make(self, _name: str) -> Record:
        """Raises NeedsProtocol, InvalidProblem."""
        student = self._student
        X = sp.csr_array(self._data.test.X)
        lengths = np.diff(X.indptr)
        filled = np.flatnonzero(lengths > 0)
        order = filled[np.argsort(lengths[filled], kind="stable")]
        rng = np.random.default_rng(self._effort.seed)
        rows = np.concatenate(
            [np.sort(rng.permutation(part)[:_ROWS_OF_A_GROUP]) for part in np.array_split(order, _GROUPS)]
        )
        seconds = query_seconds(student, X[rows])
        slope, constant = np.polyfit(lengths[rows], seconds["sparse"], 1)
        groups = np.array_split(np.arange(len(rows)), _GROUPS)
        return {
            "label": student.label,
            "protocol": self._protocol,
            "columns": self._data.test.d,
            "seconds_a_query": float(constant),
            "seconds_a_nonzero": float(slope),
            "groups": [_group(lengths[rows], seconds, each) for each in groups if len(each)],
        }

    @cached_property
    def _student(self) -> PackedStudent:
        """The protocol's student, packed."""
        record = stored_student(self._store, self.run, _CLASS, self._protocol)
        setting = stored_setting(self._store, self.run, self._protocol)
        room = Classroom(self._plan, self._data, setting, self._effort)
        return train_student(room.preparation, _CLASS, chosen_spec(record, self._plan.tolerance)).packed


def query_seconds(student: PackedStudent, X: sp.csr_array) -> dict[str, Floats]:
    """Seconds of each row's query: of its stored entries, of the row written out, and both as served.

    ``sparse`` and ``dense`` are the products alone; ``sparse_served`` and ``dense_served`` include the checks
    of input of ``PackedStudent``.
    """
    stored, written_out = stored_entries(X), dense_rows(X)
    coef, intercept, threshold = student.form.coef, student.form.intercept, student.threshold
    asks = {
        "sparse": lambda i: coef[stored[i][0]].dot(stored[i][1]) + intercept >= threshold,
        "dense": lambda i: coef.dot(written_out[i]) + intercept >= threshold,
        "sparse_served": lambda i: student.scores_sparse(*stored[i]),
        "dense_served": lambda i: student.score(written_out[i]),
    }
    with one_blas_thread():
        return seconds_in_turns(asks, len(stored))


def _group(lengths: IntArray, seconds: dict[str, Floats], rows: IntArray) -> Record:
    medians = {name: float(np.median(each[rows])) for name, each in seconds.items()}
    return {"rows": len(rows), "nonzeros": float(np.median(lengths[rows])), "seconds": medians}
