"""Background writer of the audit log: denied requests every second, keys' use and sessions every minute.

A use case that changes something writes its audit row in its own transaction (`uow.audit.append`). A denied
request changes nothing, and any client can cause any number of them, so they are counted in memory and
written as one row for each address and caller, with shares of tenants. No request waits for these writes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeAlias

from app.auth.authenticator import Authenticator
from app.domain.audit_context import UNKNOWN, Actor, AuditContext
from app.domain.entities import ApiKey
from app.domain.errors import Unavailable
from app.http.client_address import network_of
from app.http.problem import Problem
from app.http.types import Scope
from app.processes.periodic import BackgroundTask
from app.services.keys import note_uses
from app.store.unit_of_work import Store

logger = logging.getLogger(__name__)

USAGE_SECONDS: Final = 60.0
"""Seconds between two writes of key usage."""
DENIED: Final = "request.refused"
"""The action of a row about denied requests."""
REPEATED: Final = "session.repeat"
"""The action of a row about further sessions of a key within a minute."""
_SECONDS: Final = 1.0
_STOP_SECONDS: Final = 5.0
_MAX_PATH: Final = 400
_DENIAL_STATUSES: Final = frozenset({401, 403})
NO_SESSION: Final = "session_required"
"""Code of the error of a page without a session: it only leads to the page for signing in."""
_MAX_SUBJECTS: Final = 256
"""Pairs of network and caller with a row of their own between two writes; the rest of a tenant share one."""
_MAX_OF_TENANT: Final = _MAX_SUBJECTS // 2
"""Of one tenant, or of callers that belong to none."""
_MAX_CODES: Final = 16

Subject: TypeAlias = tuple[str, str | None, str]
"""(tenant of the actor, network that counts as one client, id of the actor)."""
_OTHERS: Final = "others"


@dataclass(slots=True)
class Denials:
    """Denied requests of one caller in one network.

    context, request: of the first; the address becomes the network's if there are several. codes: counts.
    """

    context: AuditContext
    request: str
    codes: Counter[str] = field(default_factory=Counter)


class DenialCounts:
    """Denied requests since the last write. Only the event loop's thread may use it."""

    def __init__(self) -> None:
        self._counts: dict[Subject, Denials] = {}
        self._of_tenant: Counter[str] = Counter()

    def add(self, context: AuditContext, request: str, code: str, count: int = 1) -> None:
        """Count ``count`` requests that were denied with the error ``code``."""
        network = context.address and network_of(context.address)
        tenant = context.actor.tenant
        subject = (tenant, network, context.actor.id)
        if subject not in self._counts and self._is_full(tenant):
            subject, context, network = (tenant, None, _OTHERS), _context_of_others(tenant), None
        if subject not in self._counts:
            self._counts[subject] = Denials(context, request)
            self._of_tenant[tenant] += 1
        denials = self._counts[subject]
        if denials.context.address != context.address:
            denials.context.address = network
        is_own = code in denials.codes or len(denials.codes) < _MAX_CODES
        denials.codes[code if is_own else "others"] += count

    def take(self) -> Mapping[Subject, Denials]:
        """Remove and return all counts."""
        counts, self._counts = self._counts, {}
        self._of_tenant.clear()
        return counts

    def put_back(self, counts: Mapping[Subject, Denials]) -> None:
        """Restore counts that could not be written, and add the newer ones to them."""
        newer, self._counts = self._counts, dict(counts)
        self._of_tenant = Counter(tenant for tenant, _, _ in counts)
        for denials in newer.values():
            for code, count in denials.codes.items():
                self.add(denials.context, denials.request, code, count)

    def _is_full(self, tenant: str) -> bool:
        return len(self._counts) >= _MAX_SUBJECTS or self._of_tenant[tenant] >= _MAX_OF_TENANT


def _context_of_others(tenant: str) -> AuditContext:
    return AuditContext(replace(UNKNOWN, tenant=tenant))


def write_denials(store: Store, counts: Mapping[Subject, Denials], action: str = DENIED) -> None:
    """Write one row for each subject. Raises Unavailable."""
    if counts:
        with store.begin() as uow:
            for denials in counts.values():
                [(code, _)] = denials.codes.most_common(1)
                details = {"count": denials.codes.total(), "codes": dict(denials.codes)}
                context = denials.context
                uow.audit.append(
                    action,
                    denials.request,
                    outcome=code,
                    details=details,
                    context=context,
                    tenant=context.actor.tenant,
                )


