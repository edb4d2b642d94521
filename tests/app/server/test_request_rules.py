"""Requests that break a rule, over real sockets: told once, in order, and hung up on."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.app.server.wire import ASK, Wire, answers_in, run, wired

HEAD = b"POST /x HTTP/1.1\r\nHost: x\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n"


async def refuses(wire: Wire, status: int, *pieces: bytes) -> None:
    [answer] = await wire.say(*pieces)
    assert answer.status == status, answer
    assert answer.headers["connection"] == "close"
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert json.loads(answer.body)["request_id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize(
    "request_",
    [
        b"GARBAGE\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/3.7\r\nHost: x\r\n\r\n",
        b"GET / HTTP/2.0\r\nHost: x\r\n\r\n",
        b"GET / HTTP/0.9\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX : a\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET http://[::1 HTTP/1.1\r\nHost: a\r\n\r\n",
        HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nhi",
        HEAD + b"Content-Length: -2\r\n\r\nhi",
        HEAD + b"Content-Length: 0x2\r\n\r\nhi",
        HEAD + b"Content-Length: 99999999999999999999999\r\n\r\nhi",
        HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        CHUNKED + b"Content-Length: 2\r\n\r\n0\r\n\r\n",
        CHUNKED + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
        HEAD + b"X: a\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        CHUNKED + b"\r\nzz\r\nhi\r\n0\r\n\r\n",
        CHUNKED + b"\r\n-2\r\nhi\r\n0\r\n\r\n",
        CHUNKED + b"\r\nfffffffffffffffff\r\nhi\r\n0\r\n\r\n",
        CHUNKED + b"\r\n2\r\nhiX\r\n0\r\n\r\n",
    ],
)
def test_what_is_not_or_could_be_read_in_two_ways_is_refused(request_: bytes):
    async def story() -> None:
        async with wired() as wire:
            await refuses(wire, 400, request_)
            assert wire.refused == {"bad_request": 1}
            assert await wire.is_well()

    run(story)


@pytest.mark.parametrize(
    ("status", "request_"),
    [
        (431, HEAD + b"".join(b"X-%d: 1\r\n" % i for i in range(200)) + b"\r\n"),
        (431, HEAD + b"X: " + b"a" * 200_000 + b"\r\n\r\n"),
        (431, HEAD + b"a:\r\n" * 60_000 + b"\r\n"),
        (414, b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"),
        (431, b"GET /" + b"a" * 300_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"),
    ],
)
def test_heads_have_limits_in_whatever_pieces_they_come(status: int, request_: bytes):
    async def story() -> None:
        async with wired() as wire:
            await refuses(wire, status, request_)
            pieces = [request_[i : i + 9000] for i in range(0, len(request_), 9000)]
            [answer] = await wire.say(*pieces, pause=0.0)
            assert answer.status in (414, 431)
            assert wire.echo.scopes == []
            assert await wire.is_well()

    run(story)


def test_a_body_in_chunks_is_read_and_what_follows_it_is_no_header():
    async def story() -> None:
        async with wired() as wire:
            trailers = (
                b"X-Forwarded-For: 6.6.6.6\r\nAuthorization: Bearer x\r\nHost: y\r\nExpect: 100-continue\r\n"
            )
            last = b"GET /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            request = CHUNKED + b"\r\n2;ext=1\r\nhi\r\n0\r\n" + trailers + b"\r\n"
            answers = await wire.say(request, last)
            assert [answer.body for answer in answers] == [b"hi", b""]
            names = {name for name, _ in wire.echo.scopes[0]["headers"]}
            assert names == {b"host", b"transfer-encoding"}

    run(story)


@pytest.mark.parametrize(
    "endless", [b"1;" + b"e" * 200_000, b"0\r\nX: " + b"t" * 200_000, b"0\r\n" + b"a:b\r\n" * 60_000]
)
def test_chunks_of_nothing_and_trailers_without_end_are_refused(endless: bytes):
    async def story() -> None:
        async with wired() as wire:
            pieces = [endless[i : i + 30_000] for i in range(0, len(endless), 30_000)]
            await refuses(wire, 400, CHUNKED + b"\r\n", *pieces)
            assert wire.echo.gone == 1
            assert await wire.is_well()

    run(story)


def test_many_tiny_chunks_are_a_body_as_any_other():
    async def story() -> None:
        async with wired() as wire:
            tiny = b"1\r\nx\r\n" * 30_000
            pieces = [tiny[i : i + 12_000] for i in range(0, len(tiny), 12_000)]
            [answer] = await wire.say(
                CHUNKED + b"Connection: close\r\n\r\n", *pieces, b"0\r\n\r\n", pause=0.001
            )
            assert (answer.status, answer.body) == (200, b"x" * 30_000)

    run(story)


def test_old_clients_get_one_answer():
    async def story() -> None:
        async with wired() as wire:
            [answer] = await wire.say(
                b"POST /x HTTP/1.0\r\nContent-Length: 2\r\n\r\nhiGET / HTTP/1.0\r\n\r\n"
            )
            assert (answer.status, answer.headers["connection"], answer.body) == (200, "close", b"hi")

    run(story)


def test_answers_that_are_due_come_before_a_refusal():
    async def story() -> None:
        async with wired() as wire:
            reader, writer = await wire.connect()
            writer.write(ASK.replace(b"/x", b"/slow"))
            await asyncio.sleep(0.05)
            writer.write(ASK + b"NONSENSE\r\n\r\n")
            await asyncio.sleep(0.05)
            wire.echo.let_go.set()
            answers = answers_in(await asyncio.wait_for(reader.read(), 10))
            assert [answer.status for answer in answers] == [200, 200, 400]

    run(story)


def test_few_requests_wait_behind_each_other():
    async def story() -> None:
        async with wired() as wire:
            reader, writer = await wire.connect()
            writer.write(ASK.replace(b"/x", b"/slow") + ASK * 50)
            await asyncio.sleep(0.1)
            wire.echo.let_go.set()
            answers = answers_in(await asyncio.wait_for(reader.read(), 10))
            assert [answer.status for answer in answers] == [200] * 17 + [429]
            assert answers[-1].headers["retry-after"] == "1"
            assert await wire.is_well()

    run(story)


def test_a_broken_body_ends_its_request_wherever_that_is():
    async def story() -> None:
        async with wired() as wire:
            # Under way, and not answered yet.
            await refuses(wire, 400, CHUNKED + b"\r\n2\r\nhi", b"BROKEN")
            assert wire.echo.gone == 1
            # Answered before its body was there.
            early = CHUNKED.replace(b"/x", b"/early") + b"\r\n2\r\nhi"
            [answer] = await wire.say(early, b"BROKEN")
            assert answer.body == b"no"
            # Behind another that is under way.
            reader, writer = await wire.connect()
            writer.write(ASK.replace(b"/x", b"/slow") + CHUNKED + b"\r\n2\r\nhiBROKEN")
            await asyncio.sleep(0.05)
            wire.echo.let_go.set()
            answers = answers_in(await asyncio.wait_for(reader.read(), 10))
            assert [answer.status for answer in answers] == [200, 400]

    run(story)


def test_other_protocols_are_declined_by_an_answer_in_this_one():
    async def story() -> None:
        async with wired() as wire:
            upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA\r\n"
            head = HEAD + upgrade + b"Content-Length: 2\r\n\r\n"
            [answer] = await wire.say(head + b"hi", ASK)
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            websocket = b"GET /early HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
            [answer] = await wire.say(websocket + b"\x81\x05hello")
            assert (answer.status, answer.headers["connection"]) == (200, "close")

    run(story)


def test_a_mistake_of_the_server_is_logged_and_not_shown(monkeypatch, capsys):
    async def story() -> None:
        async with wired() as wire:
            monkeypatch.setattr("app.server.request_rules.StrictProtocol._note", lambda *_: 1 / 0)
            await refuses(wire, 400, ASK)

    run(story)
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_after_a_refusal_nothing_more_is_looked_at():
    async def story() -> None:
        async with wired() as wire:
            await refuses(wire, 400, b"GARBAGE\r\n\r\n", ASK, ASK)
            assert wire.echo.scopes == []

    run(story)
