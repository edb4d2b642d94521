"""Heads and chunked bodies in any pieces, and the rules for them, without a socket."""

from __future__ import annotations

import pytest

from app.server.exchange import ChunkedBody
from app.server.heads import (
    HEAD_BYTES,
    MAX_HEADERS,
    RELAYED_BYTES,
    TARGET_BYTES,
    BadRequest,
    Head,
    HeadReader,
    check_head,
)

HOST = (b"host", b"x")
CHUNKED = (b"transfer-encoding", b"chunked")
KEY = (b"authorization", b"Bearer a")


def check(
    *headers: tuple[bytes, bytes],
    target: bytes = b"/x",
    version: str = "1.1",
) -> bool:
    return check_head(target, headers, version)


@pytest.mark.parametrize(
    ("headers", "version", "is_chunked"),
    [
        ([HOST], "1.1", False),
        ([], "1.0", False),
        ([HOST, KEY, (b"content-length", b"2")], "1.1", False),
        ([HOST, CHUNKED], "1.1", True),
        ([HOST, (b"transfer-encoding", b" Chunked\t")], "1.1", True),
        ([HOST, *[(b"x", b"y")] * (MAX_HEADERS - 1)], "1.1", False),
    ],
)
def test_a_head_within_the_rules_passes(headers, version: str, is_chunked: bool):
    assert check(*headers, version=version) is is_chunked


@pytest.mark.parametrize(
    ("status", "code", "headers", "target", "version"),
    [
        (400, "malformed_request", [], b"/x", "1.1"),
        (400, "malformed_request", [HOST, HOST], b"/x", "1.1"),
        (400, "malformed_request", [HOST, KEY, KEY], b"/x", "1.1"),
        (400, "malformed_request", [HOST, (b"x-api-key", b"a"), (b"x-api-key", b"b")], b"/x", "1.1"),
        (400, "malformed_request", [HOST, CHUNKED, CHUNKED], b"/x", "1.1"),
        (400, "malformed_request", [HOST, (b"transfer-encoding", b"gzip, chunked")], b"/x", "1.1"),
        (400, "malformed_request", [HOST, (b"transfer-encoding", b"identity")], b"/x", "1.1"),
        (400, "malformed_request", [HOST], b"/x", "2.0"),
        (400, "malformed_request", [HOST], b"/x", "0.9"),
        (414, "target_too_long", [HOST], b"/" * (TARGET_BYTES + 1), "1.1"),
        (431, "head_too_large", [HOST, *[(b"x", b"y")] * MAX_HEADERS], b"/x", "1.1"),
    ],
)
def test_a_head_that_breaks_a_rule_is_a_problem(status: int, code: str, headers, target: bytes, version: str):
    with pytest.raises(BadRequest) as raised:
        check(*headers, target=target, version=version)
    assert (raised.value.problem.status, raised.value.problem.code) == (status, code)


def read(*pieces: bytes, relayed: bool = False) -> tuple[Head, list[int]]:
    """The head in some pieces, and how many bytes of each belonged to it."""
    reader = HeadReader(relayed=relayed)
    used = [reader.feed(piece) for piece in pieces]
    return reader.take(), used


HEAD = b"POST /a?b=c HTTP/1.1\r\nHost: x\r\nContent-Length: 12\r\nExpect: 100-Continue\r\n\r\n"


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 1000])
def test_a_head_is_the_same_in_all_pieces_and_ends_where_it_ends(size: int):
    data = HEAD + b"body\r\n\r\n"
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    pieces = pieces[: -(-len(HEAD) // size)]
    head, used = read(*pieces)
    assert (head.method, head.target, head.version, head.length) == ("POST", b"/a?b=c", "1.1", 12)
    assert head.headers == [(b"host", b"x"), (b"content-length", b"12"), (b"expect", b"100-Continue")]
    assert (head.keeps_alive, head.expects_continue) == (True, True)
    assert used[:-1] == [-1] * (len(pieces) - 1)
    assert sum(map(len, pieces[:-1])) + used[-1] == len(HEAD)


@pytest.mark.parametrize(
    ("head", "keeps_alive", "length"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", False, 0),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", False, 0),
        (b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", True, None),
        (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n", True, 0),
    ],
)
def test_a_head_says_how_its_request_is_framed(head: bytes, keeps_alive: bool, length: int | None):
    found, _ = read(head)
    assert (found.keeps_alive, found.length) == (keeps_alive, length)


@pytest.mark.parametrize(
    "head",
    [
        HEAD.replace(b"\r\nHost", b"\nHost"),
        HEAD.replace(b"\r\n\r\n", b"\n\n"),
        HEAD.replace(b"\r\n\r\n", b"\n\r\n\r\n"),
        b"PRI * HTTP/2.0\r\n\r\n",
        b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01",
    ],
)
def test_what_is_no_request_is_refused(head: bytes):
    with pytest.raises(BadRequest) as raised:
        read(head)
    assert raised.value.problem.code == "malformed_request"


@pytest.mark.parametrize(("relayed", "most"), [(False, HEAD_BYTES), (True, HEAD_BYTES + RELAYED_BYTES)])
def test_a_head_has_a_limit_over_all_its_pieces(relayed: bool, most: int):
    start = b"GET / HTTP/1.1\r\nHost: x\r\nX: "
    whole = start + b"a" * (most - len(start) - 4) + b"\r\n\r\n"
    for pieces in ([whole], [whole[:100], whole[100:]]):
        assert read(*pieces, relayed=relayed)[0].target == b"/"
    longer = whole.replace(b"a", b"aa", 1)
    for pieces in ([longer], [longer[:100], longer[100:]], [longer[:-1]]):
        with pytest.raises(BadRequest) as raised:
            read(*pieces, b"", relayed=relayed)
        assert raised.value.problem.status == 431 or pieces == [longer[:-1]]


CHUNKS = b"2;a=b\r\n\r\n\r\n3\r\n\r\n\r\r\n0\r\nX: y\r\n\r\n"
"""Content and framing that look like the end of the body, and trailers."""


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7, 1000])
def test_a_chunked_body_is_the_same_in_all_pieces_and_ends_where_it_ends(size: int):
    data, body, used = CHUNKS + b"\r\n\r\nGET", ChunkedBody(), 0
    content = b""
    for start in range(0, len(data), size):
        piece, end = body.feed(data[start : start + size])
        content += piece
        used += size if end < 0 else end
        if end >= 0:
            break
    assert (content, used) == (b"\r\n\r\n\r", len(CHUNKS))


@pytest.mark.parametrize("framing", [b"1;" + b"e" * HEAD_BYTES, b"0\r\n" + b"X: y\r\n" * HEAD_BYTES])
def test_chunk_framing_is_limited_in_proportion_to_the_body(framing: bytes):
    with pytest.raises(BadRequest) as raised:
        ChunkedBody().feed(framing)
    assert raised.value.problem.status == 400
    ChunkedBody().feed(b"1\r\nx\r\n" * 100_000)
