"""The name of a worker process, which is its executor id in DBOS. Two live processes never share a name."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from app.domain.entities import Worker
from app.domain.errors import Conflict
from app.processes.os_process import memory_limit
from app.settings import Settings
from app.store.private_files import make_private

_MAX_EMBEDDED_WORKERS = 64
_RESERVED_BYTES = 512 * 1024**2
"""Memory that is reserved for the worker itself."""
_LEAST_BYTES = 512 * 1024**2


@dataclass(frozen=True, slots=True)
class Identity:
    """worker: name, host and process. lock: file lock on the name; None for random names."""

    worker: Worker
    lock: IO[str] | None

    def release(self) -> None:
        """Release the name for another process."""
        if self.lock is not None:
            self.lock.close()


def claim_identity(settings: Settings) -> Identity:
    """A name for this process.

    Embedded, the first free one of ``local-0`` to ``local-63``, reserved by a file lock in the data folder: a
    worker restarted after a crash gets its old name and resumes its work immediately. Distributed, a name
    never used before: the peers take over the work of a dead worker. Raises Conflict if none is free.
    """
    if not settings.embedded:
        host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:40]
        return Identity(_worker(f"{host}-{secrets.token_hex(6)}", settings), None)
    make_private(settings.data_dir)
    for number in range(_MAX_EMBEDDED_WORKERS):
        lock = _try_lock(settings.data_dir / f"worker-{number}.lock")
        if lock is not None:
            return Identity(_worker(f"local-{number}", settings), lock)
    raise Conflict(
        f"{_MAX_EMBEDDED_WORKERS} workers already use {settings.data_dir}.", code="too_many_workers"
    )


def _worker(executor_id: str, settings: Settings) -> Worker:
    now = time.time()
    return Worker(
        executor_id,
        socket.gethostname()[:255],
        os.getpid(),
        started_at=now,
        beat_at=now,
        slots=settings.worker_concurrency,
        threads=settings.solver_threads or len(os.sched_getaffinity(0)),
        solver_bytes=solver_memory(settings),
    )


def solver_memory(settings: Settings) -> int:
    """Memory limit of one solver process in bytes: the setting, or an equal share of this machine's."""
    if settings.solver_memory_bytes:
        return settings.solver_memory_bytes
    available = memory_limit() - _RESERVED_BYTES
    return max(_LEAST_BYTES, available // settings.worker_concurrency)


def _try_lock(path: Path) -> IO[str] | None:
    """The open file, locked until it is closed or the process ends; None if another process has locked it."""
    file = path.open("w", encoding="ascii")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file
