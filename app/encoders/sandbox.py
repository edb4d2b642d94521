"""What a child process gives up before it sees a byte of others; Linux on x86_64 and aarch64.

Its memory is limited, it writes no files, and the kernel answers every system call outside a short list with
EPERM: no file is opened, no process or connection started. The time of the processor is limited for each
question by `processor_seconds`: the kernel ends the process itself, and no other one has to watch it.
"""

from __future__ import annotations

import ctypes
import platform
import resource
import signal
import struct
import sys
from pathlib import Path
from typing import Final, Literal

Sandbox = Literal["seccomp", "limits"]

_CALLS: Final = {
    "read": (0, 63),
    "write": (1, 64),
    "close": (3, 57),
    "fstat": (5, 80),
    "lseek": (8, 62),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "brk": (12, 214),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "sched_yield": (24, 124),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "setitimer": (38, 103),
    "getpid": (39, 172),
    "sendto": (44, 206),
    "recvfrom": (45, 207),
    "exit": (60, 93),
    "gettimeofday": (96, 169),
    "getrusage": (98, 165),
    "sigaltstack": (131, 132),
    "gettid": (186, 178),
    "futex": (202, 98),
    "sched_getaffinity": (204, 123),
    "clock_gettime": (228, 113),
    "clock_nanosleep": (230, 115),
    "exit_group": (231, 94),
    "getrandom": (318, 278),
    "membarrier": (324, 283),
    "rseq": (334, 293),
}
"""The system calls that remain, with their numbers on x86_64 and aarch64."""
_MACHINES: Final = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Which numbers a machine has, and how the kernel names it (AUDIT_ARCH)."""
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_KILL, _ALLOW, _EPERM = 0x80000000, 0x7FFF0000, 0x00050001
_NUMBER_AT, _MACHINE_AT = 0, 4
_SET_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2


def restrict(memory: int, wanted: Sandbox) -> Sandbox:
    """Give up all rights but those above; returns what was possible.

    memory: bytes that the process may take beyond what it has. wanted: ``seccomp`` for everything, ``limits``
    for a system whose kernel cannot filter calls.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
        limit = pages * resource.getpagesize() + memory
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    return "seccomp" if wanted == "seccomp" and _filter_calls() else "limits"


def processor_seconds(seconds: float) -> None:
    """Let the kernel end this process after so many seconds of its processor time; 0: never."""
    signal.setitimer(signal.ITIMER_PROF, seconds)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def _filter_calls() -> bool:
    """Whether the kernel from now on refuses all calls but those of the list."""
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        return False
    code = _program(platform.machine())
    buffer = ctypes.create_string_buffer(code)
    program = _Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
        return False
    return bool(library.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0) == 0)


def _program(machine: str) -> bytes:
    """Instructions of a Berkeley packet filter: a call from another kind of machine ends the process."""
    column, name = _MACHINES[machine]
    numbers = sorted(numbers[column] for numbers in _CALLS.values())
    steps = [
        (_LOAD, 0, 0, _MACHINE_AT),
        (_EQUAL, 1, 0, name),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        *((_EQUAL, len(numbers) - k, 0, number) for k, number in enumerate(numbers)),
        (_RETURN, 0, 0, _EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("<HBBI", *step) for step in steps)
