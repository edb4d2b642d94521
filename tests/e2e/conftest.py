"""Fixtures: a real `stms serve` per test file and database, used over HTTP."""

from __future__ import annotations

import io
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psycopg
import pytest
from sklearn.datasets import load_digits, load_iris
from sklearn.model_selection import train_test_split

from tests.system.deployment import QUICK_SOLVERS, Deployment
from tests.system.processes import free_port

JOB_SECONDS = 300.0
ENDED = {"succeeded", "partially_succeeded", "failed", "cancelled"}
LIMITS = {"STMS_MAX_UPLOAD_BYTES": "1000000", "STMS_MAX_QUERY_BYTES": "200000", "STMS_MAX_QUERY_ROWS": "500"}

Json = dict[str, Any]


class Service(Deployment):
    """A running `stms serve`, which must end well. keys: by purpose: "admin", "train" and "query".

    uploads: folder of its temporary upload files. remote_port: of loopback, where a remote teacher may be.
    """

    def __init__(self, folder: Path, database: str = "") -> None:
        (folder / "tmp").mkdir()
        self.remote_port = free_port()
        super().__init__(
            folder,
            serve=True,
            database=database,
            keys={"admin": {"admin", "operator"}},
            settings={
                "STMS_REMOTE_TEACHERS": f"http://127.0.0.1:{self.remote_port}",
                "TMPDIR": str(folder / "tmp"),
                **QUICK_SOLVERS,
                **LIMITS,
            },
            is_clean=True,
        )
        self.uploads = self.data / "cache"

    def children(self) -> set[int]:
        """Process ids of API and worker."""
        pid = self["serve"].pid
        return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """Rows of the server's database, read directly."""
        if self.database.startswith("postgresql"):
            with psycopg.connect(self.database) as connection:
                return connection.execute(statement).fetchall()
        address = f"file:{self.data / 'stms.sqlite'}?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=30)) as connection:
            return connection.execute(statement).fetchall()


def make_keys(service: Service) -> None:
    """The other keys, made by the administrator over HTTP."""
    wanted = {
        "train": {"name": "trainer", "scopes": ["train"]},
        "query": {"name": "camera", "scopes": ["query"], "models": ["flowers"]},
    }
    with service.client("admin") as admin:
        for purpose, body in wanted.items():
            response = admin.post("/v1/keys", json=body)
            assert response.status_code == 201, response.text
            service.keys[purpose] = response.json()["key"]


@pytest.fixture(scope="package", params=["sqlite", "postgresql"])
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """API and worker on both databases, in a folder of their own; asks for API keys. Must end with 0."""
    folder = tmp_path_factory.mktemp("service")
    with ExitStack() as stack:
        is_sqlite = request.param == "sqlite"
        database = "" if is_sqlite else stack.enter_context(request.getfixturevalue("new_database")())
        yield stack.enter_context(running_service(folder, database))


@contextmanager
def running_service(folder: Path, database: str = "") -> Iterator[Service]:
    with Service(folder, database) as started:
        make_keys(started)
        yield started


@pytest.fixture(scope="package")
def http(service: Service) -> Iterator[httpx.Client]:
    """A client that may train."""
    with service.client("train") as client:
        yield client


@pytest.fixture(scope="package")
def admin(service: Service) -> Iterator[httpx.Client]:
    with service.client("admin") as client:
        yield client


@pytest.fixture(scope="package")
def camera(service: Service) -> Iterator[httpx.Client]:
    """A client whose key may only query the model "flowers"."""
    with service.client("query") as client:
        yield client


@pytest.fixture(scope="package")
def stranger(service: Service) -> Iterator[httpx.Client]:
    """A client without a key."""
    with service.client() as client:
        yield client


