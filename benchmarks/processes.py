"""Child processes pinned to one core, and small helpers about ports, times, memory, files and descendants."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

START_SECONDS = 90.0
_END_SECONDS = 30.0
_TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def running(
    command: Sequence[str | Path],
    core: int | str | None,
    folder: Path,
    environ: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Context manager of a process in ``folder``, whose output goes to ``folder/log``.

    core: the core to pin it to, or a list of cores as taskset takes it; None: those of this process. environ:
    variables to add to the environment.
    """
    pinned = [] if core is None else ["taskset", "--cpu-list", str(core)]
    with (folder / "log").open("wb") as output:
        process = subprocess.Popen(
            [*pinned, *map(str, command)],
            cwd=folder,
            env={**os.environ, **(environ or {})},
            stdout=output,
            stderr=output,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_it_answers(process: subprocess.Popen[bytes], url: str, folder: Path) -> None:
    """Wait until a GET succeeds. Raises RuntimeError with the log in ``folder`` after a timeout."""
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if _answers(url):
            return
        time.sleep(0.1)
    log = (folder / "log").read_text(errors="replace")
    raise RuntimeError(f"The server at {url} does not answer:\n{log}")


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


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except OSError:
        return False
    return True
