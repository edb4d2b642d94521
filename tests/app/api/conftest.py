"""Fixtures: a server with a fresh database and a fake job queue that records its calls."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from app.auth import audit_writer
from app.domain.entities import ModelVersion
from app.domain.errors import Unavailable
from app.domain.ports import JobQueue
from app.main import create_app
from app.settings import Settings
from app.store.engine import open_engine
from app.store.unit_of_work import Store
from tests.app.started import Client
from tests.system.published import linear_student, linear_teacher, publish

CSV = b"a,b,label\n" + b"".join(b"%d,%d,%s\n" % (i, i * i % 7, b"yes" if i % 2 else b"no") for i in range(40))
CLASSES = ("cat", "dog", "größe/1:x", "日本")
WEIGHTS = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [-1.0, -1.0, -1.0]])


class RememberingQueue(JobQueue):
    """What was put in and cancelled; ``down`` makes it unreachable."""

    def __init__(self) -> None:
        self.enqueued: list[tuple[str, str]] = []
        self.cancelled: list[str] = []
        self.down = False

    def enqueue(self, job_id: str, workflow_id: str) -> None:
        self.ping()
        self.enqueued.append((job_id, workflow_id))

    def enqueue_evaluation(self, evaluation_id: str, turn: int) -> None:
        self.enqueue(evaluation_id, f"{evaluation_id}.0")

    def cancel(self, workflow_id: str) -> None:
        self.ping()
        self.cancelled.append(workflow_id)

    def ping(self) -> None:
        if self.down:
            raise Unavailable("The job queue cannot be reached.")


@pytest.fixture
def queue() -> RememberingQueue:
    return RememberingQueue()


@pytest.fixture
def keys_required() -> None:
    """Servers of a test that uses this fixture require API keys; others are keyless."""


@pytest.fixture
def make_settings(
    request: pytest.FixtureRequest, tmp_path: Path, database_address: str
) -> Callable[..., Settings]:
    """Settings over the fresh database, with what a test wants different."""
    usual = {
        "data_dir": tmp_path,
        "database_url": database_address,
        "require_keys": "keys_required" in request.fixturenames,
    }

    def make(**changed: Any) -> Settings:
        return Settings.model_validate(usual | changed)

    return make


@pytest.fixture
def make_client(
    make_settings: Callable[..., Settings], queue: RememberingQueue
) -> Iterator[Callable[..., Client]]:
    """Started servers; all are stopped after the test. A test writes denied requests into the log itself."""
    started: list[Client] = []

    def make(**changed: Any) -> Client:
        started.append(Client(create_app(make_settings(**changed), queue=queue)))
        return started[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(audit_writer, "_SECONDS", 3600.0)
        yield make
    for client in started:
        client.close()


@pytest.fixture
def client(make_client: Callable[..., Client]) -> Client:
    return make_client()


@contextmanager
def standing_server(
    template: Path, folder: Path, prepare: Callable[[Store], object], **settings: Any
) -> Iterator[tuple[Client, Store]]:
    """A server and its store, which ``prepare`` fills before the start. template: a migrated database."""
    shutil.copy(template, folder / "stms.sqlite")
    found = Settings(data_dir=folder, **settings)
    store = Store(open_engine(found.app_database_url))
    prepare(store)
    client = Client(create_app(found, queue=RememberingQueue()))
    yield client, store
    client.close()
    store.dispose()


@pytest.fixture(scope="module")
def standing(_sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """One server for all tests of a module that only ask, with version 1 of "pets"."""
    with standing_server(_sqlite_template, tmp_path_factory.mktemp("standing"), publish_pets) as (client, _):
        yield client


@pytest.fixture
def pets(store: Store) -> ModelVersion:
    """Version 1 of model "pets": score of class k is x[k], of the last one −Σx."""
    return publish_pets(store)


def publish_pets(store: Store, *, alias: str | None = "latest", sign: float = 1.0) -> ModelVersion:
    students = {label: linear_student(label, sign * row) for label, row in zip(CLASSES, WEIGHTS, strict=True)}
    return publish(store, "pets", students, linear_teacher(CLASSES, sign * WEIGHTS), alias=alias)


@pytest.fixture
def publish_again(store: Store) -> Callable[..., ModelVersion]:
    """Publish another version of "pets"."""

    def again(*, alias: str | None = "latest", sign: float = -1.0) -> ModelVersion:
        return publish_pets(store, alias=alias, sign=sign)

    return again


def is_periodic(statement: str) -> bool:
    """Whether this thread runs a statement of periodic work: to write the server's row, or read the clock."""
    thread = threading.current_thread().name
    reads_clock = "registry_clock" in statement or statement.startswith(("BEGIN", "PRAGMA"))
    return thread.startswith("stms-beats") or (thread.startswith("stms-revision") and reads_clock)


@contextmanager
def counted_statements(client: Client) -> Iterator[list[str]]:
    """SQL statements that the server runs in the block, but for periodic ones."""
    statements: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if not is_periodic(statement):
            statements.append(statement)

    engine = client.context.store.engine
    sa.event.listen(engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        sa.event.remove(engine, "before_cursor_execute", note)


@pytest.fixture
def csv() -> bytes:
    return CSV


@pytest.fixture
def dataset_id(client: Client) -> str:
    response = client.post("/v1/datasets", params={"name": "numbers", "format": "csv"}, content=CSV)
    assert response.status_code == 201, response.text
    return str(response.json()["id"])


@pytest.fixture
def problem() -> Callable[..., dict[str, Any]]:
    """Checks that a response is a problem document as promised, and gives it."""

    def check(response: Any, status: int, code: str) -> dict[str, Any]:
        assert response.status_code == status, response.text
        assert response.headers["content-type"] == "application/problem+json"
        document: dict[str, Any] = response.json()
        assert document["status"] == status
        assert document["code"] == code, document
        assert document["request_id"] == response.headers["x-request-id"]
        for name in ("type", "title", "detail", "instance"):
            assert document[name]
        for fault in document.get("errors", []):
            assert set(fault) - {"name"} == {"field", "row", "column", "code", "message"}
        return document

    return check
