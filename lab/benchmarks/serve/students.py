"""Kernel students against the full teacher of 26 classes, in process and over HTTP; 16 columns.

kernel_student_vs_teacher        in process: time of one row, on the teacher's 1000 landmarks
compact_student_vs_teacher       the same on 100 landmarks of its own
kernel_student_http_vs_teacher   p50 of `:query` : p50 of `:predict`, one connection
compact_student_http_vs_teacher  the same

The teacher's time is the smaller of two methods: computing the scores of all classes, or one after the other
until one exceeds the target's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from string import ascii_uppercase
from typing import Any

import numpy as np

from app.store.unit_of_work import Store
from core.packed import LinearForm, PackedStudent, PackedTeacher, RbfBasis
from lab.benchmarks.load import wrk
from lab.benchmarks.peers import json_body
from lab.benchmarks.serve.comparison import Figures, Pace, interleaved, print_figures, ratio, require_success
from tests.system.published import publish
from tests.system.query_service import Service, row

COLUMNS = 16
LANDMARKS = 1000
COMPACT_LANDMARKS = 100
GAMMA = 0.05
TARGET = "M"
ROWS = 200


def models() -> tuple[PackedTeacher, dict[str, PackedStudent], dict[str, PackedStudent]]:
    """A teacher, its full students and its compact students, all with random normal weights."""
    rng = np.random.default_rng(3)
    full = _basis(rng, LANDMARKS)
    coef = rng.normal(size=(len(ascii_uppercase), LANDMARKS))
    teacher = PackedTeacher(full, coef, np.zeros(len(coef)), tuple(ascii_uppercase))
    students = {name: _student(rng, full, name) for name in ascii_uppercase}
    compact = {name: _student(rng, _basis(rng, COMPACT_LANDMARKS), name) for name in ascii_uppercase}
    return teacher, students, compact


def measure(cores: tuple[int, int], pace: Pace) -> dict[str, Any]:
    """Measure the figures of this module."""
    teacher, students, compact = models()
    inside = _in_process(teacher, students[TARGET], compact[TARGET], pace)
    print_figures("one row, in process", "µs", inside)

    def publish_models(store: Store) -> None:
        publish(store, "full", students, teacher)
        publish(store, "compact", compact, teacher)

    body = json_body(row(COLUMNS))
    with Service(prepare=publish_models, cores=cores[0]) as ours:
        urls = {
            "kernel_student": ours.query("full", TARGET),
            "compact_student": ours.query("compact", TARGET),
            "teacher_scores": ours.query("full", "", action=":predict"),
            "teacher_stops": ours.query("full", "", action=f":predict?target={TARGET}"),
        }

        def p50(url: str) -> Callable[[], float]:
            return lambda: (
                require_success(
                    wrk(url, body, ours.headers(), connections=1, seconds=pace.seconds, core=cores[1])
                ).p50_us
            )

        outside = interleaved({name: p50(url) for name, url in urls.items()}, pace.few.rounds)
    print_figures("one row, over HTTP", "µs", outside)
    figures = {}
    for infix, found in (("", inside), ("_http", outside)):
        _with_teacher(found)
        for name in ("kernel_student", "compact_student"):
            figures[f"{name}{infix}_vs_teacher"] = ratio(found, name, "teacher")
    return figures


def _with_teacher(found: Figures) -> None:
    ways = zip(found["teacher_scores"], found["teacher_stops"], strict=True)
    found["teacher"] = [min(both) for both in ways]


def _in_process(teacher: PackedTeacher, full: PackedStudent, compact: PackedStudent, pace: Pace) -> Figures:
    """Median microseconds of one row, by model and method."""
    rows = list(np.random.default_rng(4).normal(size=(ROWS, COLUMNS)))
    target = teacher.classes.index(TARGET)
    ways: dict[str, Callable[[Any], Any]] = {
        "kernel_student": full.score,
        "compact_student": compact.score,
        "teacher_scores": lambda x: teacher.predict(x[np.newaxis]),
        "teacher_stops": lambda x: teacher.is_class(x, target),
    }

    def median(ask: Callable[[Any], Any]) -> Callable[[], float]:
        return lambda: statistics.median(_microseconds(ask, x) for x in rows)

    return interleaved({name: median(ask) for name, ask in ways.items()}, 2 * pace.rounds)


def _microseconds(ask: Callable[[Any], Any], x: Any) -> float:
    started = time.perf_counter()
    ask(x)
    return (time.perf_counter() - started) * 1e6


def _basis(rng: np.random.Generator, landmarks: int) -> RbfBasis:
    scale = np.full(COLUMNS, np.sqrt(GAMMA))
    return RbfBasis(np.zeros(COLUMNS), scale, scale * rng.normal(size=(landmarks, COLUMNS)))


def _student(rng: np.random.Generator, basis: RbfBasis, label: str) -> PackedStudent:
    coef, gate = rng.normal(size=(2, basis.n_basis))
    return PackedStudent(basis, LinearForm(coef, 0.1, gate, 0.2), 0.0, label)
