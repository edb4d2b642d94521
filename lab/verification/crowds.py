"""Clients that try to crowd others out: ``python -m lab.verification.crowds WAY`` with a target on stdin.

`lab.verification.limits.ways` has further ways and is run likewise.

Each way uses many connections but little processor time of its own: slow ones send a few bytes a second, and
floods are limited in rate. A connection that the server closes is opened again. The first line says that the
crowd is there. SIGTERM ends it; its last line is the number of responses by status.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import resource
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

SLOW_BYTES: Final = 620
"""Bytes a second of a slow body, just above the 500 that the server demands at any time."""
ANNOUNCED_BYTES: Final = 1_000_000
_PAUSE_SECONDS: Final = 2.0
"""Before a connection that has ended is opened again: the crowd must not take the processor itself."""
_START_SECONDS: Final = 1.0
_READ_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Target:
    """The server and what the crowd may use.

    job: an unfinished job. dataset: for large jobs. keys: several keys of one tenant. grpc_port: 0 without
    gRPC.
    """

    host: str
    port: int
    key: str
    model: str
    columns: int
    job: str
    dataset: str
    keys: tuple[str, ...] = ()
    grpc_port: int = 0


class Crowd:
    """Connections to a server. responses: counts by status; 0 is a connection that the server has closed."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.responses: Counter[int] = Counter()

    async def slow_bodies(
        self,
        count: int,
        path: str,
        key: str | None,
        content_type: str,
        announced: int = ANNOUNCED_BYTES,
        **more: str,
    ) -> None:
        """``count`` requests whose bodies arrive just fast enough. more: further headers."""
        headers = {"Content-Type": content_type} | _header_names(more)
        head = self.head("POST", path, key, announced, headers)

        async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(head)
            answer = asyncio.create_task(self._response(reader))
            try:
                while not answer.done():
                    writer.write(b" " * SLOW_BYTES)
                    await writer.drain()
                    await asyncio.wait([answer], timeout=1.0)
                await answer
            finally:
                answer.cancel()

        await self._many(count, one)

    async def silent(self, count: int) -> None:
        """``count`` connections on which nothing is sent."""

        async def one(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
            await reader.read()
            self.responses[0] += 1

        await self._many(count, one)

    async def slow_heads(self, count: int) -> None:
        """``count`` connections that send one byte of a head every second."""

        async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            ended = asyncio.create_task(reader.read())
            try:
                for byte in itertools.cycle(b"GET /livez HTTP/1.1\r\nX-A: "):
                    writer.write(bytes([byte]))
                    if (await asyncio.wait([ended], timeout=1.0))[0]:
                        break
                self.responses[0] += 1
            finally:
                ended.cancel()

        await self._many(count, one)

    async def kept(self, count: int, path: str, key: str) -> None:
        """``count`` connections on which nothing follows the first request."""
        request = self.head("GET", path, key, 0, {})

        async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(request)
            await self._response(reader)
            await reader.read()
            self.responses[0] += 1

        await self._many(count, one)

    async def flood(
        self,
        count: int,
        pause: float,
        method: str,
        path: str,
        key: str | None,
        body: bytes = b"",
        **more: str,
    ) -> None:
        """``count`` connections, each with one request at a time and ``pause`` seconds between two."""
        request = self.head(method, path, key, len(body), _header_names(more)) + body
        await self.requests(count, pause, lambda: request)

    async def requests(self, count: int, pause: float, make: Callable[[], bytes]) -> None:
        """As `flood`, with another request each time. make: returns it."""

        async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while True:
                writer.write(make())
                await writer.drain()
                await self._response(reader)
                await asyncio.sleep(pause)

        await self._many(count, one)

    async def streams(self, count: int) -> None:
        """``count`` event streams of an unfinished job."""
        path = f"/v1/training-jobs/{self.target.job}/events"
        head = self.head("GET", path, self.target.key, 0, {"Accept": "text/event-stream"})

        async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(head)
            await self._status(reader)
            while await reader.read(65536):
                continue

        await self._many(count, one)

    def head(self, method: str, path: str, key: str | None, length: int, headers: Mapping[str, str]) -> bytes:
        """The head of a request."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self.target.host}:{self.target.port}"]
        lines += [] if key is None else [f"Authorization: Bearer {key}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, f"Content-Length: {length}", "", ""]).encode()

    async def _status(self, reader: asyncio.StreamReader) -> str:
        # `wait_for` of Python 3.11 loses a cancellation that meets the end of what it waits for.
        async with asyncio.timeout(_READ_SECONDS):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        self.responses[int(head.split(" ", 2)[1])] += 1
        return head.lower()

    async def _response(self, reader: asyncio.StreamReader) -> None:
        head = await self._status(reader)
        length = head.partition("content-length: ")[2].partition("\r\n")[0]
        await reader.readexactly(int(length or 0))
        if "connection: close" in head:
            raise ConnectionResetError

    async def _many(
        self, count: int, one: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
    ) -> None:
        async def again() -> None:
            while True:
                with contextlib.suppress(OSError, EOFError, TimeoutError):
                    reader, writer = await asyncio.open_connection(self.target.host, self.target.port)
                    try:
                        await one(reader, writer)
                    finally:
                        writer.close()
                await asyncio.sleep(_PAUSE_SECONDS)

        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(again())


def _header_names(options: Mapping[str, str]) -> dict[str, str]:
    """Headers that were given as arguments of a function."""
    return {name.replace("_", "-"): value for name, value in options.items()}


Work = Iterable[Coroutine[Any, Any, None]]


def _keyless_slow_bodies(crowd: Crowd) -> Work:
    paths = ("/v1/keys", "/v1/datasets", "/v1/models/own:predict", "/v1/models/own/classes/0:query")
    return [crowd.slow_bodies(25, path, None, "application/json") for path in paths]


def _keyless_sign_in(crowd: Crowd) -> Work:
    """From one address, as a trusted proxy says."""
    form = "application/x-www-form-urlencoded"
    address = {"X_Forwarded_For": "198.51.100.7", "Sec_Fetch_Site": "same-origin"}
    return [crowd.slow_bodies(40, "/ui/sign-in", None, form, 9000, **address)]


def _keyless_probes(crowd: Crowd) -> Work:
    paths = ("/readyz?verbose", "/metrics", "/v2/health/ready")
    return [crowd.flood(10, 0.2, "GET", path, None) for path in paths]


def _keyless_connections(crowd: Crowd) -> Work:
    return [crowd.silent(700)]


def _key_slots(crowd: Crowd) -> Work:
    target = crowd.target
    paths = (f"/v1/models/{target.model}/classes/0:query", f"/v2/models/{target.model}/infer")
    return [crowd.slow_bodies(100, path, target.key, "application/json") for path in paths]


def _key_slow_requests(crowd: Crowd) -> Work:
    paths = ("/v1/datasets", "/v1/training-jobs", f"/v1/models/{crowd.target.model}:predict")
    return [crowd.slow_bodies(30, path, crowd.target.key, "text/csv") for path in paths]


def _key_queries(crowd: Crowd) -> Work:
    target = crowd.target
    body = json.dumps({"rows": np.ones((40, target.columns)).tolist()}).encode()
    path = f"/v1/models/{target.model}/classes/0:query"
    return [crowd.flood(20, 0.2, "POST", path, target.key, body, Content_Type="application/json")]


def _key_predict(crowd: Crowd) -> Work:
    target, rows = crowd.target, 4000
    body = np.ones((rows, target.columns), np.float32).tobytes()
    tensor = {"X_Tensor_Shape": f"{rows},{target.columns}", "X_Tensor_Dtype": "float32"}
    path = f"/v1/models/{target.model}:predict"
    octets = "application/octet-stream"
    return [crowd.flood(4, 0.2, "POST", path, target.key, body, Content_Type=octets, **tensor)]


def _key_streams(crowd: Crowd) -> Work:
    return [crowd.streams(150)]


def _key_uploads(crowd: Crowd) -> Work:
    lines = [b"a,b,label", *(b"%d,%d,%d" % (i, i * i % 97, i % 3) for i in range(100_000))]
    return [
        crowd.flood(4, 1.0, "POST", f"/v1/datasets?name={i}", crowd.target.key, b"\n".join(lines) + b"\n" * i,
                    Content_Type="text/csv")
        for i in range(2)
    ]  # fmt: skip


def _key_jobs(crowd: Crowd) -> Work:
    body = json.dumps({"dataset_id": crowd.target.dataset, "model": "large"}).encode()
    key = crowd.target.key
    return [crowd.flood(2, 0.5, "POST", "/v1/training-jobs", key, body, Content_Type="application/json")]


WAYS: Final[Mapping[str, Callable[[Crowd], Work]]] = {
    "keyless_slow_bodies": _keyless_slow_bodies,
    "keyless_sign_in": _keyless_sign_in,
    "keyless_probes": _keyless_probes,
    "keyless_connections": _keyless_connections,
    "key_slots": _key_slots,
    "key_slow_requests": _key_slow_requests,
    "key_queries": _key_queries,
    "key_streams": _key_streams,
    "key_uploads": _key_uploads,
    "key_predict": _key_predict,
    "key_jobs": _key_jobs,
}


async def crowd_out(work: Work, crowd: Crowd) -> Mapping[int, int]:
    """Crowd until SIGTERM; returns the numbers of responses by status."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    tasks = [asyncio.create_task(each) for each in work]  # type: ignore[arg-type]
    await asyncio.sleep(_START_SECONDS)
    print("ready", flush=True)
    await stop.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return crowd.responses


def main(ways: Mapping[str, Callable[[Crowd], Work]], *, niceness: int | None = None) -> None:
    """Crowd the target on stdin in the way that the first argument names.

    niceness: of this process; None: it runs only while nothing else does. Clients elsewhere would take no
    processor time from the service.
    """
    if niceness is None:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(niceness)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    target = json.loads(sys.stdin.readline())
    crowd = Crowd(Target(**target | {"keys": tuple(target["keys"])}))
    print(json.dumps(asyncio.run(crowd_out(ways[sys.argv[1]](crowd), crowd))))


if __name__ == "__main__":
    main(WAYS)
