"""A model of the job engine: workflows with owners, checkpoints in the step's transaction, recovery."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from app.domain.entities import Json
from app.domain.errors import Unavailable
from app.jobs.engine.client import WorkflowState
from app.jobs.errors import JobStopped, WorkerStopping, WorkflowOver
from lab.verification.simulated.database import Database
from lab.verification.simulated.store import SimulatedStore
from lab.verification.simulated.world import World

_RETRY_SECONDS = 0.5


class WorkflowCancelled(Exception):
    """The workflow was cancelled: it can write no more checkpoints."""


@dataclass(frozen=True, slots=True)
class Workflow:
    """owner: token of the execution that may commit, 0 before the first."""

    status: str = "ENQUEUED"
    executor: str | None = None
    owner: int = 0


class SimulatedEngine:
    """`app.jobs.engine.client.DbosQueue`, and what a worker's engine does, on the simulated database."""

    def __init__(self, world: World, database: Database, store: SimulatedStore) -> None:
        self._world = world
        self._database = database
        self._store = store
        self._owners = 0

    def enqueue(self, _job_id: str, workflow_id: str) -> None:
        with self._store.begin() as uow:
            self._database.statement(uow.transaction)
            self._database.lock(uow.transaction, "workflows", workflow_id)
            if self._database.get(uow.transaction, "workflows", workflow_id) is None:
                self._database.put(uow.transaction, "workflows", workflow_id, Workflow())

    def cancel(self, workflow_id: str) -> None:
        """Cancel the workflow and its children."""
        with self._store.begin() as uow:
            self._database.statement(uow.transaction)
            for key, _ in list(self._database.rows(uow.transaction, "workflows")):
                if key == workflow_id or key.startswith(f"{workflow_id}."):
                    self._set(uow.transaction, key, _is_active, status="CANCELLED")

    def states(self, workflow_ids: Sequence[str]) -> dict[str, WorkflowState]:
        with self._store.read() as uow:
            self._database.statement(uow.transaction)
            rows = {key: self._database.get(uow.transaction, "workflows", key) for key in workflow_ids}
        return {key: WorkflowState(row.status, None) for key, row in rows.items() if row is not None}

    def workers_with_work(self) -> set[str]:
        with self._store.read() as uow:
            self._database.statement(uow.transaction)
            rows = self._database.rows(uow.transaction, "workflows")
            return {row.executor for _, row in rows if row.status == "PENDING"}

    def forget_before(self, _moment: float) -> int:
        return 0

    def notify(self, _queue: str) -> None:
        """Nothing: the simulated workers poll."""

    def work_of(self, executor_id: str) -> set[str]:
        """Ids of the workflows that are listed as running in a worker."""
        with self._store.read() as uow:
            self._database.statement(uow.transaction)
            rows = self._database.rows(uow.transaction, "workflows")
            return {key for key, row in rows if row.status == "PENDING" and row.executor == executor_id}

    def requeue(self, executor_id: str, workflow_id: str) -> bool:
        """Put a workflow back into the queue, if it still is this worker's; returns whether it was."""
        with self._store.begin() as uow:
            self._database.statement(uow.transaction)
            is_its = lambda row: row.status == "PENDING" and row.executor == executor_id  # noqa: E731
            return self._set(uow.transaction, workflow_id, is_its, status="ENQUEUED", executor=None)

    def claim(self, executor_id: str) -> tuple[str, int] | None:
        """Take a queued workflow; returns its id and the token of its new owner."""
        with self._store.begin() as uow:
            self._database.statement(uow.transaction)
            rows = self._database.rows(uow.transaction, "workflows")
            waiting = [key for key, row in rows if row.status == "ENQUEUED"]
            if waiting:
                self._owners += 1
                changes = {"status": "PENDING", "executor": executor_id, "owner": self._owners}
                owner = self._owners
                if self._set(uow.transaction, waiting[0], lambda row: row.status == "ENQUEUED", **changes):
                    return waiting[0], owner
        return None

    def end(self, workflow_id: str, owner: int) -> None:
        """Record the end of a workflow, if the execution still owns it."""
        with self._store.begin() as uow:
            self._database.statement(uow.transaction)
            is_ours = lambda row: row.owner == owner and row.status == "PENDING"  # noqa: E731
            self._set(uow.transaction, workflow_id, is_ours, status="SUCCESS")

    def run_step(
        self,
        workflow: tuple[str, int],
        number: int,
        is_stopping: Callable[[], bool],
        step: Callable[..., Json],
        attempt: tuple[str, int],
        *arguments: Any,
    ) -> Json:
        """As `StepRunner.run`: a step and its checkpoint in one transaction, repeated until it is stored."""
        while True:
            if is_stopping():
                raise WorkerStopping
            try:
                result = self._try_step(workflow, number, step, attempt, *arguments)
            except Unavailable:
                self._world.sleep(_RETRY_SECONDS)
                continue
            if "refused" in result:
                raise JobStopped(result["refused"])
            return result

    def _try_step(
        self,
        workflow: tuple[str, int],
        number: int,
        step: Callable[..., Json],
        attempt: tuple[str, int],
        *arguments: Any,
    ) -> Json:
        workflow_id, owner = workflow
        key = (workflow_id, number)
        with self._store.begin() as uow:
            transaction = uow.transaction
            transaction.attempt = attempt
            self._database.statement(transaction)
            recorded: Json | None = self._database.get(transaction, "checkpoints", key)
            if recorded is not None:
                return recorded
            try:
                result = step(uow, *attempt, *arguments)
            except JobStopped as stopped:
                result = {"refused": str(stopped)}
            self._database.statement(transaction)
            self._database.lock(transaction, "checkpoints", key)
            if self._database.committed["checkpoints"].get(key) is not None:
                raise Unavailable("Another execution has recorded the step: read its result.")
            self._database.put(transaction, "checkpoints", key, result)
            row = self._database.get(transaction, "workflows", workflow_id)
            if row.owner != owner:
                raise WorkflowOver
            if row.status == "CANCELLED":
                raise WorkflowCancelled
        return result

    def _set(self, transaction: Any, key: str, condition: Callable[[Workflow], bool], **changes: Any) -> bool:
        self._database.lock(transaction, "workflows", key)
        row: Workflow = self._database.get(transaction, "workflows", key)
        if not condition(row):
            return False
        self._database.put(transaction, "workflows", key, dataclasses.replace(row, **changes))
        return True


def _is_active(row: Workflow) -> bool:
    return row.status in ("ENQUEUED", "PENDING")
