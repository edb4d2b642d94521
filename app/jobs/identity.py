"""Who a worker is to the job engine. Two living processes never share a name."""

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
from app.settings import Settings

_SLOTS = 64


@dataclass(frozen=True, slots=True)
class Identity:
    """worker: name, host and process. lock: held while the name is in use; None where names are random."""

    worker: Worker
    lock: IO[str] | None

    def release(self) -> None:
        """Let another process have the name."""
        if self.lock is not None:
            self.lock.close()


def claim_identity(settings: Settings) -> Identity:
    """A name for this process.

    Embedded, the first free one of ``local-0`` to ``local-63``, held by a file lock in the data folder: a
    worker that is started again after a crash has its old name and goes on at once. Distributed, a name never
    used before: what a dead worker left is found by its peers. Raises Conflict when every slot is taken.
    """
    if not settings.embedded:
        host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())[:40]
        return Identity(_worker(f"{host}-{secrets.token_hex(6)}", settings), None)
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    for slot in range(_SLOTS):
        lock = _try_lock(settings.data_dir / f"worker-{slot}.lock")
        if lock is not None:
            return Identity(_worker(f"local-{slot}", settings), lock)
    raise Conflict(f"{_SLOTS} workers use {settings.data_dir} already.", code="too_many_workers")


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
    )


def _try_lock(path: Path) -> IO[str] | None:
    """The open file, locked until it is closed or the process ends; None when another process has it."""
    file = path.open("w", encoding="ascii")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file
