"""API keys, stored hashed."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Connection

from app.domain.entities import ApiKey, new_id
from app.domain.errors import NotFound
from app.store.dialect import batched, insert_once
from app.store.paging import bounded_page
from app.store.repositories.registry import Registry
from app.store.repositories.scoped import Scoped
from app.store.tables import api_keys

CELLS: Final = 1 << 16
"""Keys whose rate limit is counted in memory that the server processes of a machine share."""
REMEMBERED_SECONDS: Final = 86400.0
"""For how long servers know that a key has ended."""
KEPT_SECONDS: Final = 2 * REMEMBERED_SECONDS
"""For how long the row and the cell of a key stay at least after it ended."""
MAX_REMEMBERED: Final = 4096
"""Most ended keys that servers know of."""
_CANDIDATES: Final = 64
_COLUMNS: Final = [api_keys.c[field.name] for field in fields(ApiKey)]
_OF_ENDED: Final = [column for column in _COLUMNS if column.name not in ("scopes", "models")]


class Keys(Scoped):
    """Queries on API keys. Changes get a revision of the registry, so that servers notice a revoked key."""

    def __init__(self, connection: Connection, tenant: str | None) -> None:
        super().__init__(connection, tenant)
        self._registry = Registry(connection)

    def add(self, key: ApiKey) -> ApiKey:
        """Insert a key; returns it with its cell."""
        self._check_owner(key.tenant)
        # Changes of the registry are serialised, so that no other transaction takes the same cell.
        self._registry.key_changed(key.id)
        key = replace(key, cell=self._free_cell())
        self._connection.execute(sa.insert(api_keys), _row(key))
        return key

    def add_first(self, key: ApiKey) -> bool:
        """Add the first key unless some key exists; returns whether it was added.

        The id of a first key is always the same, so only one of several processes that try at once succeeds.
        """
        if self.exist():
            return False
        self._registry.lock()
        added = insert_once(self._connection, api_keys, _row(replace(key, cell=self._free_cell())))
        if added:
            self._registry.key_changed(key.id)
        return added

    def all(self) -> Sequence[ApiKey]:
        """All keys, including ended ones, oldest first. They may take much memory."""
        query = sa.select(*_COLUMNS).where(self._owns(api_keys)).order_by(api_keys.c.id)
        return [_entity(row) for row in self._connection.execute(query)]

    def exist(self) -> bool:
        """Whether there is any key, also of another tenant, or one that has ended."""
        return self._connection.execute(sa.select(api_keys.c.id).limit(1)).first() is not None

    def known(self) -> Sequence[ApiKey]:
        """The keys that servers read: active keys, and recently ended ones without scopes and models."""
        now = time.time()
        in_use = sa.select(*_COLUMNS).where(self._owns(api_keys), _is_in_use(now))
        keys = [_entity(row) for row in self._connection.execute(in_use.order_by(api_keys.c.id))]
        # In two queries, each over a range of an index.
        for ended, is_first in (
            (api_keys.c.revoked_at, sa.true()),
            (api_keys.c.expires_at, api_keys.c.revoked_at.is_(None)),
        ):
            lately = sa.and_(ended.between(now - REMEMBERED_SECONDS, now), is_first)
            query = sa.select(*_OF_ENDED).where(self._owns(api_keys), lately).order_by(ended.desc())
            rows = self._connection.execute(query.limit(MAX_REMEMBERED))
            keys += [_entity(row) for row in rows]
        return keys

    def page(self, *, limit: int, after: str | None = None) -> tuple[Sequence[ApiKey], bool]:
        """One page of keys newer than ``after``, oldest first, and whether there are more.

        There are fewer than ``limit`` if they would have more than `PAGE_BYTES`.
        """
        condition = self._owns(api_keys)
        if after is not None:
            condition &= api_keys.c.id > after
        query = sa.select(*_COLUMNS).where(condition).order_by(api_keys.c.id)
        rows, has_more = bounded_page(self._connection, query, api_keys.c.row_bytes, limit)
        return [_entity(row) for row in rows], has_more

    def some(self, key_ids: Collection[str]) -> Sequence[ApiKey]:
        """Those of some keys that exist, without scopes and models if they have ended."""
        keys, now = [], time.time()
        for some in batched(sorted(key_ids)):
            is_one = sa.and_(self._owns(api_keys), api_keys.c.id.in_(some))
            in_use = sa.select(*_COLUMNS).where(is_one, _is_in_use(now))
            ended = sa.select(*_OF_ENDED).where(is_one, ~_is_in_use(now))
            keys += [_entity(row) for query in (in_use, ended) for row in self._connection.execute(query)]
        return keys

    def count_made_since(self, moment: float) -> int:
        """Number of keys that were made after ``moment``."""
        made = sa.and_(self._owns(api_keys), api_keys.c.id > new_id("key", moment))
        query = sa.select(sa.func.count()).select_from(api_keys).where(made)
        return int(self._connection.execute(query).scalar_one())

    def expiring(self, now: float, before: float, lifetime: float) -> Sequence[ApiKey]:
        """Keys in use that expire before a time, and that lived longer than ``lifetime`` seconds by then."""
        ends = api_keys.c.expires_at
        is_soon = sa.and_(ends > now, ends <= before, ends - api_keys.c.created_at > lifetime)
        query = sa.select(*_OF_ENDED).where(self._owns(api_keys), api_keys.c.revoked_at.is_(None), is_soon)
        return [_entity(row) for row in self._connection.execute(query.order_by(api_keys.c.id))]

    def names(self, key_ids: Collection[str]) -> dict[str, str]:
        """Names of those of ``key_ids`` that exist, by id; revoked keys included."""
        columns = sa.select(api_keys.c.id, api_keys.c.name).where(self._owns(api_keys))
        rows = [
            row
            for some in batched(key_ids)
            for row in self._connection.execute(columns.where(api_keys.c.id.in_(some)))
        ]
        return {row.id: row.name for row in rows}

    def get(self, key_id: str, *, lock: bool = False) -> ApiKey:
        """One key. lock: lock its row until the end of the transaction. Raises NotFound."""
        query = sa.select(*_COLUMNS).where(self._is(key_id))
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

    def release_cells(self) -> None:
        """Take the cells from keys that servers have forgotten since they ended."""
        is_over = sa.and_(api_keys.c.cell.is_not(None), _ended_before(time.time() - KEPT_SECONDS))
        self._connection.execute(sa.update(api_keys).where(is_over).values(cell=None))

    def delete_ended(self, before: float, *, limit: int = 1000) -> int:
        """Delete at most ``limit`` keys that ended before a time, with their sessions; returns their number.

        The newest key of all stays, so that the installation does not seem to be a new one.
        """
        newest = sa.select(sa.func.max(api_keys.c.id)).scalar_subquery()
        ended = sa.select(api_keys.c.id).where(_ended_before(before), api_keys.c.id != newest)
        gone = sa.delete(api_keys).where(api_keys.c.id.in_(ended.limit(limit)))
        return self._connection.execute(gone).rowcount

    def count_ended(self, before: float) -> int:
        """Number of keys that `delete_ended` would delete."""
        newest = sa.select(sa.func.max(api_keys.c.id)).scalar_subquery()
        ended = sa.select(sa.func.count()).where(_ended_before(before), api_keys.c.id != newest)
        return int(self._connection.execute(ended).scalar_one())

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

    def _free_cell(self) -> int | None:
        """A random cell of no other key; None if nearly all are taken."""
        candidates = random.sample(range(CELLS), _CANDIDATES)
        query = sa.select(api_keys.c.cell).where(api_keys.c.cell.in_(candidates))
        taken = set(self._connection.execute(query).scalars())
        return next((cell for cell in candidates if cell not in taken), None)


def row_bytes(key: ApiKey) -> int:
    """Bytes of the names of a key's models. All else of a key takes a few hundred bytes."""
    return len(json.dumps(sorted(key.models))) if key.models else 0


def _row(key: ApiKey) -> dict[str, Any]:
    lists = {"scopes": sorted(key.scopes), "models": sorted(key.models)}
    return asdict(key) | lists | {"row_bytes": row_bytes(key)}


def _is_in_use(now: float) -> sa.ColumnElement[bool]:
    ends = api_keys.c.expires_at
    return sa.and_(api_keys.c.revoked_at.is_(None), sa.or_(ends.is_(None), ends > now))


def _ended_before(moment: float) -> sa.ColumnElement[bool]:
    return sa.or_(api_keys.c.revoked_at < moment, api_keys.c.expires_at < moment)


def _entity(row: sa.Row[Any]) -> ApiKey:
    values = dict(row._mapping)
    lists = {name: frozenset(values.get(name, ())) for name in ("scopes", "models")}
    return ApiKey(**values | lists)
