"""Load generators that run on another core than the server: maximum throughput with wrk, or a constant rate.

`wrk` keeps a number of connections busy and measures the throughput. `constant_rate` sends each request at
its scheduled time, even if earlier ones are still unanswered, and measures latency from that time, so that
requests that wait for a stalled server are counted (no "coordinated omission"). It is a busy loop over
non-blocking sockets compiled by Numba, accurate to about a microsecond, where wrk waits in milliseconds.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from numba import njit
from numpy.typing import NDArray

_SCRIPT = """
local file = io.open("%(body)s", "rb")
wrk.body = file:read("*a")
file:close()
wrk.method = "POST"
%(headers)s
done = function(summary, latency, requests)
    local errors = summary.errors
    io.write(string.format(
        '\\n{"requests":%%d,"us":%%d,"p50":%%f,"p90":%%f,"p99":%%f,"status":%%d,"socket":%%d}\\n',
        summary.requests, summary.duration, latency:percentile(50), latency:percentile(90),
        latency:percentile(99), errors.status,
        errors.connect + errors.read + errors.write + errors.timeout))
end
"""


class WrkMissing(Exception):
    """wrk is not installed."""


@dataclass(frozen=True, slots=True)
class Load:
    """Result of a measurement. rate: requests per second. p50_us, p90_us, p99_us: quantiles of the latency.

    failed: number of failed requests. `wrk` includes their latencies, `constant_rate` does not.
    """

    rate: float
    p50_us: float
    p90_us: float
    p99_us: float
    requests: int
    failed: int


def wrk(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    connections: int,
    seconds: float,
    core: int,
) -> Load:
    """Send as many POST requests as the server can answer on ``connections``. Raises WrkMissing."""
    program = shutil.which("wrk")
    if program is None:
        raise WrkMissing("wrk is needed to load a server. On Debian: apt-get install wrk")
    with tempfile.TemporaryDirectory(prefix="stms-load-") as folder:
        script, content = Path(folder) / "load.lua", Path(folder) / "body"
        content.write_bytes(body)
        lines = (f"wrk.headers[{json.dumps(name)}] = {json.dumps(value)}" for name, value in headers.items())
        script.write_text(_SCRIPT % {"body": content, "headers": "\n".join(lines)})
        command = [
            "taskset",
            "--cpu-list",
            str(core),
            program,
            "-t1",
            f"-c{connections}",
            f"-d{seconds:g}s",
            "--timeout",
            "10s",
            "--latency",
        ]
        done = subprocess.run(
            [*command, "-s", str(script), url],
            check=True,
            capture_output=True,
            text=True,
            timeout=seconds + 60,
        )
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return Load(
        found["requests"] / found["us"] * 1e6,
        found["p50"],
        found["p90"],
        found["p99"],
        found["requests"],
        found["status"] + found["socket"],
    )


def constant_rate(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    rate: float,
    seconds: float,
    connections: int,
    core: int,
) -> Load:
    """Send ``rate`` POST requests per second, evenly spaced, on up to ``connections`` concurrent connections.

    Latency is measured from the scheduled time. A request must fit into the socket's send buffer.
    Raises ConnectionError if a connection is lost.
    """
    address = urlsplit(url)
    lines = [
        f"POST {address.path or '/'} HTTP/1.1",
        f"Host: {address.netloc}",
        f"Content-Length: {len(body)}",
    ]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    request = np.frombuffer("\r\n".join([*lines, "", ""]).encode() + body, dtype=np.uint8)
    # Compile before the first connection: the server closes connections that stay idle for long.
    _send_all(np.zeros(1, np.int64), request, 1e9 / rate, 0)
    with ExitStack() as sockets:
        files = np.zeros(connections, np.int64)
        for c in range(connections):
            connection = sockets.enter_context(socket.create_connection((address.hostname, address.port)))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setblocking(False)
            files[c] = connection.fileno()
        times = _on_core(core, (files, request, 1e9 / rate), int(rate * seconds))
    good = times[times >= 0.0]
    p50, p90, p99 = np.quantile(good, (0.5, 0.9, 0.99)) / 1e3 if len(good) else (np.nan,) * 3
    return Load(rate, float(p50), float(p90), float(p99), len(times), len(times) - len(good))


def _on_core(
    core: int, arguments: tuple[NDArray[np.int64], NDArray[np.uint8], float], n: int
) -> NDArray[np.float64]:
    """Latencies of n requests in nanoseconds; a thread of this process, pinned to ``core``, sends them."""
    found: list[NDArray[np.float64]] = []

    def work() -> None:
        os.sched_setaffinity(0, {core})
        _send_all(*arguments, max(1, min(n, 100)))
        found.append(_send_all(*arguments, n))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if not found or np.isnan(found[0]).any():
        raise ConnectionError("The server closed a connection, or answered with something that is not HTTP.")
    return found[0]


_LIBC = ctypes.CDLL(None, use_errno=True)
_send, _recv, _clock = _LIBC.send, _LIBC.recv, _LIBC.clock_gettime
for _function in (_send, _recv):
    _function.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    _function.restype = ctypes.c_ssize_t
_clock.argtypes = (ctypes.c_int, ctypes.c_void_p)
_clock.restype = ctypes.c_int

_NO_SIGNAL = 0x4000
_MONOTONIC = 1
_ANSWER_BYTES = 1 << 16


@njit(nogil=True)  # type: ignore[misc]
def _now(timespec: NDArray[np.int64]) -> float:
    _clock(_MONOTONIC, timespec.ctypes.data)
    return timespec[0] * 1e9 + timespec[1]


@njit(nogil=True)  # type: ignore[misc]
def _send_all(
    files: NDArray[np.int64], request: NDArray[np.uint8], period: float, n: int
) -> NDArray[np.float64]:
    """Nanoseconds from scheduled time to answer of n requests; −1 for an error status, NaN if lost."""
    timespec = np.zeros(2, np.int64)
    answers = np.zeros((len(files), _ANSWER_BYTES), np.uint8)
    filled = np.zeros(len(files), np.int64)
    asked = np.full(len(files), -1)
    times = np.full(n, np.nan)
    start = _now(timespec) + period
    sent = done = 0
    while done < n:
        now = _now(timespec)
        for c in range(len(files)):
            if asked[c] < 0:
                if sent < n and start + sent * period <= now:
                    if _send(files[c], request.ctypes.data, len(request), _NO_SIGNAL) != len(request):
                        return times
                    asked[c] = sent
                    sent += 1
                continue
            room = _ANSWER_BYTES - filled[c]
            got = _recv(files[c], answers[c].ctypes.data + filled[c], room, 0)
            if got == 0 or room == 0:
                return times
            if got > 0:
                filled[c] += got
                ok = _complete(answers[c], filled[c])
                if ok != 0:
                    due = start + asked[c] * period
                    times[asked[c]] = _now(timespec) - due if ok > 0 else -1.0
                    asked[c] = -1
                    filled[c] = 0
                    done += 1
    return times


@njit(nogil=True)  # type: ignore[misc]
def _complete(answer: NDArray[np.uint8], filled: int) -> int:
    """1 for a complete answer with status 200, −1 for one with another status, 0 for an incomplete one."""
    length = -1
    line = 0
    for i in range(3, filled):
        if answer[i] == 10 and answer[i - 1] == 13:
            if i - line == 1:
                if length < 0 or filled < i + 1 + length:
                    return 0
                return 1 if answer[9] == 50 and answer[10] == 48 and answer[11] == 48 else -1
            # "content-length: " is recognised by the positions of c, l and colon, which no other header has.
            if answer[line + 14] == 58 and (answer[line] | 32) == 99 and (answer[line + 8] | 32) == 108:
                length = 0
                for k in range(line + 16, i - 1):
                    length = length * 10 + (answer[k] - 48)
            line = i + 1
    return 0
