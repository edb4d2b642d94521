"""Students of jobs: their results, references to packed blobs, and traces of their hyper-parameter search."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy import Connection

from app.domain.entities import StudentRow, StudentState
from app.store.dialect import insert_once, upsert
from app.store.tables import job_students, student_curves, student_traces

StudentKey: TypeAlias = tuple[int, str]
"""(class index, method)."""
_KEYS = ["job_id", "class_index", "method"]
_ROWS_PER_STATEMENT = 200


class Students:
    """Queries on students."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def save(self, row: StudentRow) -> bool:
        """Insert or replace a row, unless the stored one succeeded; returns whether it was stored."""
        return bool(self.save_all([row]))

    def save_all(self, rows: Sequence[StudentRow]) -> set[tuple[int, str]]:
        """As `save`, for rows of different students; returns (class index, method) of the stored rows."""
        stored: set[tuple[int, str]] = set()
        for start in range(0, len(rows), _ROWS_PER_STATEMENT):
            values = [
                dataclasses.asdict(row) | {"state": row.state.value}
                for row in rows[start : start + _ROWS_PER_STATEMENT]
            ]
            statement = upsert(self._connection, job_students).values(values)
            statement = statement.on_conflict_do_update(
                index_elements=_KEYS,
                set_={name: statement.excluded[name] for name in values[0] if name not in _KEYS},
                where=job_students.c.state != StudentState.SUCCEEDED.value,
            )
            keys = statement.returning(job_students.c.class_index, job_students.c.method)
            stored.update((row[0], row[1]) for row in self._connection.execute(keys))
        return stored

    def of_job(
        self, job_id: str, *, after: int = -1, limit: int = 1_000_000, method: str | None = None
    ) -> Sequence[StudentRow]:
        """All rows of the first ``limit`` classes with an index above ``after``, by class and method."""
        return self.page(job_id, after=after, limit=limit, method=method)[0]

    def page(
        self, job_id: str, *, limit: int, after: int = -1, method: str | None = None
    ) -> tuple[Sequence[StudentRow], bool]:
        """As `of_job`, and whether there are more classes. All rows of a class are on one page."""
        conditions = [job_students.c.job_id == job_id, job_students.c.class_index > after]
        if method is not None:
            conditions.append(job_students.c.method == method)
        indices = sa.select(job_students.c.class_index).where(*conditions).distinct()
        # The first class after the page, or None.
        beyond = self._connection.execute(
            indices.order_by(job_students.c.class_index).offset(limit).limit(1)
        ).scalar()
        if beyond is not None:
            conditions.append(job_students.c.class_index < beyond)
        query = sa.select(job_students).where(*conditions)
        query = query.order_by(job_students.c.class_index, job_students.c.method)
        return [_entity(row) for row in self._connection.execute(query)], beyond is not None

    def sorted_page(
        self,
        job_id: str,
        method: str,
        *,
        limit: int,
        offset: int,
        order: str,
        descending: bool = False,
        search: str = "",
    ) -> tuple[Sequence[StudentRow], int]:
        """Rows ``offset`` and following of one method, and how many there are in all.

        order: one of `ORDERS`, after which rows are sorted by class; "failed" puts failed rows first.
        search: part of the label, in any case.
        """
        where = [job_students.c.job_id == job_id, job_students.c.method == method]
        if search:
            where.append(job_students.c.label.icontains(search, autoescape=True))
        key = _order(order)
        query = sa.select(job_students).where(*where).limit(limit).offset(offset)
        query = query.order_by(
            (key.desc() if descending else key.asc()).nulls_last(), job_students.c.class_index
        )
        total = self._connection.execute(sa.select(sa.func.count()).where(*where)).scalar_one()
        return [_entity(row) for row in self._connection.execute(query)], int(total)

    def methods(self, job_id: str) -> Sequence[str]:
        """The methods of which the job has rows."""
        query = sa.select(job_students.c.method).where(job_students.c.job_id == job_id).distinct()
        return sorted(self._connection.execute(query).scalars())

    def state_counts(self, job_id: str, method: str) -> dict[StudentState, int]:
        """Number of rows of one method in each state that occurs."""
        query = sa.select(job_students.c.state, sa.func.count()).group_by(job_students.c.state)
        query = query.where(job_students.c.job_id == job_id, job_students.c.method == method)
        return {StudentState(row[0]): row[1] for row in self._connection.execute(query)}

    def histogram(self, job_id: str, method: str, metric: str, bins: int) -> list[int]:
        """Number of rows of one method by ``metric``, a number in [0, 1], in bins of equal width."""
        scaled = sa.cast(job_students.c.metrics[metric].as_float() * bins, sa.Integer)
        query = sa.select(scaled, sa.func.count()).group_by(scaled)
        query = query.where(job_students.c.job_id == job_id, job_students.c.method == method)
        counts = [0] * bins
        for number, count in self._connection.execute(query):
            if number is not None:
                counts[min(max(number, 0), bins - 1)] += count
        return counts

    def finished(
        self, job_id: str, states: Collection[StudentState], *, first: int = 0, last: int = 2**31 - 1
    ) -> set[tuple[int, str]]:
        """(class index, method) of the rows in any of ``states``, for classes ``first`` to ``last``."""
        query = sa.select(job_students.c.class_index, job_students.c.method).where(
            job_students.c.job_id == job_id,
            job_students.c.class_index.between(first, last),
            job_students.c.state.in_([state.value for state in states]),
        )
        return {(row[0], row[1]) for row in self._connection.execute(query)}

    def results(
        self, job_id: str, first: int, last: int, states: Collection[StudentState]
    ) -> list[StudentRow]:
        """Rows in any of ``states`` of classes ``first`` to ``last``, by class and method.

        They have only the columns that tell the outcome: label, state, metrics and error.
        """
        table = job_students.c
        names = ("class_index", "label", "method", "state", "metrics", "error")
        query = (
            sa.select(*(table[name] for name in names))
            .where(table.job_id == job_id, table.class_index.between(first, last))
            .where(table.state.in_([state.value for state in states]))
            .order_by(table.class_index, table.method)
        )
        return [
            StudentRow(job_id, index, label, method, StudentState(state), metrics=metrics, error=error)
            for index, label, method, state, metrics, error in self._connection.execute(query)
        ]

    def count_succeeded(self, job_id: str, *, excluding: str) -> int:
        """Number of rows that succeeded, of all methods but one."""
        query = sa.select(sa.func.count()).where(
            job_students.c.job_id == job_id,
            job_students.c.state == StudentState.SUCCEEDED.value,
            job_students.c.method != excluding,
        )
        return int(self._connection.execute(query).scalar_one())

    def reset_failures(self, job_id: str) -> None:
        """Set all rows that did not succeed to pending."""
        failed = sa.update(job_students).where(
            job_students.c.job_id == job_id, job_students.c.state != StudentState.SUCCEEDED.value
        )
        reset = {"state": StudentState.PENDING.value, "status": None, "error": None, "seconds": None}
        self._connection.execute(failed.values(**reset))

    def keep_trace(self, job_id: str, class_index: int, method: str, trace: bytes) -> None:
        """Store a student's search trace, JSON compressed with zlib, unless one is stored already."""
        values = {"job_id": job_id, "class_index": class_index, "method": method, "trace": trace}
        insert_once(self._connection, student_traces, values)

    def trace(self, job_id: str, class_index: int, method: str) -> bytes | None:
        """The search trace of a student, or None."""
        query = sa.select(student_traces.c.trace).where(
            student_traces.c.job_id == job_id,
            student_traces.c.class_index == class_index,
            student_traces.c.method == method,
        )
        return self._connection.execute(query).scalar()

    def keep_curves(self, curves: Sequence[tuple[StudentKey, bytes]], job_id: str) -> None:
        """Store the curves of students, by (class index, method), in place of earlier ones."""
        for start in range(0, len(curves), _ROWS_PER_STATEMENT):
            values = [
                {"job_id": job_id, "class_index": key[0], "method": key[1], "curve": curve}
                for key, curve in curves[start : start + _ROWS_PER_STATEMENT]
            ]
            statement = upsert(self._connection, student_curves).values(values)
            changed = {"curve": statement.excluded.curve}
            self._connection.execute(statement.on_conflict_do_update(index_elements=_KEYS, set_=changed))

    def curve(self, job_id: str, class_index: int, method: str) -> bytes | None:
        """The stored curve of a student, or None."""
        query = sa.select(student_curves.c.curve).where(
            student_curves.c.job_id == job_id,
            student_curves.c.class_index == class_index,
            student_curves.c.method == method,
        )
        return self._connection.execute(query).scalar()

    def copy(self, source: str, target: str) -> None:
        """Copy all students of a job to another one, with their curves and traces."""
        for table in (job_students, student_curves, student_traces):
            columns = [
                sa.literal(target, table.c.job_id.type) if column.name == "job_id" else column
                for column in table.c
            ]
            rows = sa.select(*columns).where(table.c.job_id == source)
            self._connection.execute(sa.insert(table).from_select(list(table.c), rows))

    def change(self, job_id: str, class_index: int, method: str, **values: Any) -> None:
        """Set columns of a student."""
        where = sa.and_(
            job_students.c.job_id == job_id,
            job_students.c.class_index == class_index,
            job_students.c.method == method,
        )
        self._connection.execute(sa.update(job_students).where(where).values(**values))

    def served(self, job_id: str, label: str, method: str) -> StudentRow | None:
        """The student of one class if it succeeded, or None."""
        query = sa.select(job_students).where(
            job_students.c.job_id == job_id,
            job_students.c.label == label,
            job_students.c.method == method,
            job_students.c.state == StudentState.SUCCEEDED.value,
        )
        row = self._connection.execute(query).first()
        return None if row is None else _entity(row)


_COLUMNS = ("label", "objective", "gap", "iterations", "seconds", "threshold")
_METRICS = ("f1", "auc", "accuracy", "brier")
ORDERS = ("class", "failed", *_COLUMNS, *_METRICS)
"""What `Students.sorted_page` can sort by."""


def _order(order: str) -> sa.ColumnElement[Any]:
    key: sa.ColumnElement[Any] = job_students.c["class_index" if order not in _COLUMNS else order]
    if order in _METRICS:
        key = job_students.c.metrics[order].as_float()
    elif order == "failed":
        key = sa.case((job_students.c.state == StudentState.FAILED.value, 0), else_=1)
    return key


def _entity(row: sa.Row[tuple[object, ...]]) -> StudentRow:
    values = dict(row._mapping)
    return StudentRow(**values | {"state": StudentState(values["state"])})
