"""Who is acting: said once, where a request or a command comes in, and read where something is changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from app.domain.entities import ApiKey


@dataclass(frozen=True, slots=True)
class Actor:
    """Somebody. id: of an API key, or a word for who has none. scope: the widest that the key has."""

    id: str
    name: str
    scope: str = ""

    @classmethod
    def of(cls, key: ApiKey) -> Actor:
        """The one who shows a key."""
        return cls(key.id, key.name, next(scope for scope in _SCOPES if scope in key.scopes))


_SCOPES: Final = ("admin", "train", "query")
SYSTEM: Final = Actor("system", "stms")
"""The service itself: whatever happens outside of requests and commands."""
UNKNOWN: Final = Actor("unknown", "")
"""Somebody who has not been recognised, or not yet."""


@dataclass(slots=True)
class Deed:
    """One request or command. recorded: rows that it has left in the audit log."""

    actor: Actor = UNKNOWN
    request_id: str | None = None
    address: str | None = None
    recorded: int = 0


_DEED: ContextVar[Deed | None] = ContextVar("stms_deed", default=None)


def current_deed() -> Deed:
    """The one under way here; that of `SYSTEM` where there is none."""
    return _DEED.get() or Deed(SYSTEM)


@contextmanager
def acting(deed: Deed) -> Iterator[Deed]:
    """Whatever is done in the block, also in threads started by it, is part of ``deed``."""
    token = _DEED.set(deed)
    try:
        yield deed
    finally:
        _DEED.reset(token)
