"""What a server process keeps for the books: who was refused, and when keys were used.

Nothing of it is written while a request waits: once a second what was refused, once a minute the keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from app.auth.authenticator import KeyGate
from app.domain.audit_context import Actor, AuditContext
from app.domain.entities import ApiKey
from app.domain.errors import Unavailable
from app.http.body import Scope
from app.http.problem import Problem
from app.services.audit import Refusals, write_refusals
from app.services.keys import note_uses
from app.store.unit_of_work import Store

logger = logging.getLogger(__name__)

USES_SECONDS: Final = 60.0
_SECONDS: Final = 1.0
_LAST_SECONDS: Final = 5.0
_LONGEST_PATH: Final = 400
_ABOUT_CALLERS: Final = frozenset({401, 403})


class Witness:
    """Belongs to the event loop, except what it writes."""

    def __init__(self, store: Store, gate: KeyGate) -> None:
        self._store = store
        self._gate = gate
        self._refusals = Refusals()
        self._uses: dict[str, float] = {}
        self._uses_written = time.monotonic()
        self._failing = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="stms-witness")
        self._task: asyncio.Task[None] | None = None

    def context_of(self, scope: Scope, request_id: str) -> AuditContext:
        """A request, of nobody known yet."""
        return AuditContext(request_id=request_id, address=self._gate.address_of(scope) or None)

    def refused(self, scope: Scope, code: str, request_id: str) -> None:
        """A request was refused with an error ``code``."""
        context = self.context_of(scope, request_id)
        context.actor = self._gate.actor_of(scope["headers"])
        self._refusals.note(context, what_of(scope), code)

    def did(self, scope: Scope, request_id: str, key: ApiKey, action: str, what: str) -> None:
        """Something was done that the database does not know of. Blocks."""
        context = self.context_of(scope, request_id)
        context.actor = Actor.of(key)
        self.tell(action, what, "done", context)

    def tell(self, action: str, what: str, outcome: str, context: AuditContext) -> None:
        """Write a row on what cannot be undone, so that a failure is the log's business only. Blocks."""
        try:
            with self._store.begin() as uow:
                uow.audit.append(action, what, outcome=outcome, context=context)
        except Unavailable as error:
            logger.error("%s of %s is not in the audit log: %s", action, what, error)

    def start(self) -> None:
        """Begin to write."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Write what is left, and end."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        try:
            async with asyncio.timeout(_LAST_SECONDS):
                await self.write(all_of_it=True)
        except TimeoutError:
            logger.error("the last lines of the audit log could not be written in time")
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def write(self, *, all_of_it: bool = False) -> None:
        """Write what is due. A failure is logged once, not raised: it is tried again with what comes then."""
        seen = self._refusals.take()
        if not await self._try(lambda: write_refusals(self._store, seen)):
            self._refusals.put_back(seen)
        if all_of_it or time.monotonic() - self._uses_written >= USES_SECONDS:
            self._uses_written = time.monotonic()
            uses = self._uses = self._uses | dict(self._gate.uses())
            if await self._try(lambda: note_uses(self._store, uses)):
                self._uses = {}

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_SECONDS)
            await self.write()

    async def _try(self, work: Callable[[], None]) -> bool:
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except Exception as error:  # noqa: BLE001 - whatever it was, it is tried again
            if not self._failing:
                logger.error("the audit log cannot be written just now: %s", error)
            self._failing = True
            return False
        self._failing = False
        return True


def what_of(scope: Scope) -> str:
    """Method and path of a request, as it came."""
    return f"{scope['method']} {scope['raw_path'][:_LONGEST_PATH].decode('latin-1')}"


def is_audited(problem: Problem) -> bool:
    """Whether a refusal is about who may do what."""
    return problem.status in _ABOUT_CALLERS or problem.code == "too_many_failures"
