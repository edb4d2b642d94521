"""The tenant of a repository: its queries neither return nor change rows of other tenants."""

from __future__ import annotations

from typing import Self

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Table


class Scoped:
    """A repository of one tenant, or of all tenants if ``tenant`` is None."""

    def __init__(self, connection: Connection, tenant: str | None) -> None:
        self._connection = connection
        self._tenant = tenant

    def of_tenant(self, tenant: str) -> Self:
        """The same repository for one tenant, in the same transaction."""
        return type(self)(self._connection, tenant)

    @property
    def tenant(self) -> str:
        """The tenant. Raises RuntimeError in a repository of all tenants, in which a name is ambiguous."""
        if self._tenant is None:
            raise RuntimeError("This query needs the repository of one tenant: use of_tenant first.")
        return self._tenant

    def _owns(self, table: Table) -> ColumnElement[bool]:
        """Condition that a row of ``table`` belongs to the tenant."""
        return sa.true() if self._tenant is None else table.c.tenant == self._tenant

    def _check_owner(self, tenant: str) -> None:
        """Raise RuntimeError before a row of another tenant is stored."""
        if self._tenant not in {None, tenant}:
            raise RuntimeError(f"A row of tenant {tenant!r} cannot be stored for tenant {self._tenant!r}.")
