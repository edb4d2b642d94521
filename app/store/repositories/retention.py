"""What nobody needs any more: old jobs, keys of requests long answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection
from sqlalchemy.exc import IntegrityError

from app.domain.entities import JobState
from app.store.tables import audit_log, idempotency_keys, jobs, model_versions

_ENDED = [state.value for state in JobState if state.ended]
_UNFINISHED = [state.value for state in JobState if not state.ended]


@dataclass(frozen=True, slots=True)
class ExpiredCounts:
    """How many of each there are."""

    jobs: int
    requests: int
    audit: int


class Retention:
    """Every query that finds or deletes what is old. Foreign keys have the last word on what is in use."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def old_jobs(self, before: float, *, limit: int, after: str = "") -> Sequence[str]:
        """Ids, behind ``after``, of jobs that ended before a time and have no published version."""
        query = sa.select(jobs.c.id).where(_over(before), jobs.c.id > after).order_by(jobs.c.id).limit(limit)
        return self._connection.execute(query).scalars().all()

    def delete_job(self, job_id: str, before: float = inf) -> bool:
        """Delete a job with its students, events and traces; returns whether it was one of `old_jobs`."""
        try:
            with self._connection.begin_nested():
                gone = self._connection.execute(sa.delete(jobs).where(jobs.c.id == job_id, _over(before)))
        except IntegrityError:
            # It was published between the look and the deletion.
            return False
        if gone.rowcount:
            self._connection.execute(sa.delete(idempotency_keys).where(idempotency_keys.c.job_id == job_id))
        return bool(gone.rowcount)

    def delete_idempotency_keys(self, before: float) -> int:
        """Delete Idempotency-Keys that came before a time; returns how many."""
        old = sa.delete(idempotency_keys).where(idempotency_keys.c.created_at < before)
        return self._connection.execute(old).rowcount

    def count(self, *, jobs_before: float, requests_before: float, audit_before: float) -> ExpiredCounts:
        """How much there is to delete."""
        return ExpiredCounts(
            self._count(jobs, _over(jobs_before)),
            self._count(idempotency_keys, idempotency_keys.c.created_at < requests_before),
            self._count(audit_log, audit_log.c.at < audit_before),
        )

    def is_teacher_in_use(self, reference: str) -> bool:
        """Whether a job that has not ended learns from the imported head ``model@version``."""
        query = sa.select(jobs.c.spec).where(jobs.c.state.in_(_UNFINISHED))
        specs = self._connection.execute(query).scalars()
        return any(spec.get("teacher", {}).get("model") == reference for spec in specs)

    def _count(self, table: sa.Table, condition: ColumnElement[bool]) -> int:
        query = sa.select(sa.func.count()).select_from(table).where(condition)
        return int(self._connection.execute(query).scalar_one())


def _over(before: float) -> ColumnElement[bool]:
    published = sa.exists().where(model_versions.c.job_id == jobs.c.id)
    return sa.and_(jobs.c.state.in_(_ENDED), jobs.c.finished_at < before, ~published)
