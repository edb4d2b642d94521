"""Takes over the work of lost workers: queues it again, and stores an event for each job."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

from app.domain.errors import Unavailable
from app.domain.evaluation import is_evaluation
from app.jobs.engine.client import DbosQueue
from app.jobs.engine.config import JOB_QUEUE, UNIT_QUEUE
from app.store.unit_of_work import Store

logger = logging.getLogger(__name__)

_LISTED_SECONDS = 60.0


class Takeover:
    """Takeovers by one worker."""

    def __init__(self, store: Store, queue: DbosQueue, executor_id: str) -> None:
        self._store = store
        self._queue = queue
        self._executor_id = executor_id
        self._unrecorded: set[tuple[str, str]] = set()

    def take_over(self, lost: Sequence[str]) -> None:
        """Queue the unfinished work of lost workers again. Raises Unavailable.

        They stay listed for a minute: a lost worker may have taken more work before it noticed.
        """
        for executor_id in lost:
            has_requeued = False
            for workflow_id in requeue_work_of(self._queue, executor_id):
                has_requeued = True
                if is_evaluation(workflow_id):
                    # Evaluations have no events.
                    continue
                self._unrecorded.add((workflow_id.partition(".")[0], executor_id))
            if has_requeued:
                self._queue.notify(JOB_QUEUE)
                self._queue.notify(UNIT_QUEUE)
        self._record()
        with self._store.begin() as uow:
            before = uow.workers.clock() - _LISTED_SECONDS
            for worker in uow.workers.all():
                if worker.lost_at is not None and worker.lost_at < before:
                    uow.workers.forget(worker.executor_id)

    def recover_orphans(self) -> None:
        """Take over work of workers that are no longer listed. Raises Unavailable."""
        busy = self._queue.workers_with_work()
        with self._store.read() as uow:
            known = {worker.executor_id for worker in uow.workers.all()}
        if busy - known:
            self.take_over(sorted(busy - known))

    def _record(self) -> None:
        """Store an event of each takeover; retry later if the lost worker still has the job's row locked."""
        for pair in sorted(self._unrecorded):
            self._unrecorded.discard(pair)
            job_id, executor_id = pair
            try:
                with self._store.begin() as uow:
                    data = {"from": [executor_id], "by": self._executor_id}
                    uow.events.append(job_id, "worker_took_over", data)
            except Unavailable:
                self._unrecorded.add(pair)
                raise


class UnstartedWork:
    """Queues work again that DBOS has assigned to this worker but that does not run here.

    That happens if the connection is lost while a claim commits. No other worker would take the work over,
    because this worker is alive. running_here: ids of the workflows that run in this process.
    """

    def __init__(self, queue: DbosQueue, executor_id: str, running_here: Callable[[], set[str]]) -> None:
        self._queue = queue
        self._executor_id = executor_id
        self._running_here = running_here
        self._seen: set[str] = set()

    def check(self) -> None:
        """Queue work that was also found at the last check. Call it every few seconds. Raises Unavailable."""
        # Some of it begins or ends at this moment.
        unstarted = self._queue.work_of(self._executor_id) - self._running_here()
        for workflow_id in sorted(unstarted & self._seen):
            logger.warning("workflow %s was claimed and never started: queueing it again", workflow_id)
            self._queue.requeue(self._executor_id, workflow_id)
        self._seen = unstarted


def requeue_work_of(queue: DbosQueue, executor_id: str) -> Iterator[str]:
    """Queue the unfinished workflows of a worker again; yields the id of each. Raises Unavailable."""
    for workflow_id in sorted(queue.work_of(executor_id)):
        if queue.requeue(executor_id, workflow_id):
            yield workflow_id
