"""API keys over HTTP: authentication, and what each scope allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from app.main import create_app
from app.services.keys import create_key, revoke_key
from app.settings import Settings
from app.store.unit_of_work import Store
from tests.app.started import Client

Check = Callable[..., dict[str, Any]]
QUERY = "/v1/models/pets/classes/cat:query"
ROW = {"x": [1, 2, 3]}

pytestmark = pytest.mark.usefixtures("keys_required")


@pytest.fixture
def keys(store: Store, pets) -> dict[str, dict[str, str]]:
    """Headers of one caller per scope."""
    made = {
        "operator": create_key(store, "host", {"operator"})[1],
        "admin": create_key(store, "root", {"admin"})[1],
        "train": create_key(store, "trainer", {"train"})[1],
        "query": create_key(store, "camera", {"query"})[1],
        "pets": create_key(store, "pet camera", {"query"}, {"pets"})[1],
        "cars": create_key(store, "car camera", {"query"}, {"cars"})[1],
    }
    return {name: {"authorization": f"Bearer {text}"} for name, text in made.items()}


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/keys", {"operator", "admin"}),
        ("GET", "/v1/webhooks", {"operator", "admin"}),
        ("GET", "/v1/workers", {"operator"}),
        ("GET", "/v1/servers", {"operator"}),
        ("GET", "/v1/datasets", {"operator", "admin", "train"}),
        ("GET", "/v1/training-jobs", {"operator", "admin", "train"}),
        ("GET", "/v1/models", {"operator", "admin", "train", "query", "pets", "cars"}),
        ("GET", "/v1/models/pets", {"operator", "admin", "train", "query", "pets"}),
        ("GET", "/v1/models/pets/versions/1", {"operator", "admin", "train", "query", "pets"}),
        ("GET", "/v1/models/pets/aliases/latest", {"operator", "admin", "train", "query", "pets"}),
        ("POST", QUERY, {"operator", "admin", "train", "query", "pets"}),
        ("POST", "/v1/models/pets:predict", {"operator", "admin", "train", "query", "pets"}),
    ],
)
def test_each_scope_allows_its_own_requests_only(
    client, keys, problem: Check, method: str, path: str, allowed: set[str]
):
    client.refresh()
    options = {"json": ROW} if method == "POST" else {}
    for name, headers in keys.items():
        response = client.request(method, path, headers=headers, **options)
        if name in allowed:
            assert response.status_code == 200, (name, response.text)
        else:
            code = "model_not_allowed" if name == "cars" and "pets" in path else "scope_required"
            problem(response, 403, code)
    response = client.request(method, path, **options)
    problem(response, 401, "key_required")
    assert response.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("path", ["/v1/models", QUERY])
def test_invalid_keys_are_rejected_on_every_route(client, keys, store: Store, problem: Check, path: str):
    client.refresh()
    method = "POST" if path == QUERY else "GET"
    good = keys["admin"]["authorization"]
    for header in (
        good[:-1] + ("x" if good[-1] != "x" else "y"),
        "Bearer nonsense",
        "Bearer \xff",
        good + "a",
    ):
        headers = {"authorization": header.encode("latin-1")}
        problem(client.request(method, path, headers=headers, json=ROW), 401, "invalid_key")
    headers = {"authorization": good.replace("Bearer", "Basic")}
    problem(client.request(method, path, headers=headers, json=ROW), 401, "invalid_key")
    key_id = "_".join(good.split("_")[1:3])
    revoke_key(store, key_id)
    client.refresh()
    problem(client.request(method, path, headers=keys["admin"], json=ROW), 401, "revoked_key")


def test_a_key_is_accepted_in_the_x_api_key_header(client, keys):
    client.refresh()
    text = keys["pets"]["authorization"].removeprefix("Bearer ")
    assert client.post(QUERY, json=ROW, headers={"x-api-key": text}).status_code == 200
    assert client.get("/v1/models", headers={"x-api-key": text}).status_code == 200


def test_a_key_limited_to_models_sees_only_those(client, keys):
    client.refresh()
    assert client.get("/v1/models", headers=keys["cars"]).json()["data"] == []
    assert len(client.get("/v1/models", headers=keys["pets"]).json()["data"]) == 1


def test_keys_are_created_listed_and_revoked(client, store: Store, pets, problem: Check):
    problem(client.post("/v1/keys", json={"name": "root", "scopes": ["admin"]}), 401, "key_required")
    headers = {"authorization": f"Bearer {create_key(store, 'root', {'admin'})[1]}"}
    client.refresh()
    problem(client.get("/v1/keys"), 401, "key_required")
    body = {"name": "camera", "scopes": ["query"], "models": ["pets"]}
    camera = client.post("/v1/keys", json=body, headers=headers).json()
    listed = client.get("/v1/keys", headers=headers)
    assert [key["name"] for key in listed.json()["data"]] == ["root", "camera"]
    assert camera["key"] not in listed.text
    camera_headers = {"authorization": f"Bearer {camera['key']}"}
    assert client.post(QUERY, json=ROW, headers=camera_headers).status_code == 200
    revoked = client.delete(f"/v1/keys/{camera['details']['id']}", headers=headers)
    assert revoked.json()["revoked_at"].endswith("Z")
    problem(client.post(QUERY, json=ROW, headers=camera_headers), 401, "revoked_key")
    problem(client.delete("/v1/keys/key_none", headers=headers), 404, "key_not_found")
    body["scopes"] = ["everything"]
    problem(client.post("/v1/keys", json=body, headers=headers), 400, "invalid_request")


def test_revoking_the_last_key_does_not_allow_anonymous_requests(client, store: Store, problem: Check):
    key, _ = create_key(store, "root", {"admin"})
    revoke_key(store, key.id)
    client.refresh()
    problem(client.get("/v1/models"), 401, "key_required")


def test_a_server_requires_keys_even_if_there_are_none(
    tmp_path, database_address, queue, monkeypatch, problem
):
    monkeypatch.delenv("STMS_REQUIRE_KEYS")
    settings = Settings.model_validate({"data_dir": tmp_path, "database_url": database_address})
    client = Client(create_app(settings, queue=queue))
    problem(client.get("/v1/models"), 401, "key_required")
    problem(client.post("/v1/keys", json={"name": "mine", "scopes": ["admin"]}), 401, "key_required")
    client.close()


def test_keys_can_be_switched_off_on_loopback_only(make_client, keys, problem: Check):
    assert make_client(require_keys=False).get("/v1/models").status_code == 200
    problem(make_client(require_keys=False, host="0.0.0.0").get("/v1/models"), 401, "key_required")


def test_a_server_without_keys_ignores_the_key_of_a_request(make_client, pets):
    client = make_client(require_keys=False)
    assert client.post(QUERY, json=ROW, headers={"authorization": "Bearer anything"}).status_code == 200
