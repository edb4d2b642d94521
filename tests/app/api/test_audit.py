"""The audit log over HTTP: every request that changes something is recorded, and so are denied ones."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.auth import audit_writer
from app.services.audit import list_records
from app.services.keys import create_key
from app.store.tables import jobs
from app.store.unit_of_work import Store
from core.labelling.base import Labelling
from core.monitoring.suspects import Suspects
from core.solvers.solution import Summary
from tests.app.api.bucket import TARGET, serving
from tests.app.api.conftest import CSV, WEIGHTS, standing_server
from tests.app.encoders.onnx_files import network
from tests.app.started import Client
from tests.system.published import publish_linear
from tests.system.token_issuer import NAME, issuer_setting, key_set, public_jwk
from verification.isolation_probes import bundle_bytes

pytestmark = pytest.mark.usefixtures("keys_required")

SAFE = {"get", "head", "options"}
QUERIES = {
    "/v1/models/{model}/classes/{class}:query",
    "/v1/models/{model}:query",
    "/v1/models/{model}:predict",
    "/v1/models/{model}/thresholds",
    "/v1/models/{model}:packages",
    "/v2/models/{model}/infer",
    "/v2/models/{model}/versions/{version}/infer",
    "/v2/repository/index",
}


def head() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, weights=WEIGHTS, labels=np.array(["a", "b", "c", "d"]))
    return buffer.getvalue()


MONITOR = "/v1/models/pets/aliases/latest/monitor"
REPORT = {"request_id": "order-17", "label": "cat", "model": "pets", "answer": True, "correct": False}
WEBHOOK = {"name": "w", "url": "https://hooks.example.com/x", "events": ["job.failed"]}


class World:
    """A server that asks for keys, and what is needed to change something on it. source: of data sets."""

    def __init__(self, client: Client, store: Store, headers: dict[str, str], source: str) -> None:
        self.client, self.store, self.headers, self.source = client, store, headers, source

    def ask(self, method: str, path: str, **options: Any) -> Any:
        headers = self.headers | options.pop("headers", {})
        return self.client.request(method, path, headers=headers, **options)

    def rows(self, **equal: str) -> list[Any]:
        self.client.run(self.client.context.audit_writer.write())
        return list(list_records(self.store.of_all_tenants(), limit=1000, **equal)[0])

    def dataset(self) -> str:
        return str(self.ask("POST", "/v1/datasets?format=csv", content=CSV).json()["id"])

    def job(self) -> str:
        body = {"dataset_id": self.dataset(), "model": "m"}
        return str(self.ask("POST", "/v1/training-jobs", json=body).json()["id"])

    def key(self) -> str:
        body = {"name": "k", "scopes": ["query"]}
        return str(self.ask("POST", "/v1/keys", json=body).json()["details"]["id"])

    def encoder(self) -> Any:
        path = "/v1/encoders?name=own&input=image:32x32:rgb:imagenet"
        return self.ask("POST", path, content=network())

    def webhook(self) -> str:
        return str(self.ask("POST", "/v1/webhooks", json=WEBHOOK).json()["details"]["id"])

    def delivery(self) -> str:
        """The path of one that has ended, below ``/v1/webhooks/``."""
        webhook = self.webhook()
        delivery = self.ask("POST", f"/v1/webhooks/{webhook}:test").json()["id"]
        with self.store.begin() as uow:
            uow.webhooks.change_delivery(delivery, state="dead", due_at=None)
        return f"{webhook}/deliveries/{delivery}"

    def rows_of_a_model(self) -> str:
        """A data set whose columns are those of the model pets."""
        lines = [f"{i % 5},{i % 7},{i % 3},{'cat' if i % 2 else 'dog'}" for i in range(60)]
        content = "\n".join(["a,b,c,label", *lines]).encode()
        return str(self.ask("POST", "/v1/datasets?format=csv", content=content).json()["id"])

    def evaluation(self) -> str:
        """One that waits; its version is one that knows the rows of its training."""
        body = {"version": seen_version(self), "dataset_id": self.rows_of_a_model()}
        return str(self.ask("POST", "/v1/evaluations", json=body).json()["id"])

    def gate(self) -> dict[str, str]:
        """The condition of the next change of a gate of pets@latest."""
        path = "/v1/models/pets/aliases/latest/gate"
        made = self.ask("PUT", path, json={"dataset_id": self.dataset()})
        return {"if-match": made.headers["etag"]}

    def monitor(self) -> Any:
        """The answer to a monitor of the alias latest."""
        return self.ask("PUT", MONITOR, json={"classes": {"*": {}}, "ask": {"no": "uniform"}})

    def alias(self) -> dict[str, str]:
        return {"if-match": self.ask("GET", "/v1/models/pets/aliases/latest").headers["etag"]}


@pytest.fixture
def source() -> Iterator[str]:
    """The address of a bucket with a data set."""
    with serving(CSV) as (origin, _):
        yield origin


@pytest.fixture
def client(make_client: Callable[..., Client], tmp_path: Path, source: str) -> Client:
    """A server with an issuer of tokens, a receiver of webhooks, a source of data sets and an object store.

    The store is only named in addresses here.
    """
    keys = tmp_path / "keys.json"
    keys.write_bytes(key_set(public_jwk("ES256")))
    return make_client(
        token_issuers=[issuer_setting(keys)],
        webhooks="https://hooks.example.com",
        webhook_secret="x" * 32,
        query_samples="ids",
        dataset_sources=source,
        blobs="s3://bucket/stms",
        blobs_endpoint="http://127.0.0.1:1",
        blobs_key_id="key",
        blobs_secret="secret",
    )


@pytest.fixture
def world(client: Client, store: Store, source: str, pets) -> World:
    _, text = create_key(store, "root", {"admin", "operator"})
    client.refresh()
    return World(client, store, {"authorization": f"Bearer {text}"}, source)


@pytest.fixture(scope="module")
def standing_world(_sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One server for all tests that change nothing on it but the log."""
    keys: list[str] = []

    def prepare(store: Store) -> None:
        keys.append(create_key(store, "root", {"admin", "operator"})[1])

    folder = tmp_path_factory.mktemp("standing")
    with pytest.MonkeyPatch.context() as patch:
        # Each test writes the log itself.
        patch.setattr(audit_writer, "_SECONDS", 3600.0)
        with standing_server(_sqlite_template, folder, prepare, require_keys=True) as (client, store):
            yield World(client, store, {"authorization": f"Bearer {keys[0]}"}, "")


