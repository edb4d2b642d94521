"""The durable queue as the use cases see it: a client of the job engine that runs no workflow itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from dbos import DBOSClient, EnqueueOptions
from dbos._error import DBOSException
from sqlalchemy.exc import SQLAlchemyError

from app.domain.errors import Unavailable
from app.jobs.engine.config import (
    APPLICATION,
    APPLICATION_VERSION,
    JOB_QUEUE,
    SCHEMA,
    TRAIN_MODEL,
    engine_url,
    queue_limits,
    quiet_engine_log,
    serializer,
)
from app.settings import Settings

_ENDED = ["SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"]


@dataclass(frozen=True, slots=True)
class WorkflowState:
    """What the engine knows of a workflow. error: the message it failed with, if it did."""

    status: str
    error: str | None

    @property
    def ended(self) -> bool:
        return self.status in _ENDED


def why_ended(workflow: WorkflowState | None) -> tuple[str, str]:
    """Code and message for a job whose workflow ended, or is gone, without saying how the job did."""
    if workflow is not None and workflow.status == "MAX_RECOVERY_ATTEMPTS_EXCEEDED":
        return "too_many_restarts", "The job was interrupted too often and was given up."
    if workflow is not None and workflow.error is not None:
        return "internal_error", f"The job's workflow failed: {workflow.error}"
    return "internal_error", "The job's workflow ended without a result."


class DbosQueue:
    """`app.domain.ports.JobQueue` on DBOS. Connects when first used; every method may raise Unavailable.

    A lost connection is an error at once and not a wait: a dead database is a clear answer to an API caller.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client: DBOSClient | None = None
        self._lock = threading.Lock()

    def enqueue(self, job_id: str, workflow_id: str) -> None:
        """Put the job's workflow in the queue; a second call with the same workflow_id changes nothing."""
        attempt = int(workflow_id.rpartition(".")[2])
        options = EnqueueOptions(
            workflow_name=TRAIN_MODEL,
            queue_name=JOB_QUEUE,
            workflow_id=workflow_id,
            app_version=APPLICATION_VERSION,
        )
        with self._connected() as client:
            client.enqueue(options, job_id, attempt)

    def cancel(self, workflow_id: str) -> None:
        """Stop the workflow and its children; unknown or ended ones are left alone."""
        with self._connected() as client:
            client.cancel_workflow(workflow_id, cancel_children=True)

    def ping(self) -> None:
        """Return when the queue answers and its tables are there."""
        self.states(["ping"])

    def states(self, workflow_ids: Sequence[str]) -> dict[str, WorkflowState]:
        """The workflows that the engine knows, by id."""
        if not workflow_ids:
            return {}
        with self._connected() as client:
            found = client.list_workflows(workflow_ids=list(workflow_ids), load_input=False)
        return {
            workflow.workflow_id: WorkflowState(
                workflow.status, None if workflow.error is None else str(workflow.error)
            )
            for workflow in found
        }

    def workers_with_work(self) -> set[str]:
        """Names under which workflows are marked as running."""
        with self._connected() as client:
            found = client.list_workflows(status="PENDING", load_input=False, load_output=False)
        return {workflow.executor_id for workflow in found if workflow.executor_id is not None}

    def has_work_of(self, executor_id: str) -> bool:
        """Whether a workflow is marked as running on a worker of this name."""
        with self._connected() as client:
            found = client.list_workflows(
                status="PENDING", executor_id=executor_id, limit=1, load_input=False, load_output=False
            )
        return bool(found)

    def forget_before(self, moment: float, *, limit: int = 1000) -> int:
        """Delete the records of workflows ended before ``moment`` (epoch seconds); returns how many."""
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
        """Write the queues' limits; the engine's tables must exist."""
        with self._connected() as client:
            for name, limits in queue_limits(self._settings).items():
                client.register_queue(
                    name,
                    worker_concurrency=limits["worker_concurrency"],
                    polling_interval_sec=limits["polling_interval_sec"],
                    application_name=APPLICATION,
                )

    def close(self) -> None:
        """Close the connections; the next call opens them again."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.destroy()

    @contextmanager
    def _connected(self) -> Iterator[DBOSClient]:
        try:
            yield self._open()
        except (SQLAlchemyError, DBOSException, OSError) as error:
            raise Unavailable("The job queue cannot be reached.", code="queue_unavailable") from error

    def _open(self) -> DBOSClient:
        with self._lock:
            if self._client is None:
                quiet_engine_log()
                self._client = DBOSClient(
                    system_database_url=engine_url(self._settings),
                    dbos_system_schema=SCHEMA,
                    serializer=serializer(),
                    application_name=APPLICATION,
                    lazy=True,
                    retry_connection_errors=False,
                )
            return self._client
