"""Making sure that a solver process never outlives its worker, and never gets in anybody's way."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_OOM_SCORE = "500"


def tie_to_parent(parent: int) -> None:
    """Die with the process ``parent``, however it ends: at once on Linux, within half a second elsewhere."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The parent may have died before the line above; the watch sees that too.
    _exit_when_orphaned(parent)
    threading.Thread(target=_watch, args=(parent,), name="lifeline", daemon=True).start()


def yield_to_others(niceness: int) -> None:
    """Lower this process's priority to ``niceness``, or leave it where it is lower already."""
    for thread in _threads():
        if os.getpriority(os.PRIO_PROCESS, thread) < niceness:
            # A thread that has just ended needs none.
            with contextlib.suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, thread, niceness)


def step_back(niceness: int) -> None:
    """Yield the processor to whoever answers queries, and be the first to go when memory runs out."""
    yield_to_others(niceness)
    if sys.platform == "linux":
        # Never wakes up in front of somebody who is interactive.
        for thread in _threads():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))
        # Where the kernel groups by session it weighs this one by a number of its own.
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(niceness), encoding="ascii")
        # Not allowed in some sandboxes; then the kernel goes by size alone, and most likely picks the solver.
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE, encoding="ascii")


def has_idle_core() -> bool:
    """Whether this machine has fewer threads that want to run than cores, just now; False if nobody knows."""
    if sys.platform != "linux":
        return False
    runnable = Path("/proc/loadavg").read_text(encoding="ascii").split()[3].partition("/")[0]
    # The one who asks runs, too.
    return int(runnable) - 1 < (os.cpu_count() or 1)


def _threads() -> list[int]:
    """On Linux priorities are of threads; later ones have those of the thread that starts them."""
    if sys.platform == "linux":
        return [int(task.name) for task in Path("/proc/self/task").iterdir()]
    return [0]


def _watch(parent: int) -> None:
    while True:
        _exit_when_orphaned(parent)
        time.sleep(0.5)


def _exit_when_orphaned(parent: int) -> None:
    if os.getppid() != parent:
        os._exit(1)