def cancelled(world: World) -> str:
    job = world.job()
    world.ask("POST", f"/v1/training-jobs/{job}/cancel")
    return job


def seen_version(world: World) -> str:
    """A version whose job has stored which rows it was trained on."""
    publish_linear(world.store, "seen", WEIGHTS, seen=b"")
    return "seen"


def ended_evaluation(world: World) -> str:
    evaluation = world.evaluation()
    world.ask("POST", f"/v1/evaluations/{evaluation}/cancel")
    return evaluation


def labelled(world: World) -> str:
    """A job that has stored labels."""
    job, summary = world.job(), Summary(1.0, None, None, 1, 0.1, "converged")
    codes = np.arange(40, dtype=np.int32) % 2
    found = Labelling(codes, np.full(40, 0.5, dtype=np.float32), ("no", "yes"), summary, {})
    with world.store.begin() as uow:
        uow.jobs.change(job, labels_digest=uow.blobs.put([found.to_bytes()])[0])
    return job


def suspicious(world: World) -> str:
    """A job that has found the labels of two rows suspect."""
    job, two = world.job(), np.array([3, 5])
    found = Suspects(two, two % 2, 1 - two % 2, np.array([0.1, 0.2]), np.array([0.9, 0.8]), two > 3)
    with world.store.begin() as uow:
        uow.jobs.change(job, suspects_digest=uow.blobs.put([found.to_bytes()])[0])
    return job


def with_rows(world: World) -> dict[str, Any]:
    """A class to add to a version whose training rows are there."""
    dataset = world.dataset()
    with world.store.begin() as uow:
        job = uow.models.version("pets", 1).job_id
        uow.connection.execute(jobs.update().where(jobs.c.id == job).values(dataset_id=dataset))
    return {"name": "cow", "rows": [[float(i), 0.0, 1.0] for i in range(5)]}


def second_version(world: World) -> str:
    world.ask("POST", "/v1/teachers?model=heads&alias=", content=head())
    return "/v1/models/heads/versions/1"


