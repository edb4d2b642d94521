"""The limit of BLAS threads, seen from a process of its own: it is the process's."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import numpy
from threadpoolctl import threadpool_info
from app.processes.blas import one_blas_thread_for_good

one_blas_thread_for_good()
numpy.ones((300, 300)) @ numpy.ones((300, 300))
print({pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"})
"""


def test_blas_has_one_thread_and_keeps_it():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{1}"
