"""Use case of the table of a job's classes: sorted and searched by the database, one page at a time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.domain.entities import Job, StudentRow, StudentState
from app.domain.errors import InputFault, InvalidRequest, NotFound
from app.domain.training_spec import TrainingSpec
from app.store.repositories.students import ORDERS
from app.store.unit_of_work import Store, UnitOfWork

PAGE_ROWS: Final = 100
"""Rows of one page of the dashboard."""
MAX_ROWS: Final = 1000
"""Most rows in one answer."""
BINS: Final = 20
"""Bins of `ClassTable.histogram`, between 0 and 1."""
MAX_OFFSET: Final = 10_000_000
_KEPT_SECONDS: Final = 4.0
_MAX_KEPT: Final = 512
_HISTOGRAMS: Final[dict[tuple[object, ...], Sequence[int]]] = {}


@dataclass(frozen=True, slots=True)
class ClassTable:
    """One page of the students of one method of a job.

    methods: all methods of the job that have rows. method: that of this table. total: rows that were found.
    states: number of students in each state. histogram: students by F, in `BINS` bins between 0 and 1.
    """

    rows: Sequence[StudentRow]
    total: int
    method: str
    methods: Sequence[str]
    states: dict[StudentState, int]
    histogram: Sequence[int]


def class_table(
    store: Store,
    job: Job,
    *,
    method: str | None = None,
    order: str = "failed",
    descending: bool = False,
    search: str = "",
    limit: int = PAGE_ROWS,
    offset: int = 0,
) -> ClassTable:
    """Students of a job, also of a running one. order: one of `ORDERS`. search: part of the label.

    method: by default the one that answers queries. Raises InvalidRequest for an unknown order.
    """
    if order not in ORDERS:
        message = f"Students can be sorted by {', '.join(ORDERS)}."
        raise InvalidRequest(message, faults=[InputFault("sort", "unknown_order", message)])
    with store.read() as uow:
        methods = uow.students.methods(job.id)
        method = method or served_method(job, methods)
        rows, total = uow.students.sorted_page(
            job.id,
            method,
            limit=min(limit, MAX_ROWS),
            offset=min(offset, MAX_OFFSET),
            order=order,
            descending=descending,
            search=search,
        )
        states = uow.students.state_counts(job.id, method)
        return ClassTable(rows, total, method, methods, states, _histogram(uow, job, method, states))


def _histogram(uow: UnitOfWork, job: Job, method: str, states: dict[StudentState, int]) -> Sequence[int]:
    """The students by F. With 10 000 classes it costs more than the rest of a page, so it is cached.

    The histogram of an ended job is valid until a student's state changes, others for `_KEPT_SECONDS`.
    """
    stamp = tuple(sorted(states.items())) if job.state.ended else int(time.monotonic() / _KEPT_SECONDS)
    kept = (job.id, job.attempt, method, stamp)
    found = _HISTOGRAMS.get(kept)
    if found is None:
        if len(_HISTOGRAMS) >= _MAX_KEPT:
            _HISTOGRAMS.clear()
        found = _HISTOGRAMS[kept] = uow.students.histogram(job.id, method, "f1", BINS)
    return found


def served_method(job: Job, methods: Sequence[str]) -> str:
    """The method whose students answer queries; of other jobs the first student's method."""
    served = TrainingSpec.model_validate(job.spec).served_method
    students = [name for name in methods if name != "teacher"]
    return served if served in methods or not students else students[0]


def students_of_class(store: Store, job_id: str, class_index: int) -> Sequence[StudentRow]:
    """The students of one class, and its teacher's row, by method. Raises NotFound."""
    with store.read() as uow:
        uow.jobs.get(job_id)
        rows = uow.students.of_job(job_id, after=class_index - 1, limit=1)
    found = [row for row in rows if row.class_index == class_index]
    if not found:
        message = f"Job {job_id} has no student of class number {class_index}, at least not yet."
        raise NotFound(message, code="student_not_found")
    return found