ACTIONS: dict[tuple[str, str], tuple[str, Callable[[World], Any]]] = {
    ("post", "/v1/datasets"): (
        "dataset.create",
        lambda w: w.ask("POST", "/v1/datasets?format=csv", content=CSV),
    ),
    ("post", "/v1/datasets:fetch"): (
        "dataset.create",
        lambda w: w.ask("POST", "/v1/datasets:fetch", json={"url": w.source + TARGET}),
    ),
    ("post", "/v1/uploads"): (
        "upload.create",
        lambda w: w.ask("POST", "/v1/uploads", json={"bytes": 10, "sha256": "0" * 64}),
    ),
    ("post", "/v1/datasets/{dataset_id}/revisions"): (
        "dataset.create",
        lambda w: w.ask("POST", f"/v1/datasets/{w.dataset()}/revisions", json={"delete": {"rows": [3]}}),
    ),
    ("delete", "/v1/datasets/{dataset_id}"): (
        "dataset.delete",
        lambda w: w.ask("DELETE", f"/v1/datasets/{w.dataset()}"),
    ),
    ("post", "/v1/training-jobs"): (
        "job.submit",
        lambda w: w.ask("POST", "/v1/training-jobs", json={"dataset_id": w.dataset(), "model": "m"}),
    ),
    ("delete", "/v1/training-jobs/{job_id}"): (
        "job.delete",
        lambda w: w.ask("DELETE", f"/v1/training-jobs/{cancelled(w)}"),
    ),
    ("post", "/v1/training-jobs/{job_id}/cancel"): (
        "job.cancel",
        lambda w: w.ask("POST", f"/v1/training-jobs/{w.job()}/cancel"),
    ),
    ("post", "/v1/training-jobs/{job_id}/retry"): (
        "job.retry",
        lambda w: w.ask("POST", f"/v1/training-jobs/{cancelled(w)}/retry"),
    ),
    ("post", "/v1/training-jobs/{job_id}/labels"): (
        "dataset.create",
        lambda w: w.ask(
            "POST", f"/v1/training-jobs/{labelled(w)}/labels", json={"rename": {"yes": "certainly"}}
        ),
    ),
    ("post", "/v1/training-jobs/{job_id}/suspects"): (
        "dataset.create",
        lambda w: w.ask(
            "POST",
            f"/v1/training-jobs/{suspicious(w)}/suspects",
            json={"corrections": [{"row": 3, "keep": True}]},
        ),
    ),
    ("post", "/v1/teachers"): (
        "model.import",
        lambda w: w.ask("POST", "/v1/teachers?model=heads", content=head()),
    ),
    ("post", "/v1/bundles"): (
        "model.import",
        lambda w: w.ask("POST", "/v1/bundles", content=bundle_bytes()),
    ),
    ("put", "/v1/models/{model}/aliases/{alias}"): (
        "alias.move",
        lambda w: w.ask("PUT", "/v1/models/pets/aliases/live", json={"version": 1}),
    ),
    ("delete", "/v1/models/{model}/aliases/{alias}"): (
        "alias.delete",
        lambda w: w.ask("DELETE", "/v1/models/pets/aliases/latest", headers=w.alias()),
    ),
    ("put", "/v1/models/{model}/aliases/{alias}/gate"): (
        "gate.set",
        lambda w: w.ask("PUT", "/v1/models/pets/aliases/latest/gate", json={"dataset_id": w.dataset()}),
    ),
    ("delete", "/v1/models/{model}/aliases/{alias}/gate"): (
        "gate.delete",
        lambda w: w.ask("DELETE", "/v1/models/pets/aliases/latest/gate", headers=w.gate()),
    ),
    ("post", "/v1/evaluations"): (
        "evaluation.create",
        lambda w: w.ask(
            "POST", "/v1/evaluations", json={"version": seen_version(w), "dataset_id": w.rows_of_a_model()}
        ),
    ),
    ("post", "/v1/evaluations/{evaluation_id}/cancel"): (
        "evaluation.cancel",
        lambda w: w.ask("POST", f"/v1/evaluations/{w.evaluation()}/cancel"),
    ),
    ("delete", "/v1/evaluations/{evaluation_id}"): (
        "evaluation.delete",
        lambda w: w.ask("DELETE", f"/v1/evaluations/{ended_evaluation(w)}"),
    ),
    ("put", "/v1/models/{model}/aliases/{alias}/monitor"): ("monitor.put", lambda w: w.monitor()),
    ("delete", "/v1/models/{model}/aliases/{alias}/monitor"): (
        "monitor.delete",
        lambda w: w.ask("DELETE", MONITOR, headers={"if-match": w.monitor().headers["etag"]}),
    ),
    ("post", "/v1/models/{model}/aliases/{alias}/monitor:acknowledge"): (
        "monitor.acknowledge",
        lambda w: w.monitor() and w.ask("POST", f"{MONITOR}:acknowledge", json={}),
    ),
    ("post", "/v1/feedback"): (
        "feedback.give",
        lambda w: w.monitor() and w.ask("POST", "/v1/feedback", json={"feedback": [REPORT]}),
    ),
    ("post", "/v1/models/{model}/versions"): (
        "model.publish",
        lambda w: w.ask("POST", "/v1/models/pets/versions", json={"thresholds": {"cat": 0.5}}),
    ),
    ("post", "/v1/models/{model}/classes"): (
        "job.submit",
        lambda w: w.ask("POST", "/v1/models/pets/classes", json=with_rows(w)),
    ),
    ("post", "/v1/models/{model}/retrain"): (
        "job.submit",
        lambda w: w.ask(
            "POST", "/v1/models/pets/retrain", json={"from": 1, "dataset_id": w.rows_of_a_model()}
        ),
    ),
    ("patch", "/v1/models/{model}/classes"): (
        "model.publish",
        lambda w: w.ask("PATCH", "/v1/models/pets/classes", json={"rename": {"cat": "Cat"}}),
    ),
    ("delete", "/v1/models/{model}/versions/{version}"): (
        "version.delete",
        lambda w: w.ask("DELETE", second_version(w)),
    ),
    ("post", "/v1/keys"): (
        "key.create",
        lambda w: w.ask("POST", "/v1/keys", json={"name": "k", "scopes": ["query"]}),
    ),
    ("post", "/v1/keys/{key_id}/rotate"): (
        "key.rotate",
        lambda w: w.ask("POST", f"/v1/keys/{w.key()}/rotate"),
    ),
    ("post", "/v1/token-revocations"): (
        "token.revoke",
        lambda w: w.ask("POST", "/v1/token-revocations", json={"issuer": NAME, "sub": "robot"}),
    ),
    ("delete", "/v1/keys/{key_id}"): ("key.revoke", lambda w: w.ask("DELETE", f"/v1/keys/{w.key()}")),
    ("post", "/v1/encoders"): ("encoder.add", lambda w: w.encoder()),
    ("delete", "/v1/encoders/{encoder}"): (
        "encoder.delete",
        lambda w: (w.encoder(), w.ask("DELETE", "/v1/encoders/own"))[1],
    ),
    ("post", "/v1/webhooks"): ("webhook.create", lambda w: w.ask("POST", "/v1/webhooks", json=WEBHOOK)),
    ("patch", "/v1/webhooks/{webhook_id}"): (
        "webhook.change",
        lambda w: w.ask("PATCH", f"/v1/webhooks/{w.webhook()}", json={"enabled": False}),
    ),
    ("delete", "/v1/webhooks/{webhook_id}"): (
        "webhook.delete",
        lambda w: w.ask("DELETE", f"/v1/webhooks/{w.webhook()}"),
    ),
    ("post", "/v1/webhooks/{webhook_id}:test"): (
        "webhook.test",
        lambda w: w.ask("POST", f"/v1/webhooks/{w.webhook()}:test"),
    ),
    ("post", "/v1/webhooks/{webhook_id}/deliveries/{delivery_id}:repeat"): (
        "webhook.repeat",
        lambda w: w.ask("POST", f"/v1/webhooks/{w.delivery()}:repeat"),
    ),
    ("patch", "/v1/quotas"): (
        "quota.set",
        lambda w: w.ask("PATCH", "/v1/quotas", json={"datasets": 5}),
    ),
    ("post", "/v2/repository/models/{model}/load"): (
        "student.load",
        lambda w: w.ask("POST", "/v2/repository/models/pets/load"),
    ),
    ("post", "/v2/repository/models/{model}/unload"): (
        "student.unload",
        lambda w: w.ask("POST", "/v2/repository/models/pets/unload"),
    ),
}


