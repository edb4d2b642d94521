"""Generated requests, valid and invalid, in pipelines and in pieces; each follows from a seed and its number.

Half of the pipelines repeat the heads of a few dozen clients byte for byte, so that they become known.
"""

from __future__ import annotations

import json
import random
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from verification.differential.database import COLUMNS

_CLIENTS: Final = 48
_LATE: Final = 0.08
"""Pause in front of a piece that is late for the fast path, in seconds."""
_QUERIES: Final = (
    *["/v1/models/pets/classes/cat:query"] * 6,
    *["/v1/models/pets/classes/dog:query", "/v1/models/kernel/classes/a:query"] * 2,
    "/v1/models/pets@1/classes/cat:query",
    "/v1/models/pets@latest/classes/K%C3%A4se%20%E7%8A%AC:query",
    "/v1/models/pets/classes/cat%3Aquery",
    "/v1/models/pets/classes/cat:query?explain=true",
    "/v1/models/pets/classes/cat:query?unknown=1",
    "/v1/models/pets/classes/cat:query#part",
    "/v1/models/pets/classes/wolf:query",
    "/v1/models/none/classes/cat:query",
    "/v1/models/pets@9/classes/cat:query",
    "/v1/models/pets:query",
    "/v1/models/pets:query?class=cat&class=dog",
    "/v1/models/things/classes/a:query",
    "/v1/models/%ff/classes/cat:query",
    "http://elsewhere/v1/models/pets/classes/cat:query",
)
_PREDICTIONS: Final = (
    *["/v1/models/pets:predict"] * 3,
    "/v1/models/kernel:predict",
    "/v1/models/kernel:predict?target=a",
    "/v1/models/pets:predict?target=wolf",
    "/v1/models/things:predict",
    "/v1/models/none:predict",
)
_INFERENCES: Final = (
    *["/v2/models/pets:cat/infer"] * 4,
    "/v2/models/pets/versions/1/infer",
    "/v2/models/pets:K%C3%A4se%20%E7%8A%AC/infer",
    "/v2/models/pets:wolf/infer",
    "/v2/models/kernel:a/versions/1/infer",
    "/v2/models/pets:cat/infer?x=1",
    "/v2/models/none/infer",
)
_OTHERS: Final = (
    *["/v1/whoami", "/v1/models"] * 2,
    "/version",
    "/v1/models/pets",
    "/v1/models/pets/versions/1",
    "/v1/models/none",
    "/v1/models?limit=1",
    "/v1/models?limit=x",
    "/v1/jobs",
    "/v1/jobs/none",
    "/v1/datasets",
    "/livez",
    "/readyz/queries",
    "/nothing",
    "/nothing/%2e%2e/else?a=b&c",
    "/v2",
    "/v2/",
    "/v2/health/live",
    "/v2/health/ready",
    "/v2/models/pets:cat",
    "/v2/models/pets:cat/ready",
    "/v2/models/pets/config",
    "/v2/nothing",
    "*",
    "//",
    "/v1/models/pets:predict",
    "/v1/models/pets/classes/cat:query",
)
_OTHER_BODIES: Final = (
    "rows",
    "rows",
    {"x": {"indices": [1, 5], "values": [1.5, -2]}},
    {"x": [1.5, 2, 3]},
    {"x": [1, 2, 3, 4, 5, 6, 7, "a"]},
    {"x": [1, 2, 3, 4, 5, 6, 7, None]},
    {"x": [1, 2, 3, 4, 5, 6, 7, 8], "explain": True},
    {"x": [1, 2, 3, 4, 5, 6, 7, 8], "y": 1},
    {"record": {"size": 1, "hue": "red", "else": 2}},
    {"records": [{"size": 1}, {"hue": "blue"}]},
    [],
    None,
    1e400,
    b"",
    b"{",
    b'{"x":',
    b"\xff\xfe",
    b"[" * 200,
    b'{"x":[1,2,3,4,5,6,7,8],"x":[1]}',
    b" " * 40_000,
)
_METHODS: Final = (
    "GET",
    "HEAD",
    "OPTIONS",
    "PUT",
    "DELETE",
    "PATCH",
    "POST",
    "TRACE",
    "PROPFIND",
    "BREW",
    "get",
)


