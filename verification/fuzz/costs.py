"""The time of answers for each multiply-add that is counted, and the questions that are answered."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from app.processes.tuning import limit_blas_threads
from core.packed import PackedStudent, PackedTeacher
from core.packed.contributions import Baseline, explainer, explanation_work
from core.packed.maps import BesideTerms
from core.packed.record_rows import EncodedRecord
from core.packed.work import row_work, students_work
from tests.reference.random_students import deepest_row

FACTOR: Final = 8.0
"""How many times slower or quicker than the median an answer may be."""
_REPETITIONS: Final = 3
_NUMBERS: Final = 1 << 21
_EXPLAINED: Final = 4
_OF_CALLS: Final = 20_000
"""Multiply-adds in the time in which the interpreter calls what answers a question."""

Question = Callable[[PackedStudent], tuple[Callable[[], Any], int]]
"""From a student to what is timed, and its counted cost."""


def nanoseconds(ask: Question, student: PackedStudent) -> float:
    """Nanoseconds of processor time for each multiply-add that is counted; the least of some repetitions.

    BLAS has one thread, as in a query process: waiting threads would count as processor time.
    """
    limit_blas_threads()
    answer, counted = ask(student)
    seconds = []
    for _ in range(_REPETITIONS):
        began = time.process_time()
        answer()
        seconds.append(time.process_time() - began)
    return 1e9 * min(seconds) / (counted + _OF_CALLS)


def _row(student: PackedStudent) -> tuple[Callable[[], Any], int]:
    x = deepest_row(student)
    return (lambda: student.score(x)), students_work([student])


def _rows(student: PackedStudent) -> tuple[Callable[[], Any], int]:
    d = student.map.n_columns
    X = np.tile(deepest_row(student), (max(2, min(20, _NUMBERS // max(d, student.map.n_basis))), 1))
    return (lambda: student.scores(X)), len(X) * students_work([student])


def _explained(student: PackedStudent) -> tuple[Callable[[], Any], int]:
    """A row whose columns are some groups, as vectors in a table are, and of which the last has the terms."""
    packed = student.map
    dense = packed.of_dense.n_columns if isinstance(packed, BesideTerms) else packed.n_columns
    groups = np.unique(np.linspace(0, dense, 8).astype(np.int64))
    terms = np.zeros_like(groups)
    terms[-1] = packed.n_columns - dense
    baseline = Baseline(np.zeros(dense), np.zeros(dense), groups, terms)
    record = EncodedRecord(deepest_row(student)[:dense].tolist(), np.empty(0, dtype=np.int64), np.empty(0))

    def explain() -> None:
        contributions = explainer(student, baseline)
        for _ in range(_EXPLAINED):
            contributions(record)

    return explain, explanation_work(student, baseline, _EXPLAINED)


def _predicted(student: PackedStudent) -> tuple[Callable[[], Any], int]:
    classes = 1 + 100_000 // student.map.n_basis
    coef = np.ones((classes, student.map.n_basis))
    teacher = PackedTeacher(student.map, coef, np.zeros(classes), tuple(map(str, range(classes))))
    X = deepest_row(student)[np.newaxis]
    return (lambda: teacher.scores(X)), row_work(student.map, classes)


QUESTIONS: Final[dict[str, Question]] = {
    "row": _row,
    "rows": _rows,
    "explained": _explained,
    "predicted": _predicted,
}
