"""The durable job queue of API processes and coordinators: a client of DBOS that runs no workflow itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from dbos import DBOSClient, EnqueueOptions, error
from sqlalchemy.exc import SQLAlchemyError

from app.domain.entities import Priority, workflow_id
from app.domain.errors import Unavailable
from app.jobs.engine.config import (
    APPLICATION,
    APPLICATION_VERSION,
    EVALUATE,
    JOB_QUEUE,
    SCHEMA,
    TRAIN_MODEL,
    UNIT_QUEUE,
    priority_level,
    queue_limits,
    queue_priority,
    quiet_engine_log,
    serializer,
)
from app.jobs.engine.database import open_jobs_database
from app.jobs.engine.dbos_internals import requeue_workflow
from app.jobs.engine.wakeups import LIKELY, notify
from app.settings import Settings

_CONNECTIONS: Final = 2
_ENDED = ["SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"]


RECORDS_LOST: Final = (
    "records_lost",
    "The job's records and those of its workflow disagree, as after the restore of only one database.",
)
"""Code and message of a job whose workflow succeeded without the result that the job must have."""


@dataclass(frozen=True, slots=True)
class WorkflowState:
    """DBOS's record of a workflow. error: the message of its failure, None if it has not failed."""

    status: str
    error: str | None

    @property
    def ended(self) -> bool:
        return self.status in _ENDED


def why_ended(workflow: WorkflowState | None) -> tuple[str, str]:
    """Error code and message for a job whose workflow ended, or is missing, without ending the job."""
    if workflow is not None and workflow.status == "MAX_RECOVERY_ATTEMPTS_EXCEEDED":
        return "too_many_restarts", "The job was interrupted too often; it is not tried again."
    if workflow is not None and workflow.error is not None:
        return "internal_error", "The job's workflow failed; the log of its worker says why."
    return "internal_error", "The job's workflow ended without a result."


class DbosQueue:
    """`app.domain.ports.JobQueue` on DBOS. It connects on first use; every method may raise Unavailable.

    A lost connection raises immediately instead of waiting, so that an API caller gets a clear answer.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client: DBOSClient | None = None
        self._database = open_jobs_database(settings, _CONNECTIONS)
        self._lock = threading.Lock()

    def enqueue(self, job_id: str, workflow_id: str) -> None:
        """Put the job's workflow in the queue. A second call with the same workflow_id changes nothing."""
        attempt = int(workflow_id.rpartition(".")[2])
        options = EnqueueOptions(
            workflow_name=TRAIN_MODEL,
            queue_name=JOB_QUEUE,
            workflow_id=workflow_id,
            app_version=APPLICATION_VERSION,
        )
        with self._connected() as client:
            client.enqueue(options, job_id, attempt)
        self.notify(JOB_QUEUE)

    def enqueue_evaluation(self, evaluation_id: str, turn: int) -> None:
        """Put an evaluation in the queue of units. A second call for it changes nothing."""
        options = EnqueueOptions(
            workflow_name=EVALUATE,
            queue_name=UNIT_QUEUE,
            workflow_id=workflow_id(evaluation_id, 0),
            app_version=APPLICATION_VERSION,
            priority=queue_priority(priority_level(Priority.NORMAL), turn),
        )
        with self._connected() as client:
            client.enqueue(options, evaluation_id)
        self.notify(UNIT_QUEUE)

    def expect_job(self) -> None:
        """Tell idle workers that a job is likely soon."""
        notify(self._database, LIKELY)

    def notify(self, queue: str) -> None:
        """Tell idle workers that something is in the queue."""
        notify(self._database, queue)

    def cancel(self, workflow_id: str) -> None:
        """Cancel the workflow and its children, unless it is unknown or has ended."""
        with self._connected() as client:
            client.cancel_workflow(workflow_id, cancel_children=True)

    def ping(self) -> None:
        """Check that the queue answers and its tables exist."""
        self.states(["ping"])

    def states(self, workflow_ids: Sequence[str]) -> dict[str, WorkflowState]:
        """States by workflow id; unknown workflows are left out."""
        if not workflow_ids:
            return {}
        with self._connected() as client:
            workflows = client.list_workflows(workflow_ids=list(workflow_ids), load_input=False)
        return {
            workflow.workflow_id: WorkflowState(
                workflow.status, None if workflow.error is None else str(workflow.error)
            )
            for workflow in workflows
        }

    def workers_with_work(self) -> set[str]:
        """Executor ids for which DBOS lists running workflows."""
        with self._connected() as client:
            running = client.list_workflows(status="PENDING", load_input=False, load_output=False)
        return {workflow.executor_id for workflow in running if workflow.executor_id is not None}

    def work_of(self, executor_id: str) -> set[str]:
        """Ids of the workflows that DBOS lists as running in this worker."""
        with self._connected() as client:
            running = client.list_workflows(
                status="PENDING", executor_id=executor_id, load_input=False, load_output=False
            )
        return {workflow.workflow_id for workflow in running}

    def requeue(self, executor_id: str, workflow_id: str) -> bool:
        """Queue a workflow again that is listed as running in this worker; returns whether it was."""
        with self._connected() as client:
            return requeue_workflow(client, executor_id, workflow_id, JOB_QUEUE)

    def forget_before(self, moment: float, *, limit: int = 1000) -> int:
        """Delete records of workflows that ended before ``moment`` (epoch seconds); returns their number."""
        before = datetime.fromtimestamp(moment, UTC).isoformat()
        with self._connected() as client:
            ended = client.list_workflows(
                status=_ENDED, completed_before=before, limit=limit, load_input=False, load_output=False
            )
            ids = [workflow.workflow_id for workflow in ended]
            if ids:
                client.delete_workflows(ids)
        return len(ids)

    def register_queues(self) -> None:
        """Store the queues' limits; DBOS's tables must exist."""
        with self._connected() as client:
            for name, limits in queue_limits(self._settings).items():
                client.register_queue(
                    name,
                    worker_concurrency=limits["worker_concurrency"],
                    polling_interval_sec=limits["polling_interval_sec"],
                    application_name=APPLICATION,
                )

    def close(self) -> None:
        """Close the connections. The next call opens them again."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.destroy()
        self._database.dispose()

    @contextmanager
    def _connected(self) -> Iterator[DBOSClient]:
        try:
            yield self._open()
        except (SQLAlchemyError, error.DBOSException, OSError) as cause:
            raise Unavailable("The job queue cannot be reached.", code="queue_unavailable") from cause

    def _open(self) -> DBOSClient:
        with self._lock:
            if self._client is None:
                quiet_engine_log()
                self._client = DBOSClient(
                    system_database_engine=self._database,
                    dbos_system_schema=SCHEMA,
                    serializer=serializer(),
                    application_name=APPLICATION,
                    lazy=True,
                    retry_connection_errors=False,
                )
            return self._client