def npz_bytes(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def csv_bytes(X: Any, labels: Any, header: str | None = None) -> bytes:
    lines = [] if header is None else [header]
    lines += [",".join([*map(str, row), str(label)]) for row, label in zip(X, labels, strict=True)]
    return ("\n".join(lines) + "\n").encode()


@pytest.fixture(scope="session")
def npz() -> Callable[..., bytes]:
    return npz_bytes


@pytest.fixture(scope="session")
def csv() -> Callable[..., bytes]:
    return csv_bytes


@pytest.fixture(scope="session")
def iris() -> tuple[Any, Any]:
    """The 150 rows of the iris data set, shape (150, 4), and their class names."""
    bunch = load_iris()
    return bunch.data, bunch.target_names[bunch.target]


@pytest.fixture(scope="package")
def upload(http: httpx.Client) -> Callable[..., Json]:
    """Send a data set that is expected to be taken; gives its document."""

    def send(content: bytes, file_format: str = "csv", **params: str) -> Json:
        response = http.post("/v1/datasets", content=content, params={"format": file_format} | params)
        assert response.status_code in {200, 201}, response.text
        document: Json = response.json()
        return document

    return send


@pytest.fixture(scope="package")
def follow(http: httpx.Client) -> Callable[..., Json]:
    """Wait until a job is in one of some states, by default until it has ended; gives its document."""

    def until(job: Json, states: set[str] = ENDED) -> Json:
        deadline = time.monotonic() + JOB_SECONDS
        while job["state"] not in states:
            if job["state"] in ENDED or time.monotonic() > deadline:
                pytest.fail(f"the job is {job['state']}, not {states}: {job['error']}")
            time.sleep(0.05)
            job = http.get(f"/v1/training-jobs/{job['id']}").json()
        return job

    return until


@pytest.fixture(scope="package")
def submit(http: httpx.Client) -> Callable[..., Json]:
    """Submit a quick job, which is expected to be taken; gives its document."""

    def send(dataset_id: str, model: str, headers: dict[str, str] | None = None, **changed: Any) -> Json:
        quick = {"teacher": {"C": 10}, "student": {"C": 10}}
        body = {"dataset_id": dataset_id, "model": model, "hyperparameters": quick | changed}
        response = http.post("/v1/training-jobs", json=body, headers=headers)
        assert response.status_code == 202, response.text
        document: Json = response.json()
        return document

    return send


@pytest.fixture(scope="package")
def train(submit: Callable[..., Json], follow: Callable[..., Json]) -> Callable[..., Json]:
    """Submit a quick job and wait for its success."""

    def run(dataset_id: str, model: str, **changed: Any) -> Json:
        job = follow(submit(dataset_id, model, **changed))
        assert job["state"] == "succeeded", job["error"]
        return job

    return run


@pytest.fixture(scope="session")
def parts(iris: tuple[Any, Any]) -> dict[str, Any]:
    """Iris as arrays for training and for testing."""
    X_train, X_test, y_train, y_test = train_test_split(
        *iris, test_size=0.3, random_state=0, stratify=iris[1]
    )
    return {"X_train": X_train, "y_train": y_train, "X_test": X_test, "y_test": y_test}


@pytest.fixture(scope="package")
def flowers_data(upload: Callable[..., Json], parts: dict[str, Any]) -> Json:
    return upload(npz_bytes(**parts), "npz", name="iris")


@pytest.fixture(scope="package")
def flowers(train: Callable[..., Json], flowers_data: Json) -> Json:
    """The ended job behind version 1 of the model "flowers", which has the plain SVM beside its gSVM."""
    spec = {"teacher": {"C": 1000}, "student": {"C": 1000}, "evaluation": {"baselines": ["svm"]}}
    return train(flowers_data["id"], "flowers", **spec)


@pytest.fixture(scope="package")
def slow_data(upload: Callable[..., Json]) -> Json:
    """Digits enough that a job with held-out folds takes a few seconds."""
    X, y = load_digits(return_X_y=True)
    return upload(npz_bytes(X=X[:300], y=y[:300]), "npz", name="digits")


@pytest.fixture(scope="session")
def slow() -> Json:
    """Hyper-parameters with which `slow_data` keeps the worker busy for a few seconds."""
    return {"threshold": {"rule": "f1", "folds": 5}, "student": {"C": 1e5, "tolerance": 1e-6}}


@pytest.fixture(scope="session")
def problem() -> Callable[..., Json]:
    """Checks that a response is a problem document as promised, and gives it."""

    def check(response: httpx.Response, status: int, code: str) -> Json:
        assert response.status_code == status, response.text
        assert response.headers["content-type"] == "application/problem+json"
        document: Json = response.json()
        assert document["status"] == status
        assert document["code"] == code, document
        assert document["request_id"] == response.headers["x-request-id"]
        for name in ("type", "title", "detail"):
            assert document[name], name
        assert document["instance"] == response.request.url.raw_path.decode().partition("?")[0]
        for fault in document.get("errors", []):
            assert set(fault) == {"field", "row", "column", "code", "message"}
            assert fault["message"]
        return document

    return check
