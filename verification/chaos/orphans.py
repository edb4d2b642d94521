"""Finds processes of the service that outlive their parents."""

from __future__ import annotations

import threading
import time

from tests.system.processes import command_line, descendants, is_stopped
from verification.chaos.programs import marked
from verification.chaos.service import FaultyService

_POLL_SECONDS = 1.0
_MISSES = 20
"""Number of polls without an owner after which a process counts as an orphan. One that serves may drain for
ten seconds after its parent was killed, and kills itself five seconds later."""
_LAST_SECONDS = 15.0


class Orphans:
    """A thread that searches for orphans until `stop`. found: command lines by process id."""

    def __init__(self, deployment: FaultyService) -> None:
        self._deployment = deployment
        self._stopping = threading.Event()
        self._seen: dict[int, int] = {}
        self.found: dict[int, str] = {}
        self._thread = threading.Thread(target=self._run, name="orphans", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the search."""
        self._stopping.set()
        self._thread.join()

    def remaining(self) -> dict[int, str]:
        """Orphans found so far, and all processes that still run after the service was stopped."""
        deadline = time.monotonic() + _LAST_SECONDS
        while (alive := marked(self._deployment.mark)) and time.monotonic() < deadline:
            time.sleep(0.1)
        return self.found | {pid: command_line(pid) for pid in alive}

    def _run(self) -> None:
        while not self._stopping.wait(_POLL_SECONDS):
            owned: set[int] = set()
            # Listed before the owned processes: one that starts in between cannot be taken for an orphan.
            candidates = set(marked(self._deployment.mark))
            for program in self._deployment.programs:
                pid = program.pid
                owned |= set() if pid is None else {pid, *descendants(pid)}
            # A solver that was stopped before it had tied itself to its worker ends when it is continued.
            candidates = {pid for pid in candidates - owned if not is_stopped(pid)}
            self._seen = {pid: self._seen.get(pid, 0) + 1 for pid in candidates}
            for pid, times in self._seen.items():
                if times == _MISSES:
                    self.found[pid] = command_line(pid)
                    self._deployment.event_log.record("orphan", pid=pid, command=self.found[pid])
