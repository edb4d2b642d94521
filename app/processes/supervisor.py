"""`stms serve`: the API and one worker as child processes, kept together.

The API's end is the end; a dead worker is started again, later each time it dies young. A signal is passed
on to both, and whoever has not gone when its grace is over is killed. Children end with this process even
when it is killed (Linux: PR_SET_PDEATHSIG), so nothing is left behind.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

import httpx

_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 0.1
_READY_SECONDS = 60.0
_GRACE_SECONDS = 15.0
_FIRST_PAUSE, _LONGEST_PAUSE, _HEALTHY_AFTER = 1.0, 30.0, 60.0


class Child:
    """One command of this program in a process of its own. files: open files it inherits, by number."""

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
        """Start it, in its own process group so that Ctrl-C reaches it only through us."""
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "app.cli", self.command, *self._arguments],
            env=self._environment,
            pass_fds=self._files,
            process_group=0,
            preexec_fn=end_with_parent(),  # noqa: PLW1509
        )
        self._started = time.monotonic()

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
        """Of the process started last."""
        return self._process.pid if self._process else None

    def terminate(self) -> None:
        """Ask it to end."""
        self.send(signal.SIGTERM)

    def send(self, number: int) -> None:
        """Send it a signal if it runs."""
        if self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """End it by force if it still runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class RestartPolicy:
    """The wait before a dead process is started again: it doubles, and is forgotten after a healthy minute.

    first: seconds of the first wait.
    """

    def __init__(self, first: float | None = None) -> None:
        self._first = _FIRST_PAUSE if first is None else first
        self._pause = self._first

    def pause_after(self, lifetime: float) -> float:
        """Seconds to wait after a life of ``lifetime`` seconds."""
        if lifetime >= _HEALTHY_AFTER:
            self._pause = self._first
        pause, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
        return pause


class Supervisor:
    """Runs both children until one of the ends above; ``report`` gets lines for people.

    rolls: the API has several processes and replaces them one by one on SIGHUP, which is passed on to it.
    grace: seconds that requests under way get at the end.
    """

    def __init__(
        self,
        address: str,
        environment: Mapping[str, str],
        report: Callable[[str], None],
        *,
        rolls: bool = False,
        grace: float = 0.0,
    ) -> None:
        self._address = address
        self._report = report
        self._grace = grace + _GRACE_SECONDS
        self._rolls = rolls
        self._api, self._worker = Child("api", environment), Child("worker", environment)
        self._restarts = RestartPolicy()
        self._restart_at: float | None = None
        self._stop_signals = 0
        self._hung_up = False

    def run(self) -> int:
        """Exit code of the whole: 0 after a signal, 1 when the API died by itself."""
        previous = {
            number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)
        }
        previous[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._on_hangup)
        try:
            self._api.start()
            self._worker.start()
            self._announce()
            while not self._stop_signals and self._api.exit_code is None:
                self._keep_worker()
                self._pass_hangup_on()
                time.sleep(_POLL_SECONDS)
            died = None if self._stop_signals else self._api.exit_code
        finally:
            self._end_children()
            for number, handler in previous.items():
                signal.signal(number, handler)
        if died is not None:
            self._report(f"The API process ended by itself with exit code {died}.")
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

    def _keep_worker(self) -> None:
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

    def _end_children(self) -> None:
        children = (self._api, self._worker)
        for child in children:
            child.terminate()
        deadline = time.monotonic() + self._grace
        # A second signal means: at once.
        while (
            any(child.running for child in children)
            and self._stop_signals < 2
            and time.monotonic() < deadline
        ):
            time.sleep(_POLL_SECONDS)
        for child in children:
            child.kill()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._stop_signals += 1

    def _on_hangup(self, _number: int, _frame: FrameType | None) -> None:
        self._hung_up = True

    def _pass_hangup_on(self) -> None:
        if not self._hung_up:
            return
        self._hung_up = False
        if self._rolls:
            self._api.send(signal.SIGHUP)
        else:
            self._report("One API process has nobody to stand in for it; restart with --workers 2 or more.")


def is_alive(address: str) -> bool:
    """Whether a server answers at ``address``."""
    try:
        return httpx.get(f"{address}/livez", timeout=2, trust_env=False).is_success
    except httpx.TransportError:
        return False


def end_with_parent() -> Callable[[], None] | None:
    """A `preexec_fn`: the child gets SIGTERM when the thread that starts it ends, even if it is killed."""
    if sys.platform != "linux":
        return None
    # Loaded before the fork: little is safe between fork and exec.
    libc, parent = ctypes.CDLL(None, use_errno=True), os.getpid()

    def arrange() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            # The parent died between the fork and the call above.
            os._exit(1)

    return arrange
