"""Files that clients put into the object store themselves, and that then become data sets."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from app.domain.object_address import ObjectAddress
from app.services import uploads
from app.services.keys import create_key
from app.services.retention import clean
from app.store.bodies import BlobBodies
from app.store.opening import open_objects
from app.store.tables import uploads as table
from app.store.unit_of_work import Store
from tests.app.api.conftest import CSV
from tests.app.started import Client

DIGEST = hashlib.sha256(CSV).hexdigest()
PLAN = {"bytes": len(CSV), "sha256": DIGEST}


NOWHERE = ObjectAddress("bucket", "stms", "http://127.0.0.1:1", key_id="key", secret="secret")


def settings_of(address: ObjectAddress) -> dict[str, Any]:
    return {
        "blobs": f"s3://{address.bucket}/{address.prefix}",
        "blobs_endpoint": address.endpoint,
        "blobs_key_id": address.key_id,
        "blobs_secret": address.secret,
    }


@pytest.fixture
def settings(s3_address: ObjectAddress) -> dict[str, Any]:
    return settings_of(s3_address)


@pytest.fixture
def objects(s3_address: ObjectAddress) -> BlobBodies:
    opened = open_objects(s3_address)
    assert opened is not None
    return opened


@pytest.fixture
def client(make_client: Callable[..., Client], settings: dict[str, Any]) -> Client:
    return make_client(**settings)


def planned(client: Client, content: bytes = CSV, **options: Any) -> dict[str, Any]:
    """A planned upload whose file is at its address."""
    answer = client.post("/v1/uploads", json=PLAN, **options)
    assert answer.status_code == 201, answer.text
    upload: dict[str, Any] = answer.json()
    assert upload["method"] == "PUT"
    assert httpx.put(upload["url"], content=content, trust_env=False).status_code == 200
    return upload


def taken(client: Client, upload: str, **options: Any) -> Any:
    params = {"upload": upload, "format": "csv", **options.pop("params", {})}
    return client.post("/v1/datasets", params=params, **options)


def problem(answer: Any, status: int, code: str) -> None:
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


@pytest.mark.long
def test_a_file_in_the_object_store_becomes_a_data_set(client, objects: BlobBodies):
    upload = planned(client)
    shown = taken(client, upload["id"], params={"dry_run": True})
    assert (shown.status_code, shown.json()["rows"]) == (200, 40)
    answer = taken(client, upload["id"], params={"name": "numbers"})
    assert answer.status_code == 201
    dataset = answer.json()
    assert (dataset["digest"], dataset["name"], dataset["rows"]) == (DIGEST, "numbers", 40)
    assert client.get("/v1/datasets").json()["data"][0]["id"] == dataset["id"]
    assert objects.inbox.size(upload["id"]) is None
    problem(taken(client, upload["id"]), 404, "upload_not_found")
    again = client.post("/v1/datasets?format=csv", content=CSV)
    assert (again.status_code, again.json()["id"]) == (200, dataset["id"]), "as if it had been sent"


@pytest.mark.long
def test_a_refused_file_can_be_read_in_another_way(client):
    upload = planned(client)
    assert taken(client, upload["id"], params={"label_column": "none such"}).status_code == 400
    assert taken(client, upload["id"]).status_code == 201


@pytest.mark.long
def test_before_its_file_arrives_an_upload_is_refused(client):
    upload = client.post("/v1/uploads", json=PLAN).json()
    problem(taken(client, upload["id"]), 409, "upload_missing")
    problem(taken(client, "upl_none"), 404, "upload_not_found")


@pytest.mark.long
def test_an_expired_upload_is_refused_and_its_file_deleted(client, store: Store, objects: BlobBodies):
    upload = planned(client)
    with store.begin() as uow:
        uow.connection.execute(sa.update(table).values(expires_at=time.time() - 1))
    problem(taken(client, upload["id"]), 409, "upload_expired")
    with_objects = Store(store.engine, objects=objects)
    uploads.clean_uploads(with_objects, time.time())
    assert objects.inbox.size(upload["id"]) == len(CSV), "it may have arrived at this moment"
    uploads.clean_uploads(with_objects, time.time() + 3 * uploads.EXPIRE_SECONDS)
    assert objects.inbox.size(upload["id"]) is None
    problem(taken(client, upload["id"]), 404, "upload_not_found")


@pytest.mark.long
def test_another_file_than_the_planned_one_is_refused(client, objects: BlobBodies):
    upload = planned(client, CSV[::-1])
    problem(taken(client, upload["id"]), 422, "upload_digest")
    assert objects.inbox.size(upload["id"]) is None
    upload = planned(client, CSV + b"1,2,yes\n")
    problem(taken(client, upload["id"]), 422, "upload_size")
    assert httpx.put(upload["url"], content=CSV, trust_env=False).status_code == 200
    assert taken(client, upload["id"]).status_code == 201


@pytest.mark.long
@pytest.mark.usefixtures("keys_required")
def test_an_upload_of_another_tenant_does_not_exist(client, store: Store):
    headers = []
    for tenant in ("acme", "other"):
        _, text = create_key(store.of_tenant(tenant), "train", {"train"})
        headers.append({"authorization": f"Bearer {text}"})
    _, text = create_key(store.of_tenant("acme"), "query", {"query"})
    client.refresh()
    problem(client.post("/v1/uploads", json=PLAN), 401, "key_required")
    query = {"authorization": f"Bearer {text}"}
    problem(client.post("/v1/uploads", json=PLAN, headers=query), 403, "scope_required")
    upload = planned(client, headers=headers[0])
    none = taken(client, "upl_0", headers=headers[1]).json()
    other = taken(client, upload["id"], headers=headers[1])
    problem(other, 404, "upload_not_found")
    assert other.json()["detail"] == none["detail"].replace("upl_0", upload["id"])
    assert taken(client, upload["id"], headers=headers[0]).status_code == 201


def test_what_is_too_large_is_refused_before_it_is_sent(make_client):
    client = make_client(**settings_of(NOWHERE), max_upload_bytes=1024, quota_stored_bytes=2500)
    problem(client.post("/v1/uploads", json=PLAN | {"bytes": 1025}), 413, "file_too_large")
    for _ in range(2):
        assert client.post("/v1/uploads", json=PLAN | {"bytes": 1000}).status_code == 201
    problem(client.post("/v1/uploads", json=PLAN | {"bytes": 1000}), 413, "quota_stored_bytes")


def test_a_tenant_has_a_bounded_number_of_uploads(make_client, monkeypatch):
    client = make_client(**settings_of(NOWHERE))
    monkeypatch.setattr(uploads, "MAX_OF_TENANT", 2)
    for _ in range(2):
        assert client.post("/v1/uploads", json=PLAN).status_code == 201
    problem(client.post("/v1/uploads", json=PLAN), 429, "too_many_uploads")


@pytest.mark.parametrize("body", [{}, PLAN | {"bytes": 0}, PLAN | {"sha256": "x"}, PLAN | {"more": 1}])
def test_a_plan_says_size_and_digest_and_nothing_else(make_client, body):
    client = make_client(**settings_of(NOWHERE))
    assert client.post("/v1/uploads", json=body).status_code == 422


def test_without_an_object_store_files_are_sent(make_client):
    client = make_client()
    problem(client.post("/v1/uploads", json=PLAN), 409, "no_object_store")
    problem(taken(client, "upl_0"), 409, "no_object_store")


@pytest.mark.long
def test_an_installation_may_refuse_files_at_the_api(make_client, settings):
    client = make_client(**settings, uploads="presigned")
    problem(client.post("/v1/datasets?format=csv", content=CSV), 409, "uploads_presigned")
    assert taken(client, planned(client)["id"]).status_code == 201


def test_a_store_that_is_away_is_unavailable(make_client):
    client = make_client(**settings_of(NOWHERE))
    upload = client.post("/v1/uploads", json=PLAN).json()
    problem(taken(client, upload["id"]), 503, "object_store_unavailable")


def test_clients_get_the_address_that_they_reach(make_client):
    client = make_client(**settings_of(NOWHERE), blobs_public_endpoint="https://objects.example.com")
    url = client.post("/v1/uploads", json=PLAN).json()["url"]
    assert url.startswith("https://objects.example.com/bucket/stms/inbox/upl_")
    assert "X-Amz-Expires=3600" in url


@pytest.mark.long
def test_cleaning_leaves_planned_uploads(client, store: Store, objects: BlobBodies, make_settings):
    upload = planned(client)
    clean(Store(store.engine, objects=objects), make_settings())
    assert taken(client, upload["id"]).status_code == 201
