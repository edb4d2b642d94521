"""API keys, stored hashed."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from app.domain.entities import ApiKey
from app.domain.errors import NotFound
from app.store.dialect import batched, insert_once
from app.store.repositories.registry import Registry
from app.store.repositories.scoped import Scoped
from app.store.tables import api_keys


class Keys(Scoped):
    """Queries on API keys. Changes get a revision of the registry, so that servers notice a revoked key."""

    def __init__(self, connection: Connection, tenant: str | None) -> None:
        super().__init__(connection, tenant)
        self._registry = Registry(connection)

    def add(self, key: ApiKey) -> None:
        self._check_owner(key.tenant)
        row = asdict(key) | {"scopes": sorted(key.scopes), "models": sorted(key.models)}
        self._connection.execute(sa.insert(api_keys), row)
        self._registry.key_changed(key.id)

    def add_first(self, key: ApiKey) -> bool:
        """Add the first key unless some key exists; returns whether it was added.

        The id of a first key is always the same, so of several processes that try at once one succeeds.
        """
        if self._connection.execute(sa.select(api_keys.c.id).limit(1)).first() is not None:
            return False
        row = asdict(key) | {"scopes": sorted(key.scopes), "models": sorted(key.models)}
        added = insert_once(self._connection, api_keys, row)
        if added:
            self._registry.key_changed(key.id)
        return added

    def all(self) -> Sequence[ApiKey]:
        """All keys including revoked ones, oldest first."""
        query = sa.select(api_keys).where(self._owns(api_keys)).order_by(api_keys.c.id)
        return [_entity(row) for row in self._connection.execute(query)]

    def page(self, *, limit: int, after: str | None = None) -> tuple[Sequence[ApiKey], bool]:
        """One page of keys newer than ``after``, oldest first, and whether there are more."""
        query = sa.select(api_keys).where(self._owns(api_keys)).order_by(api_keys.c.id).limit(limit + 1)
        if after is not None:
            query = query.where(api_keys.c.id > after)
        page = [_entity(row) for row in self._connection.execute(query)]
        return page[:limit], len(page) > limit

    def some(self, key_ids: Collection[str]) -> Sequence[ApiKey]:
        """Those of some keys that exist."""
        return [
            _entity(row)
            for some in batched(key_ids)
            for row in self._connection.execute(sa.select(api_keys).where(api_keys.c.id.in_(some)))
        ]

    def names(self, key_ids: Collection[str]) -> dict[str, str]:
        """Names of those of some keys that exist, by id; of revoked keys, too."""
        columns = sa.select(api_keys.c.id, api_keys.c.name).where(self._owns(api_keys))
        rows = [
            row
            for some in batched(key_ids)
            for row in self._connection.execute(columns.where(api_keys.c.id.in_(some)))
        ]
        return {row.id: row.name for row in rows}

    def get(self, key_id: str, *, lock: bool = False) -> ApiKey:
        """One key. lock: lock its row until the end of the transaction. Raises NotFound."""
        query = sa.select(api_keys).where(self._is(key_id))
        row = self._connection.execute(query.with_for_update() if lock else query).first()
        if row is None:
            raise NotFound(f"There is no API key {key_id!r}.", code="key_not_found")
        return _entity(row)

    def revoke(self, key_id: str) -> ApiKey:
        """Revoke a key; returns the updated key. Raises NotFound."""
        changed = self._connection.execute(
            sa.update(api_keys)
            .where(self._is(key_id), api_keys.c.revoked_at.is_(None))
            .values(revoked_at=time.time(), previous_digest=None, previous_until=None)
        )
        if changed.rowcount:
            self._registry.key_changed(key_id)
        return self.get(key_id)

    def change(self, key_id: str, **columns: Any) -> None:
        """Set columns of a key."""
        self._connection.execute(sa.update(api_keys).where(self._is(key_id)).values(**columns))
        self._registry.key_changed(key_id)

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

    def _is(self, key_id: str) -> sa.ColumnElement[bool]:
        return sa.and_(api_keys.c.id == key_id, self._owns(api_keys))


def _entity(row: sa.Row[tuple[object, ...]]) -> ApiKey:
    values = dict(row._mapping)
    return ApiKey(**values | {"scopes": frozenset(values["scopes"]), "models": frozenset(values["models"])})
