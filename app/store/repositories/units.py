"""Units of work that wait in the engine's queue or are under way, and whose turn comes when.

Start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996) with units of equal cost: a tenant's next unit has
the turn after its last one, but none before the turn that is being served. So tenants take turns however many
units each of them has, and nobody saves up turns while idle.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import Connection

from app.store.dialect import on_postgresql
from app.store.tables import job_units


class Units:
    """Every query on units."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, job_id: str, attempt: int, number: int, *, tenant: str, level: int) -> int:
        """Note a unit as waiting; returns its turn, from 1 on: the smaller, the sooner."""
        turn = self._next_turn(tenant, level)
        values = {"job_id": job_id, "attempt": attempt, "number": number, "tenant": tenant}
        self._connection.execute(sa.insert(job_units), values | {"level": level, "turn": turn})
        return turn

    def start(self, job_id: str, attempt: int, number: int, executor_id: str, at: float) -> None:
        """Note that a unit is under way, and where."""
        self._connection.execute(
            sa.update(job_units)
            .where(_is(job_id, attempt), job_units.c.number == number)
            .values(executor_id=executor_id, started_at=at)
        )

    def forget(self, job_id: str, attempt: int, numbers: Sequence[int] | None = None) -> None:
        """Units of an attempt have ended: these, or all of this attempt and those before."""
        ended = sa.delete(job_units).where(job_units.c.job_id == job_id)
        if numbers is None:
            ended = ended.where(job_units.c.attempt <= attempt)
        else:
            ended = ended.where(job_units.c.attempt == attempt, job_units.c.number.in_(numbers))
        self._connection.execute(ended)

    def count_of_tenant(self, tenant: str) -> int:
        """Units of a tenant, waiting or under way."""
        query = sa.select(sa.func.count()).select_from(job_units).where(job_units.c.tenant == tenant)
        return int(self._connection.execute(query).scalar_one())

    def lock_tenant(self, tenant: str) -> None:
        """Until the end of the transaction no other one that holds the tenant adds units of it."""
        if on_postgresql(self._connection):
            name = sa.func.hashtextextended(f"stms tenant {tenant}", 0)
            self._connection.execute(sa.select(sa.func.pg_advisory_xact_lock(name)))

    def workers_of(self, job_ids: Sequence[str]) -> dict[str, list[str]]:
        """Names of the workers that have units of each job under way; of none, the job is left out."""
        query = sa.select(job_units.c.job_id, job_units.c.executor_id).distinct()
        query = query.where(job_units.c.job_id.in_(job_ids), job_units.c.executor_id.is_not(None))
        found: dict[str, list[str]] = {}
        for row in self._connection.execute(query):
            found.setdefault(row[0], []).append(row[1])
        return {job_id: sorted(names) for job_id, names in found.items()}

    def _next_turn(self, tenant: str, level: int) -> int:
        turns = sa.select(
            sa.func.max(job_units.c.turn).filter(job_units.c.tenant == tenant),
            sa.func.max(job_units.c.turn).filter(job_units.c.started_at.is_not(None)),
            sa.func.min(job_units.c.turn),
        ).where(job_units.c.level == level)
        own, served, waiting = self._connection.execute(turns).one()
        now = served if served is not None else waiting
        return max(now or 1, (own or 0) + 1)


def _is(job_id: str, attempt: int) -> sa.ColumnElement[bool]:
    return sa.and_(job_units.c.job_id == job_id, job_units.c.attempt == attempt)
