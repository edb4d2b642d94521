"""The request head, read by the server's parser with its rules and by h11: both must see the same request."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import h11

from app.server.exchange import ChunkedBody
from app.server.heads import BadRequest, HeadReader

HEADS: Final = (
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /v1/a?b=c HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi",
    b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2;a=b\r\nhi\r\n0\r\nX: y\r\n\r\n",
    b"POST /a HTTP/1.0\r\nContent-Length: 1\r\nX-Api-Key: k\r\nAuthorization: Bearer k\r\n\r\nx",
    b"GET / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nConnection: close\r\nAccept: */*\r\n\r\n",
)


class Disagreement(Exception):
    """The two parsers see different requests in the same bytes."""


def compare_heads(data: bytes, _folder: Path) -> None:
    """Raise Disagreement if the server accepts a complete request in which h11 sees another one.

    h11 may refuse what the server accepts: it is the server's framing that a proxy could see differently. The
    server must see the same request in whatever pieces it arrives.
    """
    ours = _read_by_the_server(data, len(data) or 1)
    in_pieces = _read_by_the_server(data, 1 + len(data) % 11)
    if in_pieces != ours:
        raise Disagreement(f"{ours!r:.300} at once, and {in_pieces!r:.300} in pieces")
    theirs = None if ours is None else _read_by_h11(data)
    if theirs is not None and theirs != ours:
        raise Disagreement(f"{ours!r:.300} and {theirs!r:.300}")


def _read_by_the_server(data: bytes, size: int) -> tuple[bytes, bytes, bytes] | None:
    """Method, target and body of the first request; None if it is refused or unfinished."""
    data = data.lstrip(b"\r\n")
    reader, head, body, content = HeadReader(), None, None, b""
    for start in range(0, len(data), size):
        piece = data[start : start + size]
        try:
            if head is None:
                used = reader.feed(piece)
                if used < 0:
                    continue
                head, piece = reader.take(), piece[used:]
                body = ChunkedBody() if head.length is None else None
            if body is None:
                content += piece
                is_complete = len(content) >= (head.length or 0)
            else:
                decoded, used = body.feed(piece)
                content += decoded
                is_complete = used >= 0
        except BadRequest:
            return None
        if is_complete:
            return head.method.encode("ascii"), head.target, content[: head.length]
    return None


def _read_by_h11(data: bytes) -> tuple[bytes, bytes, bytes | None] | None:
    """Method, target and body of the first request; the body is None if unfinished.

    None if h11 refuses the request.
    """
    connection = h11.Connection(h11.SERVER)
    method = target = body = b""
    try:
        connection.receive_data(data)
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA or event is h11.PAUSED:
                return method, target, None
            if isinstance(event, h11.Request):
                method, target = event.method, event.target
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return method, target, body
    except h11.RemoteProtocolError:
        return None
