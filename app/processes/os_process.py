"""A process as the operating system sees it: death of the parent, priority, memory, and whether it hangs."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import select
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import StrEnum
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Final

IDLE_NICENESS: Final = 20
"""Beyond the niceness of the system: see `deprioritise`."""

_MAX_NICENESS: Final = 19
_PR_SET_PDEATHSIG: Final = 1
_OOM_SCORE: Final = "500"
_POLL_SECONDS: Final = 0.5
_SCHED_SETATTR: Final = {"x86_64": 314, "aarch64": 274}
"""Number of the system call by machine."""
_RESET_ON_FORK: Final = 1
_LONG_SLICE_SECONDS: Final = 0.01
_SCHED_ATTR: Final = struct.Struct("=IIQiIQQQ")
"""size, policy, flags, niceness, priority, runtime, deadline, period"""

_CGROUPS: Final = Path("/sys/fs/cgroup")
_OWN_CGROUPS: Final = Path("/proc/self/cgroup")
_BUSY_SHARE: Final = 0.001
_BUSY_SECONDS: Final = 0.03
"""Processor time below which a process counts as idle: its own timers use a little, too."""
_LONGEST_POLL: Final = 1.0
_SESSION_ATTEMPTS: Final = 20
_SESSION_PAUSE: Final = 0.05
_STATM_BYTES: Final = 256


def die_with_parent(parent: int) -> None:
    """Kill this process when ``parent`` ends: immediately on Linux, within half a second elsewhere."""
    if sys.platform == "linux":
        _set_parent_death_signal(ctypes.CDLL(None, use_errno=True), signal.SIGKILL)
    # The parent may have died before the signal was set; the thread notices that too.
    _exit_if_orphaned(parent)
    threading.Thread(target=_end_with, args=(parent,), name="parent-watch", daemon=True).start()


def terminate_with_parent() -> Callable[[], None] | None:
    """Return a `preexec_fn` that sends the child SIGTERM when its parent ends, even by SIGKILL.

    More precisely, the signal is sent when the thread that started the child ends. None if the system has
    no such signal.
    """
    if sys.platform != "linux":
        return None
    # Loaded before the fork: few calls are safe between fork and exec.
    libc, parent = ctypes.CDLL(None, use_errno=True), os.getpid()

    def before_exec() -> None:
        _set_parent_death_signal(libc, signal.SIGTERM)
        # The parent may have died between the fork and the call above.
        _exit_if_orphaned(parent)

    return before_exec


class ProcessName(StrEnum):
    """Names of the service's processes in `ps` and `top`, where command lines may be those of their parent.

    The system keeps 15 bytes.
    """

    QUERY = "stms query"
    CONTROL = "stms control"
    WORKER = "stms worker"


def set_process_name(name: ProcessName) -> None:
    """Name this process. To be called in the main thread."""
    if sys.platform == "linux":
        # Some sandboxes forbid this.
        with suppress(OSError):
            Path("/proc/self/comm").write_text(name, encoding="ascii")


def kill_after_parent(seconds: float) -> None:
    """Kill this process ``seconds`` after its parent has ended.

    For processes with `terminate_with_parent`: no other process ends one that hangs in its shutdown.
    """
    parent = os.getppid()

    def watch() -> None:
        _wait_for_end_of(parent)
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def set_niceness(niceness: int) -> None:
    """Lower the priority of this process to ``niceness``; a priority that is lower already stays."""
    for thread in _threads():
        if os.getpriority(os.PRIO_PROCESS, thread) < niceness:
            # A thread that has just ended needs no priority.
            with contextlib.suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, thread, niceness)


def deprioritise(niceness: int) -> None:
    """Give query processes precedence over this one: for the processor, and when memory runs out.

    niceness: `IDLE_NICENESS` means to compute only while nothing else does.
    """
    is_idle = niceness >= IDLE_NICENESS
    niceness = min(niceness, _MAX_NICENESS)
    set_niceness(niceness)
    if sys.platform == "linux":
        # SCHED_BATCH never preempts an interactive process on wake-up. SCHED_IDLE is preempted by one at
        # once, and not only at the next tick of the kernel.
        policy = os.SCHED_IDLE if is_idle else os.SCHED_BATCH
        for thread in _threads():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setscheduler(thread, policy, os.sched_param(0))
        set_session_niceness(niceness)
        # Some sandboxes forbid this; the OOM killer then decides by size alone, which usually selects the
        # solver as well.
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE, encoding="ascii")


def set_session_niceness(niceness: int) -> bool:
    """Set the weight of this process's session, 0 to 19; returns whether it could.

    With autogroups the kernel divides the processor between sessions by a niceness of the session. Unlike the
    niceness of a process it may be lowered again.
    """
    for _ in range(_SESSION_ATTEMPTS):
        try:
            Path("/proc/self/autogroup").write_text(str(niceness), encoding="ascii")
        except BlockingIOError:
            # The kernel changes at most ten sessions a second for processes without privileges.
            time.sleep(_SESSION_PAUSE)
        except OSError:
            return False
        else:
            return True
    return False


def processor_times() -> dict[int, tuple[int, int]]:
    """Nanoseconds that each thread of this process has run, and has waited for the processor, by thread id.

    Empty if the system does not count them.
    """
    times: dict[int, tuple[int, int]] = {}
    if sys.platform == "linux":
        for thread in _threads():
            # The thread has just ended, or the kernel was built without schedstat.
            with contextlib.suppress(OSError):
                ran, waited, _ = Path(f"/proc/self/task/{thread}/schedstat").read_text("ascii").split()
                times[thread] = int(ran), int(waited)
    return times


def compute_in_background(niceness: int) -> None:
    """Let other threads preempt the calling thread as soon as they wake, but never the reverse.

    As the initializer of a pool of computing threads, it prevents them from delaying the event loop.
    niceness: of the thread; if its priority is already lower, it stays.
    """
    if sys.platform == "linux":
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, max(niceness, os.getpriority(os.PRIO_PROCESS, thread)))
        # SCHED_BATCH never preempts an interactive thread on wake-up.
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def set_time_slice(seconds: float) -> bool:
    """Set how long the calling thread may compute before another thread runs; returns whether it could.

    From Linux 6.12 a waking thread preempts threads with longer slices immediately, without a larger share
    of the processor; earlier versions ignore the slice. Threads and processes that the thread starts have the
    usual slice, and no negative niceness.
    """
    if sys.platform != "linux":
        return False
    policy = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK
    return _set_slice(policy, seconds, _RESET_ON_FORK)


def let_others_first() -> None:
    """Make the calling thread, and what it starts, preempt no other, and let waking threads preempt it.

    SCHED_BATCH of sched(7) does the first, and a time slice that is longer than usual does the second. The
    kernel still counts a thread that has just gone to sleep: if the slice of that thread ends before that of
    the waking thread, nothing is preempted until the next tick (4 ms).
    """
    if sys.platform == "linux" and not _set_slice(os.SCHED_BATCH, _LONG_SLICE_SECONDS):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def has_idle_core() -> bool:
    """Whether fewer threads are runnable than the machine has cores; False if that is unknown."""
    if sys.platform != "linux":
        return False
    runnable = Path("/proc/loadavg").read_text(encoding="ascii").split()[3].partition("/")[0]
    # The calling thread is one of them.
    return int(runnable) - 1 < (os.cpu_count() or 1)


def _set_slice(policy: int, seconds: float, flags: int = 0) -> bool:
    """Set policy and slice of the calling thread, which keeps its niceness; returns whether it could."""
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None:
        return False
    niceness, runtime = os.getpriority(os.PRIO_PROCESS, 0), int(seconds * 1e9)
    attributes = _SCHED_ATTR.pack(_SCHED_ATTR.size, policy, flags, niceness, 0, runtime, 0, 0)
    return bool(ctypes.CDLL(None).syscall(number, 0, attributes, 0) == 0)


def _set_parent_death_signal(libc: ctypes.CDLL, number: int) -> None:
    libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def _threads() -> list[int]:
    """Thread ids of this process. On Linux priorities belong to threads; new threads inherit them."""
    if sys.platform == "linux":
        return [int(task.name) for task in Path("/proc/self/task").iterdir()]
    return [0]


def _end_with(parent: int) -> None:
    _wait_for_end_of(parent)
    os._exit(1)


def _wait_for_end_of(parent: int) -> None:
    """Return when this process has another parent than ``parent``: at once on Linux, otherwise by polling."""
    if sys.platform == "linux":
        # Without permission in a sandbox, or if the parent has ended already.
        with suppress(OSError):
            descriptor = os.pidfd_open(parent)
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            # The id may have been given to another process before it was opened.
            if os.getppid() == parent:
                poll.poll()
            os.close(descriptor)
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)


def _exit_if_orphaned(parent: int) -> None:
    if os.getppid() != parent:
        os._exit(1)


def memory_limit(cgroups: Path = _CGROUPS, own: Path = _OWN_CGROUPS) -> int:
    """The smallest memory limit of this process's cgroup and of its ancestors, in bytes.

    Without a limit, or without cgroups (version 1 or 2), it is the memory of the machine. cgroups: where they
    are mounted. own: file that names the process's cgroups.
    """
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *_limits(cgroups, own)])


def memory_bytes() -> tuple[int, int]:
    """Virtual size and resident set size of this process in bytes; zeros if unknown."""
    if sys.platform != "linux":
        return 0, 0
    virtual, resident = os.pread(_statm(os.getpid()), _STATM_BYTES, 0).split()[:2]
    page = os.sysconf("SC_PAGE_SIZE")
    return int(virtual) * page, int(resident) * page


@cache
def _statm(_pid: int) -> int:
    """Descriptor of this process's statm file. It stays open, so that reading it needs no free descriptor."""
    return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)


