"""Tenants over HTTP: what a caller sees, makes and queries is in the tenant of its key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from app.domain.entities import ModelVersion
from app.services.keys import create_key
from app.store.large_blobs import delete_large
from app.store.unit_of_work import Store
from tests.app.api.conftest import CSV, publish_pets
from tests.app.api.fast_path import fast_answer
from tests.system.published import linear_student, linear_teacher, publish

Check = Callable[..., dict[str, Any]]
ROW = {"x": [1, 2, 3]}


@pytest.fixture
def client(make_client: Any) -> Any:
    """A server that requires keys."""
    return make_client(require_keys=True)


@pytest.fixture
def ask(client: Any, store: Store) -> Callable[..., Any]:
    """Sends a request with a key of one tenant and scope, which is made on first use."""
    texts: dict[tuple[str, str], str] = {}

    def send(who: str, method: str, path: str, **options: Any) -> Any:
        tenant, scope = who.split("/")
        if (tenant, scope) not in texts:
            texts[tenant, scope] = create_key(store.of_tenant(tenant), scope, {scope})[1]
            client.refresh()
        headers = options.pop("headers", {}) | {"authorization": f"Bearer {texts[tenant, scope]}"}
        return client.request(method, path, headers=headers, **options)

    return send


def _publish(store: Store, tenant: str, score: float, model: str = "door") -> ModelVersion:
    labels = ["open", "shut"]
    students = {label: linear_student(label, [0.0] * 3, score) for label in labels}
    return publish(store.of_tenant(tenant), model, students, linear_teacher(labels, [[0.0] * 3] * 2))


def test_a_name_means_the_model_of_the_callers_tenant(client: Any, store: Store, ask: Any) -> None:
    _publish(store, "acme", 1.0)
    _publish(store, "rival", -1.0)
    body = b'{"x":[1,2,3]}'
    path = "/v1/models/door/classes/open:query"
    for _ in range(2):
        for tenant, score in (("acme", 1.0), ("rival", -1.0)):
            assert ask(f"{tenant}/query", "POST", path, json=ROW).json()["score"] == score
            found = ask(f"{tenant}/query", "POST", "/v1/models/door:query", json=ROW | {"classes": ["open"]})
            assert found.json()["classes"][0]["score"] == score
    text = create_key(store.of_tenant("rival"), "fast", {"query"})[1]
    client.refresh()
    headers = {"authorization": f"Bearer {text}", "content-length": str(len(body))}
    fast = fast_answer(client, path, headers, body)
    assert fast is not None
    assert b'"score":-1.0' in fast[1], "on the fast path, too"


def test_moves_and_unloads_concern_one_tenant(client: Any, store: Store, ask: Any) -> None:
    for tenant in ("acme", "rival"):
        _publish(store, tenant, 1.0)
        _publish(store, tenant, 2.0)
        ask(f"{tenant}/query", "POST", "/v1/models/door/classes/open:query", json=ROW)
    moved = ask(
        "acme/train",
        "PUT",
        "/v1/models/door/aliases/latest",
        json={"version": 1},
        headers={"if-match": '"2"'},
    )
    assert moved.status_code == 200, moved.text
    answers = {
        tenant: ask(f"{tenant}/query", "POST", "/v1/models/door/classes/open:query", json=ROW).json()[
            "version"
        ]
        for tenant in ("acme", "rival")
    }
    assert answers == {"acme": 1, "rival": 2}
    assert ask("acme/train", "POST", "/v2/repository/models/door/unload").status_code == 200
    loaded = {tenant: [*client.context.cache._loaded.newest_first(tenant)] for tenant in ("acme", "rival")}
    assert (loaded["acme"], len(loaded["rival"])) == ([], 1)


def test_the_same_bytes_are_a_data_set_of_each_tenant(client: Any, store: Store, ask: Any) -> None:
    path = "/v1/datasets?format=csv&name="
    first = ask("acme/train", "POST", f"{path}payroll", content=CSV)
    second = ask("rival/train", "POST", f"{path}mine", content=CSV)
    assert (first.status_code, second.status_code) == (201, 201)
    assert second.json()["name"] == "mine"
    assert ask("rival/train", "POST", f"{path}again", content=CSV).status_code == 200
    assert ask("acme/train", "DELETE", f"/v1/datasets/{first.json()['id']}").status_code == 204
    with store.of_tenant("rival").read() as uow:
        blob = uow.datasets.get(second.json()["id"]).blob_digest
    assert not delete_large(store, blob, before=2e9), "the stored bytes are shared and still needed"


def test_operators_see_all_tenants_and_act_in_the_one_they_name(
    client: Any, store: Store, ask: Any, problem: Check
) -> None:
    for tenant in ("acme", "rival"):
        _publish(store, tenant, 1.0)
    host = "default/operator"
    listed = ask(host, "GET", "/v1/models?limit=1")
    assert [model["tenant"] for model in listed.json()["data"]] == ["acme"]
    following = ask(host, "GET", listed.links["next"]["url"]).json()["data"]
    assert [model["tenant"] for model in following] == ["rival"]
    assert [model["tenant"] for model in ask(host, "GET", "/v1/models?tenant=rival").json()["data"]] == [
        "rival"
    ]
    problem(ask(host, "GET", "/v1/models/door"), 404, "model_not_found")
    assert ask(host, "GET", "/v1/models/door?tenant=acme").status_code == 200
    made = ask(host, "POST", "/v1/keys?tenant=acme", json={"name": "boss", "scopes": ["admin"]})
    assert made.json()["details"]["tenant"] == "acme"
    keys = ask("rival/admin", "GET", "/v1/keys").json()["data"]
    assert {key["tenant"] for key in keys} == {"rival"}
    rows = ask("acme/admin", "GET", "/v1/audit").json()["data"]
    assert "key.create" in {row["action"] for row in rows}
    assert {row["tenant"] for row in rows} == {"acme"}


def test_links_name_no_model_that_the_key_may_not_query(client: Any, store: Store) -> None:
    for name in ("aaa", "bank-secret-model", "zoo"):
        _publish(store, "acme", 1.0, name)
    _, text = create_key(store.of_tenant("acme"), "camera", {"query"}, {"aaa", "zoo"})
    client.refresh()
    headers = {"authorization": f"Bearer {text}"}
    first = client.get("/v1/models?limit=1", headers=headers)
    assert [model["name"] for model in first.json()["data"]] == ["aaa"]
    second = client.get(first.links["next"]["url"], headers=headers)
    assert [model["name"] for model in second.json()["data"]] == ["zoo"], "no short page in between"
    assert second.links == {}
    index = client.post("/v2/repository/index", headers=headers).json()
    assert [entry["name"] for entry in index] == ["aaa", "zoo"]


def test_versions_and_keys_have_pages(make_client: Any, store: Store) -> None:
    client = make_client()
    for _ in range(5):
        publish_pets(store)
    whole = client.get("/v1/models/pets")
    assert ([row["version"] for row in whole.json()["versions"]], whole.json()["has_more"]) == (
        [5, 4, 3, 2, 1],
        False,
    )
    assert whole.links == {}
    url, numbers = "/v1/models/pets?limit=2", []
    while url:
        page = client.get(url)
        assert [alias["version"] for alias in page.json()["aliases"]] == [5]
        numbers.append([row["version"] for row in page.json()["versions"]])
        url = page.links.get("next", {}).get("url")
    assert numbers == [[5, 4], [3, 2], [1]]
    made = [create_key(store, f"key {number}", {"operator"}) for number in range(5)]
    client.refresh()
    headers = {"authorization": f"Bearer {made[0][1]}"}
    page = client.get("/v1/keys?limit=3", headers=headers)
    rest = client.get(page.links["next"]["url"], headers=headers)
    # Keys of one millisecond have no order among themselves but that of their identifiers.
    assert [key["id"] for key in page.json()["data"] + rest.json()["data"]] == sorted(
        key.id for key, _ in made
    )


@pytest.mark.parametrize(
    ("setting", "customers", "shown"), [(None, False, True), (None, True, False), (True, True, True)]
)
def test_metrics_name_models_only_without_customers(
    make_client: Any, store: Store, pets: ModelVersion, setting: bool | None, customers: bool, shown: bool
) -> None:
    _, text = create_key(store, "camera", {"query"})
    if customers:
        create_key(store.of_tenant("acme"), "camera", {"query"})
    client = make_client(metrics_models=setting)
    headers = {"authorization": f"Bearer {text}"}
    assert client.post("/v1/models/pets/classes/cat:query", json=ROW, headers=headers).status_code == 200
    text = client.get("/metrics").text
    assert ('model="pets"' in text) is shown
    assert 'stms_queries_total{model="' in text
