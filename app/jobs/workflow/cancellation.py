"""Checks whether running work must stop: its job was cancelled or taken over, or the worker shuts down."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from app.domain.entities import ACTIVE_STATES
from app.domain.errors import Unavailable
from app.jobs.errors import JobStopped, TimeLimitReached, WorkerStopping
from app.store.unit_of_work import Store

logger = logging.getLogger(__name__)

T = TypeVar("T")

_CHECK_SECONDS: Final = 0.4
_RETRY_SECONDS: Final = 1.0


class CancellationCheck:
    """Call it often: it reads the job's state at most every 0.4 s.

    Raises JobStopped, WorkerStopping, and TimeLimitReached. A database that cannot be reached stops nothing:
    the solver works on until the state can be read.
    """

    def __init__(
        self,
        store: Store,
        stopping: threading.Event,
        job_id: str,
        attempt: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._store = store
        self._stopping = stopping
        self._job_id = job_id
        self._attempt = attempt
        self._checked_at = float("-inf")

    def __call__(self) -> None:
        raise_if_stopping(self._stopping)
        if self._clock() - self._checked_at >= _CHECK_SECONDS:
            self.check_now()

    def check_now(self) -> None:
        """Read the job's state. Raises JobStopped and TimeLimitReached."""
        self._checked_at = self._clock()
        try:
            with self._store.read() as uow:
                job = uow.jobs.get(self._job_id)
                now = uow.workers.clock() if job.spec.get("time_limit_seconds") else 0.0
        except Unavailable as error:
            logger.warning("job %s: its state cannot be read: %s", self._job_id, error)
            return
        if job.state not in ACTIVE_STATES or job.attempt != self._attempt:
            raise JobStopped(f"it is {job.state}, attempt {job.attempt}")
        limit = job.spec.get("time_limit_seconds")
        if limit is not None and job.started_at is not None and now - job.started_at > limit:
            raise TimeLimitReached("time_limit", f"The job has run for longer than its limit of {limit:g} s.")

    def retry_while_unavailable(self, call: Callable[[], T]) -> T:
        """The call's result, tried again as long as it raises Unavailable."""
        while True:
            try:
                return call()
            except Unavailable as error:
                logger.warning("job %s waits: %s", self._job_id, error)
                self.pause(_RETRY_SECONDS)

    def pause(self, seconds: float) -> None:
        """Sleep until the time is over or the work must stop."""
        self._stopping.wait(seconds)
        self()


def raise_if_stopping(stopping: threading.Event) -> None:
    """Raise WorkerStopping if the worker shuts down."""
    if stopping.is_set():
        raise WorkerStopping
