"""Uploads past the API: the file goes to the object store of the service, if it has one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from stms_client import Client
from stms_client.aio import datasets as aio_datasets
from stms_client.errors import Problem
from stms_client.retries import Retry
from stms_client.sync import datasets
from tests.written_server import WrittenServer

DATASET = {"id": "ds_1", "name": "rows", "rows": 2}
CONTENT = b"a,label\n1,x\n2,y\n"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def client(written: WrittenServer) -> Iterator[Client]:
    with Client(written.address, "stms_key", retry=Retry(first=0.0)) as client:
        yield client


@pytest.fixture
def every_file_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (datasets, aio_datasets):
        monkeypatch.setattr(module, "_PAST_THE_API", 0)


def offer(written: WrittenServer) -> None:
    """The service has an object store, which is this server, too."""
    upload = {"id": "upl_1", "method": "PUT", "url": f"{written.address}/bucket/inbox/upl_1?signed=yes"}
    written.on("POST", "/v1/uploads", upload, 201)
    written.on("PUT", "/bucket/inbox/upl_1")


@pytest.mark.usefixtures("every_file_is_large")
def test_a_large_file_goes_to_the_object_store(client: Client, written: WrittenServer, file: Path):
    offer(written)
    written.on("POST", "/v1/datasets", DATASET, 201)
    sent: list[tuple[int, int]] = []
    dataset = client.upload_dataset(file, label_column="label", progress=lambda *at: sent.append(at))
    assert dataset["id"] == "ds_1"
    plan, put, post = written.requests
    assert plan.json == {"bytes": len(CONTENT), "sha256": DIGEST}
    assert put.body == CONTENT
    assert "authorization" not in {name.lower() for name in put.headers}, "the store is another house"
    assert post.body == b""
    assert "upload=upl_1" in post.path
    assert "label_column=label" in post.path
    assert sent[-1] == (len(CONTENT), len(CONTENT))


@pytest.mark.usefixtures("every_file_is_large")
@pytest.mark.parametrize(("status", "code"), [(409, "no_object_store"), (404, "not_found")])
def test_without_a_store_the_file_goes_to_the_api(
    client: Client, written: WrittenServer, file: Path, status: int, code: str
):
    written.on("POST", "/v1/uploads", {"code": code}, status)
    written.on("POST", "/v1/datasets", DATASET, 201)
    client.upload_dataset(file)
    assert [request.body for request in written.requests][1:] == [CONTENT]


@pytest.mark.usefixtures("every_file_is_large")
def test_what_is_refused_is_not_sent_elsewhere(client: Client, written: WrittenServer, file: Path):
    written.on("POST", "/v1/uploads", {"code": "quota_stored_bytes"}, 413)
    with pytest.raises(Problem, match="quota_stored_bytes"):
        client.upload_dataset(file)
    assert len(written.requests) == 1


def test_a_small_file_goes_to_the_store_where_the_api_takes_none(
    client: Client, written: WrittenServer, file: Path
):
    offer(written)
    written.on("POST", "/v1/datasets", {"code": "uploads_presigned"}, 409)
    written.on("POST", "/v1/datasets", DATASET, 201)
    assert client.upload_dataset(file)["id"] == "ds_1"
    assert [request.method for request in written.requests] == ["POST", "POST", "PUT", "POST"]


@pytest.mark.usefixtures("every_file_is_large")
def test_a_store_that_is_busy_is_asked_again(client: Client, written: WrittenServer, file: Path):
    upload = {"id": "upl_1", "method": "PUT", "url": f"{written.address}/bucket/inbox/upl_1"}
    written.on("POST", "/v1/uploads", upload, 201)
    written.on("PUT", "/bucket/inbox/upl_1", b"<Error>SlowDown</Error>", 503)
    written.on("PUT", "/bucket/inbox/upl_1")
    written.on("POST", "/v1/datasets", DATASET, 201)
    client.upload_dataset(file)
    assert [request.method for request in written.requests] == ["POST", "PUT", "PUT", "POST"]


@pytest.mark.usefixtures("every_file_is_large")
def test_a_store_that_refuses_is_an_error(client: Client, written: WrittenServer, file: Path):
    upload = {"id": "upl_1", "method": "PUT", "url": f"{written.address}/bucket/inbox/upl_1"}
    written.on("POST", "/v1/uploads", upload, 201)
    written.on("PUT", "/bucket/inbox/upl_1", b"<Error>AccessDenied</Error>", 403)
    with pytest.raises(Problem, match="AccessDenied"):
        client.upload_dataset(file)
