"""The worker's side of a solver process: start it, exchange messages with it, kill it.

The process starts when it is first needed and stays with its job, so that a unit finds what an earlier unit
has prepared or restored. It is a plain program with pipes, and leaves nothing behind if it is killed at any
moment.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import IO, Final, TypeAlias

from app.domain.entities import Json
from app.jobs.errors import InvalidMessage, SolverBlocked, SolverDied, SolverFailed, SolverInterrupted
from app.jobs.solver.messages import (
    AdditionResult,
    LabellingResult,
    Message,
    PreparationResult,
    ScoredRows,
    SolverSettings,
    StudentKey,
    StudentResult,
    read_message,
    write_message,
)
from app.jobs.solver.transfer import Transfer
from app.processes.os_process import StallDetector

logger = logging.getLogger(__name__)

CheckStop: TypeAlias = Callable[[], None]
"""Called at least five times a second during waits; raises when the work must stop."""
Report: TypeAlias = Callable[[Json], None]
"""Called with the header of every progress message."""
KeepScores: TypeAlias = Callable[[ScoredRows], None]
"""Called with each batch of a remote teacher's scores, to store it."""

SOLVER_COMMAND: Final = (sys.executable, "-P", "-m", "app.jobs.solver")

_POLL_SECONDS: Final = 0.1
_BACK_OFF_SECONDS: Final = 1.0
_EXIT_SECONDS: Final = 5.0
_MAX_BATCH_STUDENTS: Final = 64
_MAX_BATCH_BYTES: Final = 16 * 1024**2
_SECRET_VARIABLES = {
    "STMS_DATABASE_URL",
    "STMS_API_KEY",
    "STMS_REMOTE_TEACHER_TOKENS",
    "STMS_SECRETS_DIR",
    "STMS_FIRST_KEY_FILE",
    "STMS_WEBHOOK_SECRET",
}
_THREAD_VARIABLES: Final = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)


