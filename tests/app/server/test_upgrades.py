"""Requests that offer another protocol are answered as if they did not (RFC 9110, section 7.8)."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.app.server.wire import POST, SLOW, RunningServer, parse_responses, read_response

JAVA = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk\r\n"
"""What HttpClient of Java 11 and later sends with every request to http: until a server has accepted it."""
OFFERS = [
    JAVA,
    b"connection: keep-alive, upgrade\r\nupgrade: HTTP/2.0, IRC/6.9, RTA/x11\r\n",
    b"Connection: Upgrade\r\nUpgrade: TLS/1.0\r\n",
    b"Connection: Upgrade\r\nUpgrade: h2c\r\nUpgrade: websocket\r\n",
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
]
FRAMED = [
    (b"Content-Length: 11\r\n", b"hello world", b"hello world"),
    (
        b"Transfer-Encoding: chunked\r\n",
        b"6\r\nhello \r\n5;x=y\r\nworld\r\n0\r\nX-Trailer: a\r\n\r\n",
        b"hello world",
    ),
    (b"Content-Length: 0\r\n", b"", b""),
    (b"", b"", b""),
]


def request(offer: bytes, framing: bytes, body: bytes, path: bytes = b"/x", close: bytes = b"") -> bytes:
    return b"POST %s HTTP/1.1\r\nHost: x\r\n%s%s%s\r\n%s" % (path, offer, framing, close, body)


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize(("framing", "body", "content"), FRAMED)
async def test_the_body_is_read_and_the_connection_is_kept(up, offer, framing, body, content):
    reader, writer = await up.connect()
    for _ in range(3):
        writer.write(request(offer, framing, body))
        response = await read_response(reader)
        assert (response.status, response.body) == (200, content)
        assert not response.headers.keys() & {"connection", "upgrade"}
    writer.write(POST)
    assert (await read_response(reader)).body == b"hi"
    assert up.echo.bodies == [content] * 3 + [b"hi"]
    assert up.refused == {}


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize(("framing", "body", "content"), FRAMED)
async def test_the_pieces_in_which_it_arrives_do_not_matter(up, offer, framing, body, content):
    whole = request(offer, framing, body) + POST
    for size in (1, 7, len(whole) - len(POST) - 3):
        reader, writer = await up.connect()
        for start in range(0, len(whole), size):
            writer.write(whole[start : start + size])
            await asyncio.sleep(0)
        assert (await read_response(reader)).body == content
        assert (await read_response(reader)).body == b"hi"


async def test_pipelined_requests_are_answered_in_order(up: RunningServer):
    bodies = [b"%d" % number * 5000 for number in range(8)]
    sent = [
        request(OFFERS[number % 5], b"Content-Length: 5000\r\n", body)
        if number % 2
        else request(JAVA, b"Transfer-Encoding: chunked\r\n", b"1388\r\n" + body + b"\r\n0\r\n\r\n")
        for number, body in enumerate(bodies)
    ]
    reader, writer = await up.connect()
    writer.write(SLOW + b"".join(sent) + POST)
    await up.until_reached("/slow")
    up.echo.proceed.set()
    received = [(await read_response(reader)).body for _ in range(10)]
    assert received == [b"hi", *bodies, b"hi"]


async def test_a_client_that_closes_gets_its_answer_and_no_other(up: RunningServer):
    closing = request(JAVA, b"Content-Length: 2\r\n", b"hi", close=b"Connection: close\r\n")
    [response] = await up.send(closing + POST)
    assert (response.body, response.headers["connection"]) == (b"hi", "close")
    old = request(JAVA, b"Content-Length: 2\r\n", b"hi").replace(b"HTTP/1.1", b"HTTP/1.0")
    [response] = await up.send(old)
    assert (response.body, response.headers["connection"]) == (b"hi", "close")
    assert up.echo.bodies == [b"hi", b"hi"]


async def test_a_client_that_waits_for_100_continue_gets_it(up: RunningServer):
    reader, writer = await up.connect()
    writer.write(request(JAVA, b"Content-Length: 2\r\nExpect: 100-continue\r\n", b""))
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"ok")
    assert (await read_response(reader)).body == b"ok"


@pytest.mark.parametrize(
    ("framing", "body"),
    [
        (b"Content-Length: 2\r\nContent-Length: 3\r\n", b"hi"),
        (b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n"),
        (b"Transfer-Encoding: chunked\r\n", b"zz\r\nhi\r\n0\r\n\r\n"),
        (b"Transfer-Encoding: chunked\r\n", b"2\r\nhiX\r\n0\r\n\r\n"),
        (b"Transfer-Encoding: gzip, chunked\r\n", b"0\r\n\r\n"),
    ],
)
async def test_a_body_of_doubtful_length_is_refused_as_without_an_offer(up, framing, body):
    [response] = await up.send(request(JAVA, framing, body), POST)
    assert (response.status, json.loads(response.body)["code"]) == (400, "malformed_request")
    assert up.echo.bodies == []


async def test_other_input_than_http_behind_an_offer_is_refused(up: RunningServer):
    reader, writer = await up.connect()
    writer.write(OFFERS[-1].join((b"GET /early HTTP/1.1\r\nHost: x\r\n", b"\r\n\x81\x05hello")))
    answers = parse_responses(await asyncio.wait_for(reader.read(), 60))
    assert [answer.status for answer in answers] == [200, 400]


async def test_the_limits_of_a_body_hold(up: RunningServer):
    many = b"1;" + b"x" * 1000 + b"\r\na\r\n"
    [response] = await up.send(request(JAVA, b"Transfer-Encoding: chunked\r\n", many * 200), pause=0.2)
    assert response.status == 400
    assert b"chunk framing" in response.body
