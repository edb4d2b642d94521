"""The worker's side of a solver process: start it, talk to it, end it at once.

The process is started when it is first needed and stays for its job, so that what one unit has prepared or
restored is there for the next. It is a plain program with pipes: killed at any moment, it leaves nothing.
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
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import IO, TypeAlias

from app.domain.entities import Json
from app.jobs.solver.messages import BrokenFrame, Frame, read_frame, write_frame
from app.jobs.solver.transfer import Parcel

logger = logging.getLogger(__name__)

Pair: TypeAlias = tuple[int, str]
"""(class index, method)."""
Watch: TypeAlias = Callable[[], None]
"""Called at least five times a second while waiting; raises when the work is to stop."""
Report: TypeAlias = Callable[[Json], None]
"""Told of every progress message."""

SOLVER_COMMAND = (sys.executable, "-P", "-m", "app.jobs.solver.main")

_POLL_SECONDS = 0.1
_HINDERED_SECONDS = 1.0
_GRACE_SECONDS = 5.0
_STUDENTS_AT_ONCE = 64
_BYTES_AT_ONCE = 16 * 1024**2
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)


class SolverFailed(Exception):
    """The solver says that the job cannot be done."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class SolverHindered(Exception):
    """The solver lacks something of its surroundings just now, the database say: no verdict on the job."""


class SolverDied(Exception):
    """The solver process ended in the middle of its work. in_flight: the pairs that it was training."""

    def __init__(self, how: str, in_flight: frozenset[Pair]) -> None:
        super().__init__(f"The solver process {how}.")
        self.how = how
        self.in_flight = in_flight


