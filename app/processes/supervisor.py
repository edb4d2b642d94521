"""`stms serve`: a supervisor that runs the API and one worker as child processes.

When the API ends, everything ends; a dead worker is restarted with exponential back-off. Signals are passed
on to both children, and a child that outlives its grace period is killed. Children end with this process
even when it is killed (on Linux, by PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

import httpx

from app.processes.open_files import raise_open_files
from app.processes.os_process import terminate_with_parent
from app.processes.periodic import PeriodicWork

_POLL_SECONDS = 0.1
_READY_SECONDS = 60.0
_GRACE_SECONDS = 15.0
_FIRST_PAUSE, _LONGEST_PAUSE, _HEALTHY_AFTER = 1.0, 30.0, 60.0


class Command:
    """A command of this program in a child process. files: file descriptors that it inherits."""

    def __init__(
        self, command: str, environment: Mapping[str, str], *arguments: str, files: Sequence[int] = ()
    ) -> None:
        self.command = command
        self._arguments = arguments
        self._files = tuple(files)
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0

    def start(self) -> None:
        """Start it in its own process group, so that Ctrl-C reaches it only through this process."""
        self._started = time.monotonic()
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-P", "-m", "app.cli", self.command, *self._arguments],
            env=self._environment,
            pass_fds=self._files,
            process_group=0,
            preexec_fn=terminate_with_parent(),  # noqa: PLW1509
        )

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll() if self._process else None

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def age(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self._started

    @property
    def pid(self) -> int | None:
        """Process id of the last start."""
        return self._process.pid if self._process else None

    def terminate(self) -> None:
        """Send SIGTERM if it runs."""
        self.send(signal.SIGTERM)

    def send(self, number: int) -> None:
        """Send a signal if it runs."""
        if self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL if it runs, and wait for its end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class RestartPolicy:
    """Exponential back-off of restarts, which a healthy minute resets. first: first pause in seconds."""

    def __init__(self, first: float | None = None) -> None:
        self._first = _FIRST_PAUSE if first is None else first
        self._pause = self._first

    def pause_after(self, lifetime: float) -> float:
        """Seconds to wait before the restart of a process that lived for ``lifetime`` seconds."""
        if lifetime >= _HEALTHY_AFTER:
            self._pause = self._first
        pause, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
        return pause


class Supervisor:
    """Runs the API and a worker.

    report: called with messages for the operator. can_roll: the API has several processes and replaces them
    one by one on SIGHUP, which is passed on to it. grace: drain period of the API in seconds.
    """

    def __init__(
        self,
        address: str,
        environment: Mapping[str, str],
        report: Callable[[str], None],
        *,
        can_roll: bool = False,
        grace: float = 0.0,
    ) -> None:
        self._address = address
        self._report = report
        self._grace = grace + _GRACE_SECONDS
        self._can_roll = can_roll
        self._api, self._worker = Command("api", environment), Command("worker", environment)
        self._periodic = PeriodicWork(["worker", "hangup"])
        self._restarts = RestartPolicy()
        self._restart_at: float | None = None
        self._stop_signals, self._stop_signal = 0, signal.SIGTERM
        self._hung_up = False

    def run(self) -> int:
        """Run until a signal. Returns the exit code: 0 after a signal, 1 if the API ended by itself."""
        raise_open_files()
        previous = {
            number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)
        }
        previous[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._on_hangup)
        try:
            self._api.start()
            self._worker.start()
            self._announce()
            while not self._stop_signals and self._api.exit_code is None:
                self._periodic.run("worker", self._restart_worker)
                self._periodic.run("hangup", self._forward_hangup)
                time.sleep(_POLL_SECONDS)
            api_exit_code = None if self._stop_signals else self._api.exit_code
        finally:
            self._stop_children()
            for number, handler in previous.items():
                signal.signal(number, handler)
        if api_exit_code is not None:
            self._report(f"The API process ended by itself with exit code {api_exit_code}.")
            return 1
        return 0

    def _announce(self) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        while not self._stop_signals and self._api.exit_code is None:
            if is_alive(self._address):
                self._report(f"STMS listens at {self._address} (API description: {self._address}/docs).")
                return
            if time.monotonic() > deadline:
                self._report(f"The API does not answer at {self._address} yet; still waiting.")
                deadline = float("inf")
            time.sleep(_POLL_SECONDS)

    def _restart_worker(self) -> None:
        if self._worker.exit_code is None:
            return
        if self._restart_at is None:
            pause = self._restarts.pause_after(self._worker.age)
            self._report(
                f"The worker ended with exit code {self._worker.exit_code}; next start in {pause:g} s."
            )
            self._restart_at = time.monotonic() + pause
        elif time.monotonic() >= self._restart_at:
            self._restart_at = None
            self._worker.start()

    def _stop_children(self) -> None:
        children = (self._api, self._worker)
        self._api.send(self._stop_signal)
        self._worker.terminate()
        deadline = time.monotonic() + self._grace
        # A second signal stops them without further delay.
        while (
            any(child.running for child in children)
            and self._stop_signals < 2
            and time.monotonic() < deadline
        ):
            time.sleep(_POLL_SECONDS)
        for child in children:
            child.kill()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if not self._stop_signals:
            # After Ctrl-C the API need not go on listening, as it does after SIGTERM.
            at_once = signal.SIGINT if self._can_roll else signal.SIGHUP
            self._stop_signal = signal.SIGTERM if number == signal.SIGTERM else at_once
        self._stop_signals += 1

    def _on_hangup(self, _number: int, _frame: FrameType | None) -> None:
        self._hung_up = True

    def _forward_hangup(self) -> None:
        if not self._hung_up:
            return
        self._hung_up = False
        if self._can_roll:
            self._api.send(signal.SIGHUP)
        else:
            self._report(
                "A single API process cannot be replaced while it serves; use --api-processes 2 or more."
            )


def is_alive(address: str) -> bool:
    """Whether a server answers at ``address``."""
    try:
        return httpx.get(f"{address}/livez", timeout=2, trust_env=False).is_success
    except (httpx.TransportError, OSError):
        return False
