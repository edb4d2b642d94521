"""Sessions of the dashboard, stored hashed."""

from __future__ import annotations

import dataclasses

import sqlalchemy as sa
from sqlalchemy import Connection

from app.domain.entities import Session
from app.store.tables import sessions


class Sessions:
    """Queries on sessions."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, session: Session) -> None:
        self._connection.execute(sa.insert(sessions), dataclasses.asdict(session))

    def find(self, session_id: str) -> Session | None:
        """The session with this id, also if it has expired."""
        row = self._connection.execute(sa.select(sessions).where(sessions.c.id == session_id)).first()
        return None if row is None else Session(**row._mapping)

    def newest_of(self, key_id: str) -> float | None:
        """When the newest session of a key began."""
        newest = sa.select(sa.func.max(sessions.c.created_at)).where(sessions.c.key_id == key_id)
        began: float | None = self._connection.execute(newest).scalar_one()
        return began

    def delete_of(self, key_id: str) -> None:
        """Delete all sessions of a key."""
        self._connection.execute(sa.delete(sessions).where(sessions.c.key_id == key_id))

    def delete(self, session_id: str) -> bool:
        """Delete a session; returns whether it existed."""
        gone = sa.delete(sessions).where(sessions.c.id == session_id)
        return self._connection.execute(gone).rowcount > 0

    def trim(self, key_id: str, *, now: float, keep: int) -> None:
        """Delete the expired sessions of all keys, and of this key all but the newest ``keep``."""
        self._connection.execute(sa.delete(sessions).where(sessions.c.expires_at <= now))
        newest = sa.select(sessions.c.id).where(sessions.c.key_id == key_id)
        kept = newest.order_by(sessions.c.id.desc()).limit(keep)
        older = sa.and_(sessions.c.key_id == key_id, sessions.c.id.not_in(kept))
        self._connection.execute(sa.delete(sessions).where(older))
