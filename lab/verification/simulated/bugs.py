"""Bugs of the service's own classes that the simulation has to find."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.domain.entities import Job, Worker
from app.jobs.heartbeat import Heartbeat
from app.jobs.reconciler import Reconciler


class ReconcilerWithoutEnd(Reconciler):
    """A planted bug: cancels the workflow and leaves the job."""

    def _settle_cancelling(self, job: Job, workflow: Any) -> None:
        if workflow is not None and not workflow.ended:
            self._queue.cancel(job.workflow_id)


class HeartbeatTakingOverOnce(Heartbeat):
    """A planted bug: only the worker that marks another as lost takes over its work, and tries once."""

    def check_peers(self) -> None:
        take_over = self._take_over
        marked: list[str] = []
        mark_lost = self._mark_lost

        def mark(dead: Sequence[Worker]) -> list[str]:
            marked.extend(mark_lost(dead))
            return marked

        self._mark_lost = mark  # type: ignore[method-assign]
        self._take_over = lambda _lost: take_over(marked)
        try:
            super().check_peers()
        finally:
            self._mark_lost = mark_lost  # type: ignore[method-assign]
            self._take_over = take_over
