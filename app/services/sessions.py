"""Use cases of sessions: a person trades an API key for a secret that a browser keeps for some hours.

A session is not a key. It represents the key that began it: scopes, tenant, rate limit and audit records are
those of the key, and the session ends with the key, when that is revoked, expires or is rotated.

A session is ``ses_<id>_<number of its key>_<secret><MAC>``. The MAC is made with the digest of the key's text
that began the session. So a server that knows the keys refuses invented sessions without the database, and a
session is never valid longer than the text of the key: no later rotation makes it valid again.
"""

from __future__ import annotations

import base64
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

_TEXT: Final = re.compile(r"((ses_[0-9a-f]{24})_([0-9a-f]{24})_[A-Za-z0-9_-]{43})([A-Za-z0-9_-]{43})")
_RECORDED_SECONDS: Final = 60.0
"""A session that follows an earlier one of its key within this time has no audit row of its own."""


def begin_session(store: Store, key: ApiKey, digest: str | None = None) -> tuple[Session, str]:
    """Begin a session of a key; returns it and its text, which is not stored. The key must be valid.

    digest: of the text of the key that the person knows, by default the current one. The first session of a
    key within a minute is recorded in the audit log; the caller counts the others.
    """
    now, digest = time.time(), digest or key.digest
    session_id = new_id("ses")
    begin = f"{session_id}_{key.id.removeprefix('key_')}_{secrets.token_urlsafe(32)}"
    text = begin + _mac(digest, begin)
    text_ends = key.previous_until if digest == key.previous_digest else None
    ends = min([now + SECONDS, *(moment for moment in (key.expires_at, text_ends) if moment is not None)])
    session = Session(session_id, key.id, _digest(text), now, ends)
    with store.begin() as uow:
        newest = uow.sessions.newest_of(key.id)
        uow.sessions.add(session)
        uow.sessions.trim(key.id, now=now, keep=SESSIONS_PER_KEY)
        if newest is None or now - newest >= _RECORDED_SECONDS:
            uow.audit.append("session.begin", session.id, details={"key": key.id}, tenant=key.tenant)
    return session, text


def key_id_of(text: str) -> str | None:
    """The id of the key in a session's text; None if the text does not have the form of one."""
    parts = _TEXT.fullmatch(text)
    return None if parts is None else f"key_{parts[3]}"


def is_begun_with(text: str, digest: str) -> bool:
    """Whether a session's text was made with the text of a key that has this digest."""
    parts = _TEXT.fullmatch(text)
    return parts is not None and hmac.compare_digest(parts[4], _mac(digest, parts[1]))


def find_session(store: Store, text: str) -> Session | None:
    """The session with this text; None if it is malformed, unknown or has expired."""
    parts = _TEXT.fullmatch(text)
    if parts is None:
        return None
    with store.read() as uow:
        session = uow.sessions.find(parts[2])
    if session is None or not hmac.compare_digest(session.digest, _digest(text)):
        return None
    return session if session.expires_at > time.time() else None


def end_session(store: Store, text: str) -> None:
    """End a session; unknown texts change nothing."""
    session = find_session(store, text)
    if session is not None:
        with store.begin() as uow:
            if uow.sessions.delete(session.id):
                uow.audit.append("session.end", session.id, details={"key": session.key_id})


def _mac(digest: str, begin: str) -> str:
    mac = hmac.digest(digest.encode("ascii"), begin.encode("ascii"), "sha256")
    return base64.urlsafe_b64encode(mac).rstrip(b"=").decode("ascii")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("ascii")).hexdigest()
