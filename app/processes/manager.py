"""The manager of query processes, which share the listening socket, of the control process, and of a worker.

`stms api` and `stms serve` become this program once the database is ready; only `stms serve` has the worker.
Query processes reach the control process through a Unix socket in a folder that only this user can open. The
manager keeps both sockets open, so that no connection is refused while processes are replaced. A process
that dies, or whose event loop hangs, is restarted with exponential back-off. SIGHUP is a rolling restart:
each process is stopped only after its successor serves, and the restart is abandoned when a successor fails
to start. SIGTERM drains and stops the query processes and the worker, and then the control process. All
processes end with this process even if it is killed (on Linux, by PR_SET_PDEATHSIG).

The processes are forks of this process, which has imported their common code: they start fast and share this
memory. After SIGHUP they are new programs, with the code that is installed then.
"""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final, Protocol

from app.processes.command import KILL_SECONDS, Command, RestartPolicy
from app.processes.listener import listen_locally
from app.processes.open_files import raise_open_files
from app.processes.periodic import PeriodicWork, until_beat
from app.processes.scoreboard import Scoreboard, Slot, State

_POLL_SECONDS: Final = 0.05
"""While a process starts or ends."""
_LONG_POLL_SECONDS: Final = 1.0
"""Poll interval while all serve: ends of processes and signals are noticed at once, hung loops by polls."""
_START_SECONDS: Final = 180.0
"""Longest time from the start of a process until it serves; on a busy machine imports take over a minute."""
_HANG_SECONDS: Final = 30.0
"""Longest time without a heartbeat of the event loop."""
_WORKER_SECONDS: Final = 10.0
"""The same for the worker."""
_FIRST_PAUSE: Final = 0.25
FOLDER_PREFIX: Final = "stms-c-"
"""Prefix of the folder with the socket of the control process."""
_AT_ONCE: Final = 2
"""So many signals to stop end everything without delay."""


class Forks(Protocol):
    """The functions of the processes; each returns an exit code. They run in forks of the manager."""

    def load(self) -> None:
        """Import what the control process and the worker share; called in the manager before they start."""
        ...

    def serve(self, context: str, control: Path | None) -> int:
        """A server process, see `ProcessContext.inherited`. control: None for the control process."""
        ...

    def work(self) -> int:
        """A worker."""
        ...


class Child:
    """One process and its scoreboard slot. start_at, kill_at: due times on the monotonic clock."""

    def __init__(self, command: Command, slot: Slot, policy: RestartPolicy, *, is_control: bool) -> None:
        self.command = command
        self.slot = slot
        self.policy = policy
        self.is_control = is_control
        self.start_at: float | None = None
        self.kill_at: float | None = None

    def start(self) -> None:
        """Start the process."""
        self.start_at = None
        self.slot.heartbeat()
        self.slot.is_control = self.is_control
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


