"""Students of jobs: their results, references to packed blobs, and traces of their hyper-parameter search."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy import Connection

from app.domain.entities import StudentRow, StudentState
from app.store.dialect import batched, insert_once, upsert
from app.store.paging import fitting
from app.store.row_bytes import count_for_job, counted_for_job, row_size, rows_size
from app.store.tables import blobs, job_students, jobs, student_curves, student_traces

StudentKey: TypeAlias = tuple[int, str]
"""(class index, method)."""
_KEYS = ["job_id", "class_index", "method"]
_ROWS_PER_STATEMENT = 200


def rows_of(connection: Connection, job_id: str, name: str = "students") -> sa.Subquery:
    """The students of a job: its own rows, and those of its base that it does not replace.

    name: name of the subquery, for a statement with several.
    """
    own = sa.select(job_students).where(job_students.c.job_id == job_id)
    base = connection.execute(sa.select(jobs.c.base_job_id).where(jobs.c.id == job_id)).scalar()
    if base is None:
        return own.subquery(name)
    newer = job_students.alias()
    is_replaced = sa.exists().where(
        newer.c.job_id == job_id,
        newer.c.class_index == job_students.c.class_index,
        newer.c.method == job_students.c.method,
    )
    inherited = sa.select(job_students).where(job_students.c.job_id == base, ~is_replaced)
    return own.union_all(inherited).subquery(name)


def _trained_by(job_id: str) -> sa.ScalarSelect[str]:
    """The job that has the curves and traces of a job's students: itself or its base."""
    trained_by = sa.func.coalesce(jobs.c.base_job_id, jobs.c.id)
    return sa.select(trained_by).where(jobs.c.id == job_id).scalar_subquery()


