"""The short way of a warm query: the same answers as the application's, and nothing but those."""

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


class Ways:
    """Both ways to ask a started server."""

    def __init__(self, client: Any, key: str) -> None:
        self.client, self.key = client, key

    def headers(self, body: bytes, **more: str) -> dict[str, str]:
        given = {"authorization": f"Bearer {self.key}", "content-length": str(len(body))}
        return given | {name.replace("_", "-"): value for name, value in more.items()}

    def short(self, target: bytes, body: bytes, **more: str) -> tuple[dict[str, str], bytes] | None:
        headers = [(name.encode(), value.encode()) for name, value in self.headers(body, **more).items()]
        found = self.client.app.query_handler.try_respond(target, headers, body)
        if found is None:
            return None
        return {name.decode(): value.decode() for name, value in found[0]}, found[1]

    def long(self, target: bytes, body: bytes, **more: str) -> Any:
        return self.client.post(target.decode(), content=body, headers=self.headers(body, **more))


@pytest.fixture
def ways(make_client, store, pets) -> Ways:
    key = create_key(store, "tests", {"query"}, {"pets"})[1]
    found = Ways(make_client(require_keys=True), key)
    assert found.long(TARGET, body_of(x=X)).status_code == 200
    return found


def test_both_ways_give_the_same_answer(ways):
    for body in (body_of(x=X), body_of(rows=[X, X]), body_of(x={"indices": [0], "values": [2]})):
        answered = ways.long(TARGET, body, x_request_id="mine")
        found = ways.short(TARGET, body, x_request_id="mine")
        assert found is not None
        headers, data = found
        assert data == answered.content
        assert headers == dict(answered.headers)


def test_every_answer_has_a_name_of_its_own(ways):
    names = {ways.short(TARGET, body_of(x=X))[0]["x-request-id"] for _ in range(3)}
    assert len(names) == 3
    assert ways.short(TARGET, body_of(x=X), x_request_id='bad "name"')[0]["x-request-id"] != 'bad "name"'


def test_it_is_counted(ways):
    before = ways.client.context.metrics.counts()["pets"]
    ways.short(TARGET, body_of(x=X))
    ways.short(TARGET, body_of(rows=[X, X, X]))
    ways.short(TARGET, b"nonsense")
    after = ways.client.context.metrics.counts()["pets"]
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
def test_whatever_is_not_a_warm_query_goes_the_long_way(ways, target, body, status):
    assert ways.short(target, body) is None
    assert ways.long(target, body).status_code == status


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
def test_headers_that_ask_for_more_go_the_long_way(ways, more, status):
    assert ways.short(TARGET, body_of(x=X), **more) is None
    assert ways.long(TARGET, body_of(x=X), **more).status_code == status


def test_targets_beyond_ascii_and_unsized_bodies_go_the_long_way(ways):
    assert ways.short("/v1/models/pets/classes/größe:query".encode(), body_of(x=X)) is None
    authorization = [(b"authorization", f"Bearer {ways.key}".encode())]
    assert ways.client.app.query_handler.try_respond(TARGET, authorization, body_of(x=X)) is None


def test_a_full_house_goes_the_long_way(ways):
    ways.client.app.query_handler.inflight = Settings().max_inflight_queries
    assert ways.short(TARGET, body_of(x=X)) is None
    assert ways.long(TARGET, body_of(x=X)).status_code == 429


def test_large_bodies_go_the_long_way(ways):
    body = body_of(rows=[X] * 5000)
    assert len(body) > 32 * 1024
    assert ways.short(TARGET, body) is None
    assert ways.long(TARGET, body).status_code == 200