def test_every_operation_that_changes_something_is_tested_here(client):
    changing = {
        (method, path)
        for path, operations in client.control.openapi()["paths"].items()
        for method in operations
        if method not in SAFE and path not in QUERIES
    }
    assert changing == set(ACTIONS)


@pytest.mark.parametrize(("method", "path"), ACTIONS)
def test_every_request_that_changes_something_writes_exactly_one_row(world: World, method: str, path: str):
    action, do = ACTIONS[method, path]
    response = do(world)
    assert response.is_success, response.text
    request_id = response.headers["x-request-id"]
    [row] = [row for row in world.rows(action=action) if row.request_id == request_id]
    assert (row.actor_name, row.scope, row.outcome) == ("root", "operator", "done")
    assert row.address == "127.0.0.1"
    assert row.object
    assert world.rows(action="request.unchanged") == []


@pytest.mark.parametrize(
    ("method", "path"),
    # A key that may query may also say whether answers were right.
    [action for action in ACTIONS if action[1] != "/v1/feedback"],
)
def test_every_such_request_writes_a_row_when_it_is_denied(standing_world: World, method: str, path: str):
    world, where = standing_world, path.replace("{", "").replace("}", "").replace("/model/", "/pets/")
    before = len(world.rows())
    assert world.client.request(method.upper(), where).status_code == 401
    _, text = create_key(world.store, "camera", {"query"}, {"cars"})
    world.client.refresh()
    response = world.client.request(method.upper(), where, headers={"x-api-key": text}, json={"version": 1})
    assert response.status_code == 403, response.text
    refused = world.rows(action="request.refused", object=f"{method.upper()} {where}")
    assert {row.outcome for row in refused} == {"key_required", "scope_required"}
    assert len(world.rows()) == before + 3, "no other rows than two, and that of the key"


