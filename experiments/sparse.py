"""One query of sparse text: its time against the non-zeros of the row, and against the dense row.

A student on linear features needs only the stored values of a row and the coefficients of their columns.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from core.packed import PackedStudent
from core.solvers.threads import one_blas_thread
from core.training.pipeline import train_student
from core.types import IntArray
from experiments.probabilities import GRID, METHOD, chosen_spec
from experiments.protocol import Protocol
from experiments.stats import student_name
from experiments.store import Record, Run, Store, Work, recipe_of, short
from experiments.timing import Floats, dense_rows, stored_entries, time_alternately

NAME = "sparse-query"

_GROUPS = 5
_ROWS_OF_A_GROUP = 40
_CLASS = 0


class SparseQuery(Work):
    """The measurement on one data set, with the gSVM student of its first class."""

    def __init__(self, protocol: Protocol) -> None:
        super().__init__(protocol.run, protocol.store, recipe_of(NAME, protocol.recipe))
        self._protocol = protocol

    def names(self) -> list[str]:
        return [NAME]

    def make(self, name: str) -> Record:  # noqa: ARG002
        protocol = self._protocol
        spec = chosen_spec(protocol.needed(student_name(_CLASS, METHOD)), protocol.plan.tolerance)
        student = train_student(protocol.preparation, _CLASS, spec).packed
        X = sp.csr_array(protocol.data.test.X)
        lengths = np.diff(X.indptr)
        filled = np.flatnonzero(lengths > 0)
        order = filled[np.argsort(lengths[filled], kind="stable")]
        random = np.random.default_rng(protocol.effort.seed)
        groups = [random.permutation(part)[:_ROWS_OF_A_GROUP] for part in np.array_split(order, _GROUPS)]
        rows = np.concatenate([np.sort(group) for group in groups])
        seconds = query_seconds(student, X[rows])
        slope, constant = np.polyfit(lengths[rows], seconds["sparse"], 1)
        parts = np.array_split(np.arange(len(rows)), _GROUPS)
        return {
            "label": student.label,
            "protocol": protocol.recipe,
            "columns": protocol.data.test.d,
            "seconds_a_query": float(constant),
            "seconds_a_nonzero": float(slope),
            "groups": [_group(lengths[rows], seconds, part) for part in parts if len(part)],
        }


def query_seconds(student: PackedStudent, X: sp.csr_array) -> dict[str, Floats]:
    """Seconds of each row's query: of its stored entries, of the dense row, and both as served.

    ``sparse`` and ``dense`` are the products alone; ``sparse_served`` and ``dense_served`` include the input
    checks of ``PackedStudent``.
    """
    stored, dense = stored_entries(X), dense_rows(X)
    if student.form.linear is None:
        raise ValueError(f"a {student.form.kind} student is not one product")
    (coef, intercept), threshold = student.form.linear, student.threshold
    queries = {
        "sparse": lambda i: coef[stored[i][0]].dot(stored[i][1]) + intercept >= threshold,
        "dense": lambda i: coef.dot(dense[i]) + intercept >= threshold,
        "sparse_served": lambda i: student.scores_sparse(*stored[i]),
        "dense_served": lambda i: student.score(dense[i]),
    }
    with one_blas_thread():
        return time_alternately(queries, len(stored))


def summarise_sparse(store: Store, data_set: str) -> Record | None:
    """The record of a data set, if it belongs to the protocol's present run."""
    run = Run(data_set, GRID, 0)
    setting, record = store.read(run.key("setting")), store.read(run.key(NAME))
    if setting is None or record is None or record["protocol"] != setting["recipe"]:
        return None
    names = ("protocol", "label", "columns", "seconds_a_query", "seconds_a_nonzero", "groups", "seconds")
    summary: Record = short({name: record[name] for name in names})
    return summary


def _group(lengths: IntArray, seconds: dict[str, Floats], rows: IntArray) -> Record:
    medians = {name: float(np.median(each[rows])) for name, each in seconds.items()}
    return {"rows": len(rows), "nonzeros": float(np.median(lengths[rows])), "seconds": medians}
