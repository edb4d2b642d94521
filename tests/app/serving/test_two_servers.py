"""Two server processes of one machine share the files of the cache, and follow an alias."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.system.deployment import Deployment

NAMES = [f"c{number}" for number in range(300)]


@pytest.fixture
def servers(tmp_path: Path, database_address: str) -> Iterator[list[httpx.Client]]:
    settings = {"STMS_REQUIRE_KEYS": "false"}
    with ExitStack() as stack:
        started = stack.enter_context(
            Deployment(tmp_path, api=2, database=database_address, settings=settings, is_clean=True)
        )
        clients = [httpx.Client(base_url=url, trust_env=False, timeout=120) for url in started.urls]
        yield [stack.enter_context(client) for client in clients]


def _send(client: httpx.Client, weights: np.ndarray, alias: str = "") -> int:
    buffer = io.BytesIO()
    np.savez(buffer, weights=weights, labels=np.array(NAMES))
    params = {"model": "faces", "alias": alias}
    response = client.post("/v1/teachers", params=params, content=buffer.getvalue())
    assert response.status_code == 201, response.text
    return int(response.json()["version"])


def _version(client: httpx.Client, name: str = "c7") -> int:
    response = client.post(f"/v1/models/faces@live/classes/{name}:query", json={"x": [1.0, 1.0]})
    assert response.status_code == 200, response.text
    answer = response.json()
    assert answer["score"] == pytest.approx(2.0 * answer["version"])
    return int(answer["version"])


@pytest.mark.long
def test_every_server_follows_a_moved_alias(servers: list[httpx.Client], tmp_path: Path):
    first, second = servers
    for number in (1, 2):
        assert _send(first, np.full((300, 2), float(number)), "live" if number == 1 else "") == number
    assert [_version(client) for client in servers] == [1, 1]
    files = {path.name: path.stat().st_ino for path in (tmp_path / "cache").glob("*/*.packed")}
    for target in (2, 1, 2):
        alias = first.get("/v1/models/faces/aliases/live")
        condition = {"If-Match": alias.headers["etag"]}
        moved = first.put("/v1/models/faces/aliases/live", json={"version": target}, headers=condition)
        assert moved.status_code == 200, moved.text
        since = time.monotonic()
        assert _version(first) == target
        while _version(second) != target:
            assert time.monotonic() < since + 60.0, "the other server did not follow"
            time.sleep(0.01)
    assert _version(second, "c299") == 2
    after = {path.name: path.stat().st_ino for path in (tmp_path / "cache").glob("*/*.packed")}
    assert after == files, "the second server fetched nothing: it uses the files of the first"
