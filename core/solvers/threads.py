"""One BLAS thread where answers must be repeatable bit for bit.

How a matrix product or an eigendecomposition is cut among threads changes the order of its sums and so its
last bits: the same data would give other features in a process with another number of threads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import threadpool_limits

_guard = threading.Lock()
_holders = 0
_limit: threadpool_limits | None = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Hold BLAS to one thread within the block.

    The number of BLAS threads belongs to the process, so the blocks of all its threads are counted: the first
    to enter sets the limit, the last to leave lifts it, and none waits for another. OpenBLAS lifts a limit
    only in the thread that set it: the block that spans the others belongs in the thread that started them.
    """
    global _holders, _limit  # noqa: PLW0603  the limit is the process's, and so is the count
    with _guard:
        if _holders == 0:
            _limit = threadpool_limits(limits=1)
        _holders += 1
    try:
        yield
    finally:
        with _guard:
            _holders -= 1
            if _holders == 0 and _limit is not None:
                _limit.restore_original_limits()
                _limit = None
