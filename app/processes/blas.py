"""How many threads a server process does one query's arithmetic with."""

from __future__ import annotations

from threadpoolctl import threadpool_limits


def one_blas_thread_for_good() -> None:
    """Hold BLAS to one thread for the rest of the process.

    A query is some microseconds of arithmetic: waking a second thread costs more than it saves, and on a busy
    machine the other cores belong to the other server processes.
    """
    threadpool_limits(limits=1, user_api="blas")
