"""`POST /v1/datasets:fetch`: a data set from an address is the one that an upload would make."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.app.started import Client

TARGET = "/letters.csv?X-Amz-Signature=secret"


class _Bucket(BaseHTTPRequestHandler):
    """A bucket with one file, at one presigned address. cuts: answers that end in the middle."""

    protocol_version = "HTTP/1.1"
    content = b""
    cuts = 0

    def do_GET(self) -> None:
        kind = type(self)
        if self.path != TARGET:
            self.send_error(403)
            return
        start = int((self.headers.get("Range") or "bytes=0-")[6:-1])
        self.send_response(206 if start else 200)
        if start:
            size = len(kind.content)
            self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
        self.send_header("ETag", '"file"')
        self.send_header("Content-Length", str(len(kind.content) - start))
        self.end_headers()
        end = len(kind.content)
        if kind.cuts:
            kind.cuts -= 1
            end = start + 10
            self.close_connection = True
        self.wfile.write(kind.content[start:end])

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def bucket(csv: bytes) -> Iterator[tuple[str, type[_Bucket]]]:
    """The address of a server, and its handler."""

    class Bucket(_Bucket):
        content = csv

    with ThreadingHTTPServer(("127.0.0.1", 0), Bucket) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", Bucket
        server.shutdown()


def test_it_is_the_data_set_of_an_upload(
    make_client: Callable[..., Client], bucket: tuple[str, type[_Bucket]], csv: bytes, tmp_path: Path
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
    make_client: Callable[..., Client], bucket: tuple[str, type[_Bucket]], problem: Callable[..., Any]
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


def test_without_the_setting_nothing_is_fetched(client: Client, bucket: tuple[str, type[_Bucket]]):
    answer = client.post("/v1/datasets:fetch", json={"url": bucket[0] + TARGET})
    assert answer.status_code == 400
    assert [fault["code"] for fault in answer.json()["errors"]] == ["source_not_allowed"]
    assert "STMS_DATASET_SOURCES" in answer.json()["detail"]


def test_its_size_is_bounded_as_that_of_an_upload(
    make_client: Callable[..., Client], bucket: tuple[str, type[_Bucket]]
):
    origin, handler = bucket
    handler.content = b"a,b\n" + b"1,2\n" * 1000
    client = make_client(dataset_sources=origin, max_upload_bytes=2048)
    answer = client.post("/v1/datasets:fetch", json={"url": origin + TARGET})
    assert (answer.status_code, answer.json()["code"]) == (413, "file_too_large")
