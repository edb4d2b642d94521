"""Unfinished jobs of all tenants: jobs that wait for their admission, and the number of admitted jobs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from app.domain.entities import WAITING, Caller, JobState, workflow_id
from app.store.dialect import on_postgresql
from app.store.tables import is_unfinished, jobs

_IS_WAITING: Final = sa.and_(is_unfinished, jobs.c.state == JobState.QUEUED.value, jobs.c.stage == WAITING)


class AdmittedJob(NamedTuple):
    """An unfinished job that does not wait; its specification is not read."""

    id: str
    tenant: str
    state: JobState
    attempt: int

    @property
    def workflow_id(self) -> str:
        return workflow_id(self.id, self.attempt)


class Admission:
    """Queries on the jobs of all tenants."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def lock(self) -> None:
        """Serialise admissions: the lock is held until the end of the transaction."""
        if on_postgresql(self._connection):
            name = sa.func.hashtextextended("stms admission", 0)
            self._connection.execute(sa.select(sa.func.pg_advisory_xact_lock(name)))

    def any_unfinished(self) -> bool:
        """Whether a job is not finished."""
        query = sa.select(sa.literal(1)).select_from(jobs).where(is_unfinished).limit(1)
        return self._connection.execute(query).first() is not None

    def any_waiting(self) -> bool:
        """Whether a job waits."""
        query = sa.select(sa.literal(1)).select_from(jobs).where(_IS_WAITING).limit(1)
        return self._connection.execute(query).first() is not None

    def waiting(self) -> Sequence[tuple[str, str, Caller]]:
        """(id, priority, owner) of all waiting jobs, oldest first."""
        query = sa.select(jobs.c.id, jobs.c.priority, jobs.c.tenant, jobs.c.created_by)
        rows = self._connection.execute(query.where(_IS_WAITING).order_by(jobs.c.id))
        return [(job_id, priority, Caller(tenant, key)) for job_id, priority, tenant, key in rows]

    def admitted(self) -> dict[Caller, int]:
        """Number of unfinished jobs that do not wait, by owner."""
        query = sa.select(jobs.c.tenant, jobs.c.created_by, sa.func.count())
        query = query.where(is_unfinished, sa.not_(_IS_WAITING))
        rows = self._connection.execute(query.group_by(jobs.c.tenant, jobs.c.created_by))
        return {Caller(tenant, key): count for tenant, key, count in rows}

    def admitted_jobs(self, *, limit: int, after: str = "") -> Sequence[AdmittedJob]:
        """Unfinished jobs with ids above ``after`` that do not wait, oldest first."""
        query = sa.select(*(jobs.c[name] for name in AdmittedJob._fields))
        query = query.where(is_unfinished, sa.not_(_IS_WAITING), jobs.c.id > after)
        rows = self._connection.execute(query.order_by(jobs.c.id).limit(limit))
        return [AdmittedJob(row[0], row[1], JobState(row[2]), row[3]) for row in rows]

    def admit(self, job_ids: Collection[str]) -> Sequence[tuple[str, int]]:
        """Admit waiting jobs; returns (id, attempt) of each."""
        where = sa.and_(jobs.c.id.in_(job_ids), _IS_WAITING)
        admitted = self._connection.execute(sa.select(jobs.c.id, jobs.c.attempt).where(where)).all()
        values = {"stage": "queued", "revision": jobs.c.revision + 1}
        self._connection.execute(sa.update(jobs).where(where).values(values))
        return [(job_id, attempt) for job_id, attempt in admitted]

    def count_queued(self) -> int:
        """Number of queued jobs of all tenants."""
        query = sa.select(sa.func.count()).select_from(jobs).where(jobs.c.state == JobState.QUEUED.value)
        return int(self._connection.execute(query).scalar_one())

    def count_unfinished(self, owner: Caller) -> int:
        """Number of unfinished jobs of an API key."""
        query = sa.select(sa.func.count()).where(
            jobs.c.tenant == owner.tenant, jobs.c.created_by == owner.key, is_unfinished
        )
        return int(self._connection.execute(query).scalar_one())
