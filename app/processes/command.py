"""Commands of this program as child processes, and the pauses before they are restarted."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final

from app.processes.os_process import terminate_with_parent

KILL_SECONDS: Final = 5.0
"""Time beyond the drain period before a process is killed."""

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
