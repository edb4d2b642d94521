"""Interfaces that the use cases depend on; the composition root supplies the implementations."""

from __future__ import annotations

from typing import Protocol


class JobQueue(Protocol):
    """The durable queue of jobs and evaluations. All methods raise `Unavailable` if it cannot be reached."""

    def enqueue(self, job_id: str, workflow_id: str) -> None:
        """Put the job's workflow in the queue; a second call with the same workflow_id changes nothing."""
        ...

    def enqueue_evaluation(self, evaluation_id: str, turn: int) -> None:
        """Put an evaluation in the queue of units; a second call changes nothing.

        turn: its place there, among units of normal priority.
        """
        ...

    def expect_job(self) -> None:
        """Say that a job is likely soon, so that workers can get ready for it. It may do nothing."""
        return

    def cancel(self, workflow_id: str) -> None:
        """Stop the workflow and its children; unknown or ended workflows are ignored."""
        ...

    def ping(self) -> None:
        """Return if the queue responds."""
        ...
