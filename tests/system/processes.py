"""Programs as child processes, and small helpers about ports, times, memory, files and descendants."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx

from app.processes.os_process import terminate_with_parent

T = TypeVar("T")

START_SECONDS = 300.0
_END_SECONDS = 60.0
_TICKS = os.sysconf("SC_CLK_TCK")


class Starter:
    """A thread that starts processes. They are ended when the thread that started them ends, so it stays."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="starter")

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a process in a new session. options: arguments of subprocess.Popen. Raises OSError."""

        def begin() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                command,
                start_new_session=True,
                preexec_fn=terminate_with_parent(),  # which calls nothing but the kernel
                **options,
            )

        return self._thread.submit(begin).result()


class Process:
    """One program in ``folder``, whose output goes to ``<name>.log`` there; it ends with its parent.

    A context manager that starts it, waits until it answers, and ends it. command: program and arguments.
    environ: its whole environment; None: that of this process. cores: those it may use, as taskset takes
    them; None: those of this process. url: a GET of it succeeds once the program is ready; empty: it is not
    waited for. was_signalled: whether a signal was sent to it, so that its end is no fault.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        folder: Path,
        environ: Mapping[str, str] | None = None,
        *,
        cores: int | str | None = None,
        url: str = "",
    ) -> None:
        pinned = [] if cores is None else ["taskset", "--cpu-list", str(cores)]
        self.name, self.url = name, url
        self.log = folder / f"{name}.log"
        self._command = [*pinned, *map(str, command)]
        self._folder = folder
        self._environ = None if environ is None else dict(environ)
        self._starter = Starter()
        self._process: subprocess.Popen[bytes] | None = None
        self.was_signalled = self._is_ending = False

    def __enter__(self) -> Self:
        self.start()
        try:
            self.wait_until_ready()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self) -> None:
        """Start the program, perhaps once more; the log goes on. Raises OSError."""
        self._is_ending = False
        with self.log.open("ab") as output:
            self._process = self._starter.start(
                self._command,
                cwd=self._folder,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    @property
    def pid(self) -> int:
        """Process id, also after its end. Raises RuntimeError before the first start."""
        return self._started().pid

    @property
    def code(self) -> int | None:
        """Exit code; None while it runs."""
        return self._started().poll()

    @property
    def is_running(self) -> bool:
        """Whether the program was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def said(self, characters: int = 4000) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-characters:] if self.log.exists() else ""

    def wait_until_ready(
        self, is_ready: Callable[[], object] | None = None, seconds: float = START_SECONDS
    ) -> None:
        """Wait until the condition holds, by default until a GET of ``url`` succeeds.

        Raises RuntimeError with the end of its log if the program ends before, or after ``seconds``.
        """
        is_ready = is_ready or (lambda: not self.url or answers(self.url))
        deadline = time.monotonic() + seconds
        while not is_ready():
            if not self.is_running or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} does not get ready:\n{self.said()}")
            time.sleep(0.05)

    def send(self, number: signal.Signals) -> None:
        """Send a signal; one that has ended gets none."""
        self.was_signalled = True
        self._started().send_signal(number)

    def kill(self) -> None:
        """Kill the program and wait for its end."""
        self.send(signal.SIGKILL)
        self.wait()

    def wait(self, seconds: float = _END_SECONDS) -> int:
        """Exit code, once it has ended. Raises subprocess.TimeoutExpired."""
        return self._started().wait(seconds)

    def begin_end(self) -> None:
        """Ask the program to end, also one that is paused; a second signal would cut its shutdown short."""
        if not self._is_ending and self.is_running:
            self._is_ending = True
            self.send(signal.SIGCONT)
            self.send(signal.SIGTERM)

    def end(self, seconds: float = _END_SECONDS) -> int | None:
        """End the program, also one that is paused. Returns its exit code; None if it had to be killed."""
        if self._process is None:
            return 0
        self.begin_end()
        try:
            return self.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started.")
        return self._process


def answers(url: str, seconds: float = 5.0, **options: Any) -> bool:
    """Whether a GET succeeds within ``seconds``. options: arguments of `httpx.get`."""
    try:
        return httpx.get(url, timeout=seconds, trust_env=False, **options).is_success
    except httpx.TransportError:
        return False


def wait_for(condition: Callable[[], T], seconds: float = START_SECONDS) -> T:
    """The first result of the condition that counts as true. Raises TimeoutError after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"The condition did not hold within {seconds:.0f} s.")
        time.sleep(0.02)
    return result


