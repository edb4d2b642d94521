"""Asks the candidates of shadows about answers that were given already, and counts what they say.

It works between queries: one answer at a time in the event loop, which it leaves after each, or in its own
thread where an answer costs much. What waits is bounded, so that under load answers are dropped and counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from typing import Final

import msgspec

from app.domain.errors import ServiceError
from app.domain.shadows import ShadowCounts
from app.processes.periodic import BackgroundTask, PeriodicWork, until_beat
from app.serving.cache import ModelCache
from app.serving.query.evaluate import answer_class
from app.serving.query.negotiation import DEFAULT_FORMAT
from app.serving.servable import ServableStudent
from app.serving.watch import Shadowed
from app.serving.work import INLINE_WORK, RequestLimits
from app.store.unit_of_work import Store

_BEAT_SECONDS: Final = 0.25
_WRITE_SECONDS: Final = 1.0
_KEPT_SECONDS: Final = 60.0
"""For how long counts wait for a database that cannot be written."""


class _Answer(msgspec.Struct):
    match: bool


_MATCH: Final = msgspec.json.Decoder(_Answer)


class ShadowRunner:
    """The background task of one process. periodic: runs the part "shadows"."""

    def __init__(
        self, store: Store, cache: ModelCache, limits: RequestLimits, periodic: PeriodicWork | None = None
    ) -> None:
        self._store, self._cache, self._limits = store, cache, limits
        self._periodic = periodic or PeriodicWork(["shadows"])
        self._background = BackgroundTask("stms-shadows")
        self._counts: dict[tuple[str, int, str], ShadowCounts] = {}
        self._written_at = self._succeeded_at = time.monotonic()

    def start(self) -> None:
        """Start the background task."""
        self._background.start(self._run())

    async def stop(self) -> None:
        """Stop the task, and write what was counted last."""
        await self._background.stop(self._write)

    async def run_once(self) -> None:
        """Ask about everything that waits now."""
        taken, dropped = self._cache.watches.take_shadowed()
        for (shadow_id, present, label), number in dropped.items():
            self._count(shadow_id, present, label, dropped=number)
        for one in taken:
            shadow = one.shadow
            said = await self._said(one)
            outcome = "failed" if said is None else _OUTCOMES[one.answer, said]
            self._count(shadow.id, shadow.version, one.label, **{outcome: 1})
            # The queries that have arrived meanwhile are first.
            await asyncio.sleep(0)

    def write(self) -> None:
        """Write what was counted since the last call. Blocks. Raises Unavailable; then it is tried again."""
        counts, self._counts = self._counts, {}
        try:
            with self._store.of_all_tenants().begin() as uow:
                uow.shadows.add_counts(counts.values(), time.time())
        except Exception:
            if time.monotonic() - self._succeeded_at < _KEPT_SECONDS:
                self._put_back(counts)
            raise
        self._succeeded_at = time.monotonic()

    def _put_back(self, counts: Mapping[tuple[str, int, str], ShadowCounts]) -> None:
        for one in counts.values():
            more = {name: getattr(one, name) for name in ("failed", "dropped", *_OUTCOMES.values())}
            self._count(one.shadow_id, one.present, one.label, **more)

    def _count(self, shadow_id: str, present: int, label: str, **more: int) -> None:
        key = shadow_id, present, label
        known = self._counts.get(key) or ShadowCounts(*key)
        self._counts[key] = known.plus(**more)

    async def _said(self, one: Shadowed) -> bool | None:
        """Whether the candidate says yes; None if it cannot answer."""
        shadow = one.shadow
        reference = f"{shadow.tenant}/{shadow.model}@{shadow.candidate}"
        try:
            student = await self._cache.student(reference, one.label)
            if student.work <= INLINE_WORK and one.source.size <= student.inline_bytes:
                return self._answer(student, one)
            return await self._background.in_thread(partial(self._answer, student, one))
        except ServiceError:
            return None

    def _answer(self, student: ServableStudent, one: Shadowed) -> bool | None:
        body = one.source.body_of(one.columns, one.number)
        if body is None:
            return None
        content, _, _ = answer_class(student, body, DEFAULT_FORMAT, self._limits)
        return _MATCH.decode(content).match

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(until_beat(_BEAT_SECONDS))
            if self._cache.watches.has_shadowed:
                await self.run_once()
            if self._counts and time.monotonic() - self._written_at >= _WRITE_SECONDS:
                self._written_at = time.monotonic()
                await self._write()

    async def _write(self) -> None:
        if self._counts:
            await self._background.in_thread(partial(self._periodic.run, "shadows", self.write))


_OUTCOMES: Final = {
    (True, True): "both_yes",
    (True, False): "only_present",
    (False, True): "only_candidate",
    (False, False): "both_no",
}
