"""Reads uploaded files in child processes: a file that takes too much memory or crashes its reader ends only
the process of that file.

`app.processes.file_reader_main` is the other side. It loads the libraries once and forks for each file, so
that reading a small file costs some milliseconds more than in this process, and each file has a process of
its own. It is started for the first file.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from app.domain.entities import Caller
from app.domain.errors import InvalidRequest, Overloaded, ServiceError, TooLarge, Unavailable
from app.fair_queue import FairQueue, RecentWork
from app.ingest.orders import BundleContent, DatasetContent, HeadContent, Order, RevisionContent
from app.ingest.reading import temporary_paths
from app.processes.file_reader_messages import EXIT_MEMORY, EXIT_STORAGE, OUTCOME, Answer, Failure, Job
from app.processes.os_process import memory_limit
from app.processes.reader_process import READER_COMMAND, ReaderProcess, Stopped
from app.settings import Settings

logger = logging.getLogger(__name__)

Result = TypeVar("Result", DatasetContent, RevisionContent, HeadContent, BundleContent)

_CLOCK_FACTOR: Final = 3
"""Longest time for one file by the clock, as a multiple of its processor time."""
_SMALL_CLOCK_SECONDS: Final = 30.0
_MIN_MEMORY: Final = 256 * 1024**2
_MAX_OUTCOME: Final = 1024**3
_SMALL_BYTES: Final = 2 * 1024**2
"""Largest file that need not wait for large ones."""
_SMALL_SECONDS: Final = 1.0
"""Processor time that a small file may use before it has to wait with the large ones."""
_TENANT_SHARE: Final = 0.25
"""Part of the waiting files that may be of one tenant while others send files."""
_OF_LIMITS: Final = frozenset({"memory", "time"})
REASONS: Final = ("memory", "time", "crash", "killed", "storage", "cancelled", "queue")
"""Reasons for which a file was not read although no fault of the file is known."""


@dataclass(slots=True)
class _Lane:
    """A child with the limits of its files, and the files that wait for it. clock: seconds by the clock."""

    child: ReaderProcess
    queue: FairQueue
    memory: int
    seconds: float
    clock: float


class FileReader:
    """Reads one small and one large file at a time; others wait for their turn. Thread-safe.

    Turns depend on the processor time that a tenant's files used recently, see `FairQueue`; invalid files
    count like others. A small file that needs more processor time or memory than small files may use
    is read again among the large ones.

    memory: limit of the private memory of the process of one file, in bytes; for a small file 256 MiB, if
    that is less. seconds: longest processor time for one file; it may take three times as long by the clock.
    max_waiting: most files of one tenant that wait; while other tenants send files, too, a quarter of it, but
    at least one. failures: number of files by the reason for which they were not read.
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
        self.work = RecentWork()
        self._max_waiting = max_waiting
        self._waiting: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._closed = False
        clock = _CLOCK_FACTOR * seconds
        limits = (
            (min(memory, _MIN_MEMORY), min(seconds, _SMALL_SECONDS), min(clock, _SMALL_CLOCK_SECONDS)),
            (memory, seconds, clock),
        )
        self._lanes = [_Lane(ReaderProcess(command), FairQueue(self.work), *of_lane) for of_lane in limits]

    @classmethod
    def of(cls, settings: Settings) -> FileReader:
        """The reader of one server process.

        By default its memory is a third of that of the container or machine, shared by the processes.
        """
        share = memory_limit() // 3
        return cls(
            memory=settings.reader_memory_bytes or max(share, _MIN_MEMORY),
            seconds=settings.reader_seconds,
            max_waiting=settings.max_waiting_files,
        )

    @property
    def reading(self) -> int:
        """Files that are being read."""
        return sum(lane.queue.is_taken for lane in self._lanes)

    @property
    def waiting(self) -> int:
        """Files that wait to be read."""
        return self._waiting.total()

    @property
    def pids(self) -> list[int]:
        """Process ids of the children that are kept ready."""
        return [lane.child.pid for lane in self._lanes if lane.child.pid is not None]

    def check_queue(self, tenant: str) -> None:
        """Raise Overloaded if as many files of a tenant wait as may.

        Called before an upload is received as well.
        """
        with self._lock:
            self._require_room(tenant)

    def read(self, order: Order, kind: type[Result], cancelled: Callable[[], bool], caller: Caller) -> Result:
        """Carry out an order and return its result, which is of ``kind``. Blocks the calling thread.

        cancelled: returns whether the result is no longer wanted; the process of the file is then ended.

        Raises the errors of the order; TooLarge if the file needs too much memory or processor time;
        InvalidRequest when it makes the reader crash, Overloaded when too many files of the tenant wait
        already, and Unavailable when the reading was cancelled or the child was killed.
        """
        with temporary_paths(Path(order.source).parent, "outcome") as (outcome,):
            is_small = Path(order.source).stat().st_size <= _SMALL_BYTES
            lanes = self._lanes if is_small else self._lanes[1:]
            for lane in lanes:
                job = Job(order, str(outcome), lane.memory, lane.seconds)
                with self._turn(lane, caller, cancelled, limited=lane is lanes[0]):
                    failure = self._read(lane, job, cancelled, caller)
                if failure is None:
                    return _content(outcome, kind)
                reason, error = failure
                if reason not in _OF_LIMITS:
                    break
        self.failures[reason] += 1
        raise error

    def close(self) -> None:
        """End the children and all readings; they raise Unavailable."""
        self._closed = True
        for lane in self._lanes:
            lane.child.close()
        for lane in self._lanes:
            with lane.queue.turn(Caller("", ""), lambda: None):
                lane.child.end()

    @contextmanager
    def _turn(
        self, lane: _Lane, caller: Caller, cancelled: Callable[[], bool], *, limited: bool
    ) -> Iterator[None]:
        """Wait for the lane. Raises Unavailable if the file is no longer wanted.

        limited: whether to raise Overloaded if too many files wait.
        """
        with self._lock:
            if limited:
                self._require_room(caller.tenant)
            self._waiting[caller.tenant] += 1
        with ExitStack() as stack:
            try:
                stack.enter_context(lane.queue.turn(caller, lambda: self._check_wanted(cancelled)))
            finally:
                with self._lock:
                    self._waiting[caller.tenant] -= 1
                    # Tenants without waiting files are removed.
                    self._waiting = +self._waiting
            self._check_wanted(cancelled)
            yield

    def _require_room(self, tenant: str) -> None:
        most = self._max_waiting
        if (self.work.tenants() | self._waiting.keys()) - {tenant}:
            most = min(most, max(1, int(most * _TENANT_SHARE)))
        if self._waiting[tenant] >= most:
            self.failures["queue"] += 1
            text = f"{most} files of the tenant wait to be read already."
            raise Overloaded(text, code="too_many_uploads", retry_after=5.0)

    def _read(
        self, lane: _Lane, job: Job, cancelled: Callable[[], bool], caller: Caller
    ) -> tuple[str, ServiceError] | None:
        """Have a job carried out; returns why it was not, one of `REASONS` and the error, or None.

        Raises Unavailable if the file is no longer wanted.
        """
        start = time.monotonic()
        seconds: float | None = None
        try:
            answer = self._ask(lane, job, cancelled)
            seconds = answer.seconds
        except TimeoutError:
            text = f"Reading the file took longer than {lane.clock:g} s."
            return "time", Unavailable(text, code="reading_timed_out", retry_after=30.0)
        except Stopped:
            lane.child.end()
            self._check_wanted(cancelled)
            return "killed", Unavailable("The process that reads files was killed.", code="reader_killed")
        finally:
            # Without an answer only the elapsed time is known.
            self.work.add(caller, time.monotonic() - start if seconds is None else seconds)
        if answer.exit_code == 0:
            return None
        self._check_wanted(cancelled)
        return _unread(lane, answer)

    def _ask(self, lane: _Lane, job: Job, cancelled: Callable[[], bool]) -> Answer:
        """Raises Stopped and TimeoutError."""
        try:
            return lane.child.ask(job, cancelled, lane.clock)
        except Stopped:
            # A child that had no work for some minutes may end by itself just before it is asked.
            if lane.child.end() != 0:
                raise
            return lane.child.ask(job, cancelled, lane.clock)

    def _check_wanted(self, cancelled: Callable[[], bool]) -> None:
        if self._closed:
            raise Unavailable("The server is shutting down.", code="shutting_down")
        if cancelled():
            self.failures["cancelled"] += 1
            raise Unavailable("The client disconnected while its file was read.", code="reading_cancelled")


