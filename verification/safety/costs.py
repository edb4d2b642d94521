"""``python -m verification.safety.costs``: the counted cost of answers against their processor time.

Random students of every map and form, as imported packages may have them, answer a row, many rows, a row that
is explained by columns, and as a teacher. Nanoseconds for each counted multiply-add are compared with the
median of the same question: the count is good if none is more than eight times slower or quicker. The last
line is JSON; the exit code is 0 if that holds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from app.processes.tuning import limit_blas_threads
from core.packed import PackedStudent, PackedTeacher
from core.packed.contributions import Baseline, explainer, explanation_work
from core.packed.maps import BesideTerms
from core.packed.record_rows import EncodedRecord
from core.packed.trees import MAX_COST
from core.packed.work import row_work, students_work
from verification.safety.random_students import FORMS, MAPS, deepest_row, random_student

FACTOR: Final = 8.0
_SMALLEST, _LARGEST = 3e5, 1e7
"""Multiply-adds of the students. Of smaller ones the time is that of the interpreter."""
_STUDENTS, _QUICK_STUDENTS = 1000, 90
_AT_BOUND: Final = 7
"""One student of trees of this many is as large as a package may be."""
_REPETITIONS: Final = 3
_NUMBERS: Final = 1 << 21
_EXPLAINED: Final = 4
_OF_CALLS: Final = 20_000
"""Multiply-adds in the time in which the interpreter calls what answers a question."""

Question = Callable[[PackedStudent], tuple[Callable[[], Any], int]]
"""From a student to what is timed, and its counted cost."""


def main() -> int:
    """0 if every answer takes the time that its count says."""
    parser = argparse.ArgumentParser(prog="python -m verification.safety.costs", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{_QUICK_STUDENTS} students")
    parser.add_argument("--students", type=int, help=f"by default {_STUDENTS}")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    students = arguments.students or (_QUICK_STUDENTS if arguments.quick else _STUDENTS)
    figures = measure(students, arguments.seed)
    for name, figure in figures["questions"].items():
        print(f"{name:10} {figure}")
    print(json.dumps(figures))
    return int(not figures["costs_within_factor"])


def measure(students: int, seed: int) -> dict[str, Any]:
    """Figures of random students, each of which answers every question."""
    rng = np.random.default_rng(seed)
    measured: dict[str, list[tuple[float, str]]] = {name: [] for name in QUESTIONS}
    kinds = [(kind, form) for kind in MAPS for form in FORMS]
    for number in range(students):
        kind, form = kinds[number % len(kinds)]
        size = float(np.exp(rng.uniform(np.log(_SMALLEST), np.log(_LARGEST))))
        if kind.startswith("trees") and number % _AT_BOUND == 0:
            size = MAX_COST
        student = random_student(rng, kind, form, size)
        for name, ask in QUESTIONS.items():
            measured[name].append((nanoseconds(ask, student), f"{kind}, {form}, {size:.1g}"))
    questions = {name: _summary(of_question) for name, of_question in measured.items()}
    within = all(max(one["slowest"], one["quickest"]) <= FACTOR for one in questions.values())
    return {"costs_students": students, "costs_within_factor": within, "questions": questions}


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


def _summary(measured: list[tuple[float, str]]) -> dict[str, Any]:
    """The median in nanoseconds, and how many times slower and quicker than it answers are."""
    median = float(np.median([time_of for time_of, _ in measured]))
    (least, quickest), (most, slowest) = min(measured), max(measured)
    return {
        "median_ns": round(median, 4),
        "slowest": round(most / median, 2),
        "slowest_student": slowest,
        "quickest": round(median / least, 2),
        "quickest_student": quickest,
    }


if __name__ == "__main__":
    sys.exit(main())
