"""Forks while it asks, and exits with 0 if parent, children and their children get their own answers.

Arguments: address, kind of client, file of the authority or nothing. The server is `EchoServer`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from stms_client import AsyncClient, Client, StmsError
from tests.stms_client.echo_server import NEXT_VERSION

CHILDREN, QUESTIONS, THREADS = 2, 8, 2
POLL, STALE = 0.05, 2.0
ANSWERS = 7
"""Of a local evaluator before the fork."""


def forked(work: Callable[[], None], *, is_abrupt: bool = True) -> int:
    """The process id of a child that does the work, and exits with 0 if it raises nothing."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    finally:
        if is_abrupt:
            os._exit(code)
        # Its objects are destroyed, which must not disturb the parent.
        sys.exit(code)
    raise AssertionError


def check(children: list[int]) -> None:
    """Wait for children, which must have exited with 0."""
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes == [0] * len(codes), codes


def ask(stms: Client, number: float) -> None:
    """Ask questions of one's own, and read the events of a job."""
    for _ in range(QUESTIONS):
        assert stms.query("m", "x", [number]).score == number
        assert stms.query_rows("m", "x", [[number], [number + 0.5]]).scores == [number, number + 0.5]


def blocking(address: str, ca: str | None) -> None:
    stms = Client(address, "key", ca=ca)
    unused = Client(address, "key", ca=ca)
    connection = stms.query("m", "x", [0.25]).version
    ended = threading.Event()
    wrong: list[Any] = []

    def load(number: float) -> None:
        try:
            while not ended.is_set():
                ask(stms, number)
        except (AssertionError, StmsError) as error:
            wrong.append(error)

    def child(number: int) -> None:
        assert stms.query("m", "x", [0.25]).version != connection
        grandchild = forked(lambda: ask(stms, 100 + number))
        ask(stms, number)
        ask(unused, number)
        check([grandchild])
        (stms if number % 2 else unused).close()

    check([forked(lambda number=number: child(number)) for number in range(1, 1 + CHILDREN)])
    assert stms.query("m", "x", [0.25]).version == connection
    threads = [threading.Thread(target=load, args=(-number,)) for number in range(1, 1 + THREADS)]
    for thread in threads:
        thread.start()
    check([forked(lambda n=n: child(n), is_abrupt=n % 2 == 0) for n in range(1, 1 + CHILDREN)])
    ended.set()
    for thread in threads:
        thread.join()
    assert not wrong, wrong
    events = stms.follow_job("j", pause=0.01)
    assert next(events).id == "0"
    # The parent does not read while the child may.
    check([forked(lambda: read_on(events))])
    read_on(events)


def read_on(events: Any) -> None:
    """Read the other events of a job, each once and in order."""
    assert [event.id for event in events] == [str(number) for number in range(1, 6)]


async def ask_asynchronously(stms: AsyncClient, number: float) -> None:
    """As `ask`."""
    for _ in range(QUESTIONS):
        assert (await stms.query("m", "x", [number])).score == number
        many = await stms.query_rows("m", "x", [[number], [number + 0.5]])
        assert many.scores == [number, number + 0.5]


async def asynchronous(address: str, ca: str | None) -> None:
    async with AsyncClient(address, "key", ca=ca) as stms, AsyncClient(address, "key", ca=ca) as unused:
        connection = (await stms.query("m", "x", [0.25])).version

        async def several(number: float) -> None:
            asked = [ask_asynchronously(client, number + k) for k in range(2) for client in (stms, unused)]
            await asyncio.gather(*asked)

        def child(number: int) -> None:
            grandchild = forked(lambda: asyncio.run(several(100 + number)))
            asyncio.run(several(number))
            check([grandchild])
            asyncio.run(stms.close())

        children = [forked(lambda number=number: child(number)) for number in range(1, 1 + CHILDREN)]
        await asyncio.to_thread(check, children)
        assert (await stms.query("m", "x", [0.25])).version == connection
        load = [asyncio.create_task(ask_asynchronously(stms, -number)) for number in range(1, 1 + THREADS)]
        await asyncio.sleep(0.05)
        children = [forked(lambda number=number: child(number)) for number in range(1, 1 + CHILDREN)]
        await asyncio.gather(*load)
        await asyncio.to_thread(check, children)


def blocking_local(address: str, ca: str | None) -> None:
    stms = Client(address, "key", ca=ca)
    with stms.local("m", ["a"], poll=POLL, max_stale=STALE) as local:
        row = [1.0] * 6
        assert [local.is_class("a", row) for _ in range(ANSWERS)]

        def child() -> None:
            time.sleep(1.2 * STALE)
            assert local.query("a", row).version == 1
            stms.query("m", "a", [NEXT_VERSION])
            while local.version == 1:
                time.sleep(POLL)
            time.sleep(20 * POLL)

        check([forked(child)])
        while local.version == 1:
            time.sleep(POLL)


async def asynchronous_local(address: str, ca: str | None) -> None:
    stms = AsyncClient(address, "key", ca=ca)
    async with stms.local("m", ["a"], poll=POLL, max_stale=STALE) as local:
        row = [1.0] * 6
        assert [await local.is_class("a", row) for _ in range(ANSWERS)]

        async def follow() -> None:
            await asyncio.sleep(1.2 * STALE)
            assert (await local.query("a", row)).version == 1
            await stms.query("m", "a", [NEXT_VERSION])
            while local.version == 1:
                await asyncio.sleep(POLL)
            await asyncio.sleep(20 * POLL)

        await asyncio.to_thread(check, [forked(lambda: asyncio.run(follow()))])
        while local.version == 1:
            await asyncio.sleep(POLL)
    await stms.close()


if __name__ == "__main__":
    address, kind, *authority = sys.argv[1:]
    ca = authority[0] if authority else None
    if kind == "sync":
        blocking(address, ca)
    elif kind == "sync-local":
        blocking_local(address, ca)
    else:
        asyncio.run({"async": asynchronous, "async-local": asynchronous_local}[kind](address, ca))
