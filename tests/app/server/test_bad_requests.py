"""Requests that break a rule, over real sockets: one error response in order, and a closed connection."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.app.server.wire import POST, SLOW, RunningServer, parse_responses, running

HEAD = b"POST /x HTTP/1.1\r\nHost: x\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n"


async def refuses(up: RunningServer, status: int, *pieces: bytes) -> None:
    [response] = await up.send(*pieces)
    assert response.status == status, response
    assert response.headers["connection"] == "close"
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert json.loads(response.body)["request_id"] == response.headers["x-request-id"]


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
async def test_malformed_and_ambiguous_requests_are_refused(up: RunningServer, request_: bytes):
    await refuses(up, 400, request_)
    assert up.refused == {"bad_request": 1}
    assert await up.is_serving()


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
async def test_the_limits_of_heads_hold_for_any_division_into_pieces(
    up: RunningServer, status: int, request_: bytes
):
    await refuses(up, status, request_)
    pieces = [request_[i : i + 9000] for i in range(0, len(request_), 9000)]
    [response] = await up.send(*pieces, pause=0.0)
    assert response.status in (414, 431)
    assert up.echo.scopes == []
    assert await up.is_serving()


async def test_a_chunked_body_is_read_and_its_trailers_are_discarded(up: RunningServer):
    trailers = b"X-Forwarded-For: 6.6.6.6\r\nAuthorization: Bearer x\r\nHost: y\r\nExpect: 100-continue\r\n"
    last = b"GET /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    request = CHUNKED + b"\r\n2;ext=1\r\nhi\r\n0\r\n" + trailers + b"\r\n"
    responses = await up.send(request, last)
    assert [response.body for response in responses] == [b"hi", b""]
    names = {name for name, _ in up.echo.scopes[0]["headers"]}
    assert names == {b"host", b"transfer-encoding"}


@pytest.mark.parametrize(
    "endless", [b"1;" + b"e" * 200_000, b"0\r\nX: " + b"t" * 200_000, b"0\r\n" + b"a:b\r\n" * 60_000]
)
async def test_endless_chunk_extensions_and_trailers_are_refused(up: RunningServer, endless: bytes):
    pieces = [endless[i : i + 30_000] for i in range(0, len(endless), 30_000)]
    await refuses(up, 400, CHUNKED + b"\r\n", *pieces)
    assert up.echo.aborted == 1
    assert await up.is_serving()


async def test_many_tiny_chunks_are_accepted(up: RunningServer):
    tiny = b"1\r\nx\r\n" * 30_000
    pieces = [tiny[i : i + 12_000] for i in range(0, len(tiny), 12_000)]
    [response] = await up.send(CHUNKED + b"Connection: close\r\n\r\n", *pieces, b"0\r\n\r\n", pause=0.001)
    assert (response.status, response.body) == (200, b"x" * 30_000)


async def test_an_http_1_0_client_gets_one_response(up: RunningServer):
    [response] = await up.send(b"POST /x HTTP/1.0\r\nContent-Length: 2\r\n\r\nhiGET / HTTP/1.0\r\n\r\n")
    assert (response.status, response.headers["connection"], response.body) == (200, "close", b"hi")


async def test_responses_that_are_due_precede_the_error(up: RunningServer):
    reader, writer = await up.connect()
    writer.write(SLOW)
    await asyncio.sleep(0.05)
    writer.write(POST + b"NONSENSE\r\n\r\n")
    await asyncio.sleep(0.05)
    up.echo.proceed.set()
    responses = parse_responses(await asyncio.wait_for(reader.read(), 60))
    assert [response.status for response in responses] == [200, 200, 400]


async def test_pipelined_requests_wait_without_being_read_beyond_a_limit(up: RunningServer):
    reader, writer = await up.connect()
    writer.write(SLOW + POST * 20_000)
    await up.until_reached("/slow")
    await asyncio.sleep(0.2)
    assert not up.connection.flow.is_reading
    assert len(up.connection._input) < 1_000_000
    up.echo.proceed.set()
    writer.write(POST.replace(b"Host", b"Connection: close\r\nHost"))
    responses = parse_responses(await asyncio.wait_for(reader.read(), 60))
    assert [response.status for response in responses] == [200] * 20_002


async def test_a_malformed_body_ends_its_request_in_every_state(up: RunningServer):
    # The application waits for the rest of the body.
    await refuses(up, 400, CHUNKED + b"\r\n2\r\nhi", b"BROKEN")
    assert up.echo.aborted == 1
    # The application has responded before the body was complete.
    early = CHUNKED.replace(b"/x", b"/early") + b"\r\n2\r\nhi"
    [response] = await up.send(early, b"BROKEN")
    assert response.body == b"no"
    # The request is pipelined behind another.
    reader, writer = await up.connect()
    writer.write(SLOW + CHUNKED + b"\r\n2\r\nhiBROKEN")
    await asyncio.sleep(0.05)
    up.echo.proceed.set()
    responses = parse_responses(await asyncio.wait_for(reader.read(), 60))
    assert [response.status for response in responses] == [200, 400]


@pytest.mark.parametrize(
    "tunnel",
    [
        b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n",
        b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: upgrade\r\nContent-Length: 2\r\n",
    ],
)
async def test_nothing_behind_connect_is_read(up, tunnel):
    assert len(await up.send(tunnel + b"\r\n" + POST)) == 1
    assert len(up.echo.scopes) <= 1


async def test_an_internal_error_is_logged_and_not_shown(monkeypatch, capsys):
    async with running() as up:
        monkeypatch.setattr("app.server.heads.check_head", lambda *_: 1 / 0)
        await refuses(up, 500, POST)
    assert "ZeroDivisionError" in capsys.readouterr().err


async def test_input_after_an_error_is_ignored(up: RunningServer):
    await refuses(up, 400, b"GARBAGE\r\n\r\n", POST, POST)
    assert up.echo.scopes == []
