"""Limits BLAS to one thread where results must be bit-for-bit repeatable.

The number of BLAS threads determines the order of the sums in a matrix product or an eigendecomposition, and
so their last bits: the same data would give different features with another number of threads.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from threadpoolctl import ThreadpoolController

_guard = threading.Lock()
_holders = 0
_limit: Any = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread within the block.

    The limit applies to the whole process, so blocks in all threads are counted: the first to enter sets it,
    the last to leave restores it, and no block waits for another. OpenBLAS restores a limit only in the
    thread that set it, so a thread that starts others must enter a block around them.
    """
    global _holders, _limit  # noqa: PLW0603  the limit is the process's, and so is the count
    with _guard:
        if _holders == 0:
            _limit = _libraries(len(sys.modules)).limit(limits=1)
        _holders += 1
    try:
        yield
    finally:
        with _guard:
            _holders -= 1
            if _holders == 0 and _limit is not None:
                _limit.restore_original_limits()
                _limit = None


@contextmanager
def one_openmp_thread() -> Iterator[None]:
    """Limit OpenMP to one thread for the work that this thread starts within the block."""
    with _libraries(len(sys.modules)).limit(limits=1, user_api="openmp"):
        yield


@lru_cache(maxsize=1)
def _libraries(_modules: int) -> ThreadpoolController:
    """The loaded libraries with threads; searched again only after an import, because that takes 5 ms."""
    return ThreadpoolController()
