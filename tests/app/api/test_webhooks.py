"""``/v1/webhooks`` over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from app.domain.webhook import EVENTS
from app.services.keys import create_key
from app.store.unit_of_work import Store
from tests.app.started import Client

PATH = "/v1/webhooks"
BODY = {"name": "ours", "url": "https://hooks.example.com/a?b", "events": ["job.failed", "alias.moved"]}
Check = Callable[..., dict[str, Any]]


@pytest.fixture
def client(make_client: Callable[..., Client]) -> Client:
    return make_client(webhooks="https://hooks.example.com", webhook_secret="x" * 32)


def create(client: Client, **changed: Any) -> dict[str, Any]:
    response = client.post(PATH, json=BODY | changed)
    assert response.status_code == 201, response.text
    made: dict[str, Any] = response.json()
    return made


def test_a_webhook_is_created_shown_changed_and_deleted(client: Client, problem: Check):
    made = create(client, models=["pets"])
    secret, shown = made["secret"], made["details"]
    assert secret.startswith("whsec_")
    assert shown["enabled"] is True
    assert (shown["form"], shown["models"], shown["disabled_reason"]) == ("cloudevents", ["pets"], None)
    path = f"{PATH}/{shown['id']}"
    fields = {"id", "name", "url", "events", "models", "form", "created_at", "created_by", "tenant"}
    assert shown.keys() == fields | {"enabled", "disabled_reason", "dead_in_row"}
    assert client.get(path).json() == shown
    assert client.get(PATH).json() == {"data": [shown], "has_more": False}
    changed = client.request("PATCH", path, json={"events": ["key.expiring"], "form": "slack"}).json()
    assert changed == shown | {"events": ["key.expiring"], "form": "slack"}
    assert client.request("PATCH", path, json={"enabled": False}).json()["disabled_reason"] == "request"
    assert client.request("PATCH", path, json={}).json()["enabled"] is False
    assert client.delete(path).status_code == 204
    problem(client.get(path), 404, "webhook_not_found")
    problem(client.delete(path), 404, "webhook_not_found")
    problem(client.request("PATCH", path, json={"name": "x"}), 404, "webhook_not_found")
    problem(client.post(f"{path}:test"), 404, "webhook_not_found")
    problem(client.get(f"{path}/deliveries"), 404, "webhook_not_found")


def test_a_webhook_gets_all_events_unless_some_are_named(client: Client):
    response = client.post(PATH, json={"name": "ours", "url": BODY["url"]})
    assert response.json()["details"]["events"] == [*EVENTS]


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"url": "https://169.254.169.254/latest"}, "webhook_not_allowed"),
        ({"url": "nonsense"}, "bad_url"),
        ({"events": []}, "unknown_event"),
    ],
)
def test_faults_are_named(client: Client, problem: Check, changed: dict[str, Any], code: str):
    document = problem(client.post(PATH, json=BODY | changed), 400, "invalid_request")
    assert [fault["code"] for fault in document["errors"]] == [code]
    path = f"{PATH}/{create(client)['details']['id']}"
    document = problem(client.request("PATCH", path, json=changed), 400, "invalid_request")
    assert [fault["code"] for fault in document["errors"]] == [code]


@pytest.mark.parametrize("changed", [{"form": "xml"}, {"more": 1}, {"url": "h" * 2001}, {"events": None}])
def test_other_bodies_are_refused(client: Client, problem: Check, changed: dict[str, Any]):
    problem(client.post(PATH, json=BODY | changed), 422, "invalid_body")


def test_without_the_setting_no_webhook_is_made(make_client: Callable[..., Client], problem: Check):
    document = problem(make_client().post(PATH, json=BODY), 400, "invalid_request")
    assert "STMS_WEBHOOKS" in document["errors"][0]["message"]


def test_deliveries_are_listed_in_pages_and_repeated(client: Client, store: Store, problem: Check):
    path = f"{PATH}/{create(client)['details']['id']}"
    sent = [client.post(f"{path}:test").json() for _ in range(3)]
    assert {(one["state"], one["type"], one["attempts"]) for one in sent} == {("waiting", "webhook.test", 0)}
    first = client.get(f"{path}/deliveries", params={"limit": 2})
    assert [one["id"] for one in first.json()["data"]] == [sent[2]["id"], sent[1]["id"]]
    second = client.get(first.links["next"]["url"]).json()
    assert second == {"data": [sent[0]], "has_more": False}
    repeat = f"{path}/deliveries/{sent[0]['id']}:repeat"
    problem(client.post(repeat), 409, "delivery_waiting")
    with store.begin() as uow:
        uow.webhooks.change_delivery(sent[0]["id"], state="dead", due_at=None, attempts=7, status=500)
    again = client.post(repeat)
    assert again.status_code == 202
    assert again.json() | {"due_at": ""} == sent[0] | {"due_at": ""}
    problem(client.post(f"{path}/deliveries/del_none:repeat"), 404, "delivery_not_found")


def test_webhooks_of_another_tenant_are_those_of_operators_only(
    make_client: Callable[..., Client], store: Store, problem: Check
):
    client = make_client(webhooks="https://hooks.example.com", webhook_secret="x" * 32, require_keys=True)

    def ask(who: str, method: str, path: str, **options: Any) -> Any:
        return client.request(method, path, headers={"x-api-key": keys[who]}, **options)

    keys = {
        name: create_key(store.of_tenant(name.partition(" ")[0]), name, {name.partition(" ")[2]})[1]
        for name in ("acme admin", "rival admin", "rival train", "default operator")
    }
    client.refresh()
    made = ask("acme admin", "POST", PATH, json=BODY).json()["details"]
    path = f"{PATH}/{made['id']}"
    assert (made["tenant"], made["created_by"][:4]) == ("acme", "key_")
    for method, end in (
        *(("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", ":test"), ("GET", "/deliveries")),
        ("POST", "/deliveries/del_1:repeat"),
    ):
        body = {"json": {"name": "x"}} if method == "PATCH" else {}
        problem(ask("rival admin", method, path + end, **body), 404, "webhook_not_found")
        problem(ask("rival train", method, path + end, **body), 403, "scope_required")
        problem(client.request(method, path + end, **body), 401, "key_required")
    assert ask("rival admin", "GET", PATH).json()["data"] == []
    problem(ask("rival admin", "GET", f"{PATH}?tenant=acme"), 403, "scope_required")
    for listed in (PATH, f"{PATH}?tenant=acme"):
        assert [one["id"] for one in ask("default operator", "GET", listed).json()["data"]] == [made["id"]]
    assert ask("default operator", "POST", f"{path}:test?tenant=acme").status_code == 202
    assert ask("acme admin", "GET", f"{path}/deliveries").json()["data"][0]["type"] == "webhook.test"
