"""One of two servers is replaced under queries that come through a balancer which notices late."""

from __future__ import annotations

import asyncio
import io
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import httpx
import numpy as np

from tests.late_proxy import LateProxy
from tests.system.processes import Process

QUERIES = 10_000
CLIENTS = 16
LATE_SECONDS = 3.0
ANSWER_SECONDS = 60.0
"""How long a busy machine may take for what is no query."""
_BODY = b'{"x": [1, 2]}'
_HEAD = b"POST /v1/models/faces/classes/a:query HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n"


@dataclass
class Rollout:
    """What became of the queries.

    answers: numbers of "right", "wrong" and "lost" ones, and of those with "closing" connections. readiness:
    (seconds since SIGTERM, status) of the server that was ended. ended_after: seconds from SIGTERM to its
    end, with exit code 0.
    """

    proxy: LateProxy
    answers: Counter[str] = field(default_factory=Counter)
    readiness: list[tuple[float, int]] = field(default_factory=list)
    ended_after: float = 0.0


def import_faces(port: int, headers: Mapping[str, str] | None = None) -> None:
    """Import the head that the queries ask: the score of class a is the first number of the row."""
    head = io.BytesIO()
    np.savez(head, weights=np.eye(2), labels=np.array(["a", "b"]))
    address = f"http://127.0.0.1:{port}/v1/teachers?model=faces"
    sent = httpx.post(
        address, content=head.getvalue(), headers=headers, timeout=ANSWER_SECONDS, trust_env=False
    )
    assert sent.status_code == 201, sent.text


def roll_out(old: Process, old_port: int, new_port: int, key: str = "") -> Rollout:
    """End the old server under queries to both; the balancer sends it clients for `LATE_SECONDS` more."""
    authorization = f"Authorization: Bearer {key}\r\n".encode() if key else b""
    query = _HEAD % len(_BODY) + authorization + b"\r\n" + _BODY

    async def story() -> Rollout:
        found = Rollout(LateProxy([old_port, new_port]))
        queries = iter(range(QUERIES))
        async with found.proxy.listening(), _probe() as probe:
            asking = [
                asyncio.create_task(_ask(found, query, queries, keeps=number % 2 == 0))
                for number in range(CLIENTS)
            ]
            while found.answers.total() < QUERIES // 10:
                await asyncio.sleep(0.01)
            old.begin_end()
            began = time.monotonic()
            ending = asyncio.create_task(asyncio.to_thread(old.wait))
            while time.monotonic() < began + LATE_SECONDS:
                ready = await probe.get(f"http://127.0.0.1:{old_port}/readyz/queries")
                found.readiness.append((time.monotonic() - began, ready.status_code))
                await asyncio.sleep(0.2)
            found.proxy.leave_out(old_port)
            assert await ending == 0
            found.ended_after = time.monotonic() - began
            await asyncio.gather(*asking)
        return found

    return asyncio.run(story())


def _probe() -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=ANSWER_SECONDS, trust_env=False)


def assert_nothing_was_lost(found: Rollout) -> None:
    """Every query got the right answer, although the old server was not ready any more."""
    lost = (found.proxy.refused, found.proxy.cut, found.answers["lost"], found.answers["wrong"])
    assert lost == (0, 0, 0, 0)
    assert found.answers["right"] == QUERIES
    assert found.answers["closing"] > 0
    assert {status for seconds, status in found.readiness if seconds > 0.5} == {503}


async def _ask(found: Rollout, query: bytes, queries: Iterator[int], *, keeps: bool) -> None:
    """Ask, over a kept connection as long as the server keeps it or over a new one each time."""
    connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    for _ in queries:
        reader, writer = connection or await asyncio.open_connection("127.0.0.1", found.proxy.port)
        writer.write(query)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            size = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length: "))
            body = await reader.readexactly(int(size.split()[1]))
        except (asyncio.IncompleteReadError, ConnectionError):
            found.answers["lost"] += 1
            writer.close()
            connection = None
            continue
        is_right = head.startswith(b"http/1.1 200 ") and b'"score":1.0' in body
        found.answers["right" if is_right else "wrong"] += 1
        closes = b"\r\nconnection: close" in head
        found.answers["closing"] += closes
        connection = (reader, writer) if keeps and not closes else None
        if connection is None:
            writer.close()
    if connection is not None:
        connection[1].close()
