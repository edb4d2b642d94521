"""Clients that are used before a fork: children and parent get their own answers, over every transport."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stms_client import AsyncClient, StmsError
from stms_client.aio.local import AsyncLocal
from tests.certificates import make_certificate
from tests.reference.packed_students import CASES
from tests.stms_client.echo_server import NEXT_VERSION, EchoServer
from tests.stms_client.fork_program import ANSWERS

PROGRAM = Path(__file__).with_name("fork_program.py")
ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="There is no fork here")


def run(*arguments: str, **environment: str) -> None:
    """Run the program that forks; it must exit with 0."""
    command = [sys.executable, str(PROGRAM), *arguments]
    settings = {"PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("transport", ["http", "tls", "proxy"])
def test_children_and_parent_get_their_own_answers(kind: str, transport: str, tmp_path: Path):
    certificate = make_certificate(tmp_path) if transport == "tls" else None
    with EchoServer(certificate) as server:
        if transport == "proxy":
            # Whatever is asked of the proxy, it answers itself.
            run("http://stms.test", kind, http_proxy=server.address)
        else:
            run(server.address, kind, *([] if certificate is None else [str(certificate.file)]))


@pytest.mark.parametrize("kind", ["sync-local", "async-local"])
def test_a_local_evaluator_follows_its_model_in_a_child_too(kind: str):
    with EchoServer(package=CASES["linear-linear-none"].to_bytes()) as server:
        run(server.address, kind)
        # The child reports its own answer only.
        assert server.reported == ANSWERS + 1


def test_an_asynchronous_client_is_used_in_several_event_loops():
    async def ask(stms: AsyncClient, number: float) -> None:
        for _ in range(10):
            assert (await stms.query("m", "x", [number])).score == number

    with EchoServer() as server:
        stms = AsyncClient(server.address, "key")
        for number in (1.0, 2.0):
            asyncio.run(ask(stms, number))
        threads = [threading.Thread(target=asyncio.run, args=(ask(stms, number),)) for number in (3.0, 4.0)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        loop = asyncio.new_event_loop()
        loop.run_until_complete(ask(stms, 5.0))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
        asyncio.run(ask(stms, 6.0))
        asyncio.run(stms.close())
        with pytest.raises(StmsError, match="closed"):
            asyncio.run(ask(stms, 7.0))


def test_a_local_evaluator_is_used_in_several_event_loops():
    async def enter(local: AsyncLocal) -> None:
        await local.__aenter__()

    async def follow(stms: AsyncClient, local: AsyncLocal) -> None:
        await asyncio.sleep(0.7)
        assert (await local.query("a", [1.0] * 6)).version == 1
        await stms.query("m", "a", [NEXT_VERSION])
        while local.version == 1:
            await asyncio.sleep(0.01)
        await local.__aexit__()

    with EchoServer(package=CASES["linear-linear-none"].to_bytes()) as server:
        stms = AsyncClient(server.address, "key")
        local = stms.local("m", ["a"], poll=0.05, max_stale=0.5)
        asyncio.run(enter(local))
        asyncio.run(follow(stms, local))
