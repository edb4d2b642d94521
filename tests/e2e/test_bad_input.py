"""Bad input over real connections changes no stored data, and each kind of it is named by its place.

Of each kind of fault there is one here: the tables of `verification.hostile` have the others, and the tests
of the readers and of the API their places.
"""

from __future__ import annotations

import io
import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from app.store.blobs import blob_columns
from app.store.tables import blob_chunks, metadata

Json = dict[str, Any]
Call = Callable[..., Any]

TABLES = (
    "datasets",
    "blobs",
    "blob_chunks",
    "jobs",
    "job_students",
    "job_events",
    "idempotency_keys",
    "model_versions",
    "aliases",
    "api_keys",
)
QUERY = "/v1/models/flowers@1/classes/setosa:query"
PREDICT = "/v1/models/flowers@1:predict"
ROW = [5.1, 3.5, 1.4, 0.2]
GOOD = "a,b,label\n" + "".join(f"{i},{i * i % 7},{'yes' if i % 2 else 'no'}\n" for i in range(10))


def contents(service: Any) -> dict[str, int]:
    """Rows of each table."""
    return {table: service.rows(f"SELECT count(*) FROM {table}")[0][0] for table in TABLES}


@pytest.fixture(autouse=True)
def nothing_is_lost(service: Any, http: httpx.Client, flowers: Json, flowers_data: Json) -> Iterator[None]:
    """After every test: the same processes run, what was there answers as before, the database is sound."""
    processes = service.children()
    asked = http.post(QUERY, json={"x": ROW}).json()
    assert asked["match"] is True
    yield
    assert service["serve"].is_running
    assert service.children() == processes
    assert http.post(QUERY, json={"x": ROW}).json() == asked
    assert http.post(PREDICT, json={"x": ROW}).json()["label"] == "setosa"
    assert http.get(f"/v1/datasets/{flowers_data['id']}").json() == flowers_data
    assert http.get(f"/v1/training-jobs/{flowers['id']}").json() == flowers
    check_storage(service)


def check_storage(service: Any) -> None:
    """No temporary file is left, and the database holds whole blobs only, each of them needed."""
    deadline = time.monotonic() + 60
    while list(service.uploads.glob("stms-upload-*")):
        # A vanished client is noticed a moment later.
        assert time.monotonic() < deadline, "the file of an upload is left behind"
        time.sleep(0.02)
    stored = "SELECT coalesce(sum(length(data)), 0) FROM blob_chunks WHERE blob_chunks.digest = blobs.digest"
    assert service.rows(f"SELECT digest FROM blobs WHERE size != ({stored})") == []
    columns = [column for table in metadata.sorted_tables for column in blob_columns(table)]
    needed = " UNION ".join(
        f"SELECT {column.name} FROM {column.table.name} WHERE {column.name} IS NOT NULL"
        for column in columns
        if column.table is not blob_chunks
    )
    assert service.rows(f"SELECT digest FROM blobs WHERE digest NOT IN ({needed})") == []
    if service.database.startswith("sqlite"):
        # PostgreSQL leaves no way around its foreign keys.
        assert service.rows("PRAGMA foreign_key_check") == []


@pytest.fixture
def nothing_is_stored(service: Any, nothing_is_lost: None) -> Iterator[None]:
    before = contents(service)
    yield
    assert contents(service) == before


@pytest.fixture
def refused(http: httpx.Client, problem: Call, nothing_is_stored: None) -> Call:
    """Send a data set that is refused; gives the problem document."""

    def send(content: bytes | str, file_format: str | None, status: int, code: str, **params: str) -> Json:
        content = content.encode() if isinstance(content, str) else content
        given = params if file_format is None else params | {"format": file_format}
        answer: Json = problem(http.post("/v1/datasets", content=content, params=given), status, code)
        return answer

    return send


def places(document: Json) -> list[tuple[Any, ...]]:
    """Field, row, column and code of every fault."""
    return [tuple(fault[name] for name in ("field", "row", "column", "code")) for fault in document["errors"]]


def parquet_bytes(**columns: Any) -> bytes:
    buffer = io.BytesIO()
    parquet.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


X = np.linspace(0.0, 1.0, 40).reshape(10, 4)
Y = np.arange(10) % 2
STRANGE = np.where(np.arange(10) == 7, 5, Y)
INFINITE = parquet_bytes(a=[1.0, 2.0, float("inf"), 4.0], label=["x", "y", "x", "y"])
Place = tuple[str, int | None, int | None, str]


