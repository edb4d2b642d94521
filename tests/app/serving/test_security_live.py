"""Limits, keys and logs of several real server processes."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from app.services.audit import list_records
from app.services.keys import create_key, revoke_key, rotate_key
from app.store.unit_of_work import Store
from tests.system.deployment import Deployment
from tests.system.processes import wait_for
from tests.system.published import linear_student, linear_teacher, publish

QUERY = "/v1/models/pets/classes/a:query"
ROW = {"x": [1.0, 2.0]}


class Fleet(Deployment):
    """`stms api --api-processes 2`, and connections to it that are spread over both processes."""

    def __init__(self, folder: Path) -> None:
        settings = {"STMS_AUTH_FAILURE_RATE": "5", "STMS_DATA_DIR": str(folder)}
        arguments = ["--api-processes", 2]
        super().__init__(folder, api=1, arguments=arguments, settings=settings, is_clean=True)
        self.clients: list[httpx.Client] = []

    def connect(self) -> None:
        wait_for(lambda: "2 of 2 serve" in httpx.get(f"{self.url}/readyz?verbose", trust_env=False).text)
        for _ in range(12):
            client = httpx.Client(base_url=self.url, trust_env=False, timeout=120)
            client.get("/livez")
            self.clients.append(client)

    def ask(self, text: str | None, rounds: int = 1, **options: Any) -> Counter[int]:
        """Statuses of queries over all connections in turns."""
        headers = {} if text is None else {"authorization": f"Bearer {text}"}
        return Counter(
            client.post(QUERY, json=ROW, headers=headers, **options).status_code
            for _ in range(rounds)
            for client in self.clients
        )

    def stop(self) -> None:
        for client in self.clients:
            client.close()
        assert set(self.end().values()) == {0}


@pytest.fixture
def fleet(tmp_path: Path, sqlite_store: Store) -> Iterator[Fleet]:
    weights = np.eye(2)
    students = {label: linear_student(label, row) for label, row in zip("ab", weights, strict=True)}
    publish(sqlite_store, "pets", students, linear_teacher(["a", "b"], weights))
    with Fleet(tmp_path) as started:
        started.connect()
        yield started


@pytest.mark.long
def test_limits_keys_and_logs_hold_over_all_processes(fleet: Fleet, sqlite_store: Store, tmp_path: Path):
    _, root = create_key(sqlite_store, "root", {"admin"})
    busy, busy_text = create_key(sqlite_store, "busy", {"query"}, rate_limit=0.5, rate_burst=30)
    camera, first = create_key(sqlite_store, "camera", {"query"})
    time.sleep(1.0)

    started = time.monotonic()
    found = fleet.ask(busy_text, rounds=6)
    seconds = time.monotonic() - started
    assert found.keys() == {200, 429}
    assert 30 <= found[200] <= 31 + 0.5 * seconds, "the limit is that of the machine, not of a process"

    assert fleet.ask(first) == {200: 12}
    _, second = rotate_key(sqlite_store, camera.id)
    time.sleep(1.0)
    assert 200 not in fleet.ask(first)
    assert fleet.ask(second) == {200: 12}
    revoke_key(sqlite_store, camera.id)
    time.sleep(1.0)
    assert 200 not in fleet.ask(second)

    # Through a server: at once on the process that did it, and soon on the other.
    headers = {"authorization": f"Bearer {root}"}
    client = fleet.clients[0]
    made = client.post("/v1/keys", json={"name": "short", "scopes": ["query"]}, headers=headers).json()
    short = {"authorization": f"Bearer {made['key']}"}
    assert client.post(QUERY, json=ROW, headers=short).status_code == 200
    assert client.delete(f"/v1/keys/{made['details']['id']}", headers=headers).status_code == 200
    assert client.post(QUERY, json=ROW, headers=short).status_code in (401, 429)
    time.sleep(1.0)
    assert 200 not in fleet.ask(made["key"])

    # Guessing, with secrets wherever they can be.
    wrong = root[:-3] + "xyz"
    # Replenishes the quota of failures, so that the first guesses get 401.
    time.sleep(1.1)
    guesses = fleet.ask(wrong, rounds=20, params={"key": root})
    # Refused keys count against the address: the earlier ones may have used up its allowance of 401s.
    assert guesses.keys() <= {401, 429}
    assert guesses[429] > 100
    with socket.create_connection(("127.0.0.1", fleet.port)) as line:
        line.sendall(f"GARBAGE {root}\r\nAuthorization: Bearer {root}\r\n\r\n".encode())
        assert line.recv(1000).startswith(b"HTTP/1.1 400 ")
    # What the other process counted is known after half a second; the rows are written after one.
    time.sleep(1.5)
    metrics = client.get("/metrics").text
    assert 'stms_refused_total{reason="rate_limited"} ' + f"{found[429]}.0" in metrics
    assert 'stms_connections_refused_total{reason="bad_request"} 1.0' in metrics
    fleet.stop()

    rows = list_records(sqlite_store.of_all_tenants(), limit=1000)[0]
    refused = [row for row in rows if row.action == "request.refused"]
    assert sum(row.details["count"] for row in refused) >= 240
    assert len(refused) <= 2 * (time.monotonic() - started) + 4, "one row a second and process"
    log = fleet["api-0"].log.read_text(errors="replace")
    for text in (root, wrong, first, second, busy_text, made["key"]):
        secret = text[-43:]  # which may hold an underscore itself
        assert secret not in log
        assert secret not in repr(rows)
    used = {key.name: key.last_used_at for key in sqlite_store_keys(sqlite_store)}
    assert used["root"] is not None
    assert used["busy"] is not None
    assert busy.last_used_at is None


def sqlite_store_keys(store: Store) -> Any:
    with store.read() as uow:
        return uow.keys.all()
