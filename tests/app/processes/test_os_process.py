"""Attributes of threads: niceness, scheduling policy and time slice, each set in a process of its own."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="attributes of threads on Linux")

SHOW = """
import os, sys, threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

def show(_=None):
    thread = threading.get_native_id()
    policy = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK
    print(policy, os.getpriority(os.PRIO_PROCESS, thread), flush=True)

def slice_of_this_thread():
    import ctypes, struct
    number = {"x86_64": 315, "aarch64": 275}[os.uname().machine]
    attributes = ctypes.create_string_buffer(48)
    failed = ctypes.CDLL(None).syscall(number, 0, attributes, 48, 0)
    return -1 if failed else struct.unpack("=IIQiIQQQ", attributes.raw)[5]
"""


def printed(code: str) -> list[list[int]]:
    """The numbers of each line that ``code`` prints."""
    command = [sys.executable, "-c", SHOW + code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return [list(map(int, line.split())) for line in done.stdout.splitlines()]


def test_threads_of_a_pool_compute_in_the_background_and_the_event_loop_does_not():
    pool, below, loop = printed(
        "from app.processes.os_process import compute_in_background\n"
        "for niceness in (15, 0):\n"
        "    with ThreadPoolExecutor(1, 'test', compute_in_background, (niceness,)) as pool:\n"
        "        pool.submit(show).result()\n"
        "show()\n"
    )
    policy, own = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)
    assert pool == [os.SCHED_BATCH, max(15, own)]
    assert below == [os.SCHED_BATCH, own], "a priority that is lower already stays"
    assert loop == [policy, own]


def test_the_event_loop_gets_the_interpreter_lock_soon_and_keeps_its_priority():
    [[microseconds], loop] = printed(
        "from app.processes.tuning import favour_event_loop\n"
        "favour_event_loop()\n"
        "print(round(sys.getswitchinterval() * 1e6))\n"
        "show()\n"
    )
    assert microseconds <= 500
    assert loop == [os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)]


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="numbers of system calls")
def test_only_the_event_loop_has_a_short_time_slice():
    [[was_set], [loop], [thread]] = printed(
        "from app.processes.os_process import set_time_slice\n"
        "print(int(set_time_slice(0.0001)))\n"
        "print(slice_of_this_thread())\n"
        "with ThreadPoolExecutor(1) as pool:\n"
        "    print(pool.submit(slice_of_this_thread).result())\n"
    )
    if has_slices():
        assert (was_set, loop) == (1, 100_000)
        assert thread > loop
    else:
        assert loop == thread


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="numbers of system calls")
def test_who_lets_others_first_has_long_slices_and_so_do_its_threads():
    [own, [niceness], thread] = printed(
        "from app.processes.os_process import let_others_first, set_niceness\n"
        "set_niceness(3)\n"
        "let_others_first()\n"
        "print(os.sched_getscheduler(0), slice_of_this_thread())\n"
        "print(os.getpriority(os.PRIO_PROCESS, 0))\n"
        "with ThreadPoolExecutor(1) as pool:\n"
        "    print(*pool.submit(lambda: (os.sched_getscheduler(0), slice_of_this_thread())).result())\n"
    )
    assert niceness == max(3, os.getpriority(os.PRIO_PROCESS, 0))
    assert own == thread
    assert own[0] == os.SCHED_BATCH
    if has_slices():
        assert own[1] == 10_000_000


def has_slices() -> bool:
    """Whether the kernel knows slices of threads."""
    return tuple(map(int, platform.release().split("-")[0].split(".")[:2])) >= (6, 12)


PARENT = """
import subprocess, sys, time
from app.processes.os_process import terminate_with_parent
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], preexec_fn=terminate_with_parent())
time.sleep(60)
"""
CHILD = """
import signal, time
from app.processes.os_process import kill_after_parent
signal.signal(signal.SIGTERM, lambda *_: print("asked to end", flush=True))
kill_after_parent(0.3)
print("started", flush=True)
while True:
    time.sleep(60)
"""


def test_a_process_that_hangs_while_it_ends_is_killed_although_its_parent_has_died():
    command = [sys.executable, "-c", PARENT, CHILD]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "started\n"
        parent.kill()
        # The output ends with the last process that has it open.
        assert parent.stdout.read() == "asked to end\n"
