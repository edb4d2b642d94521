"""Finds and deletes expired rows: old jobs and old Idempotency-Keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import sqlalchemy as sa
from sqlalchemy import ColumnElement
from sqlalchemy.exc import IntegrityError

from app.domain.entities import JobState
from app.store.blobs import blob_columns
from app.store.repositories.scoped import Scoped
from app.store.tables import audit_log, idempotency_keys, job_students, jobs, model_versions

_ENDED = [state.value for state in JobState if state.ended]


@dataclass(frozen=True, slots=True)
class ExpiredCounts:
    """Number of expired rows."""

    jobs: int
    requests: int
    audit: int


class Retention(Scoped):
    """Queries that find or delete expired rows. Foreign keys prevent the deletion of referenced rows."""

    def old_jobs(self, before: float, *, limit: int, after: str = "") -> Sequence[str]:
        """Ids after ``after`` of jobs that ended before a time and whose students no version has."""
        query = (
            sa.select(jobs.c.id)
            .where(_is_expired(before), jobs.c.id > after)
            .order_by(jobs.c.id)
            .limit(limit)
        )
        return self._connection.execute(query).scalars().all()

    def delete_job(self, job_id: str, before: float = inf) -> bool:
        """Delete an expired job with its students, events and traces; returns whether it was deleted."""
        expired = sa.delete(jobs).where(jobs.c.id == job_id, self._owns(jobs), _is_expired(before))
        try:
            with self._connection.begin_nested():
                deleted = self._connection.execute(expired).rowcount
        except IntegrityError:
            # The job was published between the check and the deletion, or its students were.
            return False
        if deleted:
            self._connection.execute(sa.delete(idempotency_keys).where(idempotency_keys.c.job_id == job_id))
        return bool(deleted)

    def blobs_of_job(self, job_id: str, limit: int) -> set[str]:
        """Digests of blobs that a job refers to: its own, and those of students and of their maps,
        at most ``limit`` of each."""
        row = self._connection.execute(
            sa.select(*blob_columns(jobs)).where(jobs.c.id == job_id, self._owns(jobs))
        ).one_or_none()
        if row is None:
            return set()
        digests = {digest for digest in row if digest is not None}
        for column in blob_columns(job_students):
            of_students = sa.select(column).where(job_students.c.job_id == job_id, column.is_not(None))
            digests |= set(self._connection.execute(of_students.distinct().limit(limit)).scalars())
        return digests

    def blobs_of_version(self, model: str, version: int) -> set[str]:
        """Digests of the blobs that a version itself refers to."""
        where = (model_versions.c.model == model) & (model_versions.c.version == version)
        query = sa.select(*blob_columns(model_versions)).where(where, self._owns(model_versions))
        row = self._connection.execute(query).one_or_none()
        return set() if row is None else {digest for digest in row if digest is not None}

    def delete_idempotency_keys(self, before: float) -> int:
        """Delete Idempotency-Keys from before a time; returns how many were deleted."""
        old = sa.delete(idempotency_keys).where(idempotency_keys.c.created_at < before)
        return self._connection.execute(old).rowcount

    def count(self, *, jobs_before: float, requests_before: float, audit_before: float) -> ExpiredCounts:
        """Count the rows that would be deleted."""
        return ExpiredCounts(
            self._count(jobs, _is_expired(jobs_before)),
            self._count(idempotency_keys, idempotency_keys.c.created_at < requests_before),
            self._count(audit_log, audit_log.c.at < audit_before),
        )

    def _count(self, table: sa.Table, condition: ColumnElement[bool]) -> int:
        query = sa.select(sa.func.count()).select_from(table).where(condition)
        return int(self._connection.execute(query).scalar_one())


def _is_expired(before: float) -> ColumnElement[bool]:
    published = sa.exists().where(model_versions.c.job_id == jobs.c.id)
    record = jobs.alias()
    is_base = sa.exists().where(record.c.base_job_id == jobs.c.id)
    return sa.and_(jobs.c.state.in_(_ENDED), jobs.c.finished_at < before, ~published, ~is_base)
