"""Moves of references to another version: the new version is preloaded, then queries use it.

A move has a time limit. At its end, or when the preloading fails, the reference switches anyway, and the
first query loads what is missing. So queries leave a bad version of an alias within a time limit, and a
version that cannot be loaded affects only its own queries.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.domain.entities import ModelVersion
from app.serving.references import References

logger = logging.getLogger(__name__)

Preload = Callable[[ModelVersion, ModelVersion], Coroutine[Any, Any, Sequence[Exception]]]

_QUIET_SECONDS: Final = 60.0
"""Time in which further failed moves of one reference are counted, but not logged."""
_MAX_QUIET: Final = 1000


@dataclass(slots=True)
class _Move:
    """A move in progress. since: in monotonic seconds. deadline: in seconds of the event loop's clock."""

    new: ModelVersion
    since: float
    deadline: float
    task: asyncio.Task[None]


class Moves:
    """The moves in progress of one server process. Belongs to the event loop.

    preload: loads from the second version what is in use from the first; returns what failed. seconds:
    longest duration of a move. failed: numbers of moves whose preloading failed, by reason.
    """

    def __init__(self, references: References, preload: Preload, seconds: float) -> None:
        self._references = references
        self._preload = preload
        self._seconds = seconds
        self._moves: dict[str, _Move] = {}
        self._quiet: dict[str, float] = {}
        self.failed: dict[str, int] = {"error": 0, "timeout": 0}

    def __len__(self) -> int:
        return len(self._moves)

    @property
    def since(self) -> float:
        """Since when the oldest move is due, in monotonic seconds; infinite without moves."""
        return min((move.since for move in self._moves.values()), default=math.inf)

    def follow(self, reference: str, new: ModelVersion | None, since: float) -> None:
        """Start the move of a reference to the version that it resolves to now; None if there is none.

        since: the last moment at which it is known to have resolved to the version in use, in monotonic
        seconds. A move in progress to another version is cancelled, but its time limit stays: however often
        an alias moves, the reference is never late by more than the limit.
        """
        old, present = self._references.peek(reference), self._moves.get(reference)
        target = old if present is None else present.new
        if old is None or (new is not None and target is not None and new.version == target.version):
            return
        deadline = asyncio.get_running_loop().time() + self._seconds
        if present is not None:
            self._moves.pop(reference).task.cancel()
            since, deadline = min(since, present.since), present.deadline
        if new is None:
            self._references.remove(reference)
        elif new.version != old.version:
            task = asyncio.get_running_loop().create_task(self._run(reference, old, new, deadline))
            self._moves[reference] = _Move(new, since, deadline, task)
            task.add_done_callback(lambda task: self._ended(reference, task))

    async def settle(self, references: Sequence[str]) -> None:
        """Wait until the present moves of some references, and moves that replace these, have ended."""
        limit = asyncio.get_running_loop().time() + self._seconds
        while True:
            present = [move for name in references if (move := self._moves.get(name)) is not None]
            tasks = [move.task for move in present if move.deadline <= limit and not move.task.done()]
            if not tasks:
                return
            await asyncio.wait(tasks)

    def close(self) -> None:
        """Cancel all moves."""
        for move in self._moves.values():
            move.task.cancel()

    async def _run(self, reference: str, old: ModelVersion, new: ModelVersion, deadline: float) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                errors = await self._preload(old, new)
        except TimeoutError:
            self._report(reference, new, "timeout", f"it took more than {self._seconds:g} s")
        except Exception as error:  # noqa: BLE001 - queries must get the new version after any failure
            self._report(reference, new, "error", str(error))
        else:
            if errors:
                self._report(reference, new, "error", str(errors[0]))
        move = self._moves.get(reference)
        if move is not None and move.task is asyncio.current_task():
            self._references.replace(reference, new)

    def _ended(self, reference: str, task: asyncio.Task[None]) -> None:
        move = self._moves.get(reference)
        if move is not None and move.task is task:
            del self._moves[reference]
        if not task.cancelled():
            # Marks the exception as retrieved.
            task.exception()

    def _report(self, reference: str, new: ModelVersion, reason: str, cause: str) -> None:
        self.failed[reason] += 1
        now = asyncio.get_running_loop().time()
        if now < self._quiet.get(reference, 0.0):
            return
        if len(self._quiet) >= _MAX_QUIET:
            self._quiet.clear()
        self._quiet[reference] = now + _QUIET_SECONDS
        logger.warning(
            "%s means version %d now, which could not be preloaded and is loaded by its queries: %s",
            reference,
            new.version,
            cause,
        )