class Manager:
    """Runs ``size`` query processes and the control process.

    report: called with messages for the operator. grace: drain period of a process in seconds. worker:
    whether to run a worker. address: of the service, reported once it serves. forks: functions that run
    in forks of this process; None: all processes are new programs.
    """

    def __init__(
        self,
        listener: socket.socket,
        environment: Mapping[str, str],
        report: Callable[[str], None],
        *,
        size: int,
        grace: float,
        worker: bool = False,
        address: str = "",
        forks: Forks | None = None,
    ) -> None:
        # A process and its successor need a slot each; twice the number leaves some for slow shutdowns.
        self._scoreboard = Scoreboard.shared(2 * (size + 1))
        self._scoreboard.target_size = size
        self._listener = listener
        self._folder = tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX, ignore_cleanup_errors=True)
        self._control = Path(self._folder.name) / "control.sock"
        self._control_listener = listen_locally(self._control)
        self._environment = environment
        self._report = report
        self._grace = grace + KILL_SECONDS
        self._address = address
        self._forks = forks
        self._worker = self._worker_command() if worker else None
        self._worker_policy, self._worker_start_at = RestartPolicy(), 0.0 if worker else math.inf
        self._children: list[Child] = []
        self._stopping: list[Child] = []
        self._to_replace: deque[Child] = deque()
        self._successor: Child | None = None
        self._periodic = PeriodicWork(["processes", "rolling restart", "worker"])
        self._has_served = self._cannot_start = False
        self._stop_signals, self._stop_signal = 0, signal.SIGTERM
        self._hangups = 0
        for number in range(size + 1):
            self._children.append(self._new_child(is_control=number == 0))

    def run(self) -> int:
        """Run until a signal. Returns the exit code: 0 after a signal, 1 if the first start failed."""
        handlers = {
            signal.SIGTERM: self._on_stop,
            signal.SIGINT: self._on_stop,
            signal.SIGHUP: self._on_hangup,
            # Only to be woken by it.
            signal.SIGCHLD: lambda _number, _frame: None,
        }
        raise_open_files()
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            with _woken_by_signals() as wait:
                # Query processes first: they need less than the others share.
                for child in sorted(self._children, key=lambda child: child.is_control):
                    if child.is_control and self._forks is not None:
                        self._forks.load()
                    child.start()
                while not self._stop_signals:
                    self._periodic.run("processes", self._restart_dead)
                    if self._cannot_start:
                        return 1
                    self._periodic.run("rolling restart", self._step_rolling_restart)
                    self._periodic.run("worker", self._restart_worker)
                    wait(until_beat(_LONG_POLL_SECONDS) if self._is_settled() else _POLL_SECONDS)
        finally:
            self._stop_all()
            for number, handler in before.items():
                signal.signal(number, handler)
        return 0

    def _new_child(self, *, is_control: bool) -> Child:
        used = {child.slot.index for child in [*self._children, *self._stopping]}
        slot = next(slot for slot in self._scoreboard.slots if slot.index not in used)
        listener = self._control_listener if is_control else self._listener
        files = (listener.fileno(), self._scoreboard.file or 0)
        context = ":".join(map(str, (*files, slot.index)))
        control = None if is_control else self._control
        options = [] if control is None else ["--control-socket", str(control)]
        command = Command(
            "api",
            self._environment,
            *options,
            "--process-context",
            context,
            files=files,
            fork=None if self._forks is None else partial(self._forks.serve, context, control),
            others=[self._listener if is_control else self._control_listener],
        )
        return Child(command, slot, RestartPolicy(_FIRST_PAUSE), is_control=is_control)

    def _worker_command(self) -> Command:
        fork = None if self._forks is None else self._forks.work
        others = [self._listener, self._control_listener]
        return Command("worker", self._environment, fork=fork, others=others)

    def _is_settled(self) -> bool:
        """Whether all processes serve, and none is about to start or to end."""
        if self._stopping or self._to_replace or self._hangups or self._successor is not None:
            return False
        worker = self._worker is None or self._worker.running
        return worker and all(child.slot.state is State.SERVING for child in self._children)

    def _restart_dead(self) -> None:
        """Kill hung processes and restart dead ones. A process that cannot be started counts as dead."""
        self._stopping = [child for child in self._stopping if not child.has_ended()]
        if not self._scoreboard.has_started:
            controls = (child for child in self._children if child.is_control)
            self._scoreboard.has_started = any(child.slot.state is State.SERVING for child in controls)
        if not self._has_served and all(child.slot.state is State.SERVING for child in self._children):
            self._has_served = True
            number = len(self._children) - 1
            self._report("One query process serves." if number == 1 else f"{number} query processes serve.")
            if self._address:
                self._report(f"STMS listens at {self._address} (API description: {self._address}/docs).")
        for child in self._children:
            if child.start_at is not None:
                if time.monotonic() >= child.start_at:
                    child.start()
            elif child.is_hung():
                self._report(f"Process {child.command.pid} hangs and is killed.")
                child.command.kill()
            elif not child.command.running:
                self._schedule_restart(child)

    def _restart_worker(self) -> None:
        """Start the worker when that is due, and see to its restart once it has ended."""
        worker = self._worker
        if worker is None or worker.running:
            return
        if self._worker_start_at <= time.monotonic():
            self._worker_start_at = math.inf
            worker.start()
        elif self._worker_start_at == math.inf:
            pause = self._worker_policy.pause_after(worker.age)
            self._report(f"The worker ended with exit code {worker.exit_code}; next start in {pause:g} s.")
            self._worker_start_at = time.monotonic() + pause

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
            # The code that this process has loaded may have been replaced.
            self._forks = None
            if self._worker is not None:
                self._worker.fork = None
            self._report("Replacing the processes one after the other.")
        if self._stopping or not self._to_replace:
            return
        if self._successor is None:
            self._successor = self._new_child(is_control=self._to_replace[0].is_control)
            self._successor.start()
        elif self._successor.slot.state is State.SERVING:
            old, new = self._to_replace.popleft(), self._successor
            self._successor = None
            self._children[self._children.index(old)] = new
            self._stopping.append(old)
            # Not SIGTERM, because others listen on the same socket, so this process need not
            # continue to accept.
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
        self._scoreboard.is_stopping = True
        everyone = [*self._children, *self._stopping, *([self._successor] if self._successor else [])]
        if self._worker is not None:
            self._worker.send(signal.SIGTERM)
        began = time.monotonic()
        # Query processes may still relay requests, so the control process ends after them.
        self._stop([child for child in everyone if not child.is_control], self._stop_signal)
        self._control_listener.close()
        self._stop([child for child in everyone if child.is_control], signal.SIGHUP)
        if self._worker is not None:
            deadline = began + self._grace + _WORKER_SECONDS
            while self._worker.running and self._stop_signals < _AT_ONCE and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
            self._worker.kill()
        self._scoreboard.close()
        self._folder.cleanup()

    def _stop(self, running: list[Child], number: int) -> None:
        """Send a signal, and wait until the processes have ended; a second signal to this one ends them."""
        for child in running:
            child.stop(self._grace, number)
        while running and self._stop_signals < _AT_ONCE:
            running = [child for child in running if not child.has_ended()]
            time.sleep(_POLL_SECONDS)
        for child in running:
            child.command.kill()

    def _on_stop(self, number: int, _frame: FrameType | None) -> None:
        if not self._stop_signals:
            # After Ctrl-C the processes need not continue to accept, as they do after SIGTERM.
            self._stop_signal = signal.SIGTERM if number == signal.SIGTERM else signal.SIGHUP
        self._stop_signals += 1

    def _on_hangup(self, _number: int, _frame: FrameType | None) -> None:
        self._hangups += 1


@contextmanager
def _woken_by_signals() -> Iterator[Callable[[float], None]]:
    """Yields a function that sleeps for some seconds, or until this process gets a signal that it handles."""
    reader, writer = os.pipe()
    for end in (reader, writer):
        os.set_blocking(end, False)

    def wait(seconds: float) -> None:
        if select.select([reader], [], [], seconds)[0]:
            with suppress(BlockingIOError):
                os.read(reader, 4096)

    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield wait
    finally:
        signal.set_wakeup_fd(before)
        os.close(reader)
        os.close(writer)
