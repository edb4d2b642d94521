"""Nothing stays in progress for ever: where jobs and the engine's workflows disagree, it is settled here.

They live in two databases, and a process can die between writing the one and the other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator

from app.domain.entities import Job, JobState
from app.domain.errors import Conflict, ServiceError
from app.jobs.engine.client import DbosQueue, WorkflowState, why_ended
from app.jobs.workflow import steps
from app.store.unit_of_work import Store

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_CANCEL_GRACE_SECONDS = 2.0
_PAGE = 200
_RETENTION_SECONDS = 30 * 86_400.0
_CLEAN_SECONDS = 3600.0
_ADOPT_SECONDS = 5.0


class Reconciler:
    """A thread that looks at every unfinished job once a second.

    adopt: called now and then, to take up work that belongs to nobody any more. let_go: called once an hour,
    to delete what is old.
    """

    def __init__(
        self,
        store: Store,
        queue: DbosQueue,
        adopt: Callable[[], None] = lambda: None,
        let_go: Callable[[], object] = lambda: None,
    ) -> None:
        self._adopt = adopt
        self._let_go = let_go
        self._store = store
        self._queue = queue
        self._cancelling_since: dict[str, float] = {}
        self._cleaned_at = float("-inf")
        self._adopted_at = time.monotonic()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reconciler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> None:
        """Settle what disagrees, once. Raises Unavailable."""
        cancelling = set()
        for jobs in self._pages():
            states = self._queue.states([job.workflow_id for job in jobs])
            for job in jobs:
                if job.state is JobState.CANCELLING:
                    cancelling.add(job.id)
                try:
                    self._settle(job, states.get(job.workflow_id))
                except Conflict as conflict:
                    logger.info("job %s moved on by itself: %s", job.id, conflict)
        self._cancelling_since = {
            job_id: since for job_id, since in self._cancelling_since.items() if job_id in cancelling
        }

    def clean(self) -> None:
        """Delete what is old, also the engine's records of ended workflows. Raises Unavailable."""
        while self._queue.forget_before(time.time() - _RETENTION_SECONDS):
            logger.info("deleted old workflow records")
        self._let_go()

    def _pages(self) -> Iterator[list[Job]]:
        after: str | None = None
        more = True
        while more:
            with self._store.read() as uow:
                found, more = uow.jobs.page(
                    limit=_PAGE, after=after, states=[JobState.QUEUED, JobState.RUNNING, JobState.CANCELLING]
                )
            if found:
                after = found[-1].id
                yield list(found)

    def _settle(self, job: Job, workflow: WorkflowState | None) -> None:
        if job.state is JobState.CANCELLING:
            self._settle_cancelling(job, workflow)
        elif workflow is None:
            # Committed by an API process that could not reach the queue, or the engine's database was lost.
            logger.info("job %s: putting it in the queue", job.id)
            self._queue.enqueue(job.id, job.workflow_id)
        elif workflow.ended:
            self._settle_ended(job, workflow)

    def _settle_cancelling(self, job: Job, workflow: WorkflowState | None) -> None:
        """The worker that ran the job has a moment to end its solver and say so itself."""
        since = self._cancelling_since.setdefault(job.id, time.monotonic())
        if workflow is not None and not workflow.ended:
            self._queue.cancel(job.workflow_id)
        elif time.monotonic() - since >= _CANCEL_GRACE_SECONDS:
            with self._store.begin() as uow:
                steps.settle_cancelled(uow, job.id, job.attempt)

    def _settle_ended(self, job: Job, workflow: WorkflowState) -> None:
        """The job was read before its workflow, so it may have ended in between: the steps look again."""
        with self._store.begin() as uow:
            if workflow.status == "CANCELLED":
                now = uow.jobs.get(job.id)
                if now.attempt == job.attempt and now.state is job.state:
                    uow.jobs.move(job.id, JobState.CANCELLING)
                steps.settle_cancelled(uow, job.id, job.attempt)
            else:
                steps.fail_job(uow, job.id, job.attempt, *why_ended(workflow))

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.look()
                if time.monotonic() - self._adopted_at > _ADOPT_SECONDS:
                    self._adopted_at = time.monotonic()
                    self._adopt()
                if time.monotonic() - self._cleaned_at > _CLEAN_SECONDS:
                    self._cleaned_at = time.monotonic()
                    self.clean()
            except ServiceError as error:
                logger.warning("reconciler: %s", error)
            except Exception:
                logger.exception("the reconciler failed; it looks again")
            self._stopping.wait(_LOOK_SECONDS)
