"""`POST /v1/datasets:fetch`: a data set from an address is the one that an upload would make."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.remote import addresses, download
from tests.app.api.bucket import TARGET, Bucket, serving
from tests.app.remote.test_connection import OK, raw
from tests.app.started import Client


@pytest.fixture
def bucket(csv: bytes) -> Iterator[tuple[str, type[Bucket]]]:
    """The address of a server, and its handler."""
    with serving(csv) as served:
        yield served


def test_it_is_the_data_set_of_an_upload(
    make_client: Callable[..., Client], bucket: tuple[str, type[Bucket]], csv: bytes, tmp_path: Path
):
    origin, handler = bucket
    client = make_client(dataset_sources=origin)
    handler.cuts = 2
    body = {"url": origin + TARGET, "sha256": hashlib.sha256(csv).hexdigest(), "reading": {"header": "yes"}}
    fetched = client.post("/v1/datasets:fetch", json=body)
    assert fetched.status_code == 201, fetched.text
    assert fetched.json()["name"] == "letters"
    assert "secret" not in fetched.text
    again = client.post("/v1/datasets:fetch", json=body)
    assert (again.status_code, again.json()["id"]) == (200, fetched.json()["id"])
    uploaded = client.post("/v1/datasets?header=yes&filename=x.csv", content=csv)
    assert (uploaded.status_code, uploaded.json()["id"]) == (200, fetched.json()["id"])
    assert handler.cuts == 0
    assert not [path for path in tmp_path.rglob("*.tmp") if path.is_file()]


def test_what_is_wrong_is_told_without_the_secret(
    make_client: Callable[..., Client], bucket: tuple[str, type[Bucket]], problem: Callable[..., Any]
):
    origin, _ = bucket
    client = make_client(dataset_sources=f"{origin}, https://*.example.com")
    cases = [
        ({"url": origin + TARGET, "sha256": "0" * 64}, 422, "source_digest"),
        ({"url": f"{origin}/other.csv?secret"}, 422, "source_refused"),
        ({"url": "https://elsewhere.org/a.csv?secret"}, 400, "invalid_request"),
        ({"url": "ftp://a/secret"}, 400, "invalid_request"),
        ({"url": origin + TARGET, "reading": {"nonsense": "x"}}, 422, "invalid_body"),
        ({"url": origin + TARGET, "reading": {"separator": "nonsense"}}, 400, "invalid_request"),
        ({"url": origin + TARGET, "more": 1}, 422, "invalid_body"),
        ({}, 422, "invalid_body"),
    ]
    for body, status, code in cases:
        answer = client.post("/v1/datasets:fetch", json=body)
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
        assert "secret" not in answer.text


@pytest.mark.parametrize(
    ("answers", "status", "code"),
    [
        ((b"HTTP/1.1 302 Found\r\nLocation: /b\r\nContent-Length: 0\r\n\r\n",), 422, "source_redirect"),
        ((OK + b"\r\n1,2",), 422, "source_bad_answer"),
        (
            (OK + b'ETag: "a"\r\nContent-Length: 9\r\n\r\n1', OK + b"Content-Length: 1\r\n\r\n1"),
            422,
            "source_changed",
        ),
        ((b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n",) * download.ATTEMPTS, 503, "source_unavailable"),
    ],
)
def test_what_a_source_does_wrong_is_named(
    make_client: Callable[..., Client],
    problem: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    answers: tuple[bytes, ...],
    status: int,
    code: str,
):
    monkeypatch.setattr(download, "_PAUSE_SECONDS", 0.01)
    with raw(*answers) as (origin, _):
        client = make_client(dataset_sources=origin)
        problem(client.post("/v1/datasets:fetch", json={"url": f"{origin}/a.csv"}), status, code)


def test_a_source_below_an_asterisk_is_at_a_public_address(
    make_client: Callable[..., Client], problem: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(addresses, "_resolve", lambda _host, _port: ["127.0.0.1"])
    client = make_client(dataset_sources="http://*.localhost:1")
    answer = client.post("/v1/datasets:fetch", json={"url": "http://a.localhost:1/a.csv"})
    problem(answer, 422, "source_address")


def test_without_the_setting_nothing_is_fetched(client: Client, bucket: tuple[str, type[Bucket]]):
    answer = client.post("/v1/datasets:fetch", json={"url": bucket[0] + TARGET})
    assert answer.status_code == 400
    assert [fault["code"] for fault in answer.json()["errors"]] == ["source_not_allowed"]
    assert "STMS_DATASET_SOURCES" in answer.json()["detail"]


def test_its_size_is_bounded_as_that_of_an_upload(
    make_client: Callable[..., Client], bucket: tuple[str, type[Bucket]]
):
    origin, handler = bucket
    handler.content = b"a,b\n" + b"1,2\n" * 1000
    client = make_client(dataset_sources=origin, max_upload_bytes=2048)
    answer = client.post("/v1/datasets:fetch", json={"url": origin + TARGET})
    assert (answer.status_code, answer.json()["code"]) == (413, "file_too_large")
