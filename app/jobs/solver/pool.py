"""A worker's solver processes. Each stays with its job, for the job's next unit on this worker.

One spare process without a job imports all that a solver needs as soon as a job is likely, so that the job
need not wait. If no job comes, the spare ends after some minutes. The imports take seconds of a core: while a
job runs on this worker, a spare starts only when the machine has an idle core.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from app.jobs.solver.messages import SolverSettings
from app.jobs.solver.process import CheckStop, Solver, SolverHandle
from app.processes.os_process import has_idle_core

logger = logging.getLogger(__name__)

_POLL_SECONDS: Final = 0.2
_SPARE_DELAY_SECONDS: Final = 2.0
"""Delay between the use of one spare and the start of the next, so that the job's solver has its settings."""

_SPARE_SECONDS: Final = 300.0
"""How long after the last sign of a job a spare is kept."""

_IDLE_CORE_POLLS: Final = 5
"""Number of consecutive polls that must find an idle core."""

Attempt = tuple[str, int]
"""(job id, attempt)."""


class Start(Protocol):
    """Starts a solver process. spare: no job waits for it."""

    def __call__(self, *, spare: bool) -> SolverHandle: ...


@dataclass(frozen=True, slots=True)
class _Idle:
    """A solver that waits for its job's next unit. since: on the monotonic clock."""

    attempt: Attempt
    solver: Solver
    since: float


class SolverPool:
    """Solvers by job. One unit at a time uses a solver; a unit that ends with an error ends it.

    capacity: number of processes, working and idle, above which idle ones are ended, the longest idle first.
    idle_seconds: how long a solver may be idle. is_active: whether an attempt at a job is still in progress.
    start: starts a new process. has_spare: whether to keep a spare for a likely job.
    """

    def __init__(
        self,
        capacity: int,
        idle_seconds: float,
        is_active: Callable[[str, int], bool],
        start: Start = SolverHandle.start,
        *,
        has_spare: bool = False,
    ) -> None:
        self._capacity = capacity
        self._idle_seconds = idle_seconds
        self._is_active = is_active
        self._start = start
        self._has_spare = has_spare
        self._idle_core_polls = 0
        self._spare: SolverHandle | None = None
        self._next_spare_at = 0.0
        self._spare_until = 0.0
        self._idle: list[_Idle] = []
        self._working = 0
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._changed = threading.Event()
        # Linux ends a solver with the thread that started it, and threads of units end; this thread stays.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="solver-starter")
        self._thread = threading.Thread(target=self._loop, name="solver-pool", daemon=True)
        self._thread.start()

    def expect_job(self) -> None:
        """Have a spare solver ready soon, and for some minutes. Thread-safe; does not block."""
        if self._has_spare:
            self._spare_until = time.monotonic() + _SPARE_SECONDS
            self._changed.set()

    @contextmanager
    def solver(
        self, job_id: str, attempt: int, settings: SolverSettings, check_stop: CheckStop
    ) -> Iterator[Solver]:
        """A solver of the job: one that has its preparation in memory, or a new one."""
        solver = self._take((job_id, attempt), settings, check_stop)
        keep = False
        try:
            yield solver
            keep = solver.ready and not self._stopping.is_set()
        finally:
            if not keep:
                solver.close()
            with self._lock:
                self._working -= 1
                if keep:
                    self._idle.append(_Idle((job_id, attempt), solver, time.monotonic()))
            self._changed.set()

    def close(self) -> None:
        """End all solvers, including those at work."""
        self._stopping.set()
        self._changed.set()
        self._thread.join()
        self._end_idle(lambda _idle: True)
        self._starter.shutdown()
        if self._spare is not None:
            self._spare.end()
            self._spare = None

    def _take(self, attempt: Attempt, settings: SolverSettings, check_stop: CheckStop) -> Solver:
        with self._lock:
            self._working += 1
            match = next((idle for idle in self._idle if idle.attempt == attempt), None)
            if match is not None:
                self._idle.remove(match)
        if match is not None and match.solver.ready:
            match.solver.attach(check_stop)
            return match.solver
        if match is not None:
            match.solver.close()
        self._end_excess()
        return Solver(settings, check_stop, start=self._spare_or_new)

    def _spare_or_new(self) -> SolverHandle:
        self.expect_job()
        with self._lock:
            # A spare that is still loading is used, so that its work is not repeated.
            spare, self._spare = self._spare, None
            self._next_spare_at = time.monotonic() + _SPARE_DELAY_SECONDS
        if spare is not None:
            if spare.popen.poll() is None:
                return spare
            spare.end()
        return self._starter.submit(self._start, spare=False).result()

    def _end_excess(self) -> None:
        with self._lock:
            excess = max(0, self._working + len(self._idle) - self._capacity)
            leaving, self._idle = self._idle[:excess], self._idle[excess:]
        for idle in leaving:
            idle.solver.close()

    def _loop(self) -> None:
        while not self._stopping.is_set():
            self._changed.wait(self._seconds_until_look())
            self._changed.clear()
            if self._stopping.is_set():
                return
            self._end_idle(self._is_expired)
            self._end_spare_if_unlikely()
            if self._needs_spare():
                # Only this thread starts spares, so there is never a second one.
                spare = self._starter.submit(self._start, spare=True).result()
                self._idle_core_polls = 0
                with self._lock:
                    self._spare = spare

    def _seconds_until_look(self) -> float | None:
        """How long the pool needs no check; None: until something changes."""
        left = self._spare_until - time.monotonic()
        if self._idle or (self._spare is None and left > 0.0):
            return _POLL_SECONDS
        return None if self._spare is None else max(_POLL_SECONDS, left)

    def _end_spare_if_unlikely(self) -> None:
        with self._lock:
            if self._spare is None or time.monotonic() < self._spare_until:
                return
            spare, self._spare = self._spare, None
        spare.end()

    def _needs_spare(self) -> bool:
        now = time.monotonic()
        if self._spare is not None or not self._next_spare_at <= now < self._spare_until:
            return False
        with self._lock:
            if not self._working and not self._idle:
                return True
        self._idle_core_polls = self._idle_core_polls + 1 if has_idle_core() else 0
        return self._idle_core_polls >= _IDLE_CORE_POLLS

    def _is_expired(self, idle: _Idle) -> bool:
        too_long = time.monotonic() - idle.since > self._idle_seconds
        return too_long or not idle.solver.ready or not self._is_active(*idle.attempt)

    def _end_idle(self, is_expired: Callable[[_Idle], bool]) -> None:
        with self._lock:
            candidates = list(self._idle)
        # The check reads the database, so it runs without the lock; a solver that was taken meanwhile stays.
        leaving = [idle for idle in candidates if is_expired(idle)]
        with self._lock:
            leaving = [idle for idle in leaving if idle in self._idle]
            self._idle = [idle for idle in self._idle if idle not in leaving]
        for idle in leaving:
            logger.debug("ending the idle solver %s of job %s", idle.solver.pid, idle.attempt[0])
            idle.solver.close()