@dataclass(frozen=True, slots=True)
class Order:
    """What a solver process works on. threads: 0 for all processors.

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
    """report: the teacher's summary, seconds by stage and metrics. Both parcels are packages of core."""

    report: Json
    preparation: Parcel
    teacher: Parcel


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
class SolverHandle:
    """A running solver: where its commands go, and the queue its answers come by; None is the last."""

    popen: subprocess.Popen[bytes]
    commands: IO[bytes]
    frames: queue.SimpleQueue[Frame | None]
    pump: threading.Thread

    @classmethod
    def start(
        cls,
        command: Sequence[str] = SOLVER_COMMAND,
        threads: int = 0,
        niceness: int = 0,
        *,
        spare: bool = False,
    ) -> SolverHandle:
        """Start a solver that nobody has told yet what to do. It ends with the thread that does so.

        threads: of the libraries' own pools; 0: as many as they like. niceness: its priority, 0 to 19, while
        it solves. spare: whether it is for later, and gets ready at that priority too.
        """
        # In a session of its own: a Ctrl-C in the terminal is for the worker, which ends its solver itself.
        popen = subprocess.Popen(  # noqa: S603
            [*command, str(os.getpid()), str(niceness), "later" if spare else "now"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=_environment(threads),
        )
        if popen.stdin is None or popen.stdout is None:
            raise RuntimeError("the solver process has no pipes")
        frames: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        pump = threading.Thread(
            target=_pump, args=(popen.stdout, frames), name=f"solver-{popen.pid}", daemon=True
        )
        pump.start()
        return cls(popen, popen.stdin, frames, pump)

    @property
    def has_said_something(self) -> bool:
        """Whether it has got ready, or has ended."""
        return not self.frames.empty()

    def end(self) -> None:
        self.popen.kill()
        self.popen.wait()
        self.pump.join()
        # What was not yet flushed has nobody to read it.
        with contextlib.suppress(OSError):
            self.commands.close()


class Solver:
    """One job's solver process. A context manager: leaving it, however it is left, ends the process.

    command: program and first arguments of the process, if not this package's own.
    start: gives a process nobody has told yet what to do; by default a new one, which ends with this thread.
    """

    def __init__(
        self,
        order: Order,
        watch: Watch,
        command: Sequence[str] | None = None,
        start: Callable[[], SolverHandle] | None = None,
    ) -> None:
        self._order = order
        self._watch = watch
        self._begin = start or partial(SolverHandle.start, command or SOLVER_COMMAND, order.threads)
        self._process: SolverHandle | None = None
        self._has_preparation = False

    def __enter__(self) -> Solver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Of the process; None while there is none."""
        return None if self._process is None else self._process.popen.pid

    @property
    def ready(self) -> bool:
        """Whether the process is there and has the job's preparation in memory."""
        return self._has_preparation and self._process is not None and self._process.popen.poll() is None

    def serve(self, watch: Watch) -> None:
        """From now on work for somebody else, and let him say when to stop."""
        self._watch = watch

    def prepare(self, targets: Sequence[int], report: Report) -> Prepared:
        """Load the data, fit features and teacher.

        Raises SolverFailed, SolverDied, SolverHindered, what the watch raises.
        """
        self._send("prepare", {"targets": list(targets)})
        answer = self._await("prepared", report)
        self._has_preparation = True
        labels = answer.header.get("parcels", [None] * len(answer.blobs))
        preparation, teacher = map(Parcel.unpack, labels, answer.blobs)
        return Prepared(answer.header, preparation, teacher)

    def train(
        self, pairs: Sequence[Pair], preparation_digest: str, report: Report
    ) -> Iterator[list[StudentResult]]:
        """Students in any order, each time all that have finished since the last, at most 64.

        Raises SolverFailed, SolverDied, SolverHindered, what the watch raises.
        """
        if not self._has_preparation:
            self._send("restore", {"preparation_digest": preparation_digest})
            self._await("restored", report)
            self._has_preparation = True
        self._send("train", {"pairs": [list(pair) for pair in pairs]})
        in_flight: set[Pair] = set()
        batch: list[StudentResult] = []
        try:
            while (frame := self._next(report, in_flight, wait=not batch)) is None or frame.type != "trained":
                if frame is None or frame.type != "started":
                    batch += [] if frame is None else [_result(frame, in_flight)]
                    if frame is None or _is_full(batch):
                        yield batch
                        batch = []
                else:
                    in_flight.add(_pair(frame))
        except (SolverDied, SolverFailed, SolverHindered):
            if batch:
                yield batch
            raise
        if batch:
            yield batch

    def wait_for_better(self) -> None:
        """Give the process up, and a moment to what hindered it. Raises what the watch raises."""
        self.close()
        until = time.monotonic() + _HINDERED_SECONDS
        while time.monotonic() < until:
            self._watch()
            time.sleep(_POLL_SECONDS)

    def close(self) -> None:
        """End the process, if there is one, and wait until it is gone."""
        process, self._process = self._process, None
        self._has_preparation = False
        if process is not None:
            process.end()

    def _send(self, kind: str, header: Json) -> None:
        if self._process is None:
            # The database's password goes through the pipe: arguments and environment can be read by others.
            self._process = self._begin()
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

    def _write(self, kind: str, header: Json) -> None:
        try:
            write_frame(self._running().commands, {"type": kind, **header})
        except OSError:
            raise self._death(frozenset()) from None

    def _running(self) -> SolverHandle:
        if self._process is None:
            raise RuntimeError("the solver process is not running")
        return self._process

    def _await(self, kind: str, report: Report) -> Frame:
        frame = self._next(report, set())
        if frame is None or frame.type != kind:
            other = "nothing" if frame is None else frame.type
            raise SolverFailed("internal_error", f"The solver answered {other} where {kind} was due.")
        return frame

    def _next(self, report: Report, in_flight: set[Pair], *, wait: bool = True) -> Frame | None:
        """The next frame that is not progress; None when there is none yet and nobody wants to wait."""
        while True:
            self._watch()
            try:
                frame = self._running().frames.get(block=wait, timeout=_POLL_SECONDS if wait else None)
            except queue.Empty:
                if not wait:
                    return None
                continue
            if frame is None:
                raise self._death(frozenset(in_flight))
            if frame.type == "failed" and frame.header.get("passing"):
                raise SolverHindered(str(frame.header["message"]))
            if frame.type == "failed":
                raise SolverFailed(str(frame.header["code"]), str(frame.header["message"]))
            if frame.type == "progress":
                report(frame.header)
            elif frame.type != "ready":
                return frame

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


def _pair(frame: Frame) -> Pair:
    return int(frame.header["class_index"]), str(frame.header["method"])


def _result(frame: Frame, in_flight: set[Pair]) -> StudentResult:
    pair = _pair(frame)
    in_flight.discard(pair)
    packed, trace, *_ = (*frame.blobs, None, None)
    return StudentResult(pair, str(frame.header["label"]), frame.header, packed, trace)


def _is_full(batch: Sequence[StudentResult]) -> bool:
    """Whether a batch is as much as one transaction should hold."""
    size = sum(len(result.packed or b"") + len(result.trace or b"") for result in batch)
    return len(batch) >= _STUDENTS_AT_ONCE or size >= _BYTES_AT_ONCE


def _environment(threads: int) -> dict[str, str]:
    """This process's own, with the libraries' pools no larger than the solver; 0: as large as they like."""
    limits = dict.fromkeys(_THREAD_VARIABLES, str(threads)) if threads else {}
    return {**os.environ, **limits}


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
