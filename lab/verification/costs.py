"""``python -m lab.verification.costs``: the counted cost of answers against their processor time.

Random students of every map and form, as imported packages may have them, answer a row, many rows, a row that
is explained by columns, and as a teacher. Nanoseconds for each counted multiply-add are compared with the
median of the same question: the count is good if none is more than eight times slower or quicker. The last
line is JSON; the exit code is 0 if that holds.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, Final

import numpy as np

from core.packed.trees import MAX_COST
from tests.reference.random_students import FORMS, MAPS, random_student
from verification.fuzz.costs import FACTOR, QUESTIONS, nanoseconds

_SMALLEST, _LARGEST = 3e5, 1e7
"""Multiply-adds of the students. Of smaller ones the time is that of the interpreter."""
_STUDENTS, _QUICK_STUDENTS = 1000, 90
_AT_BOUND: Final = 7
"""One student of trees of this many is as large as a package may be."""


def main() -> int:
    """0 if every answer takes the time that its count says."""
    parser = argparse.ArgumentParser(prog="python -m lab.verification.costs", description=__doc__)
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