@dataclass(slots=True)
class Request:
    """One request until it is written. framing: the lines about its body. line_end: of its head."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes = b""
    framing: list[tuple[str, str]] = field(default_factory=list)
    version: str = "HTTP/1.1"
    line_end: str = "\r\n"
    before: bytes = b""

    def encode(self) -> bytes:
        """The bytes."""
        lines = [f"{self.method} {self.target} {self.version}"]
        lines += [f"{name}:{value}" for name, value in (*self.headers, *self.framing)]
        head = self.line_end.join((*lines, "", "")).encode("latin-1")
        return self.before + head + self.body


@dataclass(frozen=True, slots=True)
class Case:
    """What one connection sends. methods: of its requests. pieces: bytes, and seconds to wait before them."""

    number: int
    methods: tuple[str, ...]
    pieces: tuple[tuple[float, bytes], ...]

    @property
    def data(self) -> bytes:
        """All bytes."""
        return b"".join(piece for _, piece in self.pieces)


class Generator:
    """Generates cases. keys: texts of API keys, see `verification.differential.database`. only_queries:
    whether all requests are queries, as most are.
    """

    def __init__(self, keys: Mapping[str, str], seed: int, *, only_queries: bool = False) -> None:
        self._keys, self._seed, self._only_queries = keys, seed, only_queries

    def case(self, number: int) -> Case:
        """The case of a number."""
        rng = random.Random(f"{self._seed} {number}")
        client = None
        if rng.random() < 0.5:
            client = f"{self._seed} client {rng.randrange(_CLIENTS)}"
        requests = [self._request(rng, client) for _ in range(rng.choice((1, 1, 2, 3, 4, 5, 6, 8)))]
        data = b"".join(request.encode() for request in requests)
        return Case(number, tuple(request.method for request in requests), _pieces(rng, requests, data))

    def _request(self, rng: random.Random, client: str | None) -> Request:
        """A request; of a client with the head that it always sends, most of the time."""
        head = rng if client is None else random.Random(client)
        make = self._query
        if not self._only_queries or client is not None:
            make = head.choices((self._query, self._inference, self._prediction, self._other), (9, 4, 2, 3))[
                0
            ]
        request = make(head)
        if client is None or rng.random() < 0.06:
            for _ in range(rng.choice((0, 0, 0, 1, 1, 2))):
                rng.choice(_MUTATIONS)(request, rng)
        else:
            # Another body of the same length.
            request.body = request.body.translate(
                bytes.maketrans(b"1234", rng.choice((b"1234", b"4321", b"2[3 ")))
            )
        return request

    def _headers(self, rng: random.Random) -> list[tuple[str, str]]:
        key = self._keys[rng.choices(("all", "one", "admin", "old", "other"), (20, 2, 2, 1, 1))[0]]
        key = rng.choice((key,) * 24 + ("stms_wrong", ""))
        scheme = rng.choice(("Bearer",) * 8 + ("bearer", "Basic"))
        found = [("Host", " localhost"), ("Authorization", f" {scheme} {key}")]
        if rng.random() < 0.1:
            found[1] = ("X-API-Key", f" {key}")
        elif rng.random() < 0.04:
            del found[1]
        chances = (
            (0.3, "Accept", " */*"),
            (0.3, "User-Agent", " python-httpx/0.28.1"),
            (0.2, "Accept-Encoding", " gzip, deflate"),
            (0.15, "Connection", " keep-alive"),
            (0.2, "X-Request-ID", f" r{rng.randrange(10**6)}"),
            (0.05, "X-Request-ID", " not usable"),
            (0.1, "traceparent", " 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
            (0.05, "Accept", " text/html"),
            (0.05, "Origin", " https://elsewhere.example"),
            (0.05, "Cookie", " a=b"),
        )
        found += [(name, value) for chance, name, value in chances if rng.random() < chance]
        rng.shuffle(found)
        return found

    def _with_body(self, rng: random.Random, target: str, body: bytes, kind: str) -> Request:
        headers = self._headers(rng)
        if kind:
            headers.insert(rng.randrange(len(headers) + 1), ("Content-Type", f" {kind}"))
        return Request("POST", target, headers, body, [("Content-Length", f" {len(body)}")])

    def _query(self, rng: random.Random) -> Request:
        target = rng.choice(_QUERIES)
        kind = rng.choice(("application/json",) * 4 + ("application/json; charset=utf-8", "", "text/plain"))
        if rng.random() < 0.15:
            return self._tensor(rng, target)
        return self._with_body(rng, target, _query_body(rng, target), kind)

    def _tensor(self, rng: random.Random, target: str) -> Request:
        rows = rng.choice((1, 1, 3, 200, 3000))
        body = struct.pack(f"<{COLUMNS}f", *_row(rng)) * rows
        request = self._with_body(rng, target, body, "application/octet-stream")
        shape = rng.choice((f"{rows}, {COLUMNS}",) * 6 + (f"{rows},9", "8", "x"))
        request.headers += [("X-Tensor-Shape", f" {shape}"), ("X-Tensor-Dtype", " float32")]
        if rng.random() < 0.3:
            request.headers.append(("Accept", " application/octet-stream"))
        return request

    def _inference(self, rng: random.Random) -> Request:
        target, rows = rng.choice(_INFERENCES), rng.choice((1, 1, 1, 2, 50))
        tensor = {"name": "x", "shape": [rows, COLUMNS], "datatype": "FP64"}
        more = {} if ":" in target else {"outputs": [{"name": "score"}]}
        if rng.random() < 0.3:
            raw = struct.pack(f"<{COLUMNS}d", *_row(rng)) * rows
            front = json.dumps({"inputs": [tensor | {"parameters": {"binary_data_size": len(raw)}}]} | more)
            request = self._with_body(rng, target, front.encode() + raw, "application/octet-stream")
            request.headers.append(("Inference-Header-Content-Length", f" {len(front)}"))
            return request
        data = [number for _ in range(rows) for number in _row(rng)][: rng.choice((None, None, None, -1))]
        target_class = {"name": "class", "shape": [1], "datatype": "BYTES", "data": ["cat"]}
        inputs = [tensor | {"data": data}] + ([] if ":" in target else [target_class])
        identity = {"id": "i"} if rng.random() < 0.3 else {}
        return self._with_body(
            rng, target, json.dumps(identity | {"inputs": inputs} | more).encode(), "application/json"
        )

    def _prediction(self, rng: random.Random) -> Request:
        target = rng.choice(_PREDICTIONS)
        return self._with_body(rng, target, _query_body(rng, target), "application/json")

    def _other(self, rng: random.Random) -> Request:
        target = rng.choice(_OTHERS)
        return Request(rng.choice(("GET",) * 6 + ("HEAD",) * 2 + ("OPTIONS",)), target, self._headers(rng))


def _row(rng: random.Random) -> list[float]:
    return [round(rng.uniform(-5, 5), rng.choice((0, 1, 3))) for _ in range(COLUMNS)]


def _query_body(rng: random.Random, target: str) -> bytes:
    """A body for a target, mostly a right one."""
    x = _row(rng)
    if "things" in target:
        right: dict[str, object] = {"record": {"size": x[0], "hue": rng.choice(("red", "blue", None, "x"))}}
    else:
        right = {"x": x}
        if target.startswith("/v1/models/pets:query") and "class=" not in target:
            right["classes"] = ["cat", "dog"]
    if rng.random() < 0.7:
        return json.dumps(right).encode()
    other = rng.choice(_OTHER_BODIES)
    if other == "rows":
        other = {"rows": [_row(rng) for _ in range(rng.choice((2, 3, 60, 600)))]}
    if isinstance(other, bytes):
        return other
    return json.dumps(other).encode()


def _pieces(rng: random.Random, requests: list[Request], data: bytes) -> tuple[tuple[float, bytes], ...]:
    """Cut the bytes: not at all, between head and body of the first request, or anywhere."""
    how, cuts = rng.random(), set[int]()
    if how < 0.3:
        cuts = {len(requests[0].encode()) - len(requests[0].body)}
    elif how < 0.6:
        cuts = {rng.randrange(1, len(data) + 1) for _ in range(rng.choice((1, 2, 4)))}
    places = [0, *sorted(cuts - {0, len(data)}), len(data)]
    pauses = [rng.choice((0.0, 0.001, 0.003)) if rng.random() > 0.03 else _LATE for _ in places]
    pieces = [data[begin:end] for begin, end in pairwise(places)]
    return tuple(zip((0.0, *pauses), pieces, strict=False))


# Mutations: each makes a request unusual or wrong.

Mutation = Callable[[Request, random.Random], None]


def _header_line(request: Request, rng: random.Random) -> int:
    return rng.randrange(len(request.headers)) if request.headers else -1


def _change_method(request: Request, rng: random.Random) -> None:
    request.method = rng.choice(_METHODS)


def _change_version(request: Request, rng: random.Random) -> None:
    request.version = rng.choice(
        ("HTTP/1.0", "HTTP/1.0", "HTTP/2.0", "HTTP/0.9", "HTTP/1.2", "http/1.1", "X", "")
    )


def _change_case(request: Request, rng: random.Random) -> None:
    change = rng.choice((str.lower, str.upper, str.swapcase))
    request.headers = [(change(name), value) for name, value in request.headers]
    request.framing = [(change(name), value) for name, value in request.framing]


def _change_spaces(request: Request, rng: random.Random) -> None:
    before, after = rng.choice((("", ""), ("  ", ""), ("\t", ""), (" ", " "), (" ", "\t "), ("", "  ")))
    request.headers = [(name, before + value.strip() + after) for name, value in request.headers]
    if rng.random() < 0.5:
        request.framing = [(name, before + value.strip() + after) for name, value in request.framing]


def _add_header(request: Request, rng: random.Random) -> None:
    lines = (
        ("Connection", " close"),
        ("Connection", " close"),
        ("Connection", " keep-alive, x"),
        ("Connection", " Upgrade"),
        ("Expect", " 100-continue"),
        ("Expect", " 100-Continue"),
        ("Expect", " something"),
        ("stms-peer", " 1.2.3.4 1 - 0 1.1"),
        ("Stms-Anything", " x"),
        ("X-Forwarded-For", " 1.2.3.4"),
        ("X-Forwarded-Prefix", " /p"),
        ("TE", " trailers"),
        ("Keep-Alive", " timeout=5"),
        ("Proxy-Connection", " close"),
        ("Content-Encoding", " gzip"),
        ("Content-Encoding", " identity"),
        ("Content-Encoding", " br"),
        ("Range", " bytes=0-1"),
        ("If-None-Match", " *"),
        ("Host", " other"),
        ("Authorization", " Bearer second"),
        ("X-API-Key", " second"),
        ("Empty", ""),
        ("Bad Name", " x"),
        ("Bad-Name ", " x"),
        ("Bad(Name", " x"),
        ("", " x"),
        ("X", " a\x00b"),
        ("X", " a\nb"),
        ("X", " a\rb"),
        ("X", " a\r\n folded"),
        ("X", " \xe9\xff"),
        ("Sec-Fetch-Site", " cross-site"),
    )
    request.headers.insert(rng.randrange(len(request.headers) + 1), rng.choice(lines))


def _offer_upgrade(request: Request, rng: random.Random) -> None:
    request.headers += [("Connection", " Upgrade"), ("Upgrade", f" {rng.choice(('websocket', 'h2c', 'x'))}")]


def _remove_header(request: Request, rng: random.Random) -> None:
    if request.headers:
        del request.headers[_header_line(request, rng)]


def _repeat_header(request: Request, rng: random.Random) -> None:
    if request.headers:
        request.headers.append(request.headers[_header_line(request, rng)])


def _shuffle_headers(request: Request, rng: random.Random) -> None:
    rng.shuffle(request.headers)


def _change_length(request: Request, rng: random.Random) -> None:
    size = len(request.body)
    texts = (
        f" {size + 1}",
        f" {max(size - 1, 0)}",
        f" 0{size}",
        f" +{size}",
        f" -{size}",
        f" {size} {size}",
        f" {size}, {size}",
        f" {size:x}",
        f" {10**30}",
        " ",
        " 20000000",
    )
    request.framing = [("Content-Length", rng.choice(texts))]


def _remove_length(request: Request, _rng: random.Random) -> None:
    request.framing = []


def _repeat_length(request: Request, rng: random.Random) -> None:
    size = len(request.body) + rng.choice((0, 1))
    request.framing.append(("Content-Length", f" {size}"))


def _chunked(request: Request, rng: random.Random) -> None:
    pieces, body = [], request.body
    while body:
        size = rng.choice((1, 7, 100, 5000))
        piece, body = body[:size], body[size:]
        pieces.append(b"%x%s\r\n%s\r\n" % (len(piece), rng.choice((b"", b"", b"", b";a=b")), piece))
        if len(pieces) > 50:
            pieces.append(b"%x\r\n%s\r\n" % (len(body), body) if body else b"")
            break
    trailer = rng.choice((b"", b"", b"", b"X-Trailer: 1\r\n", b"Authorization: Bearer x\r\n"))
    request.body = b"".join(pieces) + b"0\r\n" + trailer + b"\r\n"
    request.framing = [("Transfer-Encoding", " chunked")]
    if rng.random() < 0.15:
        request.body = request.body.replace(b"\r\n", rng.choice((b"\n", b"x\r\n", b"\r\n\r\n")), 1)
    if rng.random() < 0.1:
        value = rng.choice((" gzip, chunked", " chunked, chunked", " identity", " Chunked", " xchunked"))
        request.framing = [("Transfer-Encoding", value)]
    if rng.random() < 0.1:
        request.framing.append(("Content-Length", f" {len(request.body)}"))


def _many_headers(request: Request, rng: random.Random) -> None:
    request.headers += [(f"X-{number}", f" {number}") for number in range(rng.choice((80, 92, 96, 98, 100)))]


def _large_head(request: Request, rng: random.Random) -> None:
    request.headers.append(("X-Large", " " + "a" * rng.choice((3_000, 60_000, 65_000, 66_000, 140_000))))


def _long_target(request: Request, rng: random.Random) -> None:
    request.target += rng.choice(("?a=", "/")) + "b" * rng.choice((1000, 16_000, 17_000, 70_000))


def _odd_target(request: Request, rng: random.Random) -> None:
    odd = ("", "?", "#", "//", "%", "%00", " x", "\x7f", "\xe9", "\t", ";a", "/../..", "?a=%zz", "\\")
    place = rng.randrange(len(request.target) + 1)
    request.target = request.target[:place] + rng.choice(odd) + request.target[place:]


def _bare_line_feeds(request: Request, _rng: random.Random) -> None:
    request.line_end = "\n"


def _bytes_before(request: Request, rng: random.Random) -> None:
    request.before = rng.choice((b"\r\n", b"\r\n\r\n", b"\n", b" ", b"x", b"\x16\x03\x01", b"GET\r\n\r\n"))


def _compressed(request: Request, _rng: random.Random) -> None:
    maker = zlib.compressobj(wbits=31)
    request.body = maker.compress(request.body) + maker.flush()
    request.headers.append(("Content-Encoding", " gzip"))
    request.framing = [("Content-Length", f" {len(request.body)}")]


_MUTATIONS: Final[tuple[Mutation, ...]] = (
    _change_method,
    _change_version,
    *[_change_case, _change_spaces, _shuffle_headers] * 2,
    *[_add_header] * 6,
    _offer_upgrade,
    _remove_header,
    _repeat_header,
    _change_length,
    _remove_length,
    _repeat_length,
    *[_chunked] * 3,
    _many_headers,
    _large_head,
    _long_target,
    *[_odd_target] * 2,
    _bare_line_feeds,
    _bytes_before,
    _compressed,
)
