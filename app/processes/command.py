"""Commands of this program as child processes, and the pauses before they are restarted."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from app.processes.os_process import terminate_with_parent

KILL_SECONDS: Final = 5.0
"""Time beyond the drain period before a process is killed."""

_FIRST_PAUSE, _LONGEST_PAUSE, _HEALTHY_AFTER = 1.0, 30.0, 60.0


_HANDLED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
"""Signals that a manager handles, and its forks in their own way."""


class Command:
    """A command of this program in a child process. files: file descriptors that it inherits.

    fork: does the same in a fork of this process, which has imported most of it, and returns its exit code;
    None: the child is a new program. others: sockets of this process that a fork closes.
    """

    def __init__(
        self,
        command: str,
        environment: Mapping[str, str],
        *arguments: str,
        files: Sequence[int] = (),
        fork: Callable[[], int] | None = None,
        others: Sequence[socket.socket] = (),
    ) -> None:
        self.command = command
        self.fork = fork
        self._arguments = arguments
        self._files = tuple(files)
        self._others = tuple(others)
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | Fork | None = None
        self._started = 0.0

    def start(self) -> None:
        """Start it in its own process group, so that Ctrl-C reaches it only through this process."""
        self._started = time.monotonic()
        if self.fork is not None:
            self._process = Fork(self.fork, self._environment, self._others)
            return
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


class Fork:
    """A fork of this process, which has no other thread: `run` in its own process group and environment.

    It gets SIGTERM when this process ends. others: sockets that it closes. The methods are those of
    `subprocess.Popen`.
    """

    def __init__(
        self,
        run: Callable[[], int],
        environment: Mapping[str, str],
        others: Sequence[socket.socket] = (),
    ) -> None:
        self._process = multiprocessing.get_context("fork").Process(
            target=_run_fork, args=(run, environment, others, terminate_with_parent())
        )
        # A signal to the fork must wait until it no longer has the handlers of this process.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid or 0

    def poll(self) -> int | None:
        """Exit code; None while it runs."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL if it runs."""
        self._process.kill()

    def wait(self) -> None:
        """Wait for its end."""
        self._process.join()


def _run_fork(
    run: Callable[[], int],
    environment: Mapping[str, str],
    others: Sequence[socket.socket],
    end_with_parent: Callable[[], None] | None,
) -> None:
    os.setpgid(0, 0)
    if end_with_parent is not None:
        end_with_parent()
    signal.set_wakeup_fd(-1)
    for number in _HANDLED:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
    for other in others:
        other.close()
    os.environ.clear()
    os.environ.update(environment)
    sys.exit(run())


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
