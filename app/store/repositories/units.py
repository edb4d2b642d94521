"""Units of work that are queued or running, and their order of service.

Start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996) with units of equal cost: the start tag ("turn") of
an owner's next unit exceeds that of its last unit by the number of owners of its tenant that have units, but
is at least the tag in service. An owner is an API key. So tenants alternate, however many units and keys each
has; the keys of one tenant share its turns; and an idle owner does not accumulate credit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from app.store.dialect import on_postgresql
from app.store.evaluation_tables import evaluations, is_evaluated
from app.store.tables import is_unfinished, job_units, jobs


class UnitCounts(NamedTuple):
    """Units of all unfinished jobs, and evaluations, each of which is one unit.

    waiting: units that no worker has started. running: all others.
    An unfinished job without units waits for its first or its last step, and counts as waiting: jobs have
    units only while a worker coordinates them, so otherwise nothing would show that a worker is needed.
    """

    waiting: int
    running: int


class Units:
    """Queries on units."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, job_id: str, attempt: int, number: int, *, tenant: str, owner: str, level: int) -> int:
        """Insert a queued unit; returns its turn, counted from 1. Units with smaller turns run first."""
        turn = self._next_turn(tenant, owner, level)
        values = {"job_id": job_id, "attempt": attempt, "number": number, "tenant": tenant, "owner": owner}
        self._connection.execute(sa.insert(job_units), values | {"level": level, "turn": turn})
        return turn

    def next_turn_of(self, tenant: str, owner: str) -> int:
        """The turn of an evaluation, as of a unit of normal priority; only units of jobs are counted."""
        return self._next_turn(tenant, owner, 1)

    def start(self, job_id: str, attempt: int, number: int, executor_id: str, at: float) -> int:
        """Record that a worker runs the unit.

        Returns how many workers have started it since it last stored a result, this one included.
        """
        started = (
            sa.update(job_units)
            .where(_is(job_id, attempt), job_units.c.number == number)
            .values(executor_id=executor_id, started_at=at, starts=job_units.c.starts + 1)
        )
        return self._connection.execute(started.returning(job_units.c.starts)).scalar() or 1

    def stored_result(self, job_id: str, attempt: int, number: int) -> None:
        """Reset the count of the unit's starts, because it has made progress."""
        self._set_starts(job_id, attempt, number, sa.literal(1))

    def excuse(self, job_id: str, attempt: int, number: int) -> None:
        """Take back a start: the worker gave the unit up in good order, so the unit is not suspected."""
        self._set_starts(
            job_id, attempt, number, sa.func.coalesce(sa.func.nullif(job_units.c.starts, 0), 1) - 1
        )

    def _set_starts(self, job_id: str, attempt: int, number: int, starts: sa.ColumnElement[int]) -> None:
        where = sa.and_(_is(job_id, attempt), job_units.c.number == number)
        self._connection.execute(sa.update(job_units).where(where).values(starts=starts))

    def forget(self, job_id: str, attempt: int, numbers: Sequence[int] | None = None) -> None:
        """Delete ended units: ``numbers`` of the attempt, or all of this attempt and earlier ones."""
        ended = sa.delete(job_units).where(job_units.c.job_id == job_id)
        if numbers is None:
            ended = ended.where(job_units.c.attempt <= attempt)
        else:
            ended = ended.where(job_units.c.attempt == attempt, job_units.c.number.in_(numbers))
        self._connection.execute(ended)

    def count_of_owner(self, tenant: str, owner: str) -> int:
        """Number of queued and running units of one API key of a tenant."""
        query = sa.select(sa.func.count()).select_from(job_units)
        query = query.where(job_units.c.tenant == tenant, job_units.c.owner == owner)
        return int(self._connection.execute(query).scalar_one())

    def counts(self) -> UnitCounts:
        """Units of all tenants that wait and that run."""
        query = sa.select(sa.func.count(), sa.func.count(job_units.c.executor_id)).select_from(job_units)
        units, running = self._connection.execute(query).one()
        has_units = sa.exists().where(job_units.c.job_id == jobs.c.id)
        without = sa.select(sa.func.count()).select_from(jobs).where(is_unfinished, ~has_units)
        waiting = units - running + self._connection.execute(without).scalar_one()
        table = evaluations.c
        states = sa.select(table.state, sa.func.count()).where(is_evaluated).group_by(table.state)
        of_state: dict[str, int] = {row[0]: row[1] for row in self._connection.execute(states)}
        return UnitCounts(waiting + of_state.get("queued", 0), running + of_state.get("running", 0))

    def lock_owner(self, tenant: str, owner: str) -> None:
        """Serialise transactions that add units of an API key: lock it until the end of the transaction."""
        if on_postgresql(self._connection):
            name = sa.func.hashtextextended(f"stms units {tenant} {owner}", 0)
            self._connection.execute(sa.select(sa.func.pg_advisory_xact_lock(name)))

    def workers_of(self, job_ids: Sequence[str]) -> dict[str, list[str]]:
        """Sorted ids of the workers that run units of each job; jobs without running units are left out."""
        query = sa.select(job_units.c.job_id, job_units.c.executor_id).distinct()
        query = query.where(job_units.c.job_id.in_(job_ids), job_units.c.executor_id.is_not(None))
        workers: dict[str, list[str]] = {}
        for row in self._connection.execute(query):
            workers.setdefault(row[0], []).append(row[1])
        return {job_id: sorted(ids) for job_id, ids in workers.items()}

    def _next_turn(self, tenant: str, owner: str, level: int) -> int:
        of_tenant = job_units.c.tenant == tenant
        turns = sa.select(
            sa.func.max(job_units.c.turn).filter(of_tenant, job_units.c.owner == owner),
            sa.func.count(sa.distinct(job_units.c.owner)).filter(of_tenant, job_units.c.owner != owner),
            sa.func.max(job_units.c.turn).filter(job_units.c.started_at.is_not(None)),
            sa.func.min(job_units.c.turn),
        ).where(job_units.c.level == level)
        own, others, served, waiting = self._connection.execute(turns).one()
        now = served if served is not None else waiting
        return max(now or 1, 1 if own is None else own + 1 + others)


def _is(job_id: str, attempt: int) -> sa.ColumnElement[bool]:
    return sa.and_(job_units.c.job_id == job_id, job_units.c.attempt == attempt)