@dataclass(frozen=True, slots=True)
class SolverHandle:
    """A running solver: the stream of its commands and the queue of its answers, which ends with None."""

    popen: subprocess.Popen[bytes]
    commands: IO[bytes]
    answers: queue.SimpleQueue[Message | None]
    reader: threading.Thread

    @classmethod
    def start(
        cls,
        command: Sequence[str] = SOLVER_COMMAND,
        threads: int = 0,
        niceness: int = 0,
        *,
        spare: bool = False,
    ) -> SolverHandle:
        """Start a solver that has no job yet. It ends with the calling thread.

        threads: size of its libraries' thread pools; 0: their default. niceness: its priority while it
        solves, 0 to 19. spare: no job waits for it, so it also imports its libraries at that priority.
        """
        # In a new session, Ctrl-C in the terminal reaches only the worker, which then stops the solver.
        popen = subprocess.Popen(  # noqa: S603
            [*command, str(os.getpid()), str(niceness), "later" if spare else "now"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            # Numba reads a configuration file in the working folder, which can name code to load.
            cwd=os.sep,
            env=_environment(threads),
        )
        if popen.stdin is None or popen.stdout is None:
            raise RuntimeError("the solver process has no pipes")
        answers: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        reader = threading.Thread(
            target=_read_answers, args=(popen.stdout, answers), name=f"solver-{popen.pid}", daemon=True
        )
        reader.start()
        return cls(popen, popen.stdin, answers, reader)

    @property
    def has_answered(self) -> bool:
        """Whether it has become ready or has ended."""
        return not self.answers.empty()

    def end(self) -> None:
        """Kill the process and wait until it is gone."""
        self.popen.kill()
        self.popen.wait()
        self.reader.join()
        # Flushing the rest of the buffer fails, because the pipe has no reader.
        with contextlib.suppress(OSError):
            self.commands.close()


class Solver:
    """One job's solver process. As a context manager it ends the process on exit.

    command: program and first arguments of the process, if not those of this package.
    start: returns a process without a job; by default a new one, which ends with this thread.
    """

    def __init__(
        self,
        settings: SolverSettings,
        check_stop: CheckStop,
        command: Sequence[str] | None = None,
        start: Callable[[], SolverHandle] | None = None,
    ) -> None:
        self._settings = settings
        self._check_stop = check_stop
        self._start = start or partial(SolverHandle.start, command or SOLVER_COMMAND, settings.threads)
        self._process: SolverHandle | None = None
        self._stall: StallDetector | None = None
        self._has_preparation = False
        self._keep_scores: KeepScores = _lose_scores

    def __enter__(self) -> Solver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Process id; None without a process."""
        return None if self._process is None else self._process.popen.pid

    @property
    def ready(self) -> bool:
        """Whether the process runs and has the job's preparation in memory."""
        return self._has_preparation and self._process is not None and self._process.popen.poll() is None

    def attach(self, check_stop: CheckStop) -> None:
        """Work for another unit of the job, with that unit's check for a stop."""
        self._check_stop = check_stop

    def keep_scores(self, keep: KeepScores) -> None:
        """Give the batches of a remote teacher's scores to ``keep`` as they arrive."""
        self._keep_scores = keep

    def label(self, report: Report) -> LabellingResult:
        """Load the data and label its rows.

        Raises SolverFailed, SolverDied, SolverBlocked, and what the stop check raises.
        """
        self._send("label", {})
        answer = self._expect(("labelled",), report)
        labels = Transfer.from_header(answer.header["transfer"], answer.blobs[0])
        return LabellingResult(answer.header["report"], labels)

    def evaluate(self, evaluation_id: str, report: Report) -> Json:
        """Compute an evaluation; returns its result.

        Raises SolverFailed, SolverDied, SolverBlocked, and what the stop check raises.
        """
        self._send("evaluate", {"evaluation_id": evaluation_id})
        result: Json = self._expect(("evaluated",), report).header["result"]
        return result

    def prepare(self, targets: Sequence[int], report: Report) -> PreparationResult:
        """Load the data, fit features and teacher.

        Raises SolverFailed, SolverDied, SolverBlocked, and what the stop check raises.
        """
        self._send("prepare", {"targets": list(targets)})
        more: list[Json] = []
        while (answer := self._expect(("prepared", "measured"), report)).type == "measured":
            more += answer.header["metrics"]
        self._has_preparation = True
        metrics = [*answer.header.get("metrics", ()), *more]
        return PreparationResult(answer.header | {"metrics": metrics}, **_transfers(answer))

    def add_class(self, order: Json, report: Report) -> AdditionResult:
        """Load the data and train the student of an added class. order: arguments of the command ``add``.

        Raises SolverFailed, SolverDied, SolverBlocked, and what the stop check raises.
        """
        self._send("add", order)
        answer = self._expect(("added",), report)
        return AdditionResult(answer.header["row"], answer.header["report"], **_transfers(answer))

    def train(
        self, keys: Sequence[StudentKey], preparation_digest: str, report: Report
    ) -> Iterator[list[StudentResult]]:
        """Students in any order; yields up to 64 that have finished since the last batch.

        Raises SolverFailed, SolverDied, SolverBlocked, and what the stop check raises.
        """
        if not self._has_preparation:
            self._send("restore", {"preparation_digest": preparation_digest})
            self._expect(("restored",), report)
            self._has_preparation = True
        self._send("train", {"students": [list(key) for key in keys]})
        in_flight: set[StudentKey] = set()
        batch: list[StudentResult] = []
        try:
            while True:
                message = self._next(report, in_flight, wait=not batch)
                if message is not None and message.type == "trained":
                    break
                if message is not None and message.type == "started":
                    in_flight.add(message.key)
                    continue
                if message is not None:
                    in_flight.discard(message.key)
                    batch.append(_student_result(message))
                if message is None or _is_full(batch):
                    yield batch
                    batch = []
        except (SolverInterrupted, SolverFailed):
            if batch:
                yield batch
            raise
        if batch:
            yield batch

    def back_off(self, *, keep: bool = False) -> None:
        """Pause until the process may no longer be blocked. Raises the errors of the stop check.

        keep: do not end the process; it repeats only the blocked work.
        """
        if not keep:
            self.close()
        until = time.monotonic() + _BACK_OFF_SECONDS
        while time.monotonic() < until:
            self._check_stop()
            time.sleep(_POLL_SECONDS)

    def close(self) -> None:
        """End the process, if there is one, and wait until it is gone."""
        process, self._process = self._process, None
        self._stall = None
        self._has_preparation = False
        if process is not None:
            process.end()

    def _send(self, kind: str, header: Json) -> None:
        if self._process is None:
            self._process = self._start()
            self._stall = StallDetector(self._process.popen.pid, self._settings.stall_seconds)
            # The database's password goes through the pipe: other users can read arguments and environment.
            self._write("open", dataclasses.asdict(self._settings))
            self._expect(("opened",), lambda _progress: None)
        self._write(kind, header)

    def _write(self, kind: str, header: Json) -> None:
        try:
            write_message(self._running().commands, {"type": kind, **header})
        except OSError:
            raise self._death(frozenset()) from None

    def _running(self) -> SolverHandle:
        if self._process is None:
            raise RuntimeError("the solver process is not running")
        return self._process

    def _expect(self, kinds: tuple[str, ...], report: Report) -> Message:
        message = self._next(report, set())
        if message is None or message.type not in kinds:
            answer = "nothing" if message is None else message.type
            raise SolverFailed("internal_error", f"The solver answered {answer} instead of {kinds[0]}.")
        return message

    def _next(self, report: Report, in_flight: set[StudentKey], *, wait: bool = True) -> Message | None:
        """The next message that is not progress; None if there is none and ``wait`` is False."""
        while True:
            self._check_stop()
            try:
                message = self._running().answers.get(block=wait, timeout=_POLL_SECONDS if wait else None)
            except queue.Empty:
                if not wait:
                    return None
                self._check_stall(in_flight)
                continue
            if message is None:
                raise self._death(frozenset(in_flight))
            if self._stall is not None:
                self._stall.answered()
            if message.type == "failed" and message.header.get("retryable"):
                raise SolverBlocked(str(message.header["message"]), str(message.header["code"]))
            if message.type == "failed":
                raise SolverFailed(str(message.header["code"]), str(message.header["message"]))
            if message.type == "progress":
                report(message.header)
            elif message.type == "scored":
                header = message.header
                self._keep_scores(ScoredRows(int(header["part"]), int(header["first"]), message.blobs[0]))
            elif message.type != "ready":
                return message

    def _check_stall(self, in_flight: set[StudentKey]) -> None:
        """Kill a process that hangs. Raises SolverDied."""
        if self._stall is None or not self._stall.is_stalled():
            return
        how = f"hung: it neither answered nor computed for {self._settings.stall_seconds:.0f} s"
        logger.warning("a solver process %s, while training %s", how, sorted(in_flight) or "nothing")
        self.close()
        raise SolverDied(how, frozenset(in_flight), hung=True)

    def _death(self, in_flight: frozenset[StudentKey]) -> SolverDied:
        """Describe how the process ended. It has closed its pipe, so it has ended or is about to."""
        try:
            code = self._running().popen.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            how = "closed its pipe without ending"
        else:
            how = f"was ended by {_signal_name(-code)}" if code < 0 else f"ended with status {code}"
        self.close()
        logger.warning("a solver process %s while training %s", how, sorted(in_flight) or "nothing")
        return SolverDied(how, in_flight)


def _lose_scores(scores: ScoredRows) -> None:
    raise RuntimeError(f"the scores of part {scores.part} have no place")


def _transfers(answer: Message) -> dict[str, Transfer]:
    """The packages of an answer by name."""
    return {
        name: Transfer.from_header(header, blob)
        for (name, header), blob in zip(answer.header["transfers"].items(), answer.blobs, strict=True)
    }


def _student_result(message: Message) -> StudentResult:
    packed, shared_map, trace, *_ = (*(blob or None for blob in message.blobs), None, None, None)
    return StudentResult(message.key, str(message.header["label"]), message.header, packed, trace, shared_map)


def _is_full(batch: Sequence[StudentResult]) -> bool:
    """Whether a batch is as much as one transaction should store."""
    size = sum(result.nbytes for result in batch)
    return len(batch) >= _MAX_BATCH_STUDENTS or size >= _MAX_BATCH_BYTES


def _environment(threads: int) -> dict[str, str]:
    """This process's environment without secrets, with the libraries' thread pools limited to ``threads``.

    threads: 0 for no limit. The solver receives the address of the database, and the token of
    a remote teacher, through its pipe.
    """
    limits = dict.fromkeys(_THREAD_VARIABLES, str(threads)) if threads else {}
    return {name: value for name, value in os.environ.items() if name not in _SECRET_VARIABLES} | limits


def _read_answers(stream: IO[bytes], answers: queue.SimpleQueue[Message | None]) -> None:
    """Move messages from the pipe to the queue until the pipe ends; None is the last."""
    try:
        with stream:
            while (message := read_message(stream)) is not None:
                answers.put(message)
    except (InvalidMessage, OSError) as error:
        logger.error("the pipe from the solver is broken: %s", error)
    finally:
        answers.put(None)


def _signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return f"{name} (is there enough memory?)" if number == signal.SIGKILL else name
