"""Reads uploaded files in a child process: a file that takes too much memory or crashes its reader ends only
the child.

`app.processes.file_reader_main` is the other side. It loads the libraries once and forks for each file, so
that reading a small file costs some milliseconds more than in this process, and each file has a process of
its own. It is started for the first file.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, TypeVar, cast

import msgspec

from app.domain.errors import InvalidRequest, Overloaded, ServiceError, TooLarge, Unavailable
from app.ingest.reading import DatasetContent, HeadContent, Order, temporary_paths
from app.processes.file_reader_messages import ANSWER, EXIT_MEMORY, OUTCOME, Answer, Failure, Job
from app.processes.os_process import memory_limit
from app.settings import Settings

logger = logging.getLogger(__name__)

Result = TypeVar("Result", DatasetContent, HeadContent)

READER_COMMAND: Final = (sys.executable, "-P", "-m", "app.processes.file_reader_main")

_CLOCK_FACTOR: Final = 3
"""Longest time for one file by the clock, as a multiple of its processor time."""
_POLL_SECONDS: Final = 0.1
_MIN_MEMORY: Final = 256 * 1024**2
_MAX_ANSWER: Final = 4096
_MAX_OUTCOME: Final = 1024**3
_KEPT_VARIABLES: Final = ("PATH", "PYTHON", "LANG", "LC_", "TMPDIR", "LD_LIBRARY_PATH")
"""Beginnings of the names of the environment variables that the child gets."""
_OWN_VARIABLES: Final = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # Other allocators reserve memory in large pieces, which a limit of the address space would count.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "2",
    # Its background thread would be lost in a fork.
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
REASONS: Final = ("memory", "time", "crash", "killed", "cancelled", "queue")
"""Why files were not read although nothing is known to be wrong with them."""


class _Stopped(Exception):
    """The child ended, or was ended, without an answer."""


class FileReader:
    """Reads one file at a time; others wait for their turn. Thread-safe.

    memory: limit of the private memory of the process of one file, in bytes. seconds: longest processor time
    for one file; it may take three times as long by the clock. max_waiting: most files that wait. failures:
    number of files by the reason for which they were not read.
    """

    def __init__(
        self,
        *,
        memory: int,
        seconds: float,
        max_waiting: int,
        command: Sequence[str] = READER_COMMAND,
    ) -> None:
        self.failures = dict.fromkeys(REASONS, 0)
        self.memory = memory
        self.waiting = 0
        self._seconds = seconds
        self._max_waiting = max_waiting
        self._command = command
        self._turn = threading.Lock()
        self._count = threading.Lock()
        self._popen: subprocess.Popen[bytes] | None = None
        self._closed = False

    @classmethod
    def of(cls, settings: Settings) -> FileReader:
        """The reader of one server process.

        By default its memory is a third of what the container or the machine has, shared by the processes.
        """
        share = memory_limit() // (3 * settings.api_processes)
        return cls(
            memory=settings.reader_memory_bytes or max(share, _MIN_MEMORY),
            seconds=settings.reader_seconds,
            max_waiting=settings.max_waiting_files,
        )

    @property
    def reading(self) -> bool:
        """Whether a file is being read."""
        return self._turn.locked()

    @property
    def pid(self) -> int | None:
        """Process id of the child that is kept ready; None if there is none."""
        return None if self._popen is None else self._popen.pid

    def check_queue(self) -> None:
        """Raise Overloaded if as many files wait as may. Called before an upload is received as well."""
        if self.waiting >= self._max_waiting:
            self.failures["queue"] += 1
            text = f"{self._max_waiting} files wait to be read already."
            raise Overloaded(text, code="too_many_uploads", retry_after=5.0)

    def read(self, order: Order, kind: type[Result], cancelled: Callable[[], bool]) -> Result:
        """Carry out an order and return its result, which is of ``kind``. Blocks the calling thread.

        cancelled: returns whether the result is no longer wanted; the child is then ended.

        Raises what the order raises, TooLarge when the file takes too much memory or processor time,
        InvalidRequest when it makes the reader crash, Overloaded when too many files wait already, and
        Unavailable when the reading was cancelled or the child was killed.
        """
        with self._count:
            self.check_queue()
            self.waiting += 1
        try:
            while not self._turn.acquire(timeout=_POLL_SECONDS):
                self._check_wanted(cancelled)
        finally:
            with self._count:
                self.waiting -= 1
        try:
            self._check_wanted(cancelled)
            with temporary_paths(Path(order.source).parent, "outcome") as (outcome,):
                self._wait_for(Job(order, str(outcome), self.memory, self._seconds), cancelled)
                return _content(outcome, kind)
        finally:
            self._turn.release()

    def close(self) -> None:
        """End the child and all readings; they raise Unavailable."""
        self._closed = True
        if (popen := self._popen) is not None:
            popen.kill()
        with self._turn:
            self._kill()

    def _wait_for(self, job: Job, cancelled: Callable[[], bool]) -> None:
        """Have the child carry out a job. Raises ServiceError if it did not get to its end."""
        try:
            try:
                answer = self._ask(job, cancelled)
            except _Stopped:
                # A child that had no work for some minutes may end by itself just before it is asked.
                if self._kill() != 0:
                    raise
                answer = self._ask(job, cancelled)
        except _Stopped:
            self._kill()
            self._check_wanted(cancelled)
            self.failures["killed"] += 1
            raise Unavailable("The process that reads files was killed.", code="reader_killed") from None
        if answer.exit_code != 0:
            raise self._unread(answer)

    def _ask(self, job: Job, cancelled: Callable[[], bool]) -> Answer:
        """Raises _Stopped, and Unavailable after the longest time for one file."""
        child = self._started()
        commands, answers = cast("IO[bytes]", child.stdin), cast("IO[bytes]", child.stdout)
        try:
            commands.write(msgspec.json.encode(job) + b"\n")
            commands.flush()
        except OSError:
            raise _Stopped from None
        poll = select.poll()
        poll.register(answers, select.POLLIN)
        seconds = _CLOCK_FACTOR * self._seconds
        deadline = time.monotonic() + seconds
        while not poll.poll(1000 * _POLL_SECONDS):
            if cancelled() or self._closed:
                raise _Stopped
            if time.monotonic() > deadline:
                self._kill()
                self.failures["time"] += 1
                text = f"Reading the file took longer than {seconds:g} s."
                raise Unavailable(text, code="reading_timed_out", retry_after=30.0)
        try:
            return ANSWER.decode(answers.readline(_MAX_ANSWER))
        except msgspec.DecodeError:
            raise _Stopped from None

    def _started(self) -> subprocess.Popen[bytes]:
        """The child, which is started unless it runs."""
        if self._popen is None or self._popen.poll() is not None:
            self._kill()
            kept = {name: text for name, text in os.environ.items() if name.startswith(_KEPT_VARIABLES)}
            # No other variable, such as the address of the database, and no open file is inherited. In a new
            # session Ctrl-C in the terminal reaches only the server, which ends the child.
            self._popen = subprocess.Popen(  # noqa: S603
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=kept | _OWN_VARIABLES,
                start_new_session=True,
            )
            if self._closed:
                raise _Stopped
        return self._popen

    def _kill(self) -> int | None:
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

    def _check_wanted(self, cancelled: Callable[[], bool]) -> None:
        if self._closed:
            raise Unavailable("The server is shutting down.", code="shutting_down")
        if cancelled():
            self.failures["cancelled"] += 1
            raise Unavailable("The client disconnected while its file was read.", code="reading_cancelled")

    def _unread(self, answer: Answer) -> ServiceError:
        """The error for a child that ended without a result."""
        code, peak = answer.exit_code, answer.peak_bytes // 1024**2
        # C++ libraries abort the process when memory cannot be had.
        if code == EXIT_MEMORY or (code == -signal.SIGABRT and 2 * answer.peak_bytes > self.memory):
            self.failures["memory"] += 1
            text = f"Reading the file takes more memory than the limit of {self.memory // 1024**2} MiB."
            return TooLarge(text, code="file_needs_too_much_memory")
        if code == -signal.SIGXCPU:
            self.failures["time"] += 1
            text = f"Reading the file takes more than {self._seconds:g} s of processor time."
            return TooLarge(text, code="file_takes_too_long")
        if code == -signal.SIGKILL:
            self.failures["killed"] += 1
            logger.warning("the reader of a file was killed at %d MiB (is there enough memory?)", peak)
            return Unavailable("The process that read the file was killed.", code="reader_killed")
        self.failures["crash"] += 1
        logger.error("the reader of a file ended with code %d at %d MiB", code, peak)
        return InvalidRequest("The file cannot be read: its reader failed.", code="unreadable_file")


def _content(outcome: Path, kind: type[Result]) -> Result:
    """The result in a file that a child wrote. Raises its error."""
    if outcome.stat().st_size > _MAX_OUTCOME:
        raise TooLarge("The names and the summary of the file are too large.", code="class_names_too_long")
    content = OUTCOME.decode(outcome.read_bytes())
    if isinstance(content, Failure):
        raise content.as_error()
    if not isinstance(content, kind):
        raise TypeError(f"the reader returned a {type(content).__name__}")
    return content
