"""The part `limits` of the safety measurements: how it judges, what it sends, and one measurement itself."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from app.ingest import linear_head
from lab.verification.crowds import Crowd, Target
from lab.verification.limits import floods, folders, grower, lists, ways
from lab.verification.limits.judgement import TRIES, Judgement, repeated
from lab.verification.prober import Latencies, Prober

# Limits


def test_a_figure_beyond_its_limit_is_missed(capsys: pytest.CaptureFixture[str]):
    judgement = Judgement()
    judgement.at_most("good", 2.0, 2.0)
    judgement.at_most("slow", 2.5, 2.0)
    judgement.at_most("unknown", float("nan"), 2.0)
    judgement.equal("failed", 0, 0)
    judgement.equal("refused", {"page": 1}, {})
    assert judgement.missed == [
        "slow is 2.50, the limit is 2.00",
        "unknown is nan, the limit is 2.00",
        "refused is {'page': 1} instead of {}",
    ]
    assert set(judgement.figures) == {"good", "slow", "unknown", "failed", "refused"}
    assert capsys.readouterr().out.count("MISSED") == 3


def test_a_measurement_that_is_good_is_not_repeated():
    results = iter([{"ratio": 1.0, "failed": 0.0}])
    assert repeated(lambda: next(results), lambda found: True) == {"ratio": 1.0, "failed": 0.0}


def test_the_median_of_several_measurements_counts_and_the_sum_of_their_failures():
    results = iter(
        [{"ratio": 9.0, "failed": 1.0}, {"ratio": 1.0, "failed": 0.0}, {"ratio": 2.0, "failed": 2.0}]
    )
    found = repeated(lambda: next(results), lambda found: False)
    assert found == {"ratio": 2.0, "failed": 3.0}
    assert next(results, None) is None
    assert TRIES == 3


def flood(**changed: float) -> dict[str, float]:
    return {
        "p50_ms": 1.0,
        "p50_ratio": 2.0,
        "p99_ms": 5.0,
        "idle_p99_ms": 1.0,
        "longest_ms": 20.0,
        "failed": 0.0,
    } | changed


@pytest.mark.parametrize(
    ("changed", "misses"),
    [
        ({}, 0),
        ({"failed": 1.0}, 1),
        ({"p50_ratio": 4.0}, 1),
        ({"p99_ms": 12.0}, 1),
        ({"p99_ms": 12.0, "idle_p99_ms": 5.0}, 0),
    ],
)
def test_a_flood_without_a_key_is_judged_by_this_machine(changed: Mapping[str, float], misses: int):
    assert len(floods.misses(floods.judge_flood, flood(**changed))) == misses


@pytest.mark.parametrize(
    ("changed", "misses"),
    [({}, 0), ({"failed": 1.0}, 1), ({"p50_ratio": 3.1}, 1), ({"longest_ms": 300.0}, 1)],
)
def test_costly_bodies_are_judged_by_their_stalls(changed: Mapping[str, float], misses: int):
    assert len(floods.misses(floods.judge_stall, flood(**changed))) == misses


# Requests


@asynccontextmanager
async def serving(
    handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    """A server of which all connections are closed at the end; its port."""
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with suppress(OSError, EOFError):
            await handle(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=2**24)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
        # The other sides of the connections close in the next turns of the loop.
        await asyncio.sleep(0.05)


@asynccontextmanager
async def recording(
    answer: bytes = b"{}", status: bytes = b"200 OK"
) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server that gives every request the same answer: its port, and the requests with their bodies."""
    requests: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            requests.append(head + await reader.readexactly(int(length or 0)))
            lines = b'HTTP/1.1 %s\r\nContent-Length: %d\r\nETag: "1"\r\n\r\n' % (status, len(answer))
            writer.write(lines + answer)
            await writer.drain()

    async with serving(handle) as port:
        yield port, requests


def target(port: int) -> Target:
    return Target("127.0.0.1", port, "key", "own", 8, "", "ds_1", ("key 0", "key 1", "key 2", "key 3"))


async def while_running(work: list[Awaitable[None]], is_done: Callable[[], bool]) -> None:
    tasks = [asyncio.ensure_future(each) for each in work]
    async with asyncio.timeout(60):
        while not is_done():
            await asyncio.sleep(0.01)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("name", ["made_up_sessions", "wrong_keys", "openapi", *ways.BODIES])
def test_a_way_sends_complete_requests(name: str):
    async def run() -> tuple[list[bytes], Counter[int]]:
        async with recording() as (port, requests):
            crowd = Crowd(target(port))
            work = list(ways.WAYS[name](crowd))
            await while_running(work, lambda: crowd.responses[200] >= 12)
            return requests, crowd.responses

    requests, responses = asyncio.run(run())
    assert set(responses) == {200}
    if name == "made_up_sessions":
        assert len({request.lower().partition(b"cookie: ")[2] for request in requests}) == len(requests)
    if name in ways.BODIES:
        body = requests[0].partition(b"\r\n\r\n")[2]
        assert 200_000 < len(body) <= 1024**2
        if name != "deep_nesting" and "integers" not in name:
            assert json.loads(body)