def limit_memory(limit: int) -> None:
    """Limit the memory of this process; an allocation beyond it raises MemoryError.

    Mapped files do not count, because their pages can be dropped. Only Linux has such a limit.
    """
    if sys.platform == "linux":
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


def _limits(cgroups: Path, own: Path) -> Iterator[int]:
    lines: list[str] = []
    with suppress(OSError):
        lines = own.read_text(encoding="utf-8").splitlines()
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            root, name = cgroups, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = cgroups / "memory", "memory.limit_in_bytes"
        else:
            continue
        inside = PurePosixPath(path.lstrip("/"))
        # Within a container its own cgroup may be mounted as the root, so the path need not exist below it.
        for folder in (inside, *inside.parents):
            # Missing files, and "max", which means no limit.
            with suppress(OSError, ValueError):
                yield int((root / folder / name).read_text(encoding="ascii"))


class StallDetector:
    """Call `is_stalled` several times a second, and `answered` for every answer of the process.

    limit: seconds without an answer and without processor time; 0 for no limit. Time in which this process
    itself did not run, such as a freeze of the whole machine, does not count. On systems without /proc no
    stall is detected.
    """

    def __init__(self, pid: int, limit: float) -> None:
        self._pid = pid
        self._limit = limit
        self._polled_at = time.monotonic()
        self._quiet = 0.0
        self._used: float | None = None

    def answered(self) -> None:
        """Start again: the process has answered."""
        self._polled_at = time.monotonic()
        self._quiet = 0.0

    def is_stalled(self) -> bool:
        """Whether the process has been silent and idle for longer than the limit."""
        now = time.monotonic()
        if self._quiet == 0.0:
            self._used = cpu_seconds(self._pid)
        self._quiet += min(now - self._polled_at, _LONGEST_POLL)
        self._polled_at = now
        if not self._limit or self._quiet <= self._limit:
            return False
        used = cpu_seconds(self._pid)
        self._quiet = 0.0
        return used is not None and self._used is not None and used - self._used <= self._allowance

    @property
    def _allowance(self) -> float:
        return max(_BUSY_SECONDS, _BUSY_SHARE * self._limit)


def cpu_seconds(pid: int) -> float | None:
    """Processor time that all threads of a process have used; None if unknown."""
    if sys.platform != "linux":
        return None
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The program's name, in parentheses, may contain spaces.
    user, system = fields.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
