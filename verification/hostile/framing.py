"""Malformed requests, and requests that a proxy in front could parse differently."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tests.refusals.refusal import (
    DATASETS,
    JOBS,
    QUERY,
    Act,
    Answer,
    Header,
    Refusal,
    authorization,
    get,
    post,
    refusals,
)
from verification.hostile.server import Server
from verification.hostile.wire import chunked, connection, exchange, head, send

_BODY = b'{"x": [1, 2, 3]}'
_AUTH = (b"Authorization", b"Bearer {key}")
_LENGTH = (b"Content-Length", b"16")
_CHUNKED = (b"Transfer-Encoding", b"chunked")
_MALFORMED = (400, "malformed_request")
_MIB = 1024**2
_TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(range(200))
_WEBSOCKET = (
    (b"Connection", b"Upgrade"),
    (b"Upgrade", b"websocket"),
    (b"Sec-WebSocket-Version", b"13"),
    (b"Sec-WebSocket-Key", b"dGhlIHNhbXBsZSBub25jZQ=="),
)


def _query(*headers: tuple[bytes, bytes], body: bytes = _BODY, target: str = QUERY) -> bytes:
    return head("POST", target, [_AUTH, *headers]) + body


def smuggling() -> list[Refusal]:
    """Request smuggling: contradictory lengths of the body."""
    return refusals(
        "smuggling",
        ("two lengths", raw(_query(_LENGTH, (b"Content-Length", b"15"))), *_MALFORMED),
        ("the same length twice", raw(_query(_LENGTH, _LENGTH)), *_MALFORMED),
        ("a list of lengths", raw(_query((b"Content-Length", b"16, 16"))), *_MALFORMED),
        ("length and chunks", raw(_query(_LENGTH, _CHUNKED, body=b"0\r\n\r\n")), *_MALFORMED),
        ("chunks and length", raw(_query(_CHUNKED, _LENGTH, body=b"0\r\n\r\n")), *_MALFORMED),
        ("gzip, chunked", raw(_query((b"Transfer-Encoding", b"gzip, chunked"))), *_MALFORMED),
        ("chunked, identity", raw(_query((b"Transfer-Encoding", b"chunked, identity"))), *_MALFORMED),
        ("xchunked", raw(_query((b"Transfer-Encoding", b"xchunked"))), *_MALFORMED),
        ("chunked twice", raw(_query(_CHUNKED, _CHUNKED, body=b"0\r\n\r\n")), *_MALFORMED),
        ("chunked behind a vertical tab", raw(_query((b"Transfer-Encoding", b"\x0bchunked"))), *_MALFORMED),
        ("a space before the colon", raw(_query((b"Content-Length ", b"16"))), *_MALFORMED),
        ("a length of letters", raw(_query((b"Content-Length", b"0x10"))), *_MALFORMED),
        ("a negative length", raw(_query((b"Content-Length", b"-16"))), *_MALFORMED),
        ("a length with a plus", raw(_query((b"Content-Length", b"+16"))), *_MALFORMED),
        ("a length beyond 64 bits", raw(_query((b"Content-Length", b"9" * 30))), *_MALFORMED),
        ("a header folded over lines", raw(_query((b"X-Note", b"a\r\n b"), _LENGTH)), *_MALFORMED),
        ("a header without a colon", raw(_query().replace(b"\r\n\r\n", b"\r\nnothing\r\n\r\n")), *_MALFORMED),
        ("a line feed in a header", raw(_query((b"X-Note", b"a\nContent-Length: 0"), _LENGTH)), *_MALFORMED),
        ("NUL in a header", raw(_query((b"X-Note", b"a\0b"), _LENGTH)), *_MALFORMED),
        ("a header with a name of spaces", raw(_query((b"X Note", b"a"), _LENGTH)), *_MALFORMED),
        ("no host", raw(head("GET", "/livez", host=False), method="GET"), *_MALFORMED),
        ("two hosts", raw(head("GET", "/livez", [(b"Host", b"other")]), method="GET"), *_MALFORMED),
        ("a body shorter than told", raw(_query((b"Content-Length", b"99")), ends=True), 0, None),
    )


def chunks() -> list[Refusal]:
    """Malformed chunked bodies."""

    def with_chunks(body: bytes) -> bytes:
        return _query(_CHUNKED, body=body)

    nothing = b"1\r\n \r\n"
    return refusals(
        "chunks",
        ("a size beyond 64 bits", raw(with_chunks(b"F" * 17 + b"\r\n")), *_MALFORMED),
        ("a negative size", raw(with_chunks(b"-1\r\n")), *_MALFORMED),
        ("a size of letters", raw(with_chunks(b"xyz\r\n")), *_MALFORMED),
        ("a size with 0x", raw(with_chunks(b"0x10\r\n" + _BODY + b"\r\n0\r\n\r\n")), *_MALFORMED),
        ("a chunk longer than told", raw(with_chunks(b"5\r\n" + _BODY + b"\r\n0\r\n\r\n")), *_MALFORMED),
        ("no line end behind a chunk", raw(with_chunks(b"10\r\n" + _BODY + b"0\r\n\r\n")), *_MALFORMED),
        ("an extension of a MiB", raw(with_chunks(b"10;" + b"a" * _MIB + b"\r\n")), *_MALFORMED),
        (
            "an extension at each chunk",
            raw(with_chunks((b"1;" + b"a" * 99 + b"\r\n \r\n") * 5000)),
            *_MALFORMED,
        ),
        ("trailers without end", raw(with_chunks(b"0\r\n" + b"X-A: b\r\n" * 100_000)), *_MALFORMED),
        ("a bomb of tiny chunks", raw(with_chunks(nothing * 30_000 + b"0\r\n\r\n")), 400, "empty"),
        (
            "more than a query may have",
            in_chunks(QUERY, lambda: [b" " * _MIB] * 17),
            413,
            "body_too_large",
        ),
        (
            "more than a body may have",
            in_chunks(JOBS, lambda: [b" " * _MIB] * 2, key="train"),
            413,
            "body_too_large",
        ),
        (
            "more than a file may have",
            in_chunks(DATASETS, lambda: [b"1,2\n" * (_MIB // 4)] * 25, key="train"),
            413,
            "body_too_large",
        ),
    )


def heads() -> list[Refusal]:
    """Request heads that are too large or belong to other protocols."""
    too_large = (431, "head_too_large")
    many = [(b"X-%d" % i, b"v") for i in range(1000)]
    return refusals(
        "heads",
        ("1000 headers", raw(head("GET", "/livez", many), method="GET"), *too_large),
        ("100 000 headers", raw(head("GET", "/livez", [(b"A", b"b")] * 100_000), method="GET"), *too_large),
        ("a header of a MiB", raw(head("GET", "/livez", [(b"X-A", b"v" * _MIB)]), method="GET"), *too_large),
        ("a name of a MiB", raw(head("GET", "/livez", [(b"A" * _MIB, b"v")]), method="GET"), *too_large),
        ("1000 cookies", raw(head("GET", "/livez", [(b"Cookie", b"a=b")] * 1000), method="GET"), *too_large),
        ("a key of 60 KiB", get("/v1/models", (b"X-API-Key", b"k" * 60_000), key=""), 401, "invalid_key"),
        ("a target of 17 KiB", raw(head("GET", b"/" + b"a" * 17_000), method="GET"), 414, "target_too_long"),
        ("a target of a MiB", raw(head("GET", b"/" + b"a" * _MIB), method="GET"), *too_large),
        ("NUL in the target", raw(head("GET", b"/v1/mod\0els"), method="GET"), *_MALFORMED),
        ("a space in the target", raw(head("GET", b"/v1/mod els"), method="GET"), *_MALFORMED),
        ("an unknown method", raw(head("BREW", "/livez"), method="GET"), *_MALFORMED),
        ("a method of a MiB", raw(head("A" * _MIB, "/livez"), method="GET"), *_MALFORMED),
        ("CONNECT", raw(head("CONNECT", "example.com:80"), method="GET"), *_MALFORMED),
        ("TRACE", post("/livez", method="TRACE", key=""), 405, "method_not_allowed"),
        ("the preface of HTTP/2", raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", method="GET"), *_MALFORMED),
        ("HTTP/9.9", raw(b"GET /livez HTTP/9.9\r\nHost: a\r\n\r\n", method="GET"), *_MALFORMED),
        ("HTTP/0.9", raw(b"GET /livez\r\n\r\n", method="GET"), *_MALFORMED),
        ("a TLS hello", raw(_TLS_HELLO, method="GET"), *_MALFORMED),
        ("noise", raw(bytes(range(256)) * 16, method="GET"), *_MALFORMED),
        ("SSH", raw(b"SSH-2.0-OpenSSH_9.2\r\n", method="GET"), *_MALFORMED),
        ("a websocket", get("/v1/socket", *_WEBSOCKET), 404, "no_such_path"),
        (
            "an upgrade to HTTP/2",
            get("/v1/h2", (b"Connection", b"Upgrade"), (b"Upgrade", b"h2c")),
            404,
            "no_such_path",
        ),
        (
            "a terabyte, if only it may",
            raw(_query((b"Content-Length", b"1000000000000"), (b"Expect", b"100-continue"), body=b"")),
            413,
            "body_too_large",
        ),
        ("a declared file of a terabyte", raw(_huge_file()), 413, "body_too_large"),
        (
            "ranges without end",
            get("/v1/none", (b"Range", b"bytes=" + b"0-,1-9," * 2000)),
            404,
            "no_such_path",
        ),
    )


def _huge_file() -> bytes:
    return head(
        "POST", DATASETS, [(b"Authorization", b"Bearer {key}"), (b"Content-Length", b"1000000000000")]
    )


def connections() -> list[Refusal]:
    """Event streams that are dropped, and two keys in one request."""

    def both(*values: bytes) -> Act:
        def act(server: Server) -> Answer:
            ((name, good),) = authorization(server, "query")
            return get("/v1/models", *((name, value or good) for value in values), key="")(server)

        return act

    return [
        *refusals("pages", ("a hundred streams, dropped", _streams, 404, "job_not_found")),
        *refusals(
            "access",
            ("two keys, the first good", both(b"", b"Bearer stms_none"), *_MALFORMED),
            ("two keys, the second good", both(b"Bearer stms_none", b""), *_MALFORMED),
        ),
    ]


def large_heads() -> list[Refusal]:
    """Heads of 70 kB in one piece."""
    large = (b"X-Padding", b"y" * 70_000)
    return refusals(
        "borders",
        ("a head of 70 kB", raw(head("GET", "/livez", [large]), method="GET"), 431, "head_too_large"),
        ("a query with a head of 70 kB", raw(_query(_LENGTH, large)), 431, "head_too_large"),
    )


def raw(*pieces: bytes, method: str = "POST", ends: bool = False) -> Act:
    """A request of these very bytes; ``{key}`` is replaced by an API key with the scope train."""

    def act(server: Server) -> Answer:
        key = server.keys["train"].encode()
        filled = [piece.replace(b"{key}", key) for piece in pieces]
        return exchange(server.address, filled, method=method, ends=ends)

    return act


def in_chunks(
    target: str, pieces: Callable[[], Iterable[bytes]], *headers: Header, key: str = "query"
) -> Act:
    """A request with a chunked body."""

    def act(server: Server) -> Answer:
        given = [*authorization(server, key), (b"Transfer-Encoding", b"chunked"), *headers]
        return exchange(server.address, [head("POST", target, given), *chunked(pieces())])

    return act


def _streams(server: Server) -> Answer:
    for _ in range(100):
        with connection(server.address) as opened:
            accept = (b"Accept", b"text/event-stream")
            path = f"{JOBS}/{server.kept['job']}/events"
            send(opened, [head("GET", path, [*authorization(server, "train"), accept])])
            assert b"200 OK" in opened.recv(100), "the stream did not begin"
    return get(f"{JOBS}/none/events", (b"Accept", b"text/event-stream"), key="train")(server)
