"""Requests as bytes on a socket, because HTTP libraries refuse to send malformed ones."""

from __future__ import annotations

import contextlib
import http.client
import socket
from collections.abc import Iterable, Iterator, Sequence

from tests.refusals.refusal import Answer, Header

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0


NOTHING = Answer(0)


@contextlib.contextmanager
def connection(address: tuple[str, int]) -> Iterator[socket.socket]:
    """An open connection."""
    with socket.create_connection(address, timeout=CONNECT_SECONDS) as opened:
        opened.settimeout(ANSWER_SECONDS)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield opened


def exchange(
    address: tuple[str, int], pieces: Iterable[bytes], *, method: str = "POST", ends: bool = False
) -> Answer:
    """Send ``pieces`` on a new connection and read one answer. ends: shut down the sending side first."""
    with connection(address) as opened:
        send(opened, pieces)
        if ends:
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_WR)
        return read_answer(opened, method)


def send(opened: socket.socket, pieces: Iterable[bytes]) -> bool:
    """Send until the server closes the connection. Returns whether everything was sent."""
    try:
        for piece in pieces:
            opened.sendall(piece)
    except OSError:
        return False
    return True


def read_answer(opened: socket.socket, method: str = "POST") -> Answer:
    """The next answer on a connection."""
    response = http.client.HTTPResponse(opened, method=method)
    try:
        response.begin()
        body = response.read()
    except (http.client.HTTPException, ConnectionError):
        return NOTHING
    finally:
        response.close()
    return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, body)


def head(
    method: bytes | str,
    target: bytes | str,
    headers: Sequence[Header] = (),
    *,
    host: bool = True,
    version: bytes = b"1.1",
) -> bytes:
    """The head of a request, without any validation."""
    first = b"%s %s HTTP/%s" % (_bytes(method), _bytes(target), version)
    lines = [first, *([b"Host: stms"] if host else []), *(b"%s: %s" % header for header in headers)]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def chunked(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """A body in chunks."""
    for piece in pieces:
        yield b"%x\r\n%s\r\n" % (len(piece), piece)
    yield b"0\r\n\r\n"


def _bytes(text: bytes | str) -> bytes:
    return text if isinstance(text, bytes) else text.encode("latin-1")
