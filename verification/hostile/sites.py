"""Requests of other sites and of proxies to a server without API keys: each is refused without an effect.

A browser adds Origin, Sec-Fetch-Site and Host by itself. These attacks send the headers of browsers and of
proxies on a socket; `verification.hostile.browser` has a browser send some of them.
"""

from __future__ import annotations

from typing import Final

from tests.refusals.refusal import DATASETS, INFER, JOBS, KEYS, PREDICT, QUERY, Act, Answer, Header, Refusal
from verification.hostile.server import Server
from verification.hostile.wire import exchange, head

NOT_LOCAL = "not_local"
ROW = b'{"x": [1, 2, 3]}'
NEW_KEY = b'{"name": "mine", "scopes": ["admin"]}'
CSV = b"a,b,label\n1,2,u\n2,1,v\n3,1,u\n1,3,v\n"

ACTIONS: tuple[tuple[str, str, str, bytes], ...] = (
    ("lists the keys", "GET", KEYS, b""),
    ("makes a key", "POST", KEYS, NEW_KEY),
    ("rotates a key", "POST", f"{KEYS}/key_none/rotate", b""),
    ("revokes a key", "DELETE", f"{KEYS}/key_none", b""),
    ("reads the audit log", "GET", "/v1/audit", b""),
    ("lists data sets", "GET", DATASETS, b""),
    ("sends a data set", "POST", f"{DATASETS}?format=csv", CSV),
    ("deletes a data set", "DELETE", f"{DATASETS}/ds_none", b""),
    ("submits a job", "POST", JOBS, b'{"dataset_id": "ds_none", "model": "door"}'),
    ("cancels a job", "POST", f"{JOBS}/job_none/cancel", b""),
    ("imports a head", "POST", "/v1/teachers?model=door&kind=students", b"\x00" * 64),
    ("moves an alias", "PUT", "/v1/models/pets/aliases/latest", b'{"version": 1}'),
    ("deletes a version", "DELETE", "/v1/models/pets/versions/1", b""),
    ("asks", "POST", QUERY, ROW),
    ("predicts", "POST", PREDICT, ROW),
    (
        "infers",
        "POST",
        INFER,
        b'{"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP64", "data": [1, 2, 3]}]}',
    ),
    ("unloads a model", "POST", "/v2/repository/models/pets/unload", b""),
)
"""What is tried: name, method, target and body."""

_LOCAL: Header = (b"Host", b"127.0.0.1:8000")
_EVIL: Header = (b"Origin", b"http://evil.example")

SENDERS: tuple[tuple[str, tuple[Header, ...]], ...] = (
    ("a page of another site", (_LOCAL, _EVIL, (b"Sec-Fetch-Site", b"cross-site"))),
    ("a page of another site in an old browser", (_LOCAL, _EVIL)),
    ("a page in a sandbox", (_LOCAL, (b"Origin", b"null"))),
    (
        "an image of another site",
        (_LOCAL, (b"Sec-Fetch-Site", b"cross-site"), (b"Sec-Fetch-Mode", b"no-cors")),
    ),
    (
        "a page of another port",
        (_LOCAL, (b"Origin", b"http://127.0.0.1:9"), (b"Sec-Fetch-Site", b"same-site")),
    ),
    ("a rebound name", ((b"Host", b"evil.example"), _EVIL, (b"Sec-Fetch-Site", b"same-origin"))),
    ("a rebound name that begins like ours", ((b"Host", b"localhost.evil.example:8000"),)),
    ("a rebound name that is a number", ((b"Host", b"2130706433"),)),
    ("an address of the network", ((b"Host", b"192.168.1.7:8000"),)),
    ("the address of all", ((b"Host", b"0.0.0.0:8000"),)),
    ("a proxy with X-Forwarded-For", (_LOCAL, (b"X-Forwarded-For", b"127.0.0.1"))),
    ("a proxy with X-Forwarded-Host", (_LOCAL, (b"X-Forwarded-Host", b"localhost"))),
    ("a proxy with Forwarded", (_LOCAL, (b"Forwarded", b"for=127.0.0.1"))),
    ("a proxy with Via", (_LOCAL, (b"Via", b"1.1 cache"))),
    ("a proxy with X-Real-IP", (_LOCAL, (b"X-Real-IP", b"127.0.0.1"))),
    ("a proxy with CF-Connecting-IP", (_LOCAL, (b"CF-Connecting-IP", b"127.0.0.1"))),
    ("a proxy with True-Client-IP", (_LOCAL, (b"True-Client-IP", b"127.0.0.1"))),
    ("a proxy with X-Client-IP", (_LOCAL, (b"X-Client-IP", b"127.0.0.1"))),
    ("a proxy with X-Original-Forwarded-For", (_LOCAL, (b"X-Original-Forwarded-For", b"127.0.0.1"))),
)
"""Who sends it: name and headers."""
_OLD_PROXY: Final = "a proxy that speaks HTTP/1.0"
"""What nginx does by default: the name in Host is that of the server, and no header names the client."""


def code_of(target: str) -> str | None:
    """The code of the refusal; the v2 protocol has none."""
    return None if target.startswith("/v2") else NOT_LOCAL


def sites() -> list[Refusal]:
    """Every action by every sender."""
    senders = [*((name, headers, b"1.1") for name, headers in SENDERS), (_OLD_PROXY, (_LOCAL,), b"1.0")]
    return [
        Refusal(
            "sites", f"{sender} {action}", _sent(method, target, body, headers, version), 403, code_of(target)
        )
        for sender, headers, version in senders
        for action, method, target, body in ACTIONS
    ]


def _sent(method: str, target: str, body: bytes, headers: tuple[Header, ...], version: bytes) -> Act:
    def act(server: Server) -> Answer:
        kind = [(b"Content-Type", b"text/plain")] if body else []
        given = [*headers, *kind, (b"Content-Length", b"%d" % len(body))]
        return exchange(
            ("127.0.0.1", server.keyless.port),
            [head(method, target, given, host=False, version=version), body],
            method=method,
        )

    return act
