"""Use cases of sessions: a person trades an API key for a secret that a browser keeps for some hours.

A session is no key of its own. It stands for the key that began it, so that scopes, tenant, rate limit and
audit records are those of the key, and ends with it: when the key is revoked, expires or is rotated.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from typing import Final

from app.domain.entities import ApiKey, Session, new_id
from app.store.unit_of_work import Store

SECONDS: Final = 12 * 3600.0
"""Lifetime of a session."""
SESSIONS_PER_KEY: Final = 100
"""Sessions of one key; the oldest end beyond."""

_TEXT: Final = re.compile(r"(ses_[0-9a-f]{24})_([A-Za-z0-9_-]{43})")


def begin_session(store: Store, key: ApiKey) -> tuple[Session, str]:
    """Begin a session of a key; returns it and its text, which is not stored. The key must be valid."""
    now, secret = time.time(), secrets.token_urlsafe(32)
    ends = now + SECONDS if key.expires_at is None else min(now + SECONDS, key.expires_at)
    session = Session(new_id("ses"), key.id, _digest(secret), now, ends)
    with store.begin() as uow:
        uow.sessions.add(session)
        uow.sessions.trim(key.id, now=now, keep=SESSIONS_PER_KEY)
        uow.audit.append("session.begin", session.id, details={"key": key.id}, tenant=key.tenant)
    return session, f"{session.id}_{secret}"


def session_id_of(text: str) -> str | None:
    """The id in a session's text; None if the text does not have the form of one."""
    parts = _TEXT.fullmatch(text)
    return None if parts is None else parts[1]


def find_session(store: Store, text: str) -> Session | None:
    """The session with this text; None if it is malformed, unknown or has expired."""
    parts = _TEXT.fullmatch(text)
    if parts is None:
        return None
    with store.read() as uow:
        session = uow.sessions.find(parts[1])
    if session is None or not hmac.compare_digest(session.digest, _digest(parts[2])):
        return None
    return session if session.expires_at > time.time() else None


def end_session(store: Store, text: str) -> None:
    """End a session; unknown texts change nothing."""
    session = find_session(store, text)
    if session is not None:
        with store.begin() as uow:
            if uow.sessions.delete(session.id):
                uow.audit.append("session.end", session.id, details={"key": session.key_id})


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("ascii")).hexdigest()