def test_requests_without_effect_are_recorded_as_unchanged(world: World):
    for _ in range(2):
        assert world.ask("POST", "/v1/datasets?format=csv", content=CSV).is_success
    [row] = world.rows(action="request.unchanged")
    assert (row.object, row.outcome, row.actor_name) == ("POST /v1/datasets", "unchanged", "root")
    world.ask("DELETE", "/v1/datasets/ds_none")
    [row] = world.rows(action="request.refused")
    assert (row.object, row.outcome) == ("DELETE /v1/datasets/ds_none", "dataset_not_found")
    assert row.actor_name == "root"


def test_reads_and_queries_are_not_recorded(world: World):
    before = len(world.rows())
    body = {"x": [1, 2, 3]}
    for method, path in (
        ("GET", "/v1/models"),
        ("GET", "/v1/audit"),
        ("GET", "/v1/models/none"),
        ("GET", "/livez"),
        ("POST", "/v1/models/pets/classes/cat:query"),
        ("POST", "/v1/models/pets/classes/none:query"),
        ("POST", "/v1/models/pets:predict"),
        ("POST", "/v2/repository/index"),
    ):
        world.ask(method, path, **({"json": body} if "pets" in path else {}))
    assert len(world.rows()) == before


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/models"),
        ("POST", "/v1/models/pets/classes/cat:query"),
        ("GET", "/v2/models/pets"),
        ("POST", "/v2/models/pets/infer"),
        ("POST", "/v1/models/pets:predict"),
    ],
)
def test_denied_callers_are_recorded_on_every_route(world: World, method: str, path: str):
    for _ in range(3):
        assert world.client.request(method, path, json={"x": [1, 2, 3]}).status_code == 401
    [row] = world.rows(action="request.refused")
    assert (row.object, row.details["count"], row.actor) == (f"{method} {path}", 3, "unknown")


def test_without_a_database_the_row_is_lost_and_the_response_sent(world: World, monkeypatch, caplog):
    world.ask("POST", "/v1/datasets?format=csv", content=CSV)
    from app.domain.errors import Unavailable

    def away() -> Any:
        raise Unavailable("away")

    monkeypatch.setattr(world.client.context.store, "begin", away)
    assert world.ask("POST", "/v1/datasets?format=csv", content=CSV).status_code == 200
    assert "is not in the audit log" in caplog.text


