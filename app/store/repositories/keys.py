"""API keys, stored hashed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from app.domain.entities import ApiKey
from app.domain.errors import NotFound
from app.store.tables import api_keys, registry_clock


class Keys:
    """Queries on API keys. Changes bump the registry revision, so that servers soon notice a revoked key."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, key: ApiKey) -> None:
        row = asdict(key) | {"scopes": sorted(key.scopes), "models": sorted(key.models)}
        self._connection.execute(sa.insert(api_keys), row)
        self._bump_revision()

    def all(self) -> Sequence[ApiKey]:
        """All keys including revoked ones, oldest first."""
        return [_entity(row) for row in self._connection.execute(sa.select(api_keys).order_by(api_keys.c.id))]

    def get(self, key_id: str, *, lock: bool = False) -> ApiKey:
        """One key. lock: lock its row until the end of the transaction. Raises NotFound."""
        query = sa.select(api_keys).where(api_keys.c.id == key_id)
        row = self._connection.execute(query.with_for_update() if lock else query).first()
        if row is None:
            raise NotFound(f"There is no API key {key_id!r}.", code="key_not_found")
        return _entity(row)

    def revoke(self, key_id: str) -> ApiKey:
        """Revoke a key; returns the updated key. Raises NotFound."""
        changed = self._connection.execute(
            sa.update(api_keys)
            .where(api_keys.c.id == key_id, api_keys.c.revoked_at.is_(None))
            .values(revoked_at=time.time(), previous_digest=None, previous_until=None)
        )
        if changed.rowcount:
            self._bump_revision()
        return self.get(key_id)

    def change(self, key_id: str, **columns: Any) -> None:
        """Set columns of a key."""
        self._connection.execute(sa.update(api_keys).where(api_keys.c.id == key_id).values(**columns))
        self._bump_revision()

    def used(self, times: Mapping[str, float]) -> None:
        """Record the time of last use by key id. Servers do not cache it, so the revision stays."""
        newer = sa.and_(
            api_keys.c.id == sa.bindparam("key"),
            sa.or_(
                api_keys.c.last_used_at.is_(None),
                api_keys.c.last_used_at < sa.bindparam("time", type_=sa.Double),
            ),
        )
        self._connection.execute(
            sa.update(api_keys).where(newer).values(last_used_at=sa.bindparam("time", type_=sa.Double)),
            # Every server locks rows in the same order, so two servers cannot deadlock.
            [{"key": key, "time": times[key]} for key in sorted(times)],
        )

    def _bump_revision(self) -> None:
        self._connection.execute(sa.update(registry_clock).values(revision=registry_clock.c.revision + 1))


def _entity(row: sa.Row[tuple[object, ...]]) -> ApiKey:
    values = dict(row._mapping)
    return ApiKey(**values | {"scopes": frozenset(values["scopes"]), "models": frozenset(values["models"])})
