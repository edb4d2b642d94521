"""The process that reads uploaded files: ``python -m app.processes.file_reader_main``.

It reads one `Job` a line from standard input, forks a process that carries it out within limits, and writes
one `Answer` a line to standard output. It never reads a file itself, so it stays as it started. It ends with
its standard input, and after some minutes without a job.
"""

from __future__ import annotations

import errno
import gc
import importlib
import io
import logging
import math
import os
import resource
import select
import signal
import sys
from pathlib import Path
from typing import Final

import msgspec

from app.domain.errors import ServiceError, Unavailable
from app.domain.installation import only_serves
from app.ingest.orders import Order
from app.ingest.reading import carry_out
from app.logs import mask_logs
from app.processes.file_reader_messages import CANCEL, EXIT_MEMORY, EXIT_STORAGE, Answer, Failure, Job
from app.processes.os_process import deprioritise, die_with_parent

logger = logging.getLogger(__name__)

_FOR_BUNDLES: Final = ("app.ingest.bundle",)
_LIBRARIES: Final = (
    "app.ingest.arff",
    "app.ingest.arrow_file",
    "app.ingest.csv.reader",
    "app.ingest.dataset_format",
    "app.ingest.jsonl",
    "app.ingest.linear_head",
    "app.ingest.npz",
    "app.ingest.parquet",
    "app.ingest.picture_archive",
    "app.ingest.revising",
    "app.ingest.svmlight",
    "app.ingest.validate",
    "scipy.sparse",
)
_IDLE_SECONDS: Final = 300.0
_NICENESS: Final = 5
_MAX_OPEN_FILES: Final = 64
_EXIT_UNEXPECTED: Final = 4
_GIB: Final = 1024**3


def main() -> int:
    """Serve until standard input ends or nothing arrives for a while."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    mask_logs(os.environ.get("STMS_LOG_FORMAT", "text"))
    # Loading the libraries takes a second of a core; the forked processes inherit the priority.
    deprioritise(_NICENESS)
    for library in _FOR_BUNDLES if only_serves() else (*_FOR_BUNDLES, *_LIBRARIES):
        importlib.import_module(library)
    # The forked processes share these objects, and the garbage collector would copy their pages.
    gc.collect()
    gc.freeze()
    # Unbuffered, because a line could wait in a buffer where `select` does not see it.
    commands = io.FileIO(sys.stdin.fileno())
    decoder = msgspec.json.Decoder(Job)
    while select.select([commands], [], [], _IDLE_SECONDS)[0] and (line := commands.readline()):
        if line == CANCEL:
            # It came after the end of the job.
            continue
        answer = _fork(decoder.decode(line), commands)
        if answer is None:
            break
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()
    return 0


def _fork(job: Job, commands: io.FileIO) -> Answer | None:
    """Carry out a job in a separate process, which is killed at the next line or end of the commands.

    None if the commands ended, because the server then does not wait.
    """
    running, ended = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        code = _EXIT_UNEXPECTED
        try:
            code = _work(job, parent)
        except MemoryError:
            code = EXIT_MEMORY
        finally:
            # Nothing of the parent's is flushed or closed twice.
            os._exit(code)
    os.close(ended)
    # The pipe ends with the process, even if it is killed.
    ready, _, _ = select.select([running, commands.fileno()], [], [])
    os.close(running)
    if commands.fileno() in ready:
        os.kill(pid, signal.SIGKILL)
    _, status, usage = os.wait4(pid, 0)
    if commands.fileno() in ready and not commands.readline():
        return None
    seconds = usage.ru_utime + usage.ru_stime
    return Answer(os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024, seconds)


def _work(job: Job, parent: int) -> int:
    """Carry out a job in this process; returns its exit code. Raises MemoryError.

    parent: process id of the parent, taken before the fork: it may have ended since.
    """
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    # Standard output is only for the answers.
    os.dup2(2, 1)
    _limit(job)
    # After the limits, because it starts a thread.
    die_with_parent(parent)
    outcome: object
    try:
        outcome = carry_out(job.order)
    except ServiceError as error:
        outcome = Failure(type(error).__name__, error.message, error.reason, list(error.faults))
    except MemoryError:
        raise
    except OSError as error:
        if error.errno == errno.ENOMEM:
            return EXIT_MEMORY
        logger.exception("an uploaded file could not be read")
        text = f"The server cannot read or write the file: {error.strerror}."
        outcome = Failure(Unavailable.__name__, text, "storage_unusable", [])
    except Exception:
        logger.exception("an uploaded file could not be read")
        return _EXIT_UNEXPECTED
    try:
        Path(job.outcome).write_bytes(msgspec.json.encode(outcome))
    except OSError:
        logger.exception("the result of reading a file could not be written")
        return EXIT_STORAGE
    return 0


def _limit(job: Job) -> None:
    """Limit memory, time, files and their size.

    Files mapped into memory do not count as data, because the kernel writes their pages to disk when memory
    is short. They count towards the address space, so its limit is larger by the size that they may have.
    """
    seconds, most = math.ceil(job.seconds), _mapped_bytes(job.order)
    for kind, limit in (
        (resource.RLIMIT_DATA, job.memory),
        (resource.RLIMIT_AS, job.memory + most + 4 * _GIB),
        (resource.RLIMIT_FSIZE, most + _GIB),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, _MAX_OPEN_FILES),
    ):
        _, hard = resource.getrlimit(kind)
        lower = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (lower, lower))
    # SIGXCPU ends the process; SIGKILL follows if it does not.
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))


def _mapped_bytes(order: Order) -> int:
    """Most bytes of the files that carrying out an order may map or write."""
    return 2 * Path(order.source).stat().st_size + 4 * order.max_bytes


if __name__ == "__main__":
    sys.exit(main())
