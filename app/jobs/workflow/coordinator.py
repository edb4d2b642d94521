"""Coordinates one job: queues its work units, waits for them and finishes the job.

A coordinator trains nothing, so a worker runs many of them at the same time. It makes its decisions, such as
the chunks of classes and their order in the queue, in steps, so that it decides the same after a crash.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from app.domain.entities import WORKER_ALIVE_SECONDS, ModelVersion, StudentState
from app.jobs.engine.client import RECORDS_LOST, DbosQueue, WorkflowState, why_ended
from app.jobs.engine.step_runner import StepRunner
from app.jobs.errors import AttemptLost, UnitLost
from app.jobs.workflow import steps
from app.jobs.workflow.finish import finish, finish_addition
from app.jobs.workflow.running_job import CancellationCheck, JobPlan, JobPlans
from app.jobs.workflow.work_units import PREPARE, Capacity, RunningUnits, WorkUnit, chunk_ranges
from app.settings import Settings
from app.store.blob_cache import BlobCache

Enqueue = Callable[[WorkUnit, int], None]
"""Puts a unit into the queue with a priority. A second call for the same unit changes nothing."""

_MIN_POLL_SECONDS: Final = 0.02
_MAX_POLL_SECONDS: Final = 1.0
_MIN_POLL_SECONDS_SEVERAL: Final = 0.15
"""Shortest interval with several outstanding units: the next units are queued, so a late poll delays none."""
_POLL_SHARE: Final = 0.04
"""Poll interval as a fraction of the time since the last unit finished."""
_OWNER_POLL_SECONDS: Final = 0.2


class Coordinator:
    """One attempt at one job, from its plan to its final state."""

    def __init__(
        self,
        runner: StepRunner,
        queue: DbosQueue,
        running_units: RunningUnits,
        check: CancellationCheck,
        enqueue: Enqueue,
        plans: JobPlans,
        settings: Settings,
        attempt: tuple[str, int],
    ) -> None:
        self._runner = runner
        self._store = runner.store
        self._queue = queue
        self._running_units = running_units
        self._check = check
        self._enqueue = enqueue
        self._plans = plans
        self._settings = settings
        self._attempt = attempt
        self._outstanding: dict[int, WorkUnit] = {}
        self._all_succeeded = True
        self._local_finished = 0
        self._finished_at = time.monotonic()

    def run(self) -> None:
        """Run the job. Raises UnitLost, and the errors of the cancellation check."""
        if (base := self._plan().base) is not None:
            self._run_addition(base)
            return
        max_classes = self._settings.classes_per_chunk
        plan = self._runner.run(
            steps.plan_job, *self._attempt, len(self._plan().targets), self._capacity(), max_classes
        )
        stop = plan["targets"] if plan["one_chunk"] else 0
        self._offer(WorkUnit(*self._attempt, PREPARE, 0, stop))
        ended = self._wait_until_below(1)
        self._require_preparation(ended.get(PREPARE))
        if not plan["one_chunk"]:
            self._run_chunks(plan["targets"], max_classes)
        finish(self._runner, self._check, self._attempt, self._plan(), is_complete=self._all_succeeded)

    def _run_addition(self, base: ModelVersion) -> None:
        """Run a job with a single unit, which trains the student of the class that the job adds."""
        self._offer(WorkUnit(*self._attempt, PREPARE, 0, 0))
        ended = self._wait_until_below(1)

        def is_added() -> bool:
            with self._store.read() as uow:
                number = base.class_count
                return bool(
                    uow.students.finished(
                        self._attempt[0], [StudentState.SUCCEEDED], first=number, last=number
                    )
                )

        self._require(is_added, ended.get(PREPARE))
        finish_addition(self._runner, self._check, BlobCache.of(self._settings), self._attempt, base)

    def _run_chunks(self, targets: int, max_classes: int) -> None:
        recorded = self._runner.run(steps.record_capacity, *self._attempt, self._capacity(), max_classes)
        capacity = Capacity(recorded["slots"], recorded["threads"])
        ranges = chunk_ranges(targets, capacity, recorded["most"])
        for number, (first, stop) in enumerate(ranges, PREPARE + 1):
            self._wait_until_below(self._capacity().window)
            self._offer(WorkUnit(*self._attempt, number, first, stop))
        self._wait_until_below(1)

    def _offer(self, unit: WorkUnit) -> None:
        """Queue a unit as soon as its API key may have another unit in the queue."""
        limit = self._settings.max_units_per_key
        priority = None
        while priority is None:
            result, is_new = self._runner.run_if_new(steps.queue_unit, *self._attempt, unit.number, limit)
            priority = result["priority"]
            # A refusal recorded before a crash no longer holds, because a later step has registered the unit.
            # Waiting would never end, because units that this coordinator has not reached yet also count.
            if priority is None and is_new:
                self._wait_for_owner(limit or 1)
        self._enqueue(unit, priority)
        self._outstanding[unit.number] = unit

    def _wait_for_owner(self, limit: int) -> None:
        """Wait until the owner has fewer units. This is not a step, so a long wait writes nothing."""
        while self._check.retry_while_unavailable(self._count_units_of_owner) >= limit:
            self._wait_until_below(len(self._outstanding) + 1)
            self._check.pause(_OWNER_POLL_SECONDS)

    def _count_units_of_owner(self) -> int:
        with self._store.read() as uow:
            job = uow.jobs.status(self._attempt[0])
            return uow.units.count_of_owner(job.tenant, job.created_by)

    def _wait_until_below(self, window: int) -> dict[int, WorkflowState]:
        """Wait until fewer than ``window`` units are outstanding; returns those that ended meanwhile."""
        ended = self._remove_ended()
        while len(self._outstanding) >= window:
            before = self._local_finished
            self._local_finished = self._running_units.wait_until_finished(before, self._poll_interval())
            self._check()
            if self._local_finished > before:
                # A unit of this worker has finished and DBOS is about to record it, so poll fast again.
                self._finished_at = time.monotonic()
            ended |= self._remove_ended()
        return ended

    def _remove_ended(self) -> dict[int, WorkflowState]:
        if not self._outstanding:
            return {}
        states = self._check.retry_while_unavailable(
            lambda: self._queue.states([unit.id for unit in self._outstanding.values()])
        )
        ended = {
            number: states[unit.id]
            for number, unit in self._outstanding.items()
            if unit.id in states and states[unit.id].ended
        }
        if ended:
            self._check.retry_while_unavailable(lambda: self._forget_units(list(ended)))
            for number, state in ended.items():
                del self._outstanding[number]
                self._all_succeeded &= state.status == "SUCCESS"
            self._finished_at = time.monotonic()
        return ended

    def _poll_interval(self) -> float:
        share = _POLL_SHARE * (time.monotonic() - self._finished_at)
        minimum = _MIN_POLL_SECONDS if len(self._outstanding) == 1 else _MIN_POLL_SECONDS_SEVERAL
        return min(max(share, minimum), _MAX_POLL_SECONDS)

    def _forget_units(self, numbers: list[int]) -> None:
        with self._store.begin() as uow:
            uow.units.forget(*self._attempt, numbers)

    def _require_preparation(self, state: WorkflowState | None) -> None:
        def read() -> bool:
            with self._store.read() as uow:
                return uow.jobs.status(self._attempt[0]).preparation_digest is not None

        self._require(read, state)

    def _require(self, is_stored: Callable[[], bool], state: WorkflowState | None) -> None:
        """Raise if a unit has ended in this state without storing its result."""
        if not self._check.retry_while_unavailable(is_stored):
            # If the unit has failed the job itself, the check raises JobStopped.
            self._check.check_now()
            if state is not None and state.status == "SUCCESS":
                raise AttemptLost(*RECORDS_LOST)
            raise UnitLost(*why_ended(state))

    def _plan(self) -> JobPlan:
        return self._check.retry_while_unavailable(partial(self._plans.of_job, self._attempt[0]))

    def _capacity(self) -> Capacity:
        def read() -> Capacity:
            with self._store.read() as uow:
                return Capacity.of(uow.workers.alive(WORKER_ALIVE_SECONDS))

        return self._check.retry_while_unavailable(read)
