"""API keys, stored hashed."""

from __future__ import annotations

import time
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy import Connection

from app.domain.entities import ApiKey
from app.domain.errors import NotFound
from app.store.tables import api_keys, registry_clock


class Keys:
    """Every query on API keys. Changes tick the registry clock, so that servers drop a revoked key soon."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, key: ApiKey) -> None:
        self._connection.execute(
            sa.insert(api_keys),
            {
                "id": key.id,
                "name": key.name,
                "digest": key.digest,
                "scopes": sorted(key.scopes),
                "models": sorted(key.models),
                "created_at": key.created_at,
                "revoked_at": key.revoked_at,
            },
        )
        self._tick()

    def all(self) -> Sequence[ApiKey]:
        """Every key, revoked ones too, oldest first."""
        return [_entity(row) for row in self._connection.execute(sa.select(api_keys).order_by(api_keys.c.id))]

    def revoke(self, key_id: str) -> ApiKey:
        changed = self._connection.execute(
            sa.update(api_keys)
            .where(api_keys.c.id == key_id, api_keys.c.revoked_at.is_(None))
            .values(revoked_at=time.time())
        )
        row = self._connection.execute(sa.select(api_keys).where(api_keys.c.id == key_id)).first()
        if row is None:
            raise NotFound(f"There is no API key {key_id!r}.", code="key_not_found")
        if changed.rowcount:
            self._tick()
        return _entity(row)

    def _tick(self) -> None:
        self._connection.execute(sa.update(registry_clock).values(revision=registry_clock.c.revision + 1))


def _entity(row: sa.Row[tuple[object, ...]]) -> ApiKey:
    values = dict(row._mapping)
    return ApiKey(**values | {"scopes": frozenset(values["scopes"]), "models": frozenset(values["models"])})
