"""The hold on BLAS threads is the process's: counted, and never waited for."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from threadpoolctl import threadpool_info

from core.solvers.threads import one_blas_thread


def blas_threads():
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def test_a_second_thread_neither_waits_for_the_hold_nor_lifts_it():
    before = blas_threads()
    seen = []

    def hold():
        with one_blas_thread():
            seen.append(blas_threads())

    with one_blas_thread():
        other = threading.Thread(target=hold)
        other.start()
        other.join(10)
        seen.append(blas_threads())

    assert seen == [{1}, {1}]
    assert blas_threads() == before


def test_a_hold_may_contain_another_and_an_error_ends_both():
    before = blas_threads()
    with pytest.raises(ValueError, match="the block failed"), one_blas_thread(), one_blas_thread():
        raise ValueError("the block failed")
    assert blas_threads() == before


LOADED_BETWEEN = """
from threadpoolctl import threadpool_info
from core.solvers.threads import one_blas_thread
with one_blas_thread():
    pass
before = len(threadpool_info())
import scipy.linalg
assert len(threadpool_info()) > before
with one_blas_thread():
    print({library["num_threads"] for library in threadpool_info()})
"""


def test_a_library_that_was_loaded_between_two_blocks_is_limited():
    environ = {"OPENBLAS_NUM_THREADS": "4", "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", LOADED_BETWEEN], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout == "{1}\n"
