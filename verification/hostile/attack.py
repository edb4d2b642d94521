"""An attack, short constructors of its requests, and the checks that every answer must pass."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from verification.hostile.server import Server
from verification.hostile.wire import Answer, Header, chunked, exchange, head

PROBLEM = "application/problem+json"
_JSON = (b"Content-Type", b"application/json")

QUERY = "/v1/models/pets/classes/cat:query"
CLASSES = "/v1/models/pets:query"
PREDICT = "/v1/models/pets:predict"
INFER = "/v2/models/pets:cat/infer"
DATASETS = "/v1/datasets"
JOBS = "/v1/training-jobs"
KEYS = "/v1/keys"

ANY_CODE = "any"
"""Stands for the code of a problem document where several are right."""
PAGE = "page"
"""Stands for the code where the dashboard answers, with a page or with a problem document."""

Act: TypeAlias = Callable[[Server], Answer]
Body: TypeAlias = bytes | Callable[[], bytes | Iterable[bytes]]

INSIDE = re.compile(
    r"Traceback|File \"|site-packages|\.py\b|sqlalchemy|sqlite|psycopg|pydantic|SELECT |INSERT |arrow::"
    r"|0x[0-9a-f]{8}|/proc/|stms-upload|numpy\.",
    re.IGNORECASE,
)
"""Internals of the server that no answer may reveal."""


@dataclass(frozen=True, slots=True)
class Attack:
    """One hostile request with the only right answer.

    status: expected HTTP status, or several of which each is right; 0 if the server must close the connection
    without an answer. code: expected code of the problem document, `ANY_CODE` or `PAGE`; None for answers of
    the v2 protocol, which have none, and where no answer is expected.
    """

    category: str
    name: str
    act: Act
    status: int | frozenset[int]
    code: str | None = None

    @property
    def statuses(self) -> frozenset[int]:
        """The statuses that are right."""
        return frozenset({self.status}) if isinstance(self.status, int) else self.status


def attacks(category: str, *rows: tuple[str, Act, int, str | None]) -> list[Attack]:
    """A table of one category."""
    return [Attack(category, *row) for row in rows]


def post(
    target: bytes | str, body: Body = b"", *headers: Header, key: str = "query", method: str = "POST"
) -> Act:
    """A well-formed request with any body; its type is JSON unless ``headers`` name another.

    key: name of the API key to send; empty for none.
    """

    def act(server: Server) -> Answer:
        made = body() if callable(body) else body
        whole = made if isinstance(made, bytes) else b"".join(made)
        length = [(b"Content-Length", b"%d" % len(whole))] if whole or method != "GET" else []
        kind = [] if any(name == b"Content-Type" for name, _ in headers) or not whole else [_JSON]
        given = [*server.authorization(key), *kind, *headers, *length]
        return exchange(server.address, [head(method, target, given), whole], method=method)

    return act


def get(target: bytes | str, *headers: Header, key: str = "query") -> Act:
    """One GET."""
    return post(target, b"", *headers, key=key, method="GET")


def a_file(data: Body | str, kind: str = "application/octet-stream", query: str = "") -> Act:
    """An upload of a data set."""
    body = data.encode() if isinstance(data, str) else data
    return post(f"{DATASETS}?{query}", body, (b"Content-Type", kind.encode()), key="train")


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
        given = [*server.authorization(key), (b"Transfer-Encoding", b"chunked"), *headers]
        return exchange(server.address, [head("POST", target, given), *chunked(pieces())])

    return act


def complaints(attack: Attack, answer: Answer, private: Sequence[str]) -> list[str]:
    """What is wrong with the answer to an attack. private: strings that no answer may contain."""
    found = []
    if answer.status not in attack.statuses:
        right = " or ".join(map(str, sorted(attack.statuses)))
        found.append(f"status {answer.status} instead of {right}: {answer.body[:300]!r}")
    if answer.status == 0:
        return found
    if attack.code not in {answer.code, ANY_CODE, PAGE}:
        found.append(f"code {answer.code!r} instead of {attack.code!r}: {answer.body[:300]!r}")
    found += _form(attack, answer)
    document = answer.document
    # The problem's instance repeats the target of the request.
    said = {**document, "instance": ""} if isinstance(document, dict) else document
    text = answer.body.decode(errors="replace") if said is None else str(said)
    if (inside := INSIDE.search(text)) or any(word in text for word in private):
        found.append(f"tells of the inside: {inside[0] if inside else text[:300]!r}")
    return found


def _form(attack: Attack, answer: Answer) -> list[str]:
    kind, document = answer.headers.get("content-type", ""), answer.document
    if attack.code == PAGE and kind.startswith("text/html"):
        return []
    if attack.code is None:
        good = kind == "application/json" and isinstance(document, dict) and document.get("error")
        return [] if good else [f"no error of the protocol: {kind} {answer.body[:200]!r}"]
    if kind != PROBLEM or not isinstance(document, dict):
        return [f"no problem document: {kind} {answer.body[:200]!r}"]
    missing = {"type", "title", "status", "detail", "instance", "code", "request_id"} - document.keys()
    found = [f"the problem lacks {missing}"] if missing else []
    if document.get("status") != answer.status:
        found.append("the problem has another status")
    if len(answer.body) > 64 * 1024:
        found.append(f"the answer has {len(answer.body)} bytes")
    return found
