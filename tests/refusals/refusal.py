"""A refusal: a request with its only right answer; constructors of requests, and the checks of answers.

`tests.refusals.test_refusals` asks the tables of this package of an application in this process, and
`verification.hostile` of a real server, with what only a socket can show.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

PROBLEM = "application/problem+json"
_JSON = (b"Content-Type", b"application/json")

QUERY = "/v1/models/pets/classes/cat:query"
CLASSES = "/v1/models/pets:query"
PREDICT = "/v1/models/pets:predict"
INFER = "/v2/models/pets:cat/infer"
DATASETS = "/v1/datasets"
JOBS = "/v1/training-jobs"
KEYS = "/v1/keys"
UPLOADS = "/v1/uploads"

ANY_CODE = "any"
"""Stands for the code of a problem document where several are right."""
PAGE = "page"
"""Stands for the code where the dashboard answers, with a page or with a problem document."""

INSIDE = re.compile(
    r"Traceback|File \"|site-packages|\.py\b|sqlalchemy|sqlite|psycopg|pydantic|SELECT |INSERT |arrow::"
    r"|0x[0-9a-f]{8}|/proc/|stms-upload|numpy\.",
    re.IGNORECASE,
)
"""Internals of the server that no answer may reveal."""


Header: TypeAlias = tuple[bytes, bytes]
Body: TypeAlias = bytes | Callable[[], bytes | Iterable[bytes]]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of the server. status: 0 if the connection was closed without an answer."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def document(self) -> Any:
        """The body as JSON; None if it is not valid JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    @property
    def code(self) -> str | None:
        """The code of a problem document."""
        document = self.document
        return document.get("code") if isinstance(document, dict) else None


class Server(Protocol):
    """A server with the models and keys of `tests.refusals.contents`. keys: API keys by name.

    dataset: id of a stored data set. kept: ids that later requests need, by name.
    """

    keys: dict[str, str]
    dataset: str
    kept: dict[str, str]

    def send(self, method: str, target: bytes | str, headers: Sequence[Header], body: bytes) -> Answer:
        """The answer to one request of these headers."""


Act: TypeAlias = Callable[[Any], Answer]
"""Asks a `Server`, or one that has more: what only a socket shows needs its address."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One request with the only right answer.

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
    def id(self) -> str:
        """The name that no other refusal has."""
        return f"{self.category}: {self.name}"

    @property
    def statuses(self) -> frozenset[int]:
        """The statuses that are right."""
        return frozenset({self.status}) if isinstance(self.status, int) else self.status


def refusals(category: str, *rows: tuple[str, Act, int, str | None]) -> list[Refusal]:
    """A table of one category."""
    return [Refusal(category, *row) for row in rows]


def authorization(server: Server, key: str) -> list[Header]:
    """The Authorization header with one of the server's keys; no header for an empty name."""
    return [(b"Authorization", b"Bearer " + server.keys[key].encode())] if key else []


def key_id(server: Server, key: str) -> str:
    """The id in the text of one of the server's keys."""
    return "_".join(server.keys[key].split("_")[1:3])


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
        given = [*authorization(server, key), *kind, *headers, *length]
        return server.send(method, target, given, whole)

    return act


def get(target: bytes | str, *headers: Header, key: str = "query") -> Act:
    """One GET."""
    return post(target, b"", *headers, key=key, method="GET")


def a_file(data: Body | str, kind: str = "application/octet-stream", query: str = "") -> Act:
    """An upload of a data set."""
    body = data.encode() if isinstance(data, str) else data
    return post(f"{DATASETS}?{query}", body, (b"Content-Type", kind.encode()), key="train")


def complaints(refusal: Refusal, answer: Answer, private: Sequence[str]) -> list[str]:
    """What is wrong with the answer to a refusal. private: strings that no answer may contain."""
    found = []
    if answer.status not in refusal.statuses:
        right = " or ".join(map(str, sorted(refusal.statuses)))
        found.append(f"status {answer.status} instead of {right}: {answer.body[:300]!r}")
    if answer.status == 0:
        return found
    if refusal.code not in {answer.code, ANY_CODE, PAGE}:
        found.append(f"code {answer.code!r} instead of {refusal.code!r}: {answer.body[:300]!r}")
    found += _form(refusal, answer)
    document = answer.document
    # The problem's instance repeats the target of the request.
    said = {**document, "instance": ""} if isinstance(document, dict) else document
    text = answer.body.decode(errors="replace") if said is None else str(said)
    if (inside := INSIDE.search(text)) or any(word in text for word in private):
        found.append(f"tells of the inside: {inside[0] if inside else text[:300]!r}")
    return found


def _form(refusal: Refusal, answer: Answer) -> list[str]:
    kind, document = answer.headers.get("content-type", ""), answer.document
    if refusal.code == PAGE and kind.startswith("text/html"):
        return []
    if refusal.code is None:
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