class Students:
    """Queries on students. Written rows count as bytes of the job, which the caller must have locked."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def save(self, row: StudentRow) -> bool:
        """Insert or replace a row, unless the stored one succeeded; returns whether it was stored."""
        return bool(self.save_all([row]))

    def save_all(self, rows: Sequence[StudentRow]) -> set[tuple[int, str]]:
        """As `save`, for different students of a job; returns (class index, method) of the stored rows."""
        stored: set[tuple[int, str]] = set()
        for start in range(0, len(rows), _ROWS_PER_STATEMENT):
            some = rows[start : start + _ROWS_PER_STATEMENT]
            with self._counted(job_students, some[0].job_id, [row.class_index for row in some]):
                stored |= self._save_some(some)
        return stored

    def _save_some(self, rows: Sequence[StudentRow]) -> set[tuple[int, str]]:
        values = [dataclasses.asdict(row) | {"state": row.state.value} for row in rows]
        statement = upsert(self._connection, job_students).values(values)
        statement = statement.on_conflict_do_update(
            index_elements=_KEYS,
            set_={name: statement.excluded[name] for name in values[0] if name not in _KEYS},
            where=job_students.c.state != StudentState.SUCCEEDED.value,
        )
        keys = statement.returning(job_students.c.class_index, job_students.c.method)
        return {(row[0], row[1]) for row in self._connection.execute(keys)}

    def _counted(
        self, table: sa.Table, job_id: str, class_indices: Sequence[int]
    ) -> AbstractContextManager[None]:
        among = table.c.class_index.in_(set(class_indices))
        return counted_for_job(self._connection, job_id, table, among)

    def of_job(
        self, job_id: str, *, after: int = -1, limit: int = 1_000_000, method: str | None = None
    ) -> Sequence[StudentRow]:
        """All rows of the first ``limit`` classes with an index above ``after``, by class and method."""
        return self.page(job_id, after=after, limit=limit, method=method)[0]

    def page(
        self, job_id: str, *, limit: int, after: int = -1, method: str | None = None
    ) -> tuple[Sequence[StudentRow], bool]:
        """As `of_job`, and whether there are more classes. All rows of a class are on one page.

        A page is bounded in bytes, too.
        """
        rows = rows_of(self._connection, job_id)
        conditions = [rows.c.class_index > after]
        if method is not None:
            conditions.append(rows.c.method == method)
        sizes = sa.select(rows.c.class_index, sa.func.sum(row_size(rows))).where(*conditions)
        sizes = sizes.group_by(rows.c.class_index).order_by(rows.c.class_index).limit(limit + 1)
        classes = self._connection.execute(sizes).all()
        count = fitting(size for _, size in classes[:limit])
        if not count:
            return [], False
        query = sa.select(rows).where(*conditions, rows.c.class_index <= classes[count - 1][0])
        query = query.order_by(rows.c.class_index, rows.c.method)
        return [_entity(row) for row in self._connection.execute(query)], len(classes) > count

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
        """Rows of one method from ``offset`` on, and the total number of rows.

        order: one of `ORDERS`; equal rows are sorted by class. "failed" puts failed rows first, then
        rows of weak classes.
        search: part of the label, in any case.
        """
        students = rows_of(self._connection, job_id)
        where = [students.c.method == method]
        if search:
            where.append(students.c.label.icontains(search, autoescape=True))
        key = _order(students, order)
        query = sa.select(students).where(*where).limit(limit).offset(offset)
        query = query.order_by((key.desc() if descending else key.asc()).nulls_last(), students.c.class_index)
        total = self._connection.execute(sa.select(sa.func.count()).where(*where)).scalar_one()
        return [_entity(row) for row in self._connection.execute(query)], int(total)

    def methods(self, job_id: str) -> Sequence[str]:
        """The methods for which the job has rows."""
        query = sa.select(rows_of(self._connection, job_id).c.method).distinct()
        return sorted(self._connection.execute(query).scalars())

    def state_counts(self, job_id: str, method: str) -> dict[StudentState, int]:
        """Number of rows of one method in each state that occurs."""
        rows = rows_of(self._connection, job_id).c
        query = sa.select(rows.state, sa.func.count()).where(rows.method == method).group_by(rows.state)
        return {StudentState(row[0]): row[1] for row in self._connection.execute(query)}

    def histogram(self, job_id: str, method: str, metric: str, bins: int) -> list[int]:
        """Number of rows of one method by ``metric``, a number in [0, 1], in bins of equal width."""
        rows = rows_of(self._connection, job_id).c
        scaled = sa.cast(rows.metrics[metric].as_float() * bins, sa.Integer)
        query = sa.select(scaled, sa.func.count()).where(rows.method == method).group_by(scaled)
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
        table = rows_of(self._connection, job_id).c
        names = ("class_index", "label", "method", "state", "metrics", "error")
        query = (
            sa.select(*(table[name] for name in names))
            .where(table.class_index.between(first, last))
            .where(table.state.in_([state.value for state in states]))
            .order_by(table.class_index, table.method)
        )
        return [
            StudentRow(job_id, index, label, method, StudentState(state), metrics=metrics, error=error)
            for index, label, method, state, metrics, error in self._connection.execute(query)
        ]

    def lost_labels(self, before: tuple[str, str], after: tuple[str, str], *, limit: int) -> Sequence[str]:
        """Labels of the first classes that have a student in one job but not in the other, in their order.

        before, after: id and method of each job.
        """
        old = rows_of(self._connection, before[0], "old")
        new = rows_of(self._connection, after[0], "new")
        kept = sa.exists().where(
            new.c.label == old.c.label, new.c.method == after[1], new.c.digest.is_not(None)
        )
        query = sa.select(old.c.label).where(old.c.method == before[1], old.c.digest.is_not(None), ~kept)
        return self._connection.execute(query.order_by(old.c.class_index).limit(limit)).scalars().all()

    def count_succeeded(self, job_id: str, *, excluding: str) -> int:
        """Number of rows that succeeded, of all methods except ``excluding``."""
        query = sa.select(sa.func.count()).where(
            job_students.c.job_id == job_id,
            job_students.c.state == StudentState.SUCCEEDED.value,
            job_students.c.method != excluding,
        )
        return int(self._connection.execute(query).scalar_one())

    def reset_failures(self, job_id: str) -> None:
        """Set all rows that did not succeed to pending."""
        is_failed = job_students.c.state != StudentState.SUCCEEDED.value
        failed = sa.update(job_students).where(job_students.c.job_id == job_id, is_failed)
        reset = {"state": StudentState.PENDING.value, "status": None, "error": None, "seconds": None}
        with counted_for_job(self._connection, job_id, job_students, is_failed):
            self._connection.execute(failed.values(**reset))

    def keep_trace(self, job_id: str, class_index: int, method: str, trace: bytes) -> None:
        """Store a student's search trace, JSON compressed with zlib, unless one is stored already."""
        values = {"job_id": job_id, "class_index": class_index, "method": method, "trace": trace}
        if insert_once(self._connection, student_traces, values):
            count_for_job(self._connection, job_id, rows_size([values], student_traces))

    def trace(self, job_id: str, class_index: int, method: str) -> bytes | None:
        """The search trace of a student, or None."""
        query = sa.select(student_traces.c.trace).where(
            student_traces.c.job_id == _trained_by(job_id),
            student_traces.c.class_index == class_index,
            student_traces.c.method == method,
        )
        return self._connection.execute(query).scalar()

    def keep_curves(self, curves: Sequence[tuple[StudentKey, bytes]], job_id: str) -> None:
        """Store the curves of students, by (class index, method); they replace earlier ones."""
        for start in range(0, len(curves), _ROWS_PER_STATEMENT):
            values: list[dict[str, Any]] = [
                {"job_id": job_id, "class_index": key[0], "method": key[1], "curve": curve}
                for key, curve in curves[start : start + _ROWS_PER_STATEMENT]
            ]
            statement = upsert(self._connection, student_curves).values(values)
            changed = {"curve": statement.excluded.curve}
            statement = statement.on_conflict_do_update(index_elements=_KEYS, set_=changed)
            with self._counted(student_curves, job_id, [value["class_index"] for value in values]):
                self._connection.execute(statement)

    def curve(self, job_id: str, class_index: int, method: str) -> bytes | None:
        """The stored curve of a student, or None."""
        query = sa.select(student_curves.c.curve).where(
            sa.or_(student_curves.c.job_id == job_id, student_curves.c.job_id == _trained_by(job_id)),
            student_curves.c.class_index == class_index,
            student_curves.c.method == method,
        )
        # A curve of the job itself replaces that of its base.
        query = query.order_by((student_curves.c.job_id == job_id).desc()).limit(1)
        return self._connection.execute(query).scalar()

    def own_curves(self, job_id: str) -> dict[StudentKey, bytes]:
        """The curves of a job without those of its base."""
        of_job = student_curves.c.job_id == job_id
        rows = self._connection.execute(sa.select(student_curves).where(of_job))
        return {(row.class_index, row.method): row.curve for row in rows}

    def all_curves(self, job_id: str) -> dict[StudentKey, bytes]:
        """The curves of all students of a job, including those of its base."""
        base = self._connection.execute(sa.select(jobs.c.base_job_id).where(jobs.c.id == job_id)).scalar()
        return ({} if base is None else self.own_curves(base)) | self.own_curves(job_id)

    def all_traces(self, job_id: str) -> dict[StudentKey, bytes]:
        """The search traces of all students of a job."""
        of_job = student_traces.c.job_id == _trained_by(job_id)
        rows = self._connection.execute(sa.select(student_traces).where(of_job))
        return {(row.class_index, row.method): row.trace for row in rows}

    def maps_among(self, job_id: str, digests: Collection[str]) -> set[str]:
        """Those of ``digests`` that are maps of students of the job."""
        is_of = sa.exists().where(
            job_students.c.job_id == job_id, job_students.c.map_digest == blobs.c.digest
        )
        query = sa.select(blobs.c.digest).where(blobs.c.digest.in_(digests), is_of)
        return set(self._connection.execute(query).scalars())

    def own(self, job_id: str) -> Sequence[StudentRow]:
        """The rows of a job without those of its base."""
        query = sa.select(job_students).where(job_students.c.job_id == job_id)
        return [_entity(row) for row in self._connection.execute(query)]

    def served(self, job_id: str, label: str, method: str) -> StudentRow | None:
        """The student of one class if it succeeded, or None."""
        rows = rows_of(self._connection, job_id)
        query = sa.select(rows).where(
            rows.c.label == label, rows.c.method == method, rows.c.state == StudentState.SUCCEEDED.value
        )
        row = self._connection.execute(query).first()
        return None if row is None else _entity(row)

    def served_of(self, job_id: str, labels: Collection[str], method: str) -> list[StudentRow]:
        """The students of these classes that succeeded, in no order."""
        rows = rows_of(self._connection, job_id)
        found: list[StudentRow] = []
        for some in batched(labels):
            query = sa.select(rows).where(
                rows.c.label.in_(some),
                rows.c.method == method,
                rows.c.state == StudentState.SUCCEEDED.value,
            )
            found += map(_entity, self._connection.execute(query))
        return found


_COLUMNS = ("label", "objective", "gap", "iterations", "seconds", "threshold")
_METRICS = ("f1", "auc", "accuracy", "brier")
ORDERS = ("class", "failed", *_COLUMNS, *_METRICS)
"""The orders that `Students.sorted_page` accepts."""


def _order(rows: sa.Subquery, order: str) -> sa.ColumnElement[Any]:
    key: sa.ColumnElement[Any] = rows.c["class_index" if order not in _COLUMNS else order]
    if order in _METRICS:
        key = rows.c.metrics[order].as_float()
    elif order == "failed":
        failed = rows.c.state == StudentState.FAILED.value
        weak = rows.c.metrics[("weak", "message")].as_string().is_not(None)
        key = sa.case((failed, 0), (weak, 1), else_=2)
    return key


def _entity(row: sa.Row[tuple[object, ...]]) -> StudentRow:
    values = dict(row._mapping)
    return StudentRow(**values | {"state": StudentState(values["state"])})
