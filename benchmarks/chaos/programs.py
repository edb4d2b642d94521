"""Processes of the service under a supervisor, which restarts each one shortly after it ends."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.chaos.journal import Journal, Span, Spans
from benchmarks.starting import Starter

MARK = "STMS_CHAOS_RUN"
"""Environment variable by which everything that descends from our programs is known."""
_STOP_SECONDS = 30.0
_LOOK_SECONDS = 0.1
_PAUSES = (0.3, 2.0)


class Program:
    """One program, started again when it ends. troubled: when it was down, stopped or just come back.

    command: with its arguments. environ: added to the environment, the service's own settings left out.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        environ: Mapping[str, str],
        folder: Path,
        journal: Journal,
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.troubled = Spans(journal)
        self._command = [str(part) for part in command]
        # The caller's STMS_ variables configure another service and are not inherited.
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("STMS_")}
        self._environ = inherited | dict(environ)
        self._folder = folder
        self._journal = journal
        self._lock = threading.RLock()
        self._starter = Starter()
        self._process: subprocess.Popen[bytes] | None = None
        self._wanted = False
        self._again_at: float | None = None
        self._down: Span | None = None
        self.starts = 0

    @property
    def pid(self) -> int | None:
        """Of the running process."""
        with self._lock:
            alive = self._process is not None and self._process.poll() is None
            return self._process.pid if alive and self._process is not None else None

    def start(self) -> None:
        """Start it, and want it to run from now on."""
        with self._lock:
            self._wanted = True
            self._again_at = None
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
            self._journal.note("started", program=self.name, pid=self._process.pid)
            if self._down is not None:
                self.troubled.finish(self._down)
                self._down = None

    def doom(self, why: str) -> None:
        """It, or a part it cannot do without, is about to be killed: down until it is started again."""
        with self._lock:
            if self._down is None:
                self._down = self.troubled.begin(why)

    def look(self, rng: random.Random) -> None:
        """Start it again if it has ended, a short while later."""
        with self._lock:
            if not self._wanted or self._process is None:
                return
            code = self._process.poll()
            if code is None:
                return
            if self._again_at is None:
                self._again_at = time.monotonic() + rng.uniform(*_PAUSES)
                self.doom(f"ended with {code}")
                self._journal.note("ended", program=self.name, pid=self._process.pid, code=code)
            elif time.monotonic() >= self._again_at:
                self.start()

    def stop(self) -> int | None:
        """End it for good; returns its exit code, None if it had to be killed."""
        with self._lock:
            self._wanted = False
            process = self._process
        if process is None:
            return 0
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)
        process.terminate()
        try:
            return process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._journal.say(f"{self.name} did not end within {_STOP_SECONDS:.0f} s and is killed")
            process.kill()
            process.wait()
            return None


class Keeper:
    """The supervisor: a thread that looks after all programs until it is stopped."""

    def __init__(self, programs: Sequence[Program], seed: int) -> None:
        self._programs = list(programs)
        self._rng = random.Random(seed)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Start nothing again."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_SECONDS):
            for program in self._programs:
                program.look(self._rng)


def descendants(pid: int) -> list[int]:
    """Living processes that come from one, itself left out."""
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
    """Program and arguments; empty for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def is_alive(pid: int) -> bool:
    """Whether the process is there and not merely waits to be reaped."""
    return _state_and_parent(pid)[0] not in "ZX"


def parent_of(pid: int) -> int:
    """Its parent; 0 for a process that is gone."""
    return _state_and_parent(pid)[1]


def marked(mark: str) -> list[int]:
    """Living processes that descend from programs started with this mark."""
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
    """State letter, X for a process that is gone, and the parent."""
    try:
        # The name, in parentheses, may hold anything.
        fields = (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        )
    except OSError:
        return "X", 0
    return fields[0], int(fields[1])