class AuditWriter:
    """Collects records in the event loop and writes them in a background thread.

    failures: attempts to write that failed.
    """

    def __init__(self, store: Store, authenticator: Authenticator) -> None:
        self._store = store
        self._authenticator = authenticator
        self._denials = DenialCounts()
        self._sessions = DenialCounts()
        self._usage: dict[str, float] = {}
        self._usage_written = time.monotonic()
        self._failing = False
        self.failures = 0
        self._background = BackgroundTask("stms-audit")

    def context_of(self, scope: Scope, request_id: str) -> AuditContext:
        """The audit context of a request whose caller is not yet identified."""
        return AuditContext(request_id=request_id, address=self._authenticator.address_of(scope) or None)

    def record_denial(self, scope: Scope, code: str, request_id: str) -> None:
        """Count a request that was refused with the error ``code``; it is written within a second."""
        context = self.context_of(scope, request_id)
        caller: ApiKey | None = scope.get("state", {}).get("caller")
        context.actor = Actor.of(caller) if caller else self._authenticator.actor_of(scope["headers"])
        self._denials.add(context, request_line(scope), code)

    def record_repeated_session(self, context: AuditContext, scope: Scope) -> None:
        """Count a session that has no row of its own; it is written within a minute."""
        self._sessions.add(context, request_line(scope), "done")
        context.recorded += 1

    def record_action(self, scope: Scope, request_id: str, key: ApiKey, action: str, what: str) -> bool:
        """Write a row about an action that changed nothing in the database, as `write_now`."""
        context = self.context_of(scope, request_id)
        context.actor = Actor.of(key)
        return self.write_now(action, what, "done", context)

    def write_now(self, action: str, what: str, outcome: str, context: AuditContext) -> bool:
        """Write a row about something that cannot be undone; returns whether it was written. Blocks.

        A failure is logged, not raised.
        """
        try:
            with self._store.begin() as uow:
                uow.audit.append(action, what, outcome=outcome, context=context, tenant=context.actor.tenant)
        except Unavailable as error:
            self.failures += 1
            logger.error("%s of %s is not in the audit log: %s", action, what, error)
            return False
        return True

    def start(self) -> None:
        """Start the background task."""
        self._background.start(self._run())

    async def stop(self) -> None:
        """Stop the background task, and write everything that is left within five seconds."""
        if not await self._background.stop(partial(self.write, everything=True), _STOP_SECONDS):
            logger.error("the last rows of the audit log could not be written in time")

    async def write(self, *, everything: bool = False) -> None:
        """Write the denied requests, and key usage and sessions if due or ``everything`` is true.

        A failure is logged once and not raised; the next call writes the same again.
        """
        counts = self._denials.take()
        if counts and not await self._try(lambda: write_denials(self._store, counts)):
            self._denials.put_back(counts)
        if everything or time.monotonic() - self._usage_written >= USAGE_SECONDS:
            self._usage_written = time.monotonic()
            usage = self._usage = self._usage | dict(self._authenticator.drain_usage())
            if usage and await self._try(lambda: note_uses(self._store, usage)):
                self._usage = {}
            repeated = self._sessions.take()
            if repeated and not await self._try(lambda: write_denials(self._store, repeated, REPEATED)):
                self._sessions.put_back(repeated)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_SECONDS)
            await self.write()

    async def _try(self, work: Callable[[], None]) -> bool:
        try:
            await self._background.in_thread(work)
        except Exception as error:  # noqa: BLE001 - every failure is retried with the next write
            if not self._failing:
                logger.error("the audit log cannot be written at the moment: %s", error)
            self._failing = True
            self.failures += 1
            return False
        self._failing = False
        return True


def request_line(scope: Scope) -> str:
    """Method and path of a request as it arrived, at most 400 characters of the path."""
    return f"{scope['method']} {scope['raw_path'][:_MAX_PATH].decode('latin-1')}"


def is_access_denial(problem: Problem) -> bool:
    """Whether a problem concerns the caller's identity or permissions, and belongs in the audit log."""
    return (
        problem.status in _DENIAL_STATUSES and problem.code != NO_SESSION
    ) or problem.code == "too_many_failures"