def test_connections_are_counted_when_the_server_closes_them():
    async def run() -> Counter[int]:
        async def close(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await asyncio.sleep(0.05)
            writer.close()

        async with serving(close) as port:
            crowd = Crowd(target(port))
            await while_running([crowd.slow_heads(3), crowd.silent(3)], lambda: crowd.responses[0] >= 6)
            return crowd.responses

    assert set(asyncio.run(run())) == {0}


def test_the_growing_tenant_stores_in_every_way():
    async def run() -> list[bytes]:
        answer = b'{"id": "job_1", "version": 2, "details": {"id": "key_1"}}'
        async with recording(answer, b"201 Created") as (port, requests):
            growing = grower.Grower(Crowd(target(port)))
            for step in growing.steps():
                await step(1)
            await growing.close()
            return requests

    first = {" ".join(request.split(b"\r\n")[0].decode().split()[:2]) for request in asyncio.run(run())}
    assert {
        "POST /v1/training-jobs",
        "POST /v1/models/own/versions",
        "DELETE /v1/models/own/versions/2",
        "PUT /v1/models/own/aliases/latest",
        "POST /v1/keys",
        "DELETE /v1/keys/key_1",
        "POST /v1/teachers?model=head",
        "POST /ui/sign-in",
    } <= first
    assert any(line.startswith("POST /v1/datasets?") for line in first)


def test_the_heads_that_are_imported_are_valid(tmp_path: Path):
    path = tmp_path / "head"
    path.write_bytes(grower.head(1))
    with linear_head.head_file(path, linear_head.HeadLimits(1000, 1, 10**6)) as found:
        assert (found.columns, len(found.labels)) == (1, 1000)
        assert [block.shape for block in found.blocks()] == [(1000, 1)]


def test_every_second_query_has_a_new_connection_and_other_requests_follow():
    async def run() -> tuple[int, list[bytes], Latencies]:
        connections: list[None] = []
        async with recording() as (port, requests):

            async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                connections.append(None)
                inside, out = await asyncio.open_connection("127.0.0.1", port)

                async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
                    with suppress(OSError):
                        while data := await source.read(65536):
                            sink.write(data)
                    sink.close()

                await asyncio.gather(copy(reader, out), copy(inside, writer))

            latencies = Latencies()
            async with serving(forward) as outside:
                others = [b"GET /ui/jobs HTTP/1.1\r\nHost: a\r\n\r\n"]
                prober = Prober(outside, "key", others=others, new_connections=True)
                await asyncio.to_thread(prober.measure, 0.5, latencies)
                prober.close()
            return len(connections), requests, latencies

    connections, requests, latencies = asyncio.run(run())
    assert (len(latencies.seconds), latencies.failures) == (100, [])
    assert sum(request.startswith(b"GET /ui/jobs") for request in requests) in range(1, 5)
    # 50 queries over new connections, the others over six that are kept, and one for pages.
    assert connections == 50 + 6 + 1
    assert 0.0 < latencies.p50_ms <= latencies.p99_ms <= latencies.longest_ms


def test_the_largest_rows_that_are_accepted_are_stored():
    class Answer:
        def __init__(self, status_code: int) -> None:
            self.status_code, self.text = status_code, ""

    tried: list[int] = []

    def attempt(size: int) -> Callable[[int], Answer]:
        def store(_number: int) -> Answer:
            tried.append(size)
            return Answer(413 if size > 10 else 201)

        return store

    store = lists._largest([attempt(1000), attempt(100), attempt(10)])  # type: ignore[list-item]
    assert lists._count(store, 3) == 3
    assert tried == [1000, 100, 10, 10, 10]


# Working folders

IMPORTS = """
import contextlib
for name in ("typer", "app"):
    with contextlib.suppress(ImportError):
        __import__(name)
"""


def test_a_planted_module_leaves_a_mark_when_it_is_imported(tmp_path: Path):
    folder, marks = tmp_path / "working", tmp_path / "marks"
    folder.mkdir()
    marks.mkdir()
    folders.plant(folder, marks)
    assert {path.name.removesuffix(".py") for path in folder.iterdir()} == set(folders.MODULES)
    for options, found in (["-P"], set()), ([], {"typer", "app"}):
        subprocess.run([sys.executable, *options, "-c", IMPORTS], cwd=folder, check=True, capture_output=True)
        assert {mark.name.partition("-")[0] for mark in marks.iterdir()} - {"sitecustomize"} == found


@pytest.mark.long
def test_no_planted_module_is_imported_by_the_programs():
    """The measurement itself; the others need a quiet machine and minutes."""
    command = [sys.executable, "-m", "lab.verification.limits", "--quick", "--only", "folders"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["limits_missed"] == []
    assert done.returncode == 0
