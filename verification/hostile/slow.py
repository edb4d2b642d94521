"""Slow clients, which run concurrently with the other attacks."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Iterable

from app.server.progress import READ_SECONDS
from tests.refusals.refusal import DATASETS, JOBS, QUERY, Act, Answer, Refusal, authorization, refusals
from verification.hostile.server import Server
from verification.hostile.wire import NOTHING, connection, head, read_answer, send

PATIENCE_SECONDS = 60.0
"""Longer than the server's timeouts for slow clients."""
_PAUSE_SECONDS = 0.5
_LARGE_ANSWERS = 4
"""Number of answers of some MB each, which do not fit into the socket buffers."""
_TOO_SLOW = (408, "too_slow")


def slow() -> list[Refusal]:
    """Slow clients. The server answers 408 or, if no request has begun, closes the connection."""
    length = (b"Content-Length", b"100000")
    chunked = (b"Transfer-Encoding", b"chunked")
    return refusals(
        "slow",
        ("says nothing", _drips(b"", b""), 0, None),
        (
            "a head byte by byte",
            _drips(b"", b"GET /livez HTTP/1.1\r\nHost: a\r\nX-A: " + b"a" * 1000),
            *_TOO_SLOW,
        ),
        ("headers one by one", _drips(b"GET /livez HTTP/1.1\r\nHost: a\r\n", b"X: y\r\n" * 200), *_TOO_SLOW),
        ("a body byte by byte", _drips_body(QUERY, length, b" "), *_TOO_SLOW),
        ("a body that stops", _drips_body(QUERY, length, b""), *_TOO_SLOW),
        ("chunks byte by byte", _drips_body(QUERY, chunked, b"1\r\n \r\n"), *_TOO_SLOW),
        ("a file byte by byte", _drips_body(DATASETS, length, b"1"), *_TOO_SLOW),
        ("a wish byte by byte", _drips_body(JOBS, length, b" "), *_TOO_SLOW),
        ("never reads", _never_reads, 0, None),
        ("300 connections that say nothing", _crowd, 0, None),
    )


def _drips(front: bytes, drops: bytes) -> Act:
    """Sends ``front`` immediately and then ``drops`` byte by byte."""

    def act(server: Server) -> Answer:
        with connection(server.address) as opened:
            send(opened, [front])
            return _dripped(opened, [drops[i : i + 1] for i in range(len(drops))])

    return act


def _drips_body(target: str, framing: tuple[bytes, bytes], drop: bytes) -> Act:
    def act(server: Server) -> Answer:
        with connection(server.address) as opened:
            send(opened, [head("POST", target, [*authorization(server, "train"), framing])])
            return _dripped(opened, itertools.repeat(drop, 1000))

    return act


def _dripped(opened: socket.socket, drops: Iterable[bytes]) -> Answer:
    """Send the drops one by one until the server answers."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    opened.settimeout(_PAUSE_SECONDS)
    for drop in itertools.chain(drops, itertools.repeat(b"")):
        if time.monotonic() > deadline:
            break
        send(opened, [drop])
        try:
            if opened.recv(1, socket.MSG_PEEK) is not None:
                break
        except TimeoutError:
            continue
        except OSError:
            return NOTHING
    opened.settimeout(5)
    return read_answer(opened)


def _never_reads(server: Server) -> Answer:
    """Requests large answers and reads nothing until the server closes the connection."""
    body = b'{"rows": [' + b"[1,2,3]," * 90_000 + b"[1,2,3]]}"
    given = [*authorization(server, "query"), (b"Content-Length", b"%d" % len(body))]
    request = head("POST", QUERY, given) + body
    with socket.socket() as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        opened.settimeout(10)
        opened.connect(server.address)
        deadline = time.monotonic() + READ_SECONDS + PATIENCE_SECONDS
        for _ in range(_LARGE_ANSWERS):
            opened.sendall(request)
        while time.monotonic() < deadline:
            time.sleep(_PAUSE_SECONDS)
            # SO_ERROR reports a reset without reading.
            if opened.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                return NOTHING
    return Answer(200, body=b"the server waits still")


def _crowd(server: Server) -> Answer:
    """Many idle connections at the same time; a query on another connection must be answered."""
    crowd = [socket.create_connection(server.address, timeout=10) for _ in range(300)]
    try:
        body = b'{"x": [1, 2, 3]}'
        given = [*authorization(server, "query"), (b"Content-Length", b"%d" % len(body))]
        with connection(server.address) as opened:
            send(opened, [head("POST", QUERY, given) + body])
            assert read_answer(opened).status == 200, "a query beside them was not answered"
        deadline = time.monotonic() + PATIENCE_SECONDS
        for opened in crowd:
            opened.settimeout(max(0.1, deadline - time.monotonic()))
            try:
                if opened.recv(1):
                    return Answer(200, body=b"an answer to nothing")
            except TimeoutError:
                return Answer(200, body=b"the server waits still")
            except OSError:
                continue
        return NOTHING
    finally:
        for opened in crowd:
            opened.close()