@pytest.mark.parametrize(
    ("file_format", "content", "faults"),
    [
        (
            "csv",
            GOOD + "1,2\nnan,inf,yes\n\n3,x,no\n",
            [("X", 10, None, "ragged_row"), ("X", 12, None, "empty_row")],
        ),
        ("csv", GOOD + "5,5,lonely\n", [("y", None, None, "class_too_small")]),
        ("svmlight", "1 1:0.5 3:1\n2 1:0.25 3:inf\n1 2:1\n2 2:3\n", [("X", 1, 2, "not_finite")]),
        ("parquet", INFINITE, [("X", 2, 0, "not_finite")]),
        (
            "npz",
            {"X_train": X, "y_train": Y, "X_test": X, "y_test": STRANGE},
            [("y_test", 7, None, "unknown_class")],
        ),
    ],
)
def test_the_faults_of_a_file_are_named_by_field_row_and_column(
    refused, npz, file_format: str, content: Any, faults: list[Place]
):
    sent = npz(**content) if isinstance(content, dict) else content
    assert places(refused(sent, file_format, 400, "invalid_dataset")) == faults


def test_a_job_for_something_unknown_is_refused(http, problem, nothing_is_stored, flowers_data):
    body = {"dataset_id": flowers_data["id"], "model": "none"}
    problem(http.post("/v1/training-jobs", json=body | {"dataset_id": "ds_none"}), 404, "dataset_not_found")
    wanted = {"classes": ["setosa", "tulip"]}
    answer = http.post("/v1/training-jobs", json=body | {"hyperparameters": wanted})
    document = problem(answer, 400, "unknown_class")
    assert places(document) == [("hyperparameters.classes.1", None, None, "unknown_class")]
    assert "'tulip'" in document["detail"]


ODD_NAMES = [
    "a/b",
    "c:d",
    "100%",
    "%2F",
    "🌷 tulip",
    "größe",
    "日本 語",
    "x:query",
    "a/classes/b",
    "?q=1#f",
    "..",
    "it's",
]


def test_labels_are_strings_of_any_kind_and_each_class_can_be_asked(http, train, upload, npz):
    centres = 10 * np.eye(len(ODD_NAMES))
    X = np.vstack([centres, centres + 0.1, centres - 0.1])
    data = upload(npz(X=X, y=np.array(ODD_NAMES * 3)), "npz", name="odd names")
    assert sorted(data["classes"]) == sorted(ODD_NAMES)
    job = train(data["id"], "odd", teacher={"C": 1000}, student={"C": 1000})
    table = http.get(f"/v1/training-jobs/{job['id']}/students").json()["data"]
    assert {row["label"] for row in table} == set(ODD_NAMES)
    for place, name in enumerate(ODD_NAMES):
        path = f"/v1/models/odd/classes/{quote(name, safe='')}:query"
        answers = http.post(path, json={"rows": centres.tolist()})
        assert answers.status_code == 200, name
        matches = [result["match"] for result in answers.json()["results"]]
        assert matches == [other == place for other in range(len(ODD_NAMES))], name
        told = http.post("/v1/models/odd:predict", json={"x": centres[place].tolist()}).json()
        assert told["label"] == name
        decided = http.post("/v1/models/odd:predict", json={"x": centres[place].tolist(), "target": name})
        assert decided.json()["match"] is True


@pytest.mark.long
def test_constant_and_duplicate_columns_and_more_columns_than_rows_are_warned_of(http, train, upload, csv):
    rng = np.random.default_rng(0)
    labels = ["left", "right"] * 6
    X = rng.normal(size=(12, 30)).round(3)
    X[:, 0] += np.where(np.array(labels) == "left", -5, 5)
    X[:, 3], X[:, 4], X[:, 6] = 7, X[:, 5], X[:, 5]
    data = upload(csv(X, labels), "csv", name="odd columns")
    codes = {warning["code"]: warning["message"] for warning in data["summary"]["warnings"]}
    assert set(codes) == {"constant_columns", "duplicate_columns", "more_features_than_rows"}
    assert data["summary"]["first_constant_columns"] == [3]
    assert data["summary"]["duplicate_columns"] == 2
    train(data["id"], "odd-columns")
    answers = http.post("/v1/models/odd-columns/classes/left:query", json={"rows": X.tolist()}).json()
    assert [result["match"] for result in answers["results"]] == [label == "left" for label in labels]


def cut_off(service: Any, head: str, body: bytes, *, abruptly: bool = False) -> bytes:
    """Send less than was promised and hang up, or say that no more comes; gives what the server answers."""
    lines = [head, f"Host: 127.0.0.1:{service.port}", f"Authorization: Bearer {service.keys['train']}"]
    with socket.create_connection(("127.0.0.1", service.port), timeout=60) as line:
        line.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        if abruptly:
            time.sleep(0.1)
            return b""
        line.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := line.recv(65536):
            answer += piece
    return answer


def is_refusal(answer: bytes) -> bool:
    """Whether the client, which closed its side, got no answer or the error that the upload was truncated."""
    return answer == b"" or (answer.startswith(b"HTTP/1.1 400 ") and b"truncated_upload" in answer)


