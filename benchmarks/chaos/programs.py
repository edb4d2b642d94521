"""Processes of the service under a supervisor, which restarts each one shortly after it ends."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.chaos.event_log import EventLog, Interval, Intervals
from benchmarks.starting import Starter

MARK = "STMS_CHAOS_RUN"
"""Environment variable that marks the programs and, by inheritance, all their descendants."""
_STOP_SECONDS = 30.0
_POLL_SECONDS = 0.1
_RESTART_SECONDS = (0.3, 2.0)


class Program:
    """One supervised program. downtime: intervals in which it was down or stopped, or none of its query
    processes answered. control_downtime: those in which its control process was killed or stopped.

    command: program and arguments. environ: variables added to the environment, from which all other
    settings of the service are removed. starts: how often it, or a query process of it, was started anew.
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
        self.log = folder / f"{name}.log"
        self.downtime = Intervals(event_log)
        self.control_downtime = Intervals(event_log)
        self._command = [str(part) for part in command]
        # The caller's STMS_ variables configure another service and are not inherited.
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("STMS_")}
        self._environ = inherited | dict(environ)
        self._folder = folder
        self._event_log = event_log
        self._lock = threading.RLock()
        self._starter = Starter()
        self._process: subprocess.Popen[bytes] | None = None
        self._should_run = False
        self._restart_at: float | None = None
        self._down: Interval | None = None
        self.starts = 0

    @property
    def pid(self) -> int | None:
        """Process id; None while it does not run."""
        with self._lock:
            alive = self._process is not None and self._process.poll() is None
            return self._process.pid if alive and self._process is not None else None

    def start(self) -> None:
        """Start the program, and have it restarted whenever it ends."""
        with self._lock:
            self._should_run = True
            self._restart_at = None
            with self.log.open("ab") as output:
                self._process = self._starter.start(
                    self._command,
                    cwd=self._folder,
                    env=self._environ,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                )
            self.starts += 1
            self._event_log.record("started", program=self.name, pid=self._process.pid)
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
            if not self._should_run or self._process is None:
                return
            code = self._process.poll()
            if code is None:
                return
            if self._restart_at is None:
                self._restart_at = time.monotonic() + rng.uniform(*_RESTART_SECONDS)
                self.mark_down(f"ended with {code}")
                self._event_log.record("ended", program=self.name, pid=self._process.pid, code=code)
            elif time.monotonic() >= self._restart_at:
                self.start()

    def stop(self) -> int | None:
        """End the program for good. Returns its exit code, or None if it had to be killed."""
        with self._lock:
            self._should_run = False
            process = self._process
        if process is None:
            return 0
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)
        process.terminate()
        try:
            return process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._event_log.report(f"{self.name} did not end within {_STOP_SECONDS:.0f} s and is killed")
            process.kill()
            process.wait()
            return None


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


def descendants(pid: int) -> list[int]:
    """Process ids of all living descendants of a process."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            state, parent = _state_and_parent(int(entry.name))
            if state not in "ZX":
                parents[int(entry.name)] = parent
    found = [pid]
    for known in found:
        found += [child for child, parent in parents.items() if parent == known]
    return found[1:]


def command_line(pid: int) -> str:
    """Program and arguments of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def is_alive(pid: int) -> bool:
    """Whether the process runs and is not a zombie."""
    return _state_and_parent(pid)[0] not in "ZX"


def parent_of(pid: int) -> int:
    """Process id of the parent; 0 if the process has ended."""
    return _state_and_parent(pid)[1]


def marked(mark: str) -> list[int]:
    """Process ids of all living processes whose environment has this mark."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and is_alive(int(entry.name)):
            try:
                environ = (entry / "environ").read_bytes()
            except OSError:
                continue
            if wanted in environ.split(b"\0"):
                found.append(int(entry.name))
    return found


def _state_and_parent(pid: int) -> tuple[str, int]:
    """State letter (X for a process that has ended) and process id of the parent."""
    try:
        # The program's name, in parentheses, may contain spaces and parentheses.
        fields = (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        )
    except OSError:
        return "X", 0
    return fields[0], int(fields[1])
