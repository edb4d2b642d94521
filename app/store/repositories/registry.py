"""The revision of the registry, and the log of its changes.

Every change of a version, an alias or a key, and every revocation of tokens, takes the next revision and
appends one row to the log. A server that has read up to a revision requests the changes after it, so the cost
of polling depends on the changes only. Revisions are assigned under a lock that lasts until the commit, so a
server that sees a revision sees all earlier ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa
from sqlalchemy import Connection

from app.domain.names import qualified
from app.store.dialect import on_postgresql
from app.store.tables import registry_changes, registry_clock

KEPT_CHANGES: Final = 10_000
"""Length of the log. A server that is further behind reads everything again."""

_MODEL, _KEY, _TOKENS = "model", "key", "tokens"


@dataclass(frozen=True, slots=True)
class Changed:
    """Names of changed models, each qualified by its tenant (see `qualified`), and ids of changed API keys.

    token_revocations: ids of new revocations.
    """

    models: frozenset[str]
    keys: frozenset[str]
    token_revocations: frozenset[str] = frozenset()


class Registry:
    """Queries on the clock of the registry and its log."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def lock(self) -> None:
        """Serialise changes of the registry, so that no number is assigned twice. They are rare."""
        if on_postgresql(self._connection):
            self._connection.execute(sa.select(registry_clock.c.revision).with_for_update())

    def revision(self) -> int:
        """The current revision. While it is unchanged, the data that servers have read is current."""
        return int(self._connection.execute(sa.select(registry_clock.c.revision)).scalar_one())

    def model_changed(self, tenant: str, model: str) -> None:
        """Record that versions or aliases of a model changed."""
        self._append(_MODEL, qualified(tenant, model))

    def key_changed(self, key_id: str) -> None:
        """Record that an API key was created or changed."""
        self._append(_KEY, key_id)

    def tokens_revoked(self, revocation_id: str) -> None:
        """Record that tokens were revoked."""
        self._append(_TOKENS, revocation_id)

    def changes(self, after: int, until: int) -> Changed | None:
        """What changed after revision ``after``, up to revision ``until``.

        None if the log lacks one of these revisions, because it was shortened or the database was restored.
        """
        table = registry_changes.c
        if not 0 <= until - after <= KEPT_CHANGES:
            return None
        query = sa.select(table.kind, table.name).where(table.revision > after, table.revision <= until)
        rows = self._connection.execute(query).all()
        if len(rows) != until - after:
            return None
        return Changed(
            models=frozenset(name for kind, name in rows if kind == _MODEL),
            keys=frozenset(name for kind, name in rows if kind == _KEY),
            token_revocations=frozenset(name for kind, name in rows if kind == _TOKENS),
        )

    def _append(self, kind: str, name: str) -> None:
        clock = registry_clock.c.revision
        advanced = sa.update(registry_clock).values(revision=clock + 1).returning(clock)
        revision = int(self._connection.execute(advanced).scalar_one())
        row = {"revision": revision, "kind": kind, "name": name}
        self._connection.execute(sa.insert(registry_changes), row)
        old = registry_changes.c.revision <= revision - KEPT_CHANGES
        self._connection.execute(sa.delete(registry_changes).where(old))
