"""Processes of ours that outlive those they belong to."""

from __future__ import annotations

import threading
import time

from benchmarks.chaos.house import House
from benchmarks.chaos.programs import command_line, descendants, marked

_LOOK_SECONDS = 1.0
_PATIENCE = 3
"""Looks: a process that is still without its owner after so many is an orphan."""
_LAST_SECONDS = 3.0


class Orphans:
    """A thread that looks for them until `stop`. found: command lines by process."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._stopping = threading.Event()
        self._seen: dict[int, int] = {}
        self.found: dict[int, str] = {}
        self._thread = threading.Thread(target=self._run, name="orphans", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stopping.set()
        self._thread.join()

    def left(self) -> dict[int, str]:
        """All that were found, with those that are left now that everything was stopped."""
        deadline = time.monotonic() + _LAST_SECONDS
        while (alive := marked(self._house.mark)) and time.monotonic() < deadline:
            time.sleep(0.1)
        return self.found | {pid: command_line(pid) for pid in alive}

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_SECONDS):
            owned: set[int] = set()
            # Listed before the owned processes: one that starts in between cannot be taken for an orphan.
            lonely = set(marked(self._house.mark))
            for program in self._house.programs:
                pid = program.pid
                owned |= set() if pid is None else {pid, *descendants(pid)}
            lonely -= owned
            self._seen = {pid: self._seen.get(pid, 0) + 1 for pid in lonely}
            for pid, times in self._seen.items():
                if times == _PATIENCE:
                    self.found[pid] = command_line(pid)
                    self._house.journal.note("orphan", pid=pid, command=self.found[pid])
