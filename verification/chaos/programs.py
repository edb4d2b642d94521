"""Processes of the service under a supervisor, which restarts each one shortly after it ends."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.system.processes import Process, with_variable
from verification.chaos.event_log import EventLog, Interval, Intervals

MARK = "STMS_CHAOS_RUN"
"""Environment variable that marks the programs and, by inheritance, all their descendants."""
_STOP_SECONDS = 30.0
_POLL_SECONDS = 0.1
_RESTART_SECONDS = (0.3, 2.0)


class Program:
    """One supervised program. downtime: intervals in which it was down or stopped, or none of its query
    processes answered. control_downtime: those in which its control process was killed or stopped.

    command: program and arguments. environ: its whole environment. starts: how often it, or a query process
    of it, was started anew.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        environ: Mapping[str, str],
        folder: Path,
        event_log: EventLog,
    ) -> None:
        self.name = name
        self.process = Process(name, command, folder, environ)
        self.downtime = Intervals(event_log)
        self.control_downtime = Intervals(event_log)
        self._event_log = event_log
        self._lock = threading.RLock()
        self._should_run = False
        self._restart_at: float | None = None
        self._down: Interval | None = None
        self.starts = 0

    @property
    def pid(self) -> int | None:
        """Process id; None while it does not run."""
        with self._lock:
            return self.process.pid if self.process.is_running else None

    def start(self) -> None:
        """Start the program, and have it restarted whenever it ends."""
        with self._lock:
            self._should_run = True
            self._restart_at = None
            self.process.start()
            self.starts += 1
            self._event_log.record("started", program=self.name, pid=self.process.pid)
            if self._down is not None:
                self.downtime.finish(self._down)
                self._down = None

    def mark_down(self, reason: str) -> None:
        """Record that the program is down until its next start, because it is about to be killed."""
        with self._lock:
            if self._down is None:
                self._down = self.downtime.begin(reason)

    @contextmanager
    def held_down(self, reason: str) -> Iterator[int | None]:
        """Keep the program from being restarted in the block, which may kill it; gives its process id."""
        with self._lock:
            pid = self.pid
            if pid is not None:
                self.mark_down(reason)
            yield pid

    def restart_if_ended(self, rng: random.Random) -> None:
        """Restart the program a short random time after it ended."""
        with self._lock:
            if not self._should_run or self.process.is_running:
                return
            code = self.process.code
            if self._restart_at is None:
                self._restart_at = time.monotonic() + rng.uniform(*_RESTART_SECONDS)
                self.mark_down(f"ended with {code}")
                self._event_log.record("ended", program=self.name, pid=self.process.pid, code=code)
            elif time.monotonic() >= self._restart_at:
                self.start()

    def stop(self) -> int | None:
        """End the program for good. Returns its exit code, or None if it had to be killed."""
        with self._lock:
            self._should_run = False
        code = self.process.end(_STOP_SECONDS)
        if code is None:
            self._event_log.report(f"{self.name} did not end within {_STOP_SECONDS:.0f} s and was killed")
        return code


class Supervisor:
    """A thread that restarts programs until it is stopped."""

    def __init__(self, programs: Sequence[Program], seed: int) -> None:
        self._programs = list(programs)
        self._rng = random.Random(seed)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop restarting programs."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(_POLL_SECONDS):
            for program in self._programs:
                program.restart_if_ended(self._rng)


def marked(mark: str) -> list[int]:
    """Process ids of all living processes whose environment has this mark."""
    return with_variable(f"{MARK}={mark}")
