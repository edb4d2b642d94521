"""The audit context: who acts, in which request, and from which address, held in a ContextVar.

It is set once when a request or a command begins, and is read when a change is written to the audit log.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from app.domain.entities import ApiKey


@dataclass(frozen=True, slots=True)
class Actor:
    """The acting party. id: of its API key, or a word if it has none. scope: the widest of the key.

    tenant: of the key; empty for the installation itself and for unknown callers.
    """

    id: str
    name: str
    scope: str = ""
    tenant: str = ""

    @classmethod
    def of(cls, key: ApiKey) -> Actor:
        """The actor that authenticates with ``key``."""
        return cls(key.id, key.name, next(scope for scope in _SCOPES if scope in key.scopes), key.tenant)


_SCOPES: Final = ("operator", "admin", "train", "download", "query")
SYSTEM: Final = Actor("system", "stms")
"""The service itself, for everything outside of requests and commands."""
UNKNOWN: Final = Actor("unknown", "")
"""A caller that is not or not yet authenticated."""


@dataclass(slots=True)
class AuditContext:
    """One request or command. recorded: number of audit rows written for it so far."""

    actor: Actor = UNKNOWN
    request_id: str | None = None
    address: str | None = None
    recorded: int = 0


_CURRENT: ContextVar[AuditContext | None] = ContextVar("stms_audit_context", default=None)


def current_context() -> AuditContext:
    """The context of the running request or command; outside of them, a new context of `SYSTEM`."""
    return _CURRENT.get() or AuditContext(SYSTEM)


@contextmanager
def audit_context(context: AuditContext) -> Iterator[AuditContext]:
    """Make ``context`` the current one for the block, also in the threads that it starts."""
    token = _CURRENT.set(context)
    try:
        yield context
    finally:
        _CURRENT.reset(token)
