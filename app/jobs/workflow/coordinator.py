"""The light half of a job: it puts the units of work into the queue by turns and waits for their ends.

It solves nothing, so a worker runs many of them at once. What it decides (how classes are cut, whose turn it
is) it decides in steps, so that after a crash it decides the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from app.jobs.engine.client import DbosQueue, WorkflowState, why_ended
from app.jobs.engine.step_runner import Ledger
from app.jobs.workflow import steps
from app.jobs.workflow.cancellation import JobWatch
from app.jobs.workflow.finish import finish_job
from app.jobs.workflow.running_units import UnderWay
from app.jobs.workflow.work_units import PREPARE, Crew, Unit, cuts
from app.settings import Settings

Enqueue = Callable[[Unit, int], None]
"""Put a unit into the queue with a priority, once."""

SILENCE_SECONDS = 15.0
"""A worker not heard of for so long is not counted on."""

_FIRST_LOOK_SECONDS = 0.02
_LAST_LOOK_SECONDS = 1.0
_LOOK_AMONG_SEVERAL_SECONDS = 0.15
"""While more units than one are left every worker has its next one waiting: nobody waits for the news."""
_LOOKS_SHARE = 0.04
"""Of the time that nothing has ended: so much later than a unit elsewhere does its coordinator know."""
_LIMIT_SECONDS = 0.2


class UnitLost(Exception):
    """A unit that the job cannot do without came to an end of its own."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Coordinator:
    """One attempt at one job, from its plan to its final state."""

    def __init__(
        self,
        ledger: Ledger,
        queue: DbosQueue,
        under_way: UnderWay,
        watch: JobWatch,
        enqueue: Enqueue,
        settings: Settings,
        run: tuple[str, int],
    ) -> None:
        self._ledger = ledger
        self._queue = queue
        self._under_way = under_way
        self._watch = watch
        self._enqueue = enqueue
        self._settings = settings
        self._run = run
        self._waiting: dict[int, Unit] = {}
        self._seen = 0
        self._ended_at = time.monotonic()

    def train(self) -> None:
        """Raises UnitLost, and what the watch raises."""
        most = self._settings.classes_per_chunk
        plan = self._ledger.step(steps.plan_job, *self._run, self._crew(), most)
        alone = plan["targets"] if plan["one_chunk"] else 0
        self._offer(Unit(*self._run, PREPARE, 0, alone))
        ended = self._wait_for_room(1)
        self._require_preparation(ended.get(PREPARE))
        if not plan["one_chunk"]:
            cut = self._ledger.step(steps.cut_job, *self._run, self._crew(), most)
            crew = Crew(cut["slots"], cut["threads"])
            for unit in self._chunks(cuts(plan["targets"], crew, cut["most"])):
                self._wait_for_room(self._crew().window)
                self._offer(unit)
            self._wait_for_room(1)
        self._ledger.step(finish_job, *self._run)

    def _chunks(self, ranges: Iterable[tuple[int, int]]) -> Iterator[Unit]:
        for number, (first, stop) in enumerate(ranges, PREPARE + 1):
            yield Unit(*self._run, number, first, stop)

    def _offer(self, unit: Unit) -> None:
        """Put a unit into the queue, when its tenant may have one more there."""
        limit = self._settings.max_units_per_key
        priority = None
        while priority is None:
            taken = self._ledger.step(steps.take_turn, *self._run, unit.number, limit)
            priority = taken["priority"]
            if priority is None:
                self._wait_for_tenant(limit or 1)
        self._enqueue(unit, priority)
        self._waiting[unit.number] = unit

    def _wait_for_tenant(self, limit: int) -> None:
        """Not a step: while one waits long, nothing is written."""
        while self._watch.patiently(self._units_of_tenant) >= limit:
            self._wait_for_room(len(self._waiting) + 1)
            self._watch.pause(_LIMIT_SECONDS)

    def _units_of_tenant(self) -> int:
        with self._ledger.store.read() as uow:
            return uow.units.count_of_tenant(uow.jobs.get(self._run[0]).created_by)

    def _wait_for_room(self, window: int) -> dict[int, WorkflowState]:
        """Until fewer than ``window`` units are waiting or under way; returns those that ended meanwhile."""
        ended = self._forget_ended()
        while len(self._waiting) >= window:
            before = self._seen
            self._seen = self._under_way.wait_for_an_end(self._seen, self._pause())
            self._watch()
            if self._seen > before:
                # Of a unit that ended here the engine knows in a moment, of one elsewhere nobody tells.
                self._ended_at = time.monotonic()
            ended |= self._forget_ended()
        return ended

    def _forget_ended(self) -> dict[int, WorkflowState]:
        if not self._waiting:
            return {}
        states = self._watch.patiently(
            lambda: self._queue.states([unit.id for unit in self._waiting.values()])
        )
        ended = {
            number: states[unit.id]
            for number, unit in self._waiting.items()
            if unit.id in states and states[unit.id].ended
        }
        if ended:
            self._watch.patiently(lambda: self._forget(list(ended)))
            for number in ended:
                del self._waiting[number]
            self._ended_at = time.monotonic()
        return ended

    def _pause(self) -> float:
        share = _LOOKS_SHARE * (time.monotonic() - self._ended_at)
        least = _FIRST_LOOK_SECONDS if len(self._waiting) == 1 else _LOOK_AMONG_SEVERAL_SECONDS
        return min(max(share, least), _LAST_LOOK_SECONDS)

    def _forget(self, numbers: list[int]) -> None:
        with self._ledger.store.begin() as uow:
            uow.units.forget(*self._run, numbers)

    def _require_preparation(self, state: WorkflowState | None) -> None:
        def read() -> bool:
            with self._ledger.store.read() as uow:
                job = uow.jobs.get(self._run[0])
            return job.preparation_digest is not None

        if not self._watch.patiently(read):
            # When the unit has failed the job itself, the watch says so.
            self._watch.look()
            raise UnitLost(*why_ended(state))

    def _crew(self) -> Crew:
        def read() -> Crew:
            with self._ledger.store.read() as uow:
                return Crew.of(uow.workers.alive(time.time() - SILENCE_SECONDS))

        return self._watch.patiently(read)
