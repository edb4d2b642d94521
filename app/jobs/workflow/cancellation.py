"""When running work has to stop: its job was cancelled or taken away, or the worker is shutting down."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from app.domain.entities import JobState
from app.domain.errors import Unavailable
from app.store.unit_of_work import Store

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LOOK_SECONDS = 0.4
_WAIT_SECONDS = 1.0


UNDER_WAY = (JobState.QUEUED, JobState.RUNNING)
"""A job is queued until its first unit of work has a slot."""


class JobStopped(Exception):
    """The job is not this attempt's to run any more: cancelled, or ended by somebody else."""


class WorkerStopping(BaseException):
    """The worker is shutting down. Not an Exception: the engine is to record nothing and recover the work."""


class WorkflowOver(BaseException):
    """The engine has ended this workflow already. Not an Exception: there is nothing left to record."""


class JobWatch:
    """Call it often: it looks at the job's state at most every 0.4 s. Raises JobStopped and WorkerStopping.
    A database that cannot be reached stops nothing: the solver works on until there is an answer.
    """

    def __init__(
        self,
        store: Store,
        stopping: threading.Event,
        job_id: str,
        attempt: int,
    ) -> None:
        self._store = store
        self._stopping = stopping
        self._job_id = job_id
        self._attempt = attempt
        self._looked_at = float("-inf")

    def __call__(self) -> None:
        stop_if(self._stopping)
        if time.monotonic() - self._looked_at >= _LOOK_SECONDS:
            self.look()

    def look(self) -> None:
        """Look now. Raises JobStopped."""
        self._looked_at = time.monotonic()
        try:
            with self._store.read() as uow:
                job = uow.jobs.get(self._job_id)
        except Unavailable as error:
            logger.warning("job %s: its state cannot be read: %s", self._job_id, error)
            return
        if job.state not in UNDER_WAY or job.attempt != self._attempt:
            raise JobStopped(f"it is {job.state}, attempt {job.attempt}")

    def patiently(self, call: Callable[[], T]) -> T:
        """The call's result, tried again while the database or the queue is Unavailable."""
        while True:
            try:
                return call()
            except Unavailable as error:
                logger.warning("job %s waits: %s", self._job_id, error)
                self.pause(_WAIT_SECONDS)

    def pause(self, seconds: float) -> None:
        """Sleep, but wake up to stop."""
        self._stopping.wait(seconds)
        self()


def stop_if(stopping: threading.Event) -> None:
    """Raise WorkerStopping when the worker is shutting down."""
    if stopping.is_set():
        raise WorkerStopping
