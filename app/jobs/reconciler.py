"""Reconciles jobs and evaluations with DBOS's workflows, so that none stays in progress for ever.

Jobs and workflows are in two databases, and a process can die between writing to them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from app.domain.entities import JobState, workflow_id
from app.domain.errors import Conflict, ServiceError, Unavailable
from app.jobs.engine.client import RECORDS_LOST, DbosQueue, WorkflowState, why_ended
from app.jobs.workflow import steps
from app.processes.periodic import until_beat
from app.services.admission import admit_waiting_jobs
from app.store.repositories.admission import AdmittedJob
from app.store.unit_of_work import Store

logger = logging.getLogger(__name__)

_POLL_SECONDS = 1.0
_CANCEL_GRACE_SECONDS = 2.0
_PAGE = 200
_RETENTION_SECONDS = 30 * 86_400.0
_CLEAN_SECONDS = 3600.0
_ORPHANS_SECONDS = 5.0
_OWN_WORK_SECONDS = 10.0


class Reconciler:
    """A thread that checks every admitted job once a second, in one elected worker.

    Jobs that wait for admission have no workflow yet. So a pass costs as much as the coordinated jobs,
    however many jobs a tenant has submitted and however long their specifications are.

    is_elected: whether this worker is elected. It does no harm if two are elected for a moment, because every
    change locks the job and reads it again. recover_orphans: called every five seconds, to take over work of
    workers that are no longer listed. clean_up: called once an hour, to delete expired rows. check_own_work:
    called in every worker, every ten seconds.
    """

    def __init__(
        self,
        store: Store,
        queue: DbosQueue,
        recover_orphans: Callable[[], None] = lambda: None,
        clean_up: Callable[[], object] = lambda: None,
        is_elected: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
        check_own_work: Callable[[], object] = lambda: None,
    ) -> None:
        self._check_own_work = check_own_work
        self._own_work_checked_at = clock()
        self._is_elected = is_elected
        self._clock = clock
        self._recover_orphans = recover_orphans
        self._clean_up = clean_up
        self._store = store
        self._queue = queue
        self._cancelling_since: dict[str, float] = {}
        self._cleaned_at = float("-inf")
        self._orphans_checked_at = clock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="reconciler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def check_jobs(self) -> None:
        """Settle every job that disagrees with its workflow, once. Raises Unavailable.

        A job that cannot be settled does not prevent this for the others.
        """
        with self._store.peek() as uow:
            if not uow.admission.any_unfinished():
                self._cancelling_since.clear()
                return
        admit_waiting_jobs(self._store, self._queue)
        cancelling = set()
        for jobs in self._pages():
            states = self._queue.states([job.workflow_id for job in jobs])
            for job in jobs:
                if job.state is JobState.CANCELLING:
                    cancelling.add(job.id)
                try:
                    self._settle(job, states.get(job.workflow_id))
                except Conflict as conflict:
                    logger.info("job %s has changed meanwhile: %s", job.id, conflict)
                except Unavailable:
                    raise
                except Exception:
                    logger.exception("job %s could not be settled; it is tried again", job.id)
        self._cancelling_since = {
            job_id: since for job_id, since in self._cancelling_since.items() if job_id in cancelling
        }

    def check_evaluations(self) -> None:
        """Queue evaluations without a workflow, and end those whose workflow ended. Raises Unavailable."""
        with self._store.peek() as uow:
            unfinished = uow.evaluations.unfinished(limit=_PAGE)
        states = self._queue.states([workflow_id(one.id, 0) for one in unfinished])
        for one in unfinished:
            workflow = states.get(workflow_id(one.id, 0))
            if workflow is None:
                with self._store.read() as uow:
                    turn = uow.units.next_turn_of(one.tenant, one.created_by)
                self._queue.enqueue_evaluation(one.id, turn)
            elif workflow.ended:
                # If the evaluation has stored its end since it was read, this changes nothing.
                with self._store.begin() as uow:
                    uow.evaluations.fail(one.id, *why_ended(workflow))

    def clean(self) -> None:
        """Delete expired rows and DBOS's records of ended workflows. Raises Unavailable."""
        while self._queue.forget_before(time.time() - _RETENTION_SECONDS):
            logger.info("deleted old workflow records")
        self._clean_up()

    def _pages(self) -> Iterator[Sequence[AdmittedJob]]:
        after = ""
        while True:
            with self._store.peek() as uow:
                jobs = uow.admission.admitted_jobs(limit=_PAGE, after=after)
            if not jobs:
                return
            after = jobs[-1].id
            yield jobs

    def _settle(self, job: AdmittedJob, workflow: WorkflowState | None) -> None:
        if job.state is JobState.CANCELLING:
            self._settle_cancelling(job, workflow)
        elif workflow is None:
            # An API process committed the job but could not reach the queue, or DBOS's database was lost.
            logger.info("job %s: enqueueing it", job.id)
            self._queue.enqueue(job.id, job.workflow_id)
        elif workflow is not None and workflow.ended:
            self._settle_ended(job, workflow)

    def _settle_cancelling(self, job: AdmittedJob, workflow: WorkflowState | None) -> None:
        """Settle a cancelled job after two seconds, in which its worker may end the solver and settle it."""
        since = self._cancelling_since.setdefault(job.id, self._clock())
        if workflow is not None and not workflow.ended:
            self._queue.cancel(job.workflow_id)
        elif self._clock() - since >= _CANCEL_GRACE_SECONDS:
            with self._store.begin() as uow:
                steps.settle_cancelled(uow, job.id, job.attempt)

    def _settle_ended(self, job: AdmittedJob, workflow: WorkflowState) -> None:
        """Settle a job whose workflow ended.

        The job may have ended since it was read, so steps read it again.
        """
        with self._store.begin() as uow:
            if workflow.status == "CANCELLED":
                current = uow.jobs.status(job.id, lock=True)
                if current.attempt == job.attempt and current.state is job.state:
                    uow.jobs.move(job.id, JobState.CANCELLING)
                steps.settle_cancelled(uow, job.id, job.attempt)
            elif workflow.status == "SUCCESS":
                # DBOS's database is newer than the service's, so the next attempt repeats what is missing.
                steps.restart_job(uow, job.id, job.attempt, *RECORDS_LOST)
            else:
                if workflow.error is not None:
                    # This is for operators only, because the text of an exception may name anything.
                    logger.error("the workflow of job %s failed: %s", job.id, workflow.error)
                steps.fail_job(uow, job.id, job.attempt, *why_ended(workflow))

    def run_once(self) -> None:
        """Do all work that is due; most of it only if this worker is elected. Raises Unavailable."""
        if self._clock() - self._own_work_checked_at > _OWN_WORK_SECONDS:
            self._own_work_checked_at = self._clock()
            self._check_own_work()
        if not self._is_elected():
            return
        self.check_jobs()
        self.check_evaluations()
        if self._clock() - self._orphans_checked_at > _ORPHANS_SECONDS:
            self._orphans_checked_at = self._clock()
            self._recover_orphans()
        if self._clock() - self._cleaned_at > _CLEAN_SECONDS:
            self._cleaned_at = self._clock()
            self.clean()

    def _loop(self) -> None:
        while not self._stopping.is_set():
            try:
                self.run_once()
            except ServiceError as error:
                logger.warning("reconciler: %s", error)
            except Exception:
                logger.exception("the reconciler failed; it is tried again")
            self._stopping.wait(until_beat(_POLL_SECONDS))
