"""Every table of refusals, asked of one application in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import pytest

from app.store.unit_of_work import Store
from tests.app.api.conftest import standing_server
from tests.app.started import Client
from tests.refusals.contents import LIMITS, fill
from tests.refusals.every import every
from tests.refusals.refusal import JOBS, Answer, Header, Refusal, a_file, complaints, post

_PIECE = 64 * 1024
_ROWS = "a,b,label\n" + "".join(f"{i},{i % 7},{'uv'[i % 2]}\n" for i in range(2000))


class InProcess:
    """An application that answers without sockets."""

    def __init__(self, client: Client, keys: dict[str, str]) -> None:
        self.client, self.keys = client, keys
        self.dataset = a_file(_ROWS, "text/csv")(self).document["id"]
        body = b'{"dataset_id": "%s", "model": "warm"}' % self.dataset.encode()
        self.kept = {"job": post(JOBS, body, key="train")(self).document["id"]}

    def send(self, method: str, target: bytes | str, headers: Sequence[Header], body: bytes) -> Answer:
        """The answer to one request, whose body arrives in pieces."""
        raw = target.encode("latin-1") if isinstance(target, str) else target
        path, _, query = raw.partition(b"?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote_to_bytes(path).decode(errors="replace"),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": [(b"host", b"stms"), *((name.lower(), value) for name, value in headers)],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        starts = range(0, max(1, len(body)), _PIECE)
        pieces = iter([(body[k : k + _PIECE], k != starts[-1]) for k in starts])
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            piece, more = next(pieces)
            return {"type": "http.request", "body": piece, "more_body": more}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        self.client.run(self.client.app(scope, receive, send))
        start, *rest = sent
        found = {name.decode().lower(): value.decode("latin-1") for name, value in start["headers"]}
        return Answer(start["status"], found, b"".join(message.get("body", b"") for message in rest))


@pytest.fixture(scope="module")
def server(_sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    keys: dict[str, str] = {}

    def prepare(store: Store) -> None:
        keys.update(fill(store))

    limits = {name.removeprefix("STMS_").lower(): value for name, value in LIMITS.items()}
    folder = tmp_path_factory.mktemp("refusals")
    with standing_server(_sqlite_template, folder, prepare, require_keys=True, **limits) as (client, _):
        yield InProcess(client, keys)


REFUSALS = every()


@pytest.mark.parametrize("refusal", [pytest.param(each, id=each.id) for each in REFUSALS])
def test_a_request_is_refused_as_its_row_says(server: InProcess, refusal: Refusal):
    private = [str(server.client.context.settings.data_dir), *server.keys.values()]
    assert complaints(refusal, refusal.act(server), private) == []


def test_refusals_have_distinct_names():
    assert len({each.id for each in REFUSALS}) == len(REFUSALS)