def family(pid: int) -> list[int]:
    """Process ids of a process and all its descendants."""
    found = [pid]
    for parent in found:
        # /proc lists children by the thread that started them. Processes and threads end meanwhile.
        with suppress(FileNotFoundError, ProcessLookupError):
            for thread in Path(f"/proc/{parent}/task").iterdir():
                with suppress(FileNotFoundError, ProcessLookupError):
                    found += map(int, (thread / "children").read_text(encoding="ascii").split())
    return found


def descendants(pid: int) -> list[int]:
    """Process ids of all living descendants of a process."""
    return [each for each in family(pid)[1:] if is_alive(each)]


def command_line(pid: int) -> str:
    """Program and arguments of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def process_name(pid: int) -> str:
    """What `ps` calls a process; empty if it has ended. Those of the service have names of their own."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").rstrip("\n")
    except OSError:
        return ""


def parent_of(pid: int) -> int:
    """Process id of the parent. Raises FileNotFoundError if the process has ended."""
    status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return int(status.rpartition(")")[2].split()[1])


def is_alive(pid: int) -> bool:
    """Whether the process runs and is not a zombie."""
    return _state(pid) not in "ZX"


def is_stopped(pid: int) -> bool:
    """Whether the process was stopped by a signal, and has not been continued."""
    return _state(pid) == "T"


def _state(pid: int) -> str:
    """The letter of the process's state; X if there is no such process."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "X"
    # The program's name, in parentheses, may contain spaces and parentheses.
    return status.rpartition(")")[2].split()[0]


def with_variable(variable: str) -> list[int]:
    """Process ids of all living processes whose environment has ``NAME=value``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and is_alive(int(entry.name)):
            with suppress(OSError):
                if variable.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def cpu_seconds(pids: Sequence[int]) -> float:
    """Sum of the user and system time of processes, in seconds."""
    ticks = 0
    for pid in pids:
        # The program's name, in parentheses, may contain spaces and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS


def core_seconds(pids: Sequence[int]) -> dict[Path, float]:
    """Time that each live thread of processes has been on a core, in seconds, to the nanosecond."""
    spent = {}
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                with suppress(FileNotFoundError, ProcessLookupError):
                    spent[thread] = int((thread / "schedstat").read_text(encoding="ascii").split()[0]) / 1e9
    return spent


def core_seconds_since(before: Mapping[Path, float], pids: Sequence[int]) -> float:
    """The time since ``core_seconds`` of those threads that are still there, and of new ones."""
    return sum(seconds - before.get(thread, 0.0) for thread, seconds in core_seconds(pids).items())


def memory(pids: Iterable[int]) -> tuple[int, int]:
    """Resident memory of processes in bytes: the present one, and the sum of their peaks.

    A process that has ended, but was not waited for yet, has none.
    """
    resident = peak = 0
    for pid in pids:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        sizes = dict(line.split(":", 1) for line in status.splitlines())
        resident += int(sizes.get("VmRSS", "0").split()[0]) * 1024
        peak += int(sizes.get("VmHWM", "0").split()[0]) * 1024
    return resident, peak


def reset_peaks(pids: Iterable[int]) -> None:
    """Let the peaks of `memory` begin at the present resident memory (proc(5), clear_refs)."""
    for pid in pids:
        Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")


def open_files(pid: int) -> list[str]:
    """Targets of the file descriptors of a process, without those that are closed meanwhile."""
    targets = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            targets.append(str(descriptor.readlink()))
    return targets


def two_cores() -> tuple[int, int]:
    """One core for a server and one for its clients; twice the same on a machine with a single core."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    return cores[0], cores[-1]


def free_port() -> int:
    """A TCP port of 127.0.0.1 at which no process listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int, seconds: float, pause: float) -> None:
    """Wait until a process listens, polling every ``pause`` seconds. Raises OSError after ``seconds``."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(pause)
        else:
            return


def proportional_bytes(pid: int) -> int:
    """Memory of a process, each page divided by the number of processes that have it (PSS)."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    return next(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:"))
