"""Moves of aliases over HTTP: confirmed when they are in effect, bounded in time, and failing alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from app.domain.entities import ModelVersion
from app.store.tables import blob_chunks, job_students
from app.store.unit_of_work import Store
from tests.app.started import Client

Check = Callable[..., dict[str, Any]]
CAT, DOG = (f"/v1/models/pets@live/classes/{label}:query" for label in ("cat", "dog"))
ALIAS = "/v1/models/pets/aliases/live"
ROW = {"x": [1.0, 2.0, 3.0]}


class SlowDisk:
    """A disk that reads students of version 2 only after ``go_on`` was set. loads: how many it has read."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.loads = 0

    def slow_down(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        source = client.context.cache._source
        quick = source.student

        def student(version: ModelVersion, label: str) -> Any:
            if version.version == 2:
                self.go_on.wait(300.0)
                self.loads += 1
            return quick(version, label)

        monkeypatch.setattr(source, "student", student)


@pytest.fixture
def disk() -> Iterator[SlowDisk]:
    disk = SlowDisk()
    yield disk
    disk.go_on.set()


def move(client: Client, version: int) -> None:
    tag = client.get(ALIAS).headers.get("etag")
    response = client.put(ALIAS, json={"version": version}, headers={"if-match": tag} if tag else {})
    assert response.status_code == 200, response.text


def ask(client: Client, path: str = CAT) -> int:
    response = client.post(path, json=ROW)
    assert response.status_code == 200, response.text
    return int(response.json()["version"])


@pytest.mark.parametrize("move_seconds", [0.05, 60.0])
def test_the_answering_process_serves_a_move_that_it_confirmed(
    make_client, pets, publish_again, disk: SlowDisk, monkeypatch: pytest.MonkeyPatch, move_seconds: float
):
    client = make_client(move_seconds=move_seconds)
    move(client, 1)
    assert ask(client) == 1
    publish_again(alias=None)
    disk.slow_down(client, monkeypatch)
    in_time = move_seconds > 1.0
    if in_time:
        threading.Timer(0.3, disk.go_on.set).start()
    move(client, 2)
    assert bool(disk.loads) is in_time, "a move waits for students, but no longer than its limit"
    disk.go_on.set()
    assert ask(client) == 2, "also when it was not preloaded in time"
    failed = f'stms_reference_moves_failed_total{{reason="timeout"}} {float(not in_time)}'
    assert failed in client.get("/metrics").text


def test_a_damaged_student_makes_no_server_unready(
    make_client, store: Store, pets, publish_again, problem: Check
):
    client = make_client()
    move(client, 1)
    assert [ask(client, CAT), ask(client, DOG)] == [1, 1]
    version = publish_again(alias=None)
    with store.begin() as uow:
        table = job_students.c
        student = sa.select(table.digest).where(table.job_id == version.job_id, table.label == "cat")
        digest = uow.connection.execute(student.where(table.digest.is_not(None))).scalar_one()
        rotten = sa.update(blob_chunks).where(blob_chunks.c.digest == digest).values(data=b"rotten")
        uow.connection.execute(rotten)
    move(client, 2)
    problem(client.post(CAT, json=ROW), 503, "blob_damaged")
    assert ask(client, DOG) == 2
    assert client.get("/readyz").status_code == 200
    assert 'stms_reference_moves_failed_total{reason="error"} 1.0' in client.get("/metrics").text
    keys_read = 0

    def count(*_arguments: Any) -> None:
        nonlocal keys_read
        keys_read += 1

    client.context.authenticator.replace = client.context.authenticator.update = count
    for _ in range(3):
        client.refresh()
    assert keys_read == 0, "the failure does not have the registry read again"
    move(client, 1)
    assert ask(client) == 1


def test_a_change_that_is_not_in_effect_yet_is_not_confirmed(
    client, pets, problem: Check, monkeypatch: pytest.MonkeyPatch
):
    move(client, 1)
    tag = client.get(ALIAS).headers["etag"]
    made = client.post("/v1/keys", json={"name": "operator", "scopes": ["admin"]})
    headers = {"x-api-key": made.json()["key"]}
    path = f"/v1/keys/{made.json()['details']['id']}"

    def unreadable(_after: int | None) -> None:
        raise TimeoutError("The database went away after the commit.")

    monkeypatch.setattr(client.context.refresher._registry, "changes", unreadable)
    moved = client.put(ALIAS, json={"version": 1}, headers=headers | {"if-match": tag})
    problem(moved, 503, "registry_unavailable")
    another = client.post("/v1/keys", json={"name": "camera", "scopes": ["query"]}, headers=headers)
    assert another.status_code == 201, "its text is shown only once"
    problem(client.delete(path, headers=headers), 503, "registry_unavailable")


def test_the_lag_of_all_processes_is_a_metric(client):
    def lag() -> float:
        lines = client.get("/metrics").text.splitlines()
        [line] = [line for line in lines if line.startswith("stms_reference_lag_seconds ")]
        return float(line.split()[1])

    client.refresh()
    client.run(client.context.refresher.stop())
    before = lag()
    time.sleep(0.2)
    assert lag() > before + 0.1
