"""Revocations of tokens that could be valid otherwise."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import asdict

import sqlalchemy as sa
from sqlalchemy import Connection

from app.domain.entities import TokenRevocation
from app.store.dialect import batched
from app.store.repositories.registry import Registry
from app.store.repositories.scoped import Scoped
from app.store.tables import token_revocations as table


class TokenRevocations(Scoped):
    """Queries on revocations. A new one gets a revision of the registry, so that servers notice it."""

    def __init__(self, connection: Connection, tenant: str | None) -> None:
        super().__init__(connection, tenant)
        self._registry = Registry(connection)

    def add(self, revocation: TokenRevocation) -> None:
        """Insert a revocation."""
        self._check_owner(revocation.tenant)
        self._registry.tokens_revoked(revocation.id)
        self._connection.execute(sa.insert(table), asdict(revocation))

    def known(self) -> Sequence[TokenRevocation]:
        """All that have not expired."""
        return self._read(table.c.expires_at > time.time())

    def some(self, ids: Collection[str]) -> Sequence[TokenRevocation]:
        """Those of some that exist."""
        return [one for some in batched(sorted(ids)) for one in self._read(table.c.id.in_(some))]

    def page(self, *, limit: int, after: str | None = None) -> tuple[Sequence[TokenRevocation], bool]:
        """One page of unexpired revocations newer than ``after``, oldest first, and whether more follow."""
        found = self._read(sa.and_(table.c.expires_at > time.time(), table.c.id > (after or "")), limit + 1)
        return found[:limit], len(found) > limit

    def count(self) -> int:
        """Number of unexpired revocations."""
        lasting = sa.and_(self._owns(table), table.c.expires_at > time.time())
        return int(self._connection.execute(sa.select(sa.func.count()).where(lasting)).scalar_one())

    def delete_expired(self) -> None:
        """Delete expired revocations."""
        self._connection.execute(sa.delete(table).where(table.c.expires_at <= time.time()))

    def _read(self, where: sa.ColumnElement[bool], limit: int | None = None) -> Sequence[TokenRevocation]:
        query = sa.select(table).where(self._owns(table), where).order_by(table.c.id).limit(limit)
        return [TokenRevocation(**row._mapping) for row in self._connection.execute(query)]
