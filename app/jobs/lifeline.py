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
_NICENESS = 5
_OOM_SCORE = "500"


def tie_to_parent(parent: int) -> None:
    """Die with the process ``parent``, however it ends: at once on Linux, within half a second elsewhere."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The parent may have died before the line above; the watch sees that too.
    _exit_when_orphaned(parent)
    threading.Thread(target=_watch, args=(parent,), name="lifeline", daemon=True).start()


def step_back() -> None:
    """Yield the processor to whoever answers queries, and be the first to go when memory runs out."""
    os.nice(_NICENESS)
    if sys.platform == "linux":
        # Not allowed in some sandboxes; then the kernel goes by size alone, and most likely picks the solver.
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE, encoding="ascii")


def _watch(parent: int) -> None:
    while True:
        _exit_when_orphaned(parent)
        time.sleep(0.5)


def _exit_when_orphaned(parent: int) -> None:
    if os.getppid() != parent:
        os._exit(1)
