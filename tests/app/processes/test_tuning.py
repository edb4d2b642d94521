"""Freed memory is used again instead of being asked for anew."""

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

def turn():
    bodies = [np.ones(2_500_000, np.uint8) for _ in range(4)]
    kept = bytearray(100)

turn()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    turn()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a wish to the GNU C library")
def test_bodies_of_some_megabytes_use_the_same_pages_again():
    def faults(how: str) -> int:
        done = subprocess.run([sys.executable, "-c", WORK, how], capture_output=True, text=True, check=True)
        return int(done.stdout)

    kept = faults("kept")
    assert kept < 2500, "the pages of one turn"
    assert kept < faults("returned")


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tuning.sys, "platform", "darwin")
    assert tuning.keep_freed_memory() is False
    monkeypatch.setattr(tuning.sys, "platform", "linux")
    monkeypatch.setattr(tuning.ctypes, "CDLL", lambda _name: object())
    assert tuning.keep_freed_memory() is False
    assert tuning.FreedMemory().look() is False


@pytest.mark.skipif(sys.platform != "linux", reason="the GNU C library")
def test_much_freed_memory_is_given_back_after_a_while(monkeypatch: pytest.MonkeyPatch):
    now, sizes, trims = [100.0], [50 << 20], []
    monkeypatch.setattr(tuning.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(tuning, "resident_bytes", lambda: sizes[0])
    freed = tuning.FreedMemory()
    freed._trim = trims.append
    sizes[0] = 100 << 20
    assert not freed.look()
    now[0] += 6
    assert freed.look()
    assert trims == [0]
    now[0] += 6
    assert not freed.look()


RESIDENT = """
from app.processes.tuning import resident_bytes
before = resident_bytes()
kept = b"x" * (64 << 20)
print(resident_bytes() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the GNU C library")
def test_what_is_resident_is_what_the_system_says():
    # In a process of its own: this one may have freed as much before, which is resident already.
    done = subprocess.run([sys.executable, "-c", RESIDENT], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 32 << 20
