"""A worker's solver processes: each stays with its job, for the job's next unit on this worker.

One more is kept that has no job yet: it has loaded all that a solver needs, so that a job need not wait. That
takes seconds of a core, so it is started when no job is here or a core has nothing to do.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from app.jobs.solver.process import Order, Solver, SolverHandle, Watch
from app.processes.os_process import has_idle_core

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.2
_SPARE_SECONDS = 2.0
"""After one was taken: whoever took it has been given it by then."""

_BORED_LOOKS = 5
"""In a row that found a core with nothing to do."""

Run = tuple[str, int]
"""(job id, attempt)."""


class Start(Protocol):
    """Starts a solver process."""

    def __call__(self, *, spare: bool) -> SolverHandle: ...


@dataclass(frozen=True, slots=True)
class _Idle:
    """A solver that waits for its job's next unit. since: on the monotonic clock."""

    run: Run
    solver: Solver
    since: float


class SolverPool:
    """Solvers by job. Whoever borrows one has it alone; whoever leaves with an error ends it.

    room: processes, working and idle, up to which idle ones are kept; the one idle longest goes first.
    idle_seconds: how long one waits. is_wanted: whether an attempt at a job still goes on.
    start: gives a new process; ``spare``: for later. has_spare: whether one is kept for the next job.
    """

    def __init__(
        self,
        room: int,
        idle_seconds: float,
        is_wanted: Callable[[str, int], bool],
        start: Start = SolverHandle.start,
        *,
        has_spare: bool = False,
    ) -> None:
        self._room = room
        self._idle_seconds = idle_seconds
        self._is_wanted = is_wanted
        self._start = start
        self._has_spare = has_spare
        self._bored = 0
        self._spare: SolverHandle | None = None
        self._spare_at = time.monotonic()
        self._idle: list[_Idle] = []
        self._at_work = 0
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        # Linux ends a process with the thread that started it: units come and go, this one stays.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="solver-starter")
        self._thread = threading.Thread(target=self._run, name="solver-pool", daemon=True)
        self._thread.start()

    @contextmanager
    def borrowed(self, job_id: str, attempt: int, order: Order, watch: Watch) -> Iterator[Solver]:
        """A solver of the job: one that has its preparation in memory, or a new one."""
        solver = self._take((job_id, attempt), order, watch)
        keep = False
        try:
            yield solver
            keep = solver.ready and not self._stopping.is_set()
        finally:
            if not keep:
                solver.close()
            with self._lock:
                self._at_work -= 1
                if keep:
                    self._idle.append(_Idle((job_id, attempt), solver, time.monotonic()))

    def close(self) -> None:
        """End them all, also those at work."""
        self._stopping.set()
        self._thread.join()
        self._end(lambda _idle: True)
        self._starter.shutdown()
        if self._spare is not None:
            self._spare.end()
            self._spare = None

    def _take(self, run: Run, order: Order, watch: Watch) -> Solver:
        with self._lock:
            self._at_work += 1
            found = next((idle for idle in self._idle if idle.run == run), None)
            if found is not None:
                self._idle.remove(found)
        if found is not None and found.solver.ready:
            found.solver.serve(watch)
            return found.solver
        if found is not None:
            found.solver.close()
        self._make_room()
        return Solver(order, watch, start=self._begun)

    def _begun(self) -> SolverHandle:
        """The spare one if it has got ready, else a new one."""
        with self._lock:
            spare = self._spare
            if spare is not None and spare.has_said_something:
                self._spare, self._spare_at = None, time.monotonic() + _SPARE_SECONDS
            else:
                spare = None
        if spare is not None:
            if spare.popen.poll() is None:
                return spare
            spare.end()
        return self._starter.submit(self._start, spare=False).result()

    def _make_room(self) -> None:
        with self._lock:
            over = self._at_work + len(self._idle) - self._room
            leaving, self._idle = self._idle[: max(0, over)], self._idle[max(0, over) :]
        for idle in leaving:
            idle.solver.close()

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_SECONDS):
            self._end(self._is_over)
            if self._wants_spare():
                # Only this thread makes one, so there is never a second.
                spare = self._starter.submit(self._start, spare=True).result()
                self._bored = 0
                with self._lock:
                    self._spare = spare

    def _wants_spare(self) -> bool:
        if not self._has_spare or self._spare is not None or time.monotonic() < self._spare_at:
            return False
        with self._lock:
            if not self._at_work and not self._idle:
                return True
        self._bored = self._bored + 1 if has_idle_core() else 0
        return self._bored >= _BORED_LOOKS

    def _is_over(self, idle: _Idle) -> bool:
        too_long = time.monotonic() - idle.since > self._idle_seconds
        return too_long or not idle.solver.ready or not self._is_wanted(*idle.run)

    def _end(self, over: Callable[[_Idle], bool]) -> None:
        with self._lock:
            candidates = list(self._idle)
        # Judged without the lock, as that reads the database; whoever was taken meanwhile stays.
        leaving = [idle for idle in candidates if over(idle)]
        with self._lock:
            leaving = [idle for idle in leaving if idle in self._idle]
            self._idle = [idle for idle in self._idle if idle not in leaving]
        for idle in leaving:
            logger.debug("the solver %s of job %s is not needed any more", idle.solver.pid, idle.run[0])
            idle.solver.close()
