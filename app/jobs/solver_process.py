"""The worker's side of a solver process: start it, talk to it, end it at once.

The process is started when it is first needed and stays for the job, so that a job of one chunk prepares and
trains in the same memory. It is a plain program with pipes: killed at any moment, it leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import IO, TypeAlias

from app.domain.entities import Json
from app.jobs.frames import BrokenFrame, Frame, read_frame, write_frame

logger = logging.getLogger(__name__)

Pair: TypeAlias = tuple[int, str]
"""(class index, method)."""
Watch: TypeAlias = Callable[[], None]
"""Called at least five times a second while waiting; raises when the work is to stop."""
Report: TypeAlias = Callable[[Json], None]
"""Told of every progress message."""

_POLL_SECONDS = 0.1
_GRACE_SECONDS = 5.0


class SolverFailed(Exception):
    """The solver says that the job cannot be done."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class SolverDied(Exception):
    """The solver process ended in the middle of its work. in_flight: the pairs that it was training."""

    def __init__(self, how: str, in_flight: frozenset[Pair]) -> None:
        super().__init__(f"The solver process {how}.")
        self.how = how
        self.in_flight = in_flight


@dataclass(frozen=True, slots=True)
class Order:
    """What a solver process is started for. threads: 0 for all processors.

    cache_dir, cache_disk_bytes: of the packed models on local disk, from where an imported teacher is read.
    """

    dataset_id: str
    spec: Json
    threads: int
    log_level: str
    database_url: str = field(repr=False)
    cache_dir: str = ""
    cache_disk_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Prepared:
    """report: the teacher's summary, seconds by stage and metrics. Both byte strings are packages of core."""

    report: Json
    preparation: bytes
    teacher: bytes


@dataclass(frozen=True, slots=True)
class StudentResult:
    """One trained student, or why there is none: then ``packed`` is None and ``row`` has code and message.

    trace: of the search for it, compressed JSON; None where nothing was searched.
    """

    pair: Pair
    label: str
    row: Json
    packed: bytes | None
    trace: bytes | None = None


@dataclass(frozen=True, slots=True)
class _Process:
    """A running solver: where its commands go, and the queue its answers come by; None is the last."""

    popen: subprocess.Popen[bytes]
    commands: IO[bytes]
    frames: queue.SimpleQueue[Frame | None]
    pump: threading.Thread

    @classmethod
    def start(cls, command: Sequence[str]) -> _Process:
        # In a session of its own: a Ctrl-C in the terminal is for the worker, which ends its solver itself.
        popen = subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        if popen.stdin is None or popen.stdout is None:
            raise RuntimeError("the solver process has no pipes")
        frames: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        pump = threading.Thread(
            target=_pump, args=(popen.stdout, frames), name=f"solver-{popen.pid}", daemon=True
        )
        pump.start()
        return cls(popen, popen.stdin, frames, pump)

    def end(self) -> None:
        self.popen.kill()
        self.popen.wait()
        self.pump.join()
        # What was not yet flushed has nobody to read it.
        with contextlib.suppress(OSError):
            self.commands.close()


class Solver:
    """One job's solver process. A context manager: leaving it, however it is left, ends the process."""

    def __init__(self, order: Order, watch: Watch, command: Sequence[str] | None = None) -> None:
        self._order = order
        self._watch = watch
        self._command = command or [sys.executable, "-P", "-m", "app.jobs.solver_child"]
        self._process: _Process | None = None
        self._has_preparation = False

    def __enter__(self) -> Solver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def prepare(self, targets: Sequence[int], report: Report) -> Prepared:
        """Load the data, fit features and teacher. Raises SolverFailed, SolverDied, what the watch raises."""
        self._send("prepare", {"targets": list(targets)})
        answer = self._await("prepared", report)
        self._has_preparation = True
        preparation, teacher = answer.blobs
        return Prepared(answer.header, preparation, teacher)

    def train(
        self, pairs: Sequence[Pair], preparation_digest: str, report: Report
    ) -> Iterator[StudentResult]:
        """Students as they finish, in any order. Raises SolverFailed, SolverDied, what the watch raises."""
        if not self._has_preparation:
            self._send("restore", {"preparation_digest": preparation_digest})
            self._await("restored", report)
            self._has_preparation = True
        self._send("train", {"pairs": [list(pair) for pair in pairs]})
        in_flight: set[Pair] = set()
        while (frame := self._next(report, in_flight)).type != "trained":
            header = frame.header
            pair = (int(header["class_index"]), str(header["method"]))
            if frame.type == "started":
                in_flight.add(pair)
            else:
                in_flight.discard(pair)
                packed, trace, *_ = (*frame.blobs, None, None)
                yield StudentResult(pair, str(header["label"]), header, packed, trace)

    def close(self) -> None:
        """End the process, if there is one, and wait until it is gone."""
        process, self._process = self._process, None
        self._has_preparation = False
        if process is not None:
            process.end()

    def _send(self, kind: str, header: Json) -> None:
        if self._process is None:
            self._start()
            order = self._order
            self._write(
                "open",
                {
                    "database_url": order.database_url,
                    "dataset_id": order.dataset_id,
                    "spec": order.spec,
                    "threads": order.threads,
                    "log_level": order.log_level,
                    "cache_dir": order.cache_dir,
                    "cache_disk_bytes": order.cache_disk_bytes,
                },
            )
            self._await("opened", _ignore)
        self._write(kind, header)

    def _start(self) -> None:
        command = [*self._command, str(os.getpid())]
        # The database's password goes through the pipe: arguments and environment can be read by others.
        self._process = _Process.start(command)

    def _write(self, kind: str, header: Json) -> None:
        try:
            write_frame(self._running().commands, {"type": kind, **header})
        except OSError:
            raise self._death(frozenset()) from None

    def _running(self) -> _Process:
        if self._process is None:
            raise RuntimeError("the solver process is not running")
        return self._process

    def _await(self, kind: str, report: Report) -> Frame:
        frame = self._next(report, set())
        if frame.type != kind:
            raise SolverFailed("internal_error", f"The solver answered {frame.type} where {kind} was due.")
        return frame

    def _next(self, report: Report, in_flight: set[Pair]) -> Frame:
        """The next frame that is not progress."""
        while True:
            self._watch()
            try:
                frame = self._running().frames.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                continue
            if frame is None:
                raise self._death(frozenset(in_flight))
            if frame.type == "failed":
                raise SolverFailed(str(frame.header["code"]), str(frame.header["message"]))
            if frame.type != "progress":
                return frame
            report(frame.header)

    def _death(self, in_flight: frozenset[Pair]) -> SolverDied:
        """Tell how the process ended; it has closed its pipe, so it is gone or about to be."""
        try:
            code = self._running().popen.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            how = "closed its pipe without ending"
        else:
            how = f"was ended by {_signal_name(-code)}" if code < 0 else f"ended with status {code}"
        self.close()
        logger.warning("a solver process %s while training %s", how, sorted(in_flight) or "nothing")
        return SolverDied(how, in_flight)


def _pump(stream: IO[bytes], frames: queue.SimpleQueue[Frame | None]) -> None:
    """Move frames from the pipe to the queue until the pipe ends; None is the last."""
    try:
        with stream:
            while (frame := read_frame(stream)) is not None:
                frames.put(frame)
    except (BrokenFrame, OSError) as error:
        logger.error("the pipe from the solver is broken: %s", error)
    finally:
        frames.put(None)


def _signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return f"{name} (is there enough memory?)" if number == signal.SIGKILL else name


def _ignore(_progress: Json) -> None:
    return None
