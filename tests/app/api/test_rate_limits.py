"""Rate limits of keys and addresses, and the rotation and expiry of keys, over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from app.services.keys import create_key
from app.store.unit_of_work import Store
from tests.app.api.fast_path import fast_answer

pytestmark = pytest.mark.usefixtures("keys_required")

QUERY = "/v1/models/pets/classes/cat:query"
INFER = "/v2/models/pets:cat/infer"
ROW = {"x": [1, 2, 3]}
TENSOR = {"inputs": [{"name": "rows", "shape": [1, 3], "datatype": "FP64", "data": [1, 2, 3]}]}
WAYS = [
    ("POST", QUERY, ROW),
    ("POST", INFER, TENSOR),
    ("GET", "/v1/models", None),
    ("GET", "/v2/models/pets", None),
]


def ask(client: Any, way: tuple[str, str, Any], text: str | None, **headers: str) -> Any:
    method, path, body = way
    if text is not None:
        headers["authorization"] = f"Bearer {text}"
    return client.request(method, path, headers=headers, json=body)


@pytest.mark.parametrize("way", WAYS)
def test_the_rate_limit_of_a_key_applies_to_every_path(client, store: Store, pets, way):
    _, text = create_key(store, "busy", {"query"}, rate_limit=0.01, rate_burst=3)
    _, other = create_key(store, "calm", {"query"})
    client.refresh()
    answers = [ask(client, way, text) for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200] * 3 + [429] * 2
    refused = answers[-1]
    assert 90 <= int(refused.headers["retry-after"]) <= 100
    assert refused.headers["ratelimit-policy"] == '"default";q=3;w=300'
    assert refused.headers["ratelimit"] == f'"default";r=0;t={refused.headers["retry-after"]}'
    if "/v2/" not in way[1]:
        assert refused.json()["code"] == "rate_limited"
    assert ask(client, way, other).status_code == 200
    for always in ("/livez", "/version", "/v2/health/live"):
        assert client.get(always).status_code == 200
    text_of = client.get("/metrics").text
    assert 'stms_refused_total{reason="rate_limited"} 2.0' in text_of


def test_a_request_on_the_fast_path_is_charged_once(client, store: Store, pets):
    _, text = create_key(store, "busy", {"query"}, rate_limit=0.01, rate_burst=4)
    client.refresh()
    good, bad = b'{"x":[1,2,3]}', b'{"x":[1,2]}'

    def short(body: bytes) -> Any:
        headers = {"authorization": f"Bearer {text}", "content-length": str(len(body))}
        return fast_answer(client, QUERY, headers, body, ("127.0.0.1", 1))

    assert short(good) is None, "not loaded yet: the long way pays"
    assert ask(client, WAYS[0], text).status_code == 200
    assert short(bad) is None
    assert [short(good) is not None for _ in range(5)] == [True, True, True, False, False]
    assert ask(client, WAYS[0], text).status_code == 429


def test_the_fast_path_limits_addresses(make_client, pets):
    client = make_client(rate_limit=0.01, rate_burst=2, require_keys=False)
    body = b'{"x":[1,2,3]}'
    headers = {"host": "localhost", "content-length": str(len(body))}
    assert ask(client, WAYS[0], None).status_code == 200
    found = [fast_answer(client, QUERY, headers, body, ("127.0.0.1", 1)) for _ in range(2)]
    assert [answer is not None for answer in found] == [True, False]
    assert fast_answer(client, QUERY, headers, body, ("192.0.2.1", 1)) is not None
    assert ask(client, WAYS[0], None).status_code == 429


@pytest.mark.parametrize("way", WAYS)
def test_repeated_invalid_keys_are_rejected_with_429(make_client, store: Store, pets, way):
    _, text = create_key(store, "one", {"query"})
    client = make_client(auth_failure_rate=2)
    wrong = text[:-1] + ("x" if text[-1] != "x" else "y")
    codes = [ask(client, way, wrong).status_code for _ in range(8)]
    assert codes[:2] == [401, 401]
    assert 429 in codes
    assert ask(client, way, text).status_code == 200
    assert 'stms_refused_total{reason="auth_failures"}' in client.get("/metrics").text


def test_a_key_with_limits_is_created_rotated_and_shows_its_last_use(client, store, pets, problem):
    root = {"authorization": f"Bearer {create_key(store, 'root', {'admin'})[1]}"}
    client.refresh()
    body = {"name": "cam", "scopes": ["query"], "rate_limit": 50, "rate_burst": 5, "expires_in_seconds": 3600}
    made = client.post("/v1/keys", json=body, headers=root)
    assert made.headers["cache-control"] == "no-store"
    camera = made.json()
    details = camera["details"]
    assert (details["rate_limit"], details["rate_burst"], details["rotated_at"]) == (50.0, 5, None)
    assert details["expires_at"] > details["created_at"]
    assert ask(client, WAYS[0], camera["key"]).status_code == 200
    rotate = f"/v1/keys/{details['id']}/rotate"
    rotated = client.post(rotate, headers=root, json={"overlap_seconds": 60})
    assert rotated.status_code == 200, rotated.text
    assert rotated.json()["details"]["previous_until"] > rotated.json()["details"]["rotated_at"]
    for text in (camera["key"], rotated.json()["key"]):
        assert ask(client, WAYS[0], text).status_code == 200
    again = client.post(rotate, headers=root).json()
    assert again["details"]["previous_until"] is None
    for text in (camera["key"], rotated.json()["key"]):
        problem(ask(client, WAYS[0], text), 401, "invalid_key")
    assert ask(client, WAYS[0], again["key"]).status_code == 200
    client.run(client.context.audit_writer.write(everything=True))
    listed = {key["name"]: key for key in client.get("/v1/keys", headers=root).json()["data"]}
    assert listed["cam"]["last_used_at"] >= details["created_at"]
    assert "digest" not in str(listed)
    client.delete(f"/v1/keys/{details['id']}", headers=root)
    problem(client.post(rotate, headers=root), 409, "key_ended")
    problem(client.post("/v1/keys/key_none/rotate", headers=root), 404, "key_not_found")
    problem(client.post(rotate, headers=root, json={"overlap_seconds": -1}), 422, "invalid_body")
    problem(client.post(rotate), 401, "key_required")


def test_an_expired_key_is_refused(client, store: Store, pets, problem, monkeypatch):
    import time

    ends = time.time() + 100
    _, text = create_key(store, "short", {"query"}, expires_at=ends)
    client.refresh()
    assert ask(client, WAYS[0], text).status_code == 200
    monkeypatch.setattr("time.time", lambda: ends + 1)
    for way in (WAYS[0], WAYS[2]):
        problem(ask(client, way, text), 401, "expired_key")
