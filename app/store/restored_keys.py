"""What a restored SQLite database would bring back: sessions, and keys and tokens that were revoked since.

The database may have the schema of an earlier release, so only columns that it has are looked at.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

_ROTATION: Final = ("digest", "previous_digest", "previous_until", "rotated_at")
_Rows: TypeAlias = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ValidKey:
    """A key that a restored database accepts; times in seconds since the epoch."""

    id: str
    name: str
    scopes: list[str]
    last_used_at: float | None


def end_what_was_ended(restored: Path, replaced: Path) -> int | None:
    """End all sessions of a restored database, and keys that the database which it replaces has ended.

    Keys and tokens that were revoked since the backup are revoked, and rotated keys have their new texts.
    Returns how many keys that were; None if the replaced database is missing or cannot be read.
    """
    newer = _keys(replaced)
    with closing(sqlite3.connect(restored)) as connection, connection:
        if _columns(connection, "sessions"):
            connection.execute("DELETE FROM sessions")
        columns = _columns(connection, "api_keys")
        older = _rows(connection, columns)
        changed = 0
        for key_id, now in (newer or {}).items():
            then = older.get(key_id)
            # Another installation may have a key with the same id: the first one.
            if then is None or then["created_at"] != now["created_at"]:
                continue
            values = {name: now[name] for name in _changed(then, now) & columns}
            if values:
                changed += 1
                assigned = ", ".join(f"{name} = :{name}" for name in sorted(values))
                connection.execute(
                    f"UPDATE api_keys SET {assigned} WHERE id = :id",  # noqa: S608 - names of columns
                    values | {"id": key_id},
                )
        if newer is not None and _columns(connection, "token_revocations"):
            _copy_revocations(replaced, connection)
    return None if newer is None else changed


def valid_keys(path: Path, now: float) -> list[ValidKey]:
    """The keys of a database that are neither revoked nor expired, oldest first."""
    return [
        ValidKey(key_id, row["name"], json.loads(row["scopes"]), row.get("last_used_at"))
        for key_id, row in sorted((_keys(path) or {}).items())
        if row.get("revoked_at") is None and (row.get("expires_at") is None or row["expires_at"] > now)
    ]


def _copy_revocations(replaced: Path, restored: sqlite3.Connection) -> None:
    """Add the revocations of tokens of a replaced database to those of a restored one."""
    with closing(sqlite3.connect(replaced)) as connection:
        columns = sorted(_columns(connection, "token_revocations"))
        if not columns:
            return
        listed = ", ".join(columns)
        rows = connection.execute(f"SELECT {listed} FROM token_revocations").fetchall()  # noqa: S608
    places = ", ".join("?" * len(columns))
    restored.executemany(
        f"INSERT OR IGNORE INTO token_revocations ({listed}) VALUES ({places})",  # noqa: S608
        rows,
    )


def _changed(then: dict[str, Any], now: dict[str, Any]) -> set[str]:
    """Columns of a key whose later state must hold."""
    names: set[str] = set()
    if (now.get("rotated_at") or 0.0) > (then.get("rotated_at") or 0.0):
        names |= {name for name in _ROTATION if name in now}
    if now.get("revoked_at") is not None and then.get("revoked_at") is None:
        names.add("revoked_at")
    return names


def _keys(path: Path) -> _Rows | None:
    """All keys of a database by id; None if it is missing or cannot be read."""
    if not path.exists():
        return None
    try:
        with closing(sqlite3.connect(path)) as connection:
            columns = _columns(connection, "api_keys")
            return _rows(connection, columns) if columns else None
    except sqlite3.DatabaseError:
        return None


def _columns(connection: sqlite3.Connection, table: str) -> set[str]:
    return {row[0] for row in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))}


def _rows(connection: sqlite3.Connection, columns: set[str]) -> _Rows:
    if not columns:
        return {}
    connection.row_factory = sqlite3.Row
    return {row["id"]: dict(row) for row in connection.execute("SELECT * FROM api_keys")}
