"""The child process that reads files for a server process, seen from the server."""

from __future__ import annotations

import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, Final, cast

import msgspec

from app.child_environment import child_environment
from app.processes.file_reader_messages import ANSWER, CANCEL, Answer, Job

READER_COMMAND: Final = (sys.executable, "-P", "-m", "app.processes.file_reader_main")

_POLL_SECONDS: Final = 0.1
_CANCEL_SECONDS: Final = 2.0
"""Longest time in which the child may end the process of a file; then the child is killed."""
_MAX_ANSWER: Final = 4096
_OWN_VARIABLES: Final = {
    # Other allocators reserve memory in large pieces, which a limit of the address space would count.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    # Its background thread would be lost in a fork.
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}


class Stopped(Exception):
    """The child ended, or was ended, without an answer."""


class ReaderProcess:
    """A child that reads one file at a time, and is started for the first one; one thread asks it."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._popen: subprocess.Popen[bytes] | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        """Process id of the child that is kept ready; None if there is none."""
        return None if self._popen is None else self._popen.pid

    def ask(self, job: Job, cancelled: Callable[[], bool], seconds: float) -> Answer:
        """Have a job carried out. The process of the file is ended when it is cancelled or takes too long.

        seconds: longest time by the clock. Raises Stopped, and TimeoutError after the longest time.
        """
        child = self._started()
        answers = cast("IO[bytes]", child.stdout)
        self._send(child, msgspec.json.encode(job) + b"\n")
        deadline = time.monotonic() + seconds
        while not _is_ready(answers, _POLL_SECONDS):
            is_late = time.monotonic() > deadline
            if is_late or cancelled() or self._closed:
                self._send(child, CANCEL)
                if not _is_ready(answers, _CANCEL_SECONDS):
                    self.end()
                    raise TimeoutError if is_late else Stopped
                answer = self._read(answers)
                if is_late and answer.exit_code != 0:
                    raise TimeoutError
                return answer
        return self._read(answers)

    def end(self) -> int | None:
        """End the child and return its exit code; None if there is none."""
        popen, self._popen = self._popen, None
        if popen is None:
            return None
        popen.kill()
        code = popen.wait()
        for stream in (popen.stdin, popen.stdout):
            # Flushing a command that the child has not read fails.
            with suppress(OSError):
                cast("IO[bytes]", stream).close()
        return code

    def close(self) -> None:
        """End the child while another thread may be asking it; `ask` raises Stopped from now on."""
        self._closed = True
        if (popen := self._popen) is not None:
            popen.kill()

    def _started(self) -> subprocess.Popen[bytes]:
        """The child, which is started unless it runs."""
        if self._popen is None or self._popen.poll() is not None:
            self.end()
            # No open file is inherited. In a new session Ctrl-C in the terminal reaches only the server,
            # which ends the child.
            self._popen = subprocess.Popen(  # noqa: S603
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=child_environment(_OWN_VARIABLES),
                start_new_session=True,
            )
            if self._closed:
                raise Stopped
        return self._popen

    def _send(self, child: subprocess.Popen[bytes], line: bytes) -> None:
        commands = cast("IO[bytes]", child.stdin)
        try:
            commands.write(line)
            commands.flush()
        except OSError:
            raise Stopped from None

    def _read(self, answers: IO[bytes]) -> Answer:
        try:
            return ANSWER.decode(answers.readline(_MAX_ANSWER))
        except msgspec.DecodeError:
            raise Stopped from None


def _is_ready(stream: IO[bytes], seconds: float) -> bool:
    poll = select.poll()
    poll.register(stream, select.POLLIN)
    return bool(poll.poll(1000 * seconds))