@pytest.mark.parametrize("abruptly", [False, True])
@pytest.mark.parametrize("content_type", ["text/csv", "multipart/form-data; boundary=cut"])
def test_an_upload_cut_off_on_its_way_leaves_nothing(service, nothing_is_stored, content_type, abruptly):
    body = GOOD.encode()
    if content_type != "text/csv":
        part = 'Content-Disposition: form-data; name="file"; filename="a.csv"\r\n\r\n'
        body = f"--cut\r\n{part}".encode() + body
    head = f"POST /v1/datasets?format=csv HTTP/1.1\r\nContent-Type: {content_type}"
    head += f"\r\nContent-Length: {len(body) + 500}"
    assert is_refusal(cut_off(service, head, body, abruptly=abruptly))


def test_an_upload_cut_off_in_the_middle_of_a_chunk_leaves_nothing(service, nothing_is_stored):
    head = "POST /v1/datasets?format=csv HTTP/1.1\r\nContent-Type: text/csv\r\nTransfer-Encoding: chunked"
    assert is_refusal(cut_off(service, head, b"%x\r\n" % (len(GOOD) + 99) + GOOD.encode()))


def test_a_query_cut_off_on_its_way_is_no_query(service, nothing_is_stored):
    head = f"POST {QUERY} HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 500"
    assert is_refusal(cut_off(service, head, json.dumps({"x": ROW}).encode()))


def test_a_file_over_the_limit_is_refused(refused, service, problem, nothing_is_stored):
    refused(b"1,2,a\n" * 200_000, "csv", 413, "body_too_large")

    def endless() -> Iterator[bytes]:
        for _ in range(100):
            yield b"1,2,a\n" * 10_000

    with service.client("train") as client:
        problem(client.post("/v1/datasets", content=endless()), 413, "body_too_large")


def test_test_data_that_does_not_fit_is_refused(http, problem, upload, flowers_data):
    other = upload(GOOD.encode(), "csv", name="two columns")
    body = {"dataset_id": flowers_data["id"], "model": "never"}
    wanted = {"evaluation": {"dataset_id": other["id"]}}
    answer = http.post("/v1/training-jobs", json=body | {"hyperparameters": wanted})
    problem(answer, 400, "wrong_columns")
    tiny = {
        "dataset_id": other["id"],
        "model": "never",
        "hyperparameters": {"evaluation": {"test_fraction": 0.1}},
    }
    problem(http.post("/v1/training-jobs", json=tiny), 400, "test_part_too_small")
    assert http.delete(f"/v1/datasets/{other['id']}").status_code == 204


@pytest.mark.long
def test_a_data_set_in_use_is_not_deleted_and_a_deleted_one_takes_nothing_with_it(
    service, http, problem, submit, follow, upload, csv, iris
):
    data = upload(csv(*iris, "a,b,c,d,flower"), name="to be deleted")
    place = f"/v1/datasets/{data['id']}"
    # A search, so that the job runs for longer than it takes to see it run.
    job = submit(data["id"], "survivor", tuning={"grid": {"C": [10, 100, 1000, 10000]}, "folds": 8})
    problem(http.delete(place), 409, "dataset_in_use")
    follow(job, {"running"})
    problem(http.delete(place), 409, "dataset_in_use")
    assert http.get(place).status_code == 200
    exam = upload(csv(*iris, "k,l,m,n,flower"), name="for testing")
    cancelled = submit(data["id"], "never", evaluation={"dataset_id": exam["id"]})
    problem(http.delete(f"/v1/datasets/{exam['id']}"), 409, "dataset_in_use")
    http.post(f"/v1/training-jobs/{cancelled['id']}/cancel")
    assert http.delete(f"/v1/datasets/{exam['id']}").status_code == 204
    job = follow(job)
    assert job["state"] == "succeeded"
    follow(cancelled)
    assert http.delete(place).status_code == 204
    problem(http.get(place), 404, "dataset_not_found")
    problem(http.delete(place), 404, "dataset_not_found")
    blob = f"SELECT count(*) FROM datasets WHERE id = '{data['id']}'"
    assert service.rows(blob) == [(0,)]
    assert http.get(f"/v1/training-jobs/{job['id']}").json() == job
    answer = http.post("/v1/models/survivor/classes/setosa:query", json={"x": ROW})
    assert answer.json()["match"] is True
    problem(http.post(f"/v1/training-jobs/{cancelled['id']}/retry"), 404, "dataset_not_found")
    body = {"dataset_id": data["id"], "model": "never"}
    problem(http.post("/v1/training-jobs", json=body), 404, "dataset_not_found")
    # Sent again, it is a new data set.
    again = upload(csv(*iris, "a,b,c,d,flower"), name="to be deleted")
    assert again["digest"] == data["digest"]
    assert again["id"] != data["id"]


def test_the_log_shows_no_unexpected_error(service, http):
    assert http.get("/v1/training-jobs", params={"status": "failed"}).json()["data"] == []
    assert "failed unexpectedly" not in service["serve"].log.read_text(errors="replace")
