"""One of two servers gets SIGTERM while queries come through a balancer that notices three seconds late."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from benchmarks.processes import free_port
from tests.late_proxy import LateProxy

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

STMS = Path(sys.executable).with_name("stms")
QUERIES = 10_000
CLIENTS = 16
LATE_SECONDS = 3.0
BODY = b'{"x": [1, 2]}'
QUERY = (
    b"POST /v1/models/faces/classes/a:query HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s"
) % (len(BODY), BODY)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[bytes], int]]]:
    """Starts `stms api` on one database without keys; returns the process and its port."""
    processes: list[subprocess.Popen[bytes]] = []
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STMS_")}
    subprocess.run([STMS, "db", "upgrade", "--data-dir", tmp_path], env=environment, check=True)
    environment |= {"STMS_REQUIRE_KEYS": "false", "STMS_DATA_DIR": str(tmp_path)}

    def start_one(count: int = 1) -> tuple[subprocess.Popen[bytes], int]:
        port = free_port()
        command = [STMS, "api", "--port", str(port), "--api-processes", str(count)]
        processes.append(subprocess.Popen(command, env=environment))
        deadline = time.monotonic() + 120
        while True:
            try:
                if httpx.get(f"http://127.0.0.1:{port}/readyz/queries", trust_env=False).is_success:
                    return processes[-1], port
            except httpx.TransportError:
                assert processes[-1].poll() is None, "the server ended by itself"
            assert time.monotonic() < deadline
            time.sleep(0.1)

    yield start_one
    for process in processes:
        process.terminate()
    for process in processes:
        assert process.wait(60) == 0


async def _ask(port: int, queries: Iterator[int], answers: Counter[str], *, keeps: bool) -> None:
    """Ask, over a kept connection as long as the server keeps it or over a new one each time."""
    connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    for _ in queries:
        reader, writer = connection or await asyncio.open_connection("127.0.0.1", port)
        writer.write(QUERY)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            size = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length: "))
            body = await reader.readexactly(int(size.split()[1]))
        except (asyncio.IncompleteReadError, ConnectionError):
            answers["lost"] += 1
            writer.close()
            connection = None
            continue
        is_right = head.startswith(b"http/1.1 200 ") and b'"score":1.0' in body
        answers["right" if is_right else "wrong"] += 1
        closes = b"\r\nconnection: close" in head
        answers["closing"] += closes
        connection = (reader, writer) if keeps and not closes else None
        if connection is None:
            writer.close()
    if connection is not None:
        connection[1].close()


@pytest.mark.parametrize("count", [1, 2])
def test_no_query_is_lost(start: Callable[..., tuple[subprocess.Popen[bytes], int]], count: int):
    (old, old_port), (_, new_port) = start(count), start()
    head = io.BytesIO()
    np.savez(head, weights=np.eye(2), labels=np.array(["a", "b"]))
    sent = httpx.post(
        f"http://127.0.0.1:{new_port}/v1/teachers?model=faces", content=head.getvalue(), trust_env=False
    )
    assert sent.status_code == 201, sent.text
    readiness: list[tuple[float, int]] = []

    async def story() -> tuple[LateProxy, Counter[str]]:
        proxy, answers, queries = LateProxy([old_port, new_port]), Counter[str](), iter(range(QUERIES))
        async with proxy.listening(), httpx.AsyncClient(trust_env=False) as probe:
            asking = [
                asyncio.create_task(_ask(proxy.port, queries, answers, keeps=number % 2 == 0))
                for number in range(CLIENTS)
            ]
            while answers.total() < QUERIES // 10:
                await asyncio.sleep(0.01)
            old.terminate()
            began = time.monotonic()
            while time.monotonic() < began + LATE_SECONDS:
                ready = await probe.get(f"http://127.0.0.1:{old_port}/readyz/queries")
                readiness.append((time.monotonic() - began, ready.status_code))
                await asyncio.sleep(0.2)
            proxy.leave_out(old_port)
            await asyncio.gather(*asking)
        return proxy, answers

    proxy, answers = asyncio.run(story())
    assert (proxy.refused, proxy.cut, answers["lost"], answers["wrong"]) == (0, 0, 0, 0)
    assert answers["right"] == QUERIES
    assert answers["closing"] > 0
    assert {status for seconds, status in readiness if seconds > 0.5} == {503}
    assert old.wait(30) == 0
