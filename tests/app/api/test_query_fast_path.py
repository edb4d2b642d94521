"""The fast path of warm queries gives the same responses as the ASGI path."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.services.keys import create_key
from app.settings import Settings

X = [1.5, -2.0, 0.25]
TARGET = b"/v1/models/pets/classes/cat:query"


def body_of(**content: Any) -> bytes:
    return json.dumps(content).encode()


class Paths:
    """The fast path and the ASGI path of a started server."""

    def __init__(self, client: Any, key: str) -> None:
        self.client, self.key = client, key

    def headers(self, body: bytes, **more: str) -> dict[str, str]:
        base = {"authorization": f"Bearer {self.key}", "content-length": str(len(body))}
        return base | {name.replace("_", "-"): value for name, value in more.items()}

    def fast(self, target: bytes, body: bytes, **more: str) -> tuple[dict[str, str], bytes] | None:
        headers = [(name.encode(), value.encode()) for name, value in self.headers(body, **more).items()]
        response = self.client.app.query_handler.try_respond(target, headers, body)
        if response is None:
            return None
        return {name.decode(): value.decode() for name, value in response[0]}, response[1]

    def asgi(self, target: bytes, body: bytes, **more: str) -> Any:
        return self.client.post(target.decode(), content=body, headers=self.headers(body, **more))


@pytest.fixture
def paths(make_client, store, pets) -> Paths:
    key = create_key(store, "tests", {"query"}, {"pets"})[1]
    paths = Paths(make_client(require_keys=True), key)
    assert paths.asgi(TARGET, body_of(x=X)).status_code == 200
    return paths


def test_both_paths_give_the_same_response(paths):
    for body in (body_of(x=X), body_of(rows=[X, X]), body_of(x={"indices": [0], "values": [2]})):
        answered = paths.asgi(TARGET, body, x_request_id="mine")
        response = paths.fast(TARGET, body, x_request_id="mine")
        assert response is not None
        headers, data = response
        assert data == answered.content
        assert headers == dict(answered.headers)


def test_every_response_has_its_own_request_id(paths):
    names = {paths.fast(TARGET, body_of(x=X))[0]["x-request-id"] for _ in range(3)}
    assert len(names) == 3
    assert paths.fast(TARGET, body_of(x=X), x_request_id='bad "name"')[0]["x-request-id"] != 'bad "name"'


def test_queries_on_the_fast_path_are_counted(paths):
    before = paths.client.context.metrics.counts()["pets"]
    paths.fast(TARGET, body_of(x=X))
    paths.fast(TARGET, body_of(rows=[X, X, X]))
    paths.fast(TARGET, b"nonsense")
    after = paths.client.context.metrics.counts()["pets"]
    assert after.statuses["200"] - before.statuses["200"] == 2
    assert after.rows - before.rows == 4
    assert sum(after.buckets) - sum(before.buckets) == 2
    assert after.statuses.keys() == {"200"}


@pytest.mark.parametrize(
    ("target", "body", "status"),
    [
        (TARGET, b"nonsense", 400),
        (TARGET, body_of(x=[1.0]), 400),
        (TARGET.replace(b"cat", b"unknown"), body_of(x=X), 404),
        (b"/v1/models/others/classes/cat:query", body_of(x=X), 403),
        (b"/v1/models/pets:query", body_of(x=X, classes=["cat"]), 200),
        (TARGET.replace(b"cat", b"dog"), body_of(x=X), 200),
        (b"/v1/models/pets/classes/cat?x=:query", body_of(x=X), 404),
        (b"/v2/models/pets:query", body_of(x=X), 405),
    ],
)
def test_requests_other_than_warm_queries_take_the_asgi_path(paths, target, body, status):
    assert paths.fast(target, body) is None
    assert paths.asgi(target, body).status_code == status


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"authorization": "Bearer stms_key_000000000000000000000000_" + "x" * 43}, 401),
        ({"authorization": "Basic x"}, 401),
        ({"content_encoding": "br"}, 415),
        ({"accept": "application/x-npy"}, 200),
        ({"content_length": "3x"}, 400),
    ],
)
def test_unusual_headers_take_the_asgi_path(paths, more, status):
    assert paths.fast(TARGET, body_of(x=X), **more) is None
    assert paths.asgi(TARGET, body_of(x=X), **more).status_code == status


def test_non_ascii_targets_and_bodies_without_length_take_the_asgi_path(paths):
    assert paths.fast("/v1/models/pets/classes/größe:query".encode(), body_of(x=X)) is None
    authorization = [(b"authorization", f"Bearer {paths.key}".encode())]
    assert paths.client.app.query_handler.try_respond(TARGET, authorization, body_of(x=X)) is None


def test_a_server_at_its_limit_takes_the_asgi_path(paths):
    paths.client.context.budgets.queries.take("another", Settings().max_inflight_queries)
    assert paths.fast(TARGET, body_of(x=X)) is None
    assert paths.asgi(TARGET, body_of(x=X)).status_code == 429


def test_large_bodies_take_the_asgi_path(paths):
    body = body_of(rows=[X] * 5000)
    assert len(body) > 32 * 1024
    assert paths.fast(TARGET, body) is None
    assert paths.asgi(TARGET, body).status_code == 200
