"""Tuning of a server process, measured in processes of its own: page faults, heap size, BLAS threads."""

from __future__ import annotations

import subprocess
import sys

import pytest

from app.processes import tuning

WORK = """
import resource, sys
import numpy as np
from app.processes.tuning import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()

def use_memory():
    bodies = [np.ones(2_500_000, np.uint8) for _ in range(4)]
    kept = bytearray(100)

use_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    use_memory()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt of the GNU C library")
def test_bodies_of_some_megabytes_reuse_the_same_pages():
    def faults(how: str) -> int:
        done = subprocess.run([sys.executable, "-c", WORK, how], capture_output=True, text=True, check=True)
        return int(done.stdout)

    kept = faults("kept")
    assert kept < 2500, "the pages of one round"
    assert kept < faults("returned")


def test_systems_without_mallopt_are_not_tuned(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tuning.sys, "platform", "darwin")
    assert tuning.keep_freed_memory() is False
    monkeypatch.setattr(tuning.sys, "platform", "linux")
    monkeypatch.setattr(tuning.ctypes, "CDLL", lambda _name: object())
    assert tuning.keep_freed_memory() is False
    assert tuning.MallocTrimmer().poll() is False


@pytest.mark.skipif(sys.platform != "linux", reason="the GNU C library")
def test_a_grown_heap_is_trimmed_after_a_while(monkeypatch: pytest.MonkeyPatch):
    now, sizes, trims = [100.0], [50 << 20], []
    monkeypatch.setattr(tuning.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(tuning, "resident_bytes", lambda: sizes[0])
    trimmer = tuning.MallocTrimmer()
    trimmer._trim = trims.append
    sizes[0] = 100 << 20
    assert not trimmer.poll()
    now[0] += 6
    assert trimmer.poll()
    assert trims == [0]
    now[0] += 6
    assert not trimmer.poll()


@pytest.mark.skipif(sys.platform != "linux", reason="the GNU C library")
def test_a_trim_during_a_request_is_followed_by_another(monkeypatch: pytest.MonkeyPatch):
    now, size = [100.0], [50 << 20]
    monkeypatch.setattr(tuning.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(tuning, "resident_bytes", lambda: size[0])
    trimmer = tuning.MallocTrimmer()
    trims = []

    def trim_to(left: int) -> None:
        now[0] += 6
        trimmer._trim = lambda _pad: (trims.append(left), size.__setitem__(0, left << 20))
        trimmer.poll()

    size[0] = 120 << 20
    trim_to(110)  # the request still has 60 MB, which it then frees
    trim_to(50)
    trim_to(50)
    assert trims == [110, 50]


RESIDENT = """
from app.processes.tuning import resident_bytes
before = resident_bytes()
kept = b"x" * (64 << 20)
print(resident_bytes() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the GNU C library")
def test_resident_bytes_grow_with_an_allocation():
    # In a separate process, since this one may hold freed memory that is resident already.
    done = subprocess.run([sys.executable, "-c", RESIDENT], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 32 << 20


BLAS = """
import numpy
from threadpoolctl import threadpool_info
from app.processes.tuning import limit_blas_threads

limit_blas_threads()
numpy.ones((300, 300)) @ numpy.ones((300, 300))
print({pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"})
"""


def test_blas_is_limited_to_one_thread():
    done = subprocess.run([sys.executable, "-c", BLAS], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{1}"


def test_the_control_process_preempts_nobody():
    program = (
        "import os; from app.processes.tuning import favour_others; favour_others();"
        " print(os.sched_getscheduler(0) == os.SCHED_BATCH)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
