"""The audit log: append, read, and delete expired records. Records are never changed."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Connection

from app.domain.audit_context import AuditContext, current_context
from app.domain.entities import AuditRecord
from app.domain.redaction import redact
from app.store.audit_lines import write_lines
from app.store.dialect import on_postgresql
from app.store.engine import AUDIT_LOG
from app.store.paging import fitting
from app.store.repositories.scoped import Scoped
from app.store.tables import audit_log

_MAX_LENGTHS: Final = {
    column.name: column.type.length for column in audit_log.c if isinstance(column.type, sa.String)
}
_MAX_DETAIL: Final = 500
_FIXED_BYTES: Final = 400
_MICROSECOND: Final = 1e-6
_LAST_SECOND: Final = 7.2e10
"""Seconds since the epoch whose microseconds still have 14 hexadecimal digits."""


_APPENDING: Final = 0x73746D73
"""First key of the advisory locks of transactions that append records; the second key is their start time."""
_ORIGIN: Final = 1_577_836_800
"""Start of the year 2020, from which the second key counts seconds, because it has 31 bits."""
_LOCKED_CLOCK: Final = sa.text(
    """
    WITH held AS MATERIALIZED (
        SELECT pg_advisory_xact_lock_shared(:key, floor(extract(epoch FROM clock_timestamp()) - :origin)::int)
    )
    SELECT extract(epoch FROM clock_timestamp())::float8, (SELECT max(id) FROM audit_log) FROM held
    """
).bindparams(key=_APPENDING, origin=_ORIGIN)
"""Takes the lock, then reads the clock."""
_SETTLED: Final = sa.text(
    """
    SELECT least(extract(epoch FROM statement_timestamp())::float8, min(objid::bigint) + :origin)
    FROM pg_locks
    WHERE locktype = 'advisory' AND classid = :key AND objsubid = 2
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    """
).bindparams(key=_APPENDING, origin=_ORIGIN)


class Audit(Scoped):
    """Queries on the audit log. Records are part of the caller's transaction.

    A reader that follows the order of ids misses nothing: a new id is larger than those of all committed
    records, and a page of the oldest records ends before the first transaction that may still commit a
    record.
    """

    def __init__(self, connection: Connection, tenant: str | None) -> None:
        super().__init__(connection, tenant)
        self._appended: list[tuple[AuditRecord, AuditContext]] = []
        self._began: tuple[float, float] | None = None
        """The time of the first record, and the monotonic clock at that moment."""

    def append(
        self,
        action: str,
        object_: str,
        *,
        outcome: str = "done",
        details: Mapping[str, Any] | None = None,
        context: AuditContext | None = None,
        tenant: str | None = None,
    ) -> None:
        """Record that ``action`` was performed on ``object_``. context: by default the current one.

        tenant: whose object it is, by default the repository's; empty for the installation's own.
        """
        context = current_context() if context is None else context
        now = self._now()
        record = AuditRecord(
            id=_new_id(now),
            at=now,
            actor=context.actor.id,
            actor_name=context.actor.name,
            scope=context.actor.scope,
            action=action,
            object=object_,
            outcome=outcome,
            request_id=context.request_id,
            address=context.address,
            details={
                name: _clean(value)[:_MAX_DETAIL] if isinstance(value, str) else value
                for name, value in (details or {}).items()
            },
            tenant=self.tenant if tenant is None else tenant,
        )
        values = {name: _column_value(name, value) for name, value in asdict(record).items()}
        self._connection.execute(sa.insert(audit_log), values)
        self._appended.append((AuditRecord(**values), context))

    def committed(self) -> None:
        """Count the records in their audit contexts, and write them to standard error if that is set.

        The unit of work calls it after the commit.
        """
        for _, context in self._appended:
            context.recorded += 1
        if self._appended and self._connection.get_execution_options().get(AUDIT_LOG):
            write_lines([record for record, _ in self._appended])

    def _now(self) -> float:
        """The time of a new record, in seconds since the epoch; later than of all committed records.

        On PostgreSQL it is the database's, and from before it is read until the transaction ends a lock shows
        that one may be committed. On SQLite there is one transaction at a time that writes.
        """
        if self._began is None:
            if on_postgresql(self._connection):
                now, newest = self._connection.execute(_LOCKED_CLOCK).one()
            else:
                now = time.time()
                newest = self._connection.execute(sa.select(sa.func.max(audit_log.c.id))).scalar()
            self._began = max(now, _after(newest)), time.monotonic()
        began, at = self._began
        return began + time.monotonic() - at

    def page(
        self,
        *,
        limit: int,
        after: str | None = None,
        since: float | None = None,
        until: float | None = None,
        oldest_first: bool = False,
        **equal: str | None,
    ) -> tuple[Sequence[AuditRecord], bool]:
        """One page of records after id ``after`` in the order of the list, and whether there are more.

        The newest come first or, with ``oldest_first``, the oldest, up to the point before which no other
        record can appear any more. A record has a few KiB at most; there are fewer than ``limit`` records if
        they have more than `PAGE_BYTES`.

        since, until: seconds since the epoch. equal: required values of actor, action, object.
        """
        id_ = audit_log.c.id
        query = sa.select(audit_log).order_by(id_ if oldest_first else id_.desc()).limit(limit + 1)
        query = query.where(
            self._owns(audit_log),
            *(audit_log.c[name] == value for name, value in equal.items() if value is not None),
        )
        if after is not None:
            query = query.where(id_ > after if oldest_first else id_ < after)
        if oldest_first and on_postgresql(self._connection):
            # A separate statement before that of the page, which then sees everything committed in between.
            query = query.where(id_ < _first_id(self._connection.execute(_SETTLED).scalar_one()))
        if since is not None:
            query = query.where(audit_log.c.id >= _first_id(since), audit_log.c.at >= since)
        if until is not None:
            query = query.where(audit_log.c.id < _first_id(until + _MICROSECOND), audit_log.c.at < until)
        rows = [AuditRecord(**row._mapping) for row in self._connection.execute(query)]
        shown = fitting(_size(row) for row in rows[:limit])
        return rows[:shown], len(rows) > shown

    def delete_before(self, at: float, *, limit: int = 10_000) -> int:
        """Delete at most ``limit`` of the oldest records from before ``at``; returns their number."""
        is_old = sa.and_(audit_log.c.id < _first_id(at + _MICROSECOND), audit_log.c.at < at)
        oldest = sa.select(audit_log.c.id).where(is_old).order_by(audit_log.c.id).limit(limit)
        return self._connection.execute(sa.delete(audit_log).where(audit_log.c.id.in_(oldest))).rowcount

    def counts_above(self, most: int) -> Mapping[str, int]:
        """The tenants with more than ``most`` records, and the number of their records."""
        number = sa.func.count()
        query = sa.select(audit_log.c.tenant, number).group_by(audit_log.c.tenant).having(number > most)
        return {row[0]: row[1] for row in self._connection.execute(query)}

    def delete_oldest(self, count: int) -> int:
        """Delete the ``count`` oldest records of the tenant; returns their number."""
        oldest = sa.select(audit_log.c.id).where(self._owns(audit_log)).order_by(audit_log.c.id).limit(count)
        return self._connection.execute(sa.delete(audit_log).where(audit_log.c.id.in_(oldest))).rowcount


def _column_value(name: str, value: Any) -> Any:
    """The value of a column; text is cleaned and cut to the column's length."""
    return _clean(value)[: _MAX_LENGTHS[name]] if isinstance(value, str) else value


def _size(record: AuditRecord) -> int:
    """About the bytes of a record."""
    texts = (record.object, record.actor, record.actor_name, record.request_id or "", record.address or "")
    return sum(len(text.encode()) for text in texts) + len(json.dumps(record.details)) + _FIXED_BYTES


def _clean(text: str) -> str:
    """The text without secrets and without characters that a database rejects."""
    return redact(text).replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def _after(id_: str | None) -> float:
    """A time whose ids are larger than this one; 0 without one."""
    return 0.0 if id_ is None else (int(id_[4:18], 16) + 2) * _MICROSECOND


def _new_id(now: float) -> str:
    """A new id. Ids sort by time in microseconds."""
    return f"{_first_id(now)}{secrets.token_hex(5)}"


def _first_id(at: float) -> str:
    """A text before all ids from ``at`` on, so that a range of times is a range of the primary key."""
    return f"aud_{int(1e6 * min(max(at, 0.0), _LAST_SECOND)):014x}"
