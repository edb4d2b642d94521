"""The front of gRPC: shares and turns of connections, and bytes in both directions."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from app.auth.places import PacedTurns, without_key
from app.http.client_address import client_of_socket
from app.processes.scoreboard import Scoreboard
from app.server.context import ServerContext
from app.server.grpc_front import GrpcFront
from tests.system.processes import free_port

MIB = 1024 * 1024
Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter


class Fronted:
    """A front before a server that sends back what it receives, and ends with a piece that says end.

    clients: addresses in the order of arrival. ended: connections that ended at the server.
    """

    def __init__(self, context: ServerContext, wait: Callable[[str], Awaitable[None]], path: Path) -> None:
        self.front = GrpcFront(path, context, wait)
        self.port = free_port()
        self.clients: list[str] = []
        self.ended = 0
        self._writers: list[Writer] = []

    async def echo(self, reader: Reader, writer: Writer) -> None:
        client = client_of_socket(writer.get_extra_info("peername"))
        assert client is not None
        self.clients.append(client[0])
        while (data := await reader.read(MIB)) not in (b"", b"end"):
            writer.write(data)
            await writer.drain()
        self.ended += 1
        writer.close()

    async def connect(self, source: str) -> tuple[Reader, Writer]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(source, 0))
        self._writers.append(writer)
        return reader, writer

    async def close(self) -> None:
        self.front.stop()
        for writer in self._writers:
            writer.close()
        while self.front.connections:
            await asyncio.sleep(0.01)


@asynccontextmanager
async def fronted(
    wait: Callable[[str], Awaitable[None]], most: int = 100, per_address: int = 0
) -> AsyncIterator[Fronted]:
    context = ServerContext(Scoreboard.private().slots[0], most, per_address)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "grpc"
        up = Fronted(context, wait, path)
        async with await asyncio.start_unix_server(up.echo, path):
            await up.front.start("127.0.0.1", up.port)
            yield up
            await up.close()
            # Names of connected sockets are not left behind.
            assert list(Path(folder).iterdir()) == [path]
    assert not context.connections


async def at_once(address: str) -> None:
    """No connection waits."""


async def never(address: str) -> None:
    await asyncio.Event().wait()


@pytest.fixture
def no_address_is_exempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServerContext, "_is_exempt", lambda _self, _address: False)


async def is_ended(reader: Reader) -> bool:
    with suppress(ConnectionError):
        return await asyncio.wait_for(reader.read(1), 30) == b""
    return True


async def test_bytes_and_the_address_of_the_client_arrive():
    async with fronted(at_once) as up:
        reader, writer = await up.connect("127.0.0.2")
        sent = bytes(range(256)) * (16 * MIB // 256)
        writer.write(sent)
        # Nothing is read for a while: the front takes no more than it can send on.
        await asyncio.sleep(0.2)
        assert await asyncio.wait_for(reader.readexactly(len(sent)), 60) == sent
        assert up.clients == ["127.0.0.2"]


async def test_a_network_has_a_share_of_the_connections(no_address_is_exempt: None):
    async with fronted(at_once, per_address=2) as up:
        held = [await up.connect("127.0.0.2") for _ in range(2)]
        for reader, writer in held:
            writer.write(b"x")
            await reader.readexactly(1)
        assert await is_ended((await up.connect("127.0.0.2"))[0])
        assert up.front.context.refused["connections_of_address"] == 1
        reader, writer = await up.connect("127.0.0.3")
        writer.write(b"y")
        assert await reader.readexactly(1) == b"y"
        # The end of one makes room for another.
        held[0][1].close()
        while up.front.context.connections["127.0.0.2"] > 1:
            await asyncio.sleep(0.01)
        reader, writer = await up.connect("127.0.0.2")
        writer.write(b"z")
        assert await reader.readexactly(1) == b"z"


async def test_connections_of_one_network_take_turns_with_those_of_another():
    turns = PacedTurns()
    async with fronted(lambda address: turns.turn(without_key(address))) as up:
        for _ in range(60):
            await up.connect("127.0.0.2")
        while len(up.front.connections) < 60:
            await asyncio.sleep(0.01)
        before = len(up.clients)
        assert before < 60
        reader, writer = await up.connect("127.0.0.3")
        writer.write(b"x")
        assert await asyncio.wait_for(reader.readexactly(1), 30) == b"x"
        assert up.clients.index("127.0.0.3") < 60


async def test_connections_that_wait_give_way_and_end_with_the_front():
    async with fronted(never, most=2) as up:
        readers = [(await up.connect("127.0.0.2"))[0] for _ in range(3)]
        assert await is_ended(readers[0])
        assert up.front.context.refused["connections"] == 1
        assert len(up.front.waiting) == 2
        up.front.stop()
        assert [await is_ended(reader) for reader in readers[1:]] == [True, True]
        with pytest.raises(ConnectionRefusedError), socket.socket() as late:
            late.connect(("127.0.0.1", up.port))


async def test_a_full_front_keeps_what_is_relayed():
    async with fronted(at_once, most=1) as up:
        reader, writer = await up.connect("127.0.0.2")
        writer.write(b"x")
        await reader.readexactly(1)
        assert await is_ended((await up.connect("127.0.0.3"))[0])
        writer.write(b"y")
        assert await reader.readexactly(1) == b"y"


async def test_the_end_of_one_side_ends_the_other():
    async with fronted(at_once) as up:
        for word, ended in ((b"end", 1), (b"", 2)):
            reader, writer = await up.connect("127.0.0.2")
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
            if word:
                writer.write(word)
                assert await is_ended(reader)
            writer.close()
            while up.front.connections or up.ended < ended:
                await asyncio.sleep(0.01)


async def test_a_client_that_leaves_before_its_turn_is_forgotten():
    async with fronted(never) as up:
        _, writer = await up.connect("127.0.0.2")
        while not up.front.waiting:
            await asyncio.sleep(0.01)
        writer.close()
        while up.front.connections:
            await asyncio.sleep(0.01)
        assert not up.front.waiting
        assert up.clients == []
