"""Removes what a restored SQLite database must not bring back: sessions, and keys and tokens revoked since.

The replaced database may be from another release, so both are read without the tables of this release, by
columns that all releases have.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

_ROTATION: Final = ("digest", "previous_digest", "previous_until", "rotated_at")
_KEYS: Final = ", ".join(
    ("id", "name", "scopes", "created_at", "revoked_at", "expires_at", "last_used_at", *_ROTATION)
)
_REVOCATION: Final = "id, tenant, issuer, sub, jti, reason, created_by, created_at, expires_at"
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
    found = _keys_and_revocations(replaced)
    with closing(sqlite3.connect(restored)) as connection, connection:
        connection.execute("DELETE FROM sessions")
        if found is None:
            return None
        newer, revocations = found
        older = _keys(connection)
        changed = 0
        for key_id, now in newer.items():
            then = older.get(key_id)
            # Another installation may have a key with the same id: the first one.
            if then is None or then["created_at"] != now["created_at"]:
                continue
            values = _changed(then, now)
            if values:
                changed += 1
                assigned = ", ".join(f"{name} = :{name}" for name in values)
                connection.execute(
                    f"UPDATE api_keys SET {assigned} WHERE id = :id",  # noqa: S608 - names of columns
                    values | {"id": key_id},
                )
        places = ", ".join("?" * len(_REVOCATION.split(",")))
        connection.executemany(
            f"INSERT OR IGNORE INTO token_revocations ({_REVOCATION}) VALUES ({places})",  # noqa: S608
            revocations,
        )
    return changed


def valid_keys(path: Path, now: float) -> list[ValidKey]:
    """The keys of a restored database that are neither revoked nor expired, oldest first."""
    with closing(sqlite3.connect(path)) as connection:
        return [
            ValidKey(key_id, row["name"], json.loads(row["scopes"]), row["last_used_at"])
            for key_id, row in sorted(_keys(connection).items())
            if row["revoked_at"] is None and (row["expires_at"] is None or row["expires_at"] > now)
        ]


def _changed(then: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Columns of a key whose later values must be kept, with these values."""
    names: list[str] = []
    if (now["rotated_at"] or 0.0) > (then["rotated_at"] or 0.0):
        names += _ROTATION
    if now["revoked_at"] is not None and then["revoked_at"] is None:
        names.append("revoked_at")
    return {name: now[name] for name in names}


def _keys_and_revocations(path: Path) -> tuple[_Rows, list[tuple[Any, ...]]] | None:
    """All keys of a database by id, and its revocations; None if it is missing or cannot be read."""
    if not path.exists():
        return None
    try:
        with closing(sqlite3.connect(path)) as connection:
            revocations = connection.execute(
                f"SELECT {_REVOCATION} FROM token_revocations"  # noqa: S608
            ).fetchall()
            return _keys(connection), revocations
    except sqlite3.DatabaseError:
        return None


def _keys(connection: sqlite3.Connection) -> _Rows:
    """All keys by id."""
    cursor = connection.execute(f"SELECT {_KEYS} FROM api_keys")  # noqa: S608
    names = [column[0] for column in cursor.description]
    return {row[0]: dict(zip(names, row, strict=True)) for row in cursor}
