"""Downloads from servers that break off, change, refuse, redirect, drip or send too much."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import pytest

from app.domain.origins import AllowedServers
from app.remote import addresses, download
from app.remote.download import Download, split_url
from app.remote.errors import RemoteFailed, RemoteUnavailable
from tests.app.remote.test_connection import OK, raw
from tests.refusals import refused_as

FILE = bytes(range(256)) * 40
TAG = b'ETag: "one"\r\n'


def whole(content: bytes = FILE, more: bytes = TAG) -> bytes:
    return OK + more + b"Content-Length: %d\r\n\r\n" % len(content) + content


def part(start: int, more: bytes = TAG, at: int | None = None) -> bytes:
    rest = FILE[start:]
    place = b"Content-Range: bytes %d-%d/%d\r\n" % (at or start, len(FILE) - 1, len(FILE))
    return b"HTTP/1.1 206 Partial\r\n" + place + more + b"Content-Length: %d\r\n\r\n" % len(rest) + rest


def cut(answer: bytes, size: int) -> bytes:
    """The head of an answer, and so many bytes of its body; then the connection ends."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return head + b"\r\n\r\n" + body[:size]


def fetch(url: str, *, limit: int = 100_000, allowed: str | None = None, **options: object) -> bytes:
    received = bytearray()
    origins = AllowedServers.of(url if allowed is None else allowed)
    size = Download(f"{url}/a/b.csv?secret=1", origins, received.extend, limit, **options).run()
    assert size == len(received)
    return bytes(received)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(download, "_PAUSE_SECONDS", 0.01)


def test_a_whole_file_arrives():
    with raw(whole()) as (url, heads):
        assert fetch(url) == FILE
    assert heads[0].startswith(b"GET /a/b.csv?secret=1 HTTP/1.1\r\n")
    assert b"range" not in heads[0].lower()


def test_a_chunked_file_arrives():
    body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(FILE), FILE)
    with raw(OK + TAG + b"Transfer-Encoding: chunked\r\n\r\n" + body) as (url, _):
        assert fetch(url) == FILE


def test_it_goes_on_where_it_broke_off():
    answers = (cut(whole(), 1000), cut(part(1000), 500), b"", part(1500))
    with raw(*answers) as (url, heads):
        assert fetch(url) == FILE
    assert [b"Range: bytes=1000-" in head for head in heads] == [False, True, False, False]
    assert b"Range: bytes=1500-" in heads[3]
    assert b'If-Range: "one"' in heads[3]


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ((b"HTTP/1.1 302 Found\r\nLocation: http://x/\r\nContent-Length: 0\r\n\r\n",), "remote_redirect"),
        ((b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n",), "remote_refused"),
        ((b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n",), "remote_refused"),
        ((b"HTTP/1.1 204 Empty\r\n\r\n",), "remote_refused"),
        ((part(0),), "remote_refused"),
        ((whole(more=b"Content-Encoding: gzip\r\n"),), "remote_bad_answer"),
        ((OK + b"\r\n" + FILE,), "remote_bad_answer"),
        ((cut(whole(), 1000), whole()), "remote_changed"),
        ((cut(whole(), 1000), part(1000, at=999)), "remote_bad_answer"),
        ((whole(bytes(100_001)),), "remote_too_large"),
        (
            (OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"186a1\r\n" + bytes(100_001) + b"\r\n0\r\n\r\n",),
            "remote_too_large",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_without_the_address(answers: tuple[bytes, ...], code: str):
    with raw(*answers) as (url, _), refused_as(RemoteFailed, code) as refused:
        fetch(url)
    assert "secret" not in refused.value.message
    assert "b.csv" not in refused.value.message


@pytest.mark.parametrize(
    "answers",
    [
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n",),
        (b"HTTP/1.1 429 Busy\r\nContent-Length: 0\r\n\r\n",),
        # Nothing shows that the rest would be of the same file.
        (cut(whole(more=b""), 1000), part(1000)),
        (b"",) * download.ATTEMPTS,
        (b"nonsense\r\n\r\n",) * download.ATTEMPTS,
        (cut(whole(), 10), *(cut(part(10 * k), 10) for k in range(1, download.ATTEMPTS))),
    ],
)
def test_a_source_that_does_not_answer_is_unavailable(answers: tuple[bytes, ...]):
    with raw(*answers) as (url, _), pytest.raises(RemoteUnavailable, match=r"127\.0\.0\.1"):
        fetch(url)


def dripping(seconds: float) -> Callable[[socket.socket], None]:
    def answer(client: socket.socket) -> None:
        client.sendall(whole()[:-9000])
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            client.sendall(b"x")
            time.sleep(0.02)

    return answer


def test_a_dripping_source_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(download, "READ_SECONDS", 0.3)
    with raw(dripping(10.0)) as (url, _):
        began = time.monotonic()
        with pytest.raises(RemoteUnavailable, match="less than 16384 bytes a second"):
            fetch(url)
        assert time.monotonic() - began < 5.0


def test_a_head_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(download, "HEAD_SECONDS", 0.2)
    monkeypatch.setattr(download, "ATTEMPTS", 2)

    def answer(client: socket.socket) -> None:
        client.sendall(OK)
        for _ in range(200):
            client.sendall(b"x")
            time.sleep(0.02)

    with raw(answer, answer) as (url, _):
        began = time.monotonic()
        with pytest.raises(RemoteUnavailable):
            fetch(url)
        assert time.monotonic() - began < 5.0


def test_it_ends_when_nobody_waits():
    with raw(dripping(10.0)) as (url, _), pytest.raises(RemoteUnavailable, match="nobody waits"):
        fetch(url, is_stopped=lambda: True)


def test_only_allowed_servers_at_allowed_addresses_are_asked(monkeypatch: pytest.MonkeyPatch):
    with raw(whole()) as (url, heads):
        port = url.rpartition(":")[2]
        for allowed in ("https://example.com", f"https://127.0.0.1:{port}", "http://127.0.0.1:1"):
            with refused_as(RemoteFailed, "remote_not_allowed"):
                fetch(url, allowed=allowed)
        # A name below an asterisk must be at a public address.
        monkeypatch.setattr(addresses, "_resolve", lambda _host, _port: ["127.0.0.1"])
        with refused_as(RemoteFailed, "remote_address"):
            Download(
                f"http://a.localhost:{port}/", AllowedServers.of(f"http://*.localhost:{port}"), print, 10
            ).run()
        assert heads == []


@pytest.mark.parametrize(
    "url",
    [
        *(
            "",
            "ftp://a/b",
            "//a/b",
            "http:///b",
            "http://a b/",
            "http://a/ü",
            "http://u:p@a/b",
            "http://a/#b",
        ),
        *("http://a\\b/", "http://a:0/", "http://a:99999/", "http://[::1/", "http://a/\r\nX: y", "x" * 9000),
    ],
)
def test_what_is_not_an_address_is_refused(url: str):
    with pytest.raises(ValueError, match="The address must") as refused:
        split_url(url)
    assert url == "" or url not in str(refused.value)
