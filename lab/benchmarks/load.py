"""Load generators that run on another core than the server: maximum throughput with wrk, or a constant rate.

`wrk` keeps a number of connections busy and measures the throughput. `constant_rate` sends each request at
its scheduled time, even if earlier ones are still unanswered, and measures latency from that time, so that
requests that wait for a stalled server are counted (no "coordinated omission"). `bursts` lets servers take
turns in bursts of some hundred microseconds, of which other work on the machine leaves many undisturbed. Both
are busy loops over non-blocking sockets compiled by Numba, accurate to about a microsecond, where wrk waits
in milliseconds.
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
from collections.abc import Callable, Mapping
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
    request = _request(url, body, headers)
    # Compile before the first connection: the server closes connections that stay idle for long.
    _send_all(np.zeros(1, np.int64), request, 1e9 / rate, 0)
    with ExitStack() as sockets:
        files, n = _open(sockets, url, connections), int(rate * seconds)

        def work() -> NDArray[np.float64]:
            _send_all(files, request, 1e9 / rate, max(1, min(n, 100)))
            return _send_all(files, request, 1e9 / rate, n)

        times = _answered(_on_core(core, work))
    good = times[times >= 0.0]
    p50, p90, p99 = np.quantile(good, (0.5, 0.9, 0.99)) / 1e3 if len(good) else (np.nan,) * 3
    return Load(rate, float(p50), float(p90), float(p99), len(times), len(times) - len(good))


def bursts(
    urls: Mapping[str, str],
    body: bytes,
    headers: Mapping[str, str],
    *,
    connections: int,
    number: int,
    core: int,
) -> dict[str, NDArray[np.float64]]:
    """Microseconds of ``number`` bursts to each of several servers, which take turns burst by burst.

    A burst is one POST request on each of ``connections`` at once, and lasts until all are answered.
    Raises ConnectionError if a connection is lost, or for another status than 200.
    """
    requests = {name: _request(url, body, headers) for name, url in urls.items()}
    answers = np.zeros((connections, _ANSWER_BYTES), np.uint8)
    _send_burst(np.zeros(0, np.int64), np.zeros(1, np.uint8), answers)
    with ExitStack() as sockets:
        files = {name: _open(sockets, url, connections) for name, url in urls.items()}

        def work() -> NDArray[np.float64]:
            rounds = range(number)
            return np.array(
                [[_send_burst(files[name], requests[name], answers) for name in urls] for _ in rounds]
            )

        times = _answered(_on_core(core, work))
    if (times < 0.0).any():
        raise ConnectionError("The server answered with another status than 200.")
    return dict(zip(urls, times.T / 1e3, strict=True))


def request_head(url: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    """The head of a POST request."""
    address = urlsplit(url)
    lines = [
        f"POST {address.path or '/'} HTTP/1.1",
        f"Host: {address.netloc}",
        f"Content-Length: {len(body)}",
    ]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def _request(url: str, body: bytes, headers: Mapping[str, str]) -> NDArray[np.uint8]:
    """The bytes of a POST request."""
    return np.frombuffer(request_head(url, body, headers) + body, dtype=np.uint8)


def _open(sockets: ExitStack, url: str, connections: int) -> NDArray[np.int64]:
    """File descriptors of new connections, which ``sockets`` closes."""
    address = urlsplit(url)
    files = np.zeros(connections, np.int64)
    for c in range(connections):
        connection = sockets.enter_context(socket.create_connection((address.hostname, address.port)))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        files[c] = connection.fileno()
    return files


def _on_core(core: int, work: Callable[[], NDArray[np.float64]]) -> NDArray[np.float64] | None:
    """The result of ``work`` in a thread of this process that is pinned to ``core``; None if it failed."""
    found: list[NDArray[np.float64]] = []

    def pinned() -> None:
        os.sched_setaffinity(0, {core})
        found.append(work())

    thread = threading.Thread(target=pinned)
    thread.start()
    thread.join()
    return found[0] if found else None


def _answered(times: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """The times, if all requests were answered. Raises ConnectionError."""
    if times is None or np.isnan(times).any():
        raise ConnectionError("The server closed a connection, or answered with something that is not HTTP.")
    return times


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
def _send_burst(files: NDArray[np.int64], request: NDArray[np.uint8], answers: NDArray[np.uint8]) -> float:
    """Nanoseconds until one request on each file is answered; −1 after an error status, NaN if one is lost.

    answers: memory for each response.
    """
    timespec = np.zeros(2, np.int64)
    filled = np.zeros(len(files), np.int64)
    is_done = np.zeros(len(files), np.bool_)
    done, succeeded = 0, True
    start = _now(timespec)
    for c in range(len(files)):
        if _send(files[c], request.ctypes.data, len(request), _NO_SIGNAL) != len(request):
            return np.nan
    while done < len(files):
        for c in range(len(files)):
            if is_done[c]:
                continue
            room = _ANSWER_BYTES - filled[c]
            got = _recv(files[c], answers[c].ctypes.data + filled[c], room, 0)
            if got == 0 or room == 0:
                return np.nan
            if got > 0:
                filled[c] += got
                ok = _complete(answers[c], filled[c])
                if ok != 0:
                    is_done[c] = True
                    done += 1
                    succeeded = succeeded and ok > 0
    return _now(timespec) - start if succeeded else -1.0


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
