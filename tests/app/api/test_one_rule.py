"""One rule for all bodies of JSON and for all query strings, whichever way a request goes."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import pytest

CAT = "/v1/models/pets/classes/cat:query"
V2_ROW = {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP64", "data": [1, 2, 3]}]}
BODIES: dict[str, Any] = {
    CAT: {"x": [1, 2, 3]},
    "/v1/models/pets:query": {"x": [1, 2, 3], "classes": ["cat"]},
    "/v1/models/pets:predict": {"x": [1, 2, 3]},
    "/v2/models/pets:cat/infer": V2_ROW,
    "/v2/repository/index": {},
    "/v1/keys": {"name": "a", "scopes": ["query"]},
}


def ask(client: Any, path: str, body: bytes, headers: dict[str, str] | None = None) -> Any:
    return client.post(path, content=body, headers=headers or {})


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "application/json",
        "application/json; charset=utf-8",
        "application/x-www-form-urlencoded",
        "application/vnd.api+json",
        "text/plain",
    ],
)
def test_json_is_read_under_every_content_type(standing, path: str, content_type: str | None):
    headers = {} if content_type is None else {"content-type": content_type}
    response = ask(standing, path, json.dumps(BODIES[path]).encode(), headers)
    assert response.status_code in (200, 201), response.text


@pytest.mark.parametrize("path", BODIES)
def test_what_is_no_json_is_refused_under_every_content_type(standing, path: str):
    for content_type in ("application/json", "text/csv", "application/x-www-form-urlencoded"):
        assert ask(standing, path, b"1,2,3", {"content-type": content_type}).status_code in (400, 422)


@pytest.mark.parametrize("path", BODIES)
def test_bodies_are_decompressed_and_other_codings_refused(standing, path: str):
    body = json.dumps(BODIES[path]).encode()
    for coding, packed in (
        ("gzip", gzip.compress(body)),
        ("x-gzip", gzip.compress(body)),
        ("deflate", zlib.compress(body)),
        ("identity", body),
    ):
        response = ask(standing, path, packed, {"content-encoding": coding})
        assert response.status_code in (200, 201), (coding, response.text)
    for coding in ("br", "zstd", "gzip, deflate"):
        response = ask(standing, path, body, {"content-encoding": coding})
        assert response.status_code == 415, coding
        assert "Content-Encoding must be gzip, deflate or identity." in response.text
    assert ask(standing, path, body, {"content-encoding": "gzip"}).status_code == 400


@pytest.mark.parametrize(
    ("method", "path", "words"),
    [
        ("POST", CAT + "?explian=true", ["'explian'", "only explain", "'explain' meant"]),
        ("POST", CAT + "?class=cat", ["'class'", "only explain"]),
        ("POST", CAT + "?explain=true&x", ["'x'"]),
        ("POST", "/v1/models/pets:query?class=cat&label=dog", ["'label'", "only class, explain"]),
        ("POST", "/v1/models/pets:predict?explain=true", ["'explain'", "scores, target"]),
        ("POST", "/v2/models/pets:cat/infer?class=cat", ["'class'", "has none"]),
        ("GET", "/v2/models/pets?verbose", ["'verbose'", "has none"]),
        ("POST", "/v2/repository/index?ready=true", ["'ready'", "has none"]),
        ("GET", "/v1/models?labl=1", ["'labl'"]),
    ],
)
def test_parameters_that_do_not_exist_are_refused(standing, method: str, path: str, words: list[str]):
    body = BODIES.get(path.partition("?")[0])
    response = standing.request(method, path, **({} if body is None else {"json": body}))
    assert response.status_code == 400, response.text
    for word in words:
        assert word in response.text