def test_the_log_is_read_in_pages_and_by_filters(world: World, problem):
    keys = [world.key() for _ in range(5)]
    first = world.ask("GET", "/v1/audit", params={"limit": 3})
    assert [row["object"] for row in first.json()["data"]] == keys[:1:-1]
    assert first.json()["has_more"]
    second = world.ask("GET", first.links["next"]["url"])
    assert [row["object"] for row in second.json()["data"]][:2] == keys[1::-1]
    one = world.ask("GET", "/v1/audit", params={"object": keys[2], "action": "key.create"}).json()["data"]
    assert [row["object"] for row in one] == [keys[2]]
    assert one[0]["at"].endswith("Z")
    assert world.ask("GET", "/v1/audit", params={"actor": "nobody"}).json() == {"data": [], "has_more": False}
    assert world.ask("GET", "/v1/audit", params={"since": 4e9}).json()["data"] == []
    assert world.ask("GET", "/v1/audit", params={"until": 1.0}).json()["data"] == []
    at = one[0]["at"]
    [same] = world.ask("GET", "/v1/audit", params={"object": keys[2], "since": at}).json()["data"]
    assert same["at"] == at, "a time of a response selects the record"
    everything = len(world.ask("GET", "/v1/audit").json()["data"])
    for before in ("2001-01-01T00:00:00Z", "2001-01-01T09:00:00+09:00", "1000000000"):
        assert world.ask("GET", "/v1/audit", params={"until": before}).json()["data"] == []
        assert len(world.ask("GET", "/v1/audit", params={"since": before}).json()["data"]) == everything
    assert len(world.ask("GET", "/v1/audit?since=2001-01-01T09:00:00+09:00").json()["data"]) == everything
    problem(world.ask("GET", "/v1/audit", params={"actor": "a\0b"}), 400, "invalid_parameter")
    _, text = create_key(world.store, "trainer", {"train"})
    world.client.refresh()
    problem(world.client.get("/v1/audit", headers={"x-api-key": text}), 403, "scope_required")


def test_the_log_is_followed_from_the_oldest_record_on(world: World, problem):
    keys = [world.key() for _ in range(5)]
    made = {"action": "key.create", "order": "asc"}
    first = world.ask("GET", "/v1/audit", params=made | {"limit": 3})
    second = world.ask("GET", first.links["next"]["url"])
    listed = [row["object"] for page in (first, second) for row in page.json()["data"]]
    assert listed[-5:] == keys
    assert (first.json()["has_more"], second.json()["has_more"]) == (True, False)
    last = second.json()["data"][-1]["id"]
    assert world.ask("GET", "/v1/audit", params=made | {"after": last}).json()["data"] == []
    added = world.key()
    [row] = world.ask("GET", "/v1/audit", params=made | {"after": last}).json()["data"]
    assert row["object"] == added
    problem(world.ask("GET", "/v1/audit", params={"order": "up"}), 400, "invalid_parameter")


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("2026-01-31", "needs its time zone"),
        ("2026-01-31T09:00:00", "needs its time zone"),
        ("2026-02-30T00:00:00Z", "no such day"),
        ("2h", "seconds since the epoch, or a time such as"),
        ("", "seconds since the epoch, or a time such as"),
        ("nan", "greater than or equal to 0"),
        ("-1", "greater than or equal to 0"),
        ("1e12", "less than or equal to"),
    ],
)
@pytest.mark.parametrize("address", ["/v1/audit?since=", "/v1/audit?until=", "/v1/training-jobs?since="])
def test_a_time_without_a_zone_is_refused(standing_world: World, problem, address: str, value: str, why: str):
    body = problem(standing_world.ask("GET", f"{address}{value}"), 400, "invalid_parameter")
    assert why in body["detail"]


def test_the_address_is_that_of_the_client_behind_a_trusted_proxy(make_client, store: Store, pets):
    _, text = create_key(store, "root", {"admin"})
    forwarded = {"authorization": f"Bearer {text}", "x-forwarded-for": "6.6.6.6, 192.0.2.7"}
    body = {"name": "k", "scopes": ["query"]}
    for proxies, address in (("", "127.0.0.1"), ("127.0.0.1", "192.0.2.7")):
        client = make_client(trusted_proxies=proxies)
        made = client.post("/v1/keys", json=body, headers=forwarded).json()["details"]["id"]
        [row] = list_records(store.of_all_tenants(), limit=1, object=made)[0]
        assert row.address == address
