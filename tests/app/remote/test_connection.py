"""The connection to a remote teacher against servers that answer badly, slowly or not at all."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from app.domain.origins import Origin
from app.remote.connection import RemoteConnection
from app.remote.errors import RemoteFailed, RemoteUnavailable
from tests.refusals import refused_as

OK = b"HTTP/1.1 200 OK\r\n"


@contextmanager
def raw(*answers: bytes | Callable[[socket.socket], None]) -> Iterator[tuple[str, list[bytes]]]:
    """A server that gives each connection the next of ``answers``; yields its address and their heads."""
    heads: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for answer in answers:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                with client:
                    heads.append(client.recv(65536))
                    try:
                        answer(client) if callable(answer) else client.sendall(answer)
                    except OSError:
                        continue

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", heads
        finally:
            listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def ask(
    url: str, *, timeout: float = 5.0, limit: int = 100, token: str | None = None, name: str | None = None
):
    origin = Origin.of(url if name is None else url.replace("127.0.0.1", name))
    connection = RemoteConnection(origin, ["127.0.0.1"], timeout, token)
    try:
        return connection.request("GET", "/v2/models/m", None, limit)
    finally:
        connection.close()


def test_a_name_is_never_resolved_again_and_the_token_is_sent():
    with raw(OK + b"Content-Length: 2\r\n\r\nhi") as (url, heads):
        answer = ask(url, token="secret", name="triton.invalid")
    assert (answer.status, answer.body) == (200, b"hi")
    [head] = heads
    assert b"Host: triton.invalid:" in head
    assert b"Authorization: Bearer secret\r\n" in head


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(status):
    answer = f"HTTP/1.1 {status} Moved\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n".encode()
    with raw(answer, OK) as (url, heads), refused_as(RemoteFailed, "remote_redirect"):
        ask(url)
    assert len(heads) == 1


LARGE = [
    OK + b"Content-Length: 101\r\n\r\n",
    OK + b"Content-Length: 99999999999999\r\n\r\n",
    OK
    + b"Transfer-Encoding: chunked\r\n\r\n"
    + b"33\r\n"
    + b"x" * 51
    + b"\r\n33\r\n"
    + b"x" * 51
    + b"\r\n0\r\n\r\n",
]


@pytest.mark.parametrize("answer", LARGE, ids=range(len(LARGE)))
def test_an_answer_that_is_too_large_is_refused(answer):
    with raw(answer) as (url, _), refused_as(RemoteFailed, "remote_answer_too_large"):
        ask(url)


def test_an_endless_answer_is_read_up_to_the_limit():
    def pour(client: socket.socket) -> None:
        client.sendall(OK + b"Transfer-Encoding: chunked\r\n\r\n")
        while True:
            client.sendall(b"400\r\n" + b"x" * 1024 + b"\r\n")

    with raw(pour) as (url, _), refused_as(RemoteFailed, "remote_answer_too_large"):
        ask(url, limit=10_000)


def test_a_compressed_answer_is_refused():
    answer = OK + b"Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx"
    with raw(answer) as (url, _), refused_as(RemoteFailed, "remote_bad_answer"):
        ask(url)


BROKEN = [
    b"",
    b"HTTP/1.1 200",
    OK + b"\r\nan answer without a length",
    b"SSH-2.0-OpenSSH_9.6\r\n",
    OK + b"Content-Length: 50\r\n\r\nhalf",
    OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    OK + b"".join(b"X-%d: 1\r\n" % i for i in range(200)) + b"\r\n",
    OK + b"X: " + b"y" * 70_000 + b"\r\n\r\n",
]


@pytest.mark.parametrize("answer", BROKEN, ids=range(len(BROKEN)))
def test_a_broken_answer_may_be_asked_for_again(answer):
    with raw(answer) as (url, _), pytest.raises(RemoteUnavailable):
        ask(url)


def drip(start: bytes, piece: bytes) -> Callable[[socket.socket], None]:
    def send(client: socket.socket) -> None:
        client.sendall(start)
        for _ in range(400):
            client.sendall(piece)
            time.sleep(0.02)

    return send


SLOW = {
    "nothing": lambda _client: time.sleep(0.6),
    "head": drip(OK, b"x"),
    "headers": drip(OK, b"X: y\r\n"),
    "body": drip(OK + b"Content-Length: 390\r\n\r\n", b"x"),
    "last body": drip(OK + b"Connection: close\r\nContent-Length: 390\r\n\r\n", b"x"),
    "100 continue": drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
}


@pytest.mark.long
@pytest.mark.parametrize("answer", SLOW.values(), ids=SLOW)
def test_a_slow_answer_ends_after_the_timeout_however_it_drips(answer):
    with raw(answer) as (url, _):
        began = time.monotonic()
        with pytest.raises(RemoteUnavailable) as late:
            ask(url, timeout=0.3, limit=1000)
        assert time.monotonic() - began < 6.0, "the answer drips for 7.8 s"
    assert "0.3 s" in str(late.value)


def test_the_timeout_is_for_all_addresses_of_a_name_together(monkeypatch):
    tried = []

    def connect(address, timeout):
        tried.append(address)
        time.sleep(0.2)
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", connect)
    connection = RemoteConnection(Origin.of("http://triton:8000"), ["10.0.0.1"] * 50, 0.5)
    with pytest.raises(RemoteUnavailable, match=r"0\.5 s"):
        connection.request("GET", "/v2", None, 100)
    assert len(tried) < 10


def test_a_closed_port_is_unavailable():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(RemoteUnavailable):
        ask(f"http://127.0.0.1:{port}")


def test_a_certificate_of_another_name_is_refused():
    with raw(b"not TLS at all") as (url, _), pytest.raises(RemoteUnavailable):
        ask(url.replace("http://", "https://"))


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7.0),
        ("100000", 120.0),
        ("-5", None),
        ("soon", None),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("9" * 400, 120.0),
    ],
)
def test_retry_after_is_read_within_bounds(header, seconds):
    answer = f"HTTP/1.1 503 Busy\r\nRetry-After: {header}\r\nContent-Length: 0\r\n\r\n".encode()
    with raw(answer) as (url, _):
        found = ask(url)
    assert (found.status, found.wait) == (503, seconds)
