"""`stms api --api-processes N`: a pre-fork manager of server processes that share one listening socket.

The parent keeps the socket open, so that no connection is refused while processes are replaced. A process
that dies, or whose event loop hangs, is restarted with exponential back-off. SIGHUP is a rolling restart:
each process is stopped only after its successor serves, and the restart is abandoned when a successor fails
to start. SIGTERM drains and stops all processes.
"""

from __future__ import annotations

import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Final

from app.processes.open_files import raise_open_files
from app.processes.periodic import PeriodicWork
from app.processes.scoreboard import Scoreboard, Slot, State
from app.processes.supervisor import Command, RestartPolicy

_POLL_SECONDS: Final = 0.05
_START_SECONDS: Final = 60.0
"""Longest time from the start of a process until it serves."""
_HANG_SECONDS: Final = 30.0
"""Longest time without a heartbeat of the event loop."""
_KILL_SECONDS: Final = 5.0
"""Time beyond the drain period before a process is killed."""
_FIRST_PAUSE: Final = 0.25


class Child:
    """One server process and its scoreboard slot. start_at, kill_at: due times on the monotonic clock."""

    def __init__(self, command: Command, slot: Slot, policy: RestartPolicy) -> None:
        self.command = command
        self.slot = slot
        self.policy = policy
        self.start_at: float | None = None
        self.kill_at: float | None = None

    def start(self) -> None:
        """Start the process."""
        self.start_at = None
        self.slot.heartbeat()
        self.slot.state = State.STARTING
        self.command.start()

    def stop(self, seconds: float, number: int) -> None:
        """Send the signal ``number``; `has_ended` kills the process after ``seconds``."""
        self.command.send(number)
        self.kill_at = time.monotonic() + seconds

    def has_ended(self) -> bool:
        """Whether the process has ended; kills it if it is overdue."""
        if self.command.running:
            if self.kill_at is None or time.monotonic() < self.kill_at:
                return False
            self.command.kill()
        self.slot.release()
        return True

    def is_hung(self) -> bool:
        """Whether the process runs without a heartbeat, or takes too long to start."""
        limit = _START_SECONDS if self.slot.state is State.STARTING else _HANG_SECONDS
        return self.command.running and self.slot.seconds_since_heartbeat > limit


class Prefork:
    """Runs ``size`` server processes.

    report: called with messages for the operator. grace: drain period of a process in seconds.
    """

    def __init__(
        self,
        listener: socket.socket,
        environment: Mapping[str, str],
        report: Callable[[str], None],
        *,
        size: int,
        grace: float,
    ) -> None:
        # A process and its successor need a slot each; twice the size leaves some for slow shutdowns.
        self._scoreboard = Scoreboard.shared(2 * size)
        self._scoreboard.target_size = size
        self._listener = listener
        self._environment = environment
        self._report = report
        self._grace = grace + _KILL_SECONDS
        self._children: list[Child] = []
        self._stopping: list[Child] = []
        self._to_replace: deque[Child] = deque()
        self._successor: Child | None = None
        self._periodic = PeriodicWork(["processes", "rolling restart"])
        self._has_served = self._cannot_start = False
        self._stop_signals, self._stop_signal = 0, signal.SIGTERM
        self._hangups = 0
        for _ in range(size):
            self._children.append(self._new_child())

    def run(self) -> int:
        """Run until a signal. Returns the exit code: 0 after a signal, 1 if the first start failed."""
        handlers = {
            signal.SIGTERM: self._on_stop,
            signal.SIGINT: self._on_stop,
            signal.SIGHUP: self._on_hangup,
        }
        raise_open_files()
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            for child in self._children:
                child.start()
            while not self._stop_signals:
                self._periodic.run("processes", self._restart_dead)
                if self._cannot_start:
                    return 1
                self._periodic.run("rolling restart", self._step_rolling_restart)
                time.sleep(_POLL_SECONDS)
        finally:
            self._stop_all()
            for number, handler in before.items():
                signal.signal(number, handler)
        return 0

    def _new_child(self) -> Child:
        used = {child.slot.index for child in [*self._children, *self._stopping]}
        slot = next(slot for slot in self._scoreboard.slots if slot.index not in used)
        files = (self._listener.fileno(), self._scoreboard.file or 0)
        context = ":".join(map(str, (*files, slot.index)))
        command = Command("api", self._environment, "--process-context", context, files=files)
        return Child(command, slot, RestartPolicy(_FIRST_PAUSE))

    def _restart_dead(self) -> None:
        """Kill hung processes and restart dead ones. One that cannot even be started counts as dead."""
        self._stopping = [child for child in self._stopping if not child.has_ended()]
        if not self._has_served and len(self._scoreboard.serving()) == len(self._children):
            self._has_served = True
            self._report(f"{len(self._children)} processes serve.")
        for child in self._children:
            if child.start_at is not None:
                if time.monotonic() >= child.start_at:
                    child.start()
            elif child.is_hung():
                self._report(f"Process {child.command.pid} hangs and is killed.")
                child.command.kill()
            elif not child.command.running:
                self._schedule_restart(child)

    def _schedule_restart(self, child: Child) -> None:
        state = child.slot.state
        child.slot.release()
        if not self._has_served and state is State.STARTING:
            self._cannot_start = True
            self._report(f"A process could not start: exit code {child.command.exit_code}.")
            return
        pause = child.policy.pause_after(child.command.age)
        self._scoreboard.crash_count += 1
        self._report(
            f"Process {child.command.pid} ended with exit code {child.command.exit_code};"
            f" next start in {pause:g} s."
        )
        child.start_at = time.monotonic() + pause

    def _step_rolling_restart(self) -> None:
        """Start one successor; once it serves, stop its predecessor."""
        if self._hangups and not self._to_replace:
            self._hangups = 0
            self._to_replace = deque(self._children)
            self._report("Replacing the processes one after the other.")
        if self._stopping or not self._to_replace:
            return
        if self._successor is None:
            self._successor = self._new_child()
            self._successor.start()
        elif self._successor.slot.state is State.SERVING:
            old, new = self._to_replace.popleft(), self._successor
            self._successor = None
            self._children[self._children.index(old)] = new
            self._stopping.append(old)
            # Not SIGTERM: others listen at the same socket, so that this one need not go on.
            old.stop(self._grace, signal.SIGHUP)
            self._report(f"Process {new.command.pid} has replaced process {old.command.pid}.")
        elif self._successor.is_hung() or not self._successor.command.running:
            self._successor.command.kill()
            self._successor.slot.release()
            self._successor = None
            self._to_replace.clear()
            self._report("The new process did not get ready; the remaining old processes continue.")

    def _stop_all(self) -> None:
        # The kernel refuses new connections once the last process has closed the socket too.
        self._listener.close()
        running = [*self._children, *self._stopping, *([self._successor] if self._successor else [])]
        for child in running:
            child.stop(self._grace, self._stop_signal)
        # A second signal stops them without further delay.
        while running and self._stop_signals < 2:
            running = [child for child in running if not child.has_ended()]
            time.sleep(_POLL_SECONDS)
        for child in running:
            child.command.kill()
        self._scoreboard.close()

    def _on_stop(self, number: int, _frame: FrameType | None) -> None:
        if not self._stop_signals:
            # After Ctrl-C the processes need not go on listening, as they do after SIGTERM.
            self._stop_signal = signal.SIGTERM if number == signal.SIGTERM else signal.SIGHUP
        self._stop_signals += 1

    def _on_hangup(self, _number: int, _frame: FrameType | None) -> None:
        self._hangups += 1