def _unread(lane: _Lane, answer: Answer) -> tuple[str, ServiceError]:
    """Reason and error for a process that ended without a result."""
    code, peak = answer.exit_code, answer.peak_bytes // 1024**2
    # C++ libraries abort the process when memory cannot be had.
    if code == EXIT_MEMORY or (code == -signal.SIGABRT and 2 * answer.peak_bytes > lane.memory):
        text = f"Reading the file takes more memory than the limit of {lane.memory // 1024**2} MiB."
        return "memory", TooLarge(text, code="file_needs_too_much_memory")
    if code == -signal.SIGXCPU:
        text = f"Reading the file takes more than {lane.seconds:g} s of processor time."
        return "time", TooLarge(text, code="file_takes_too_long")
    if code == EXIT_STORAGE:
        text = "The server cannot write what it has read: its disk is full or cannot be used."
        return "storage", Unavailable(text, code="storage_unusable", retry_after=10.0)
    if code == -signal.SIGKILL:
        logger.warning("the reader of a file was killed at %d MiB (is there enough memory?)", peak)
        return "killed", Unavailable("The process that read the file was killed.", code="reader_killed")
    logger.error("the reader of a file ended with code %d at %d MiB", code, peak)
    return "crash", InvalidRequest("The file cannot be read: its reader failed.", code="unreadable_file")


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
