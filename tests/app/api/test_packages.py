"""Packages over HTTP: who may take one, what it is, and what asking for it again costs."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from app.domain.entities import ModelVersion
from app.services.keys import create_key
from app.store.unit_of_work import Store
from core.packed import LinearForm, PackedStudent, RbfBasis
from core.packed.encoder import Encoder
from core.packed.map_packages import map_from_bytes
from tests.app.api.conftest import counted_statements
from tests.app.api.fast_path import fast_answer, prepare
from tests.app.serving.written_records import encoder
from tests.app.started import Client
from tests.system.published import linear_student, linear_teacher, publish

PATH = "/v1/models/pets/classes/cat/package"
Problem = Callable[..., dict[str, Any]]


def test_a_package_is_the_student_that_answers(client: Client, pets: ModelVersion):
    sent = client.get(PATH)
    assert sent.status_code == 200
    assert sent.headers["content-type"] == "application/vnd.stms.student+safetensors"
    assert sent.headers["cache-control"] == "private, no-cache"
    assert sent.headers["etag"] == f'"1-{hashlib.sha256(sent.content).hexdigest()}"'
    assert (sent.headers["x-model"], sent.headers["x-model-version"]) == ("pets", "1")
    assert "x-encoder" not in sent.headers
    student = PackedStudent.from_bytes(sent.content)
    for x in np.random.default_rng(0).normal(size=(20, 3)).tolist():
        answer = client.post("/v1/models/pets/classes/cat:query", json={"x": x}).json()
        assert (answer["score"], answer["threshold"]) == (student.score(x), student.threshold)
    for name in ("pets@latest", "pets@1"):
        assert client.get(f"/v1/models/{name}/classes/cat/package").content == sent.content
    head = client.request("HEAD", PATH)
    assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", sent.headers["etag"])


def test_a_package_that_the_caller_has_is_not_sent_again(
    client: Client, store: Store, pets: ModelVersion, publish_again: Callable[..., ModelVersion]
):
    tag = client.get(PATH).headers["etag"]
    with counted_statements(client) as statements:
        for wanted in (tag, f'"other", W/{tag}', "*"):
            again = client.get(PATH, headers={"if-none-match": wanted})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert not statements
    assert client.get(PATH, headers={"if-none-match": '"1-0"'}).status_code == 200
    publish_again()
    client.refresh()
    moved = client.get(PATH, headers={"if-none-match": tag})
    assert (moved.status_code, moved.headers["x-model-version"]) == (200, "2")
    assert client.get("/v1/models/pets@1/classes/cat/package").headers["etag"] == tag


@pytest.mark.usefixtures("pets")
def test_what_cannot_be_sent_is_refused(client: Client, make_client: Callable[..., Client], problem: Problem):
    problem(client.get("/v1/models/dogs/classes/cat/package"), 404, "model_not_found")
    problem(client.get("/v1/models/pets@9/classes/cat/package"), 404, "version_not_found")
    problem(client.get("/v1/models/pets/classes/cow/package"), 404, "class_not_found")
    problem(client.get("/v1/models/pets/classes/%ff/package"), 404, "class_not_found")
    problem(client.get("/v1/models/no%20name/classes/cat/package"), 404, "model_not_found")
    problem(client.get("/v1/models/pets/classes/cat/encoder"), 404, "encoder_not_found")
    problem(client.post(PATH), 405, "method_not_allowed")
    for text in ("3", "3:x", "1:1234567890", ""):
        problem(client.get(PATH, headers={"x-stms-local": text}), 400, "bad_header")


def test_a_package_that_is_too_large_is_refused(
    make_client: Callable[..., Client], store: Store, problem: Problem
):
    rng = np.random.default_rng(0)
    wide = linear_student("a", rng.normal(size=1000))
    publish(store, "wide", {"a": wide}, linear_teacher(["a", "b"], rng.normal(size=(2, 1000))))
    client = make_client(max_package_bytes=4096)
    problem(client.get("/v1/models/wide/classes/a/package"), 413, "package_too_large")


@pytest.mark.usefixtures("pets", "keys_required")
def test_only_keys_that_may_download_get_a_package(client: Client, store: Store, problem: Problem):
    def key(scopes: set[str], models: set[str] = frozenset(), tenant: str = "default") -> dict[str, str]:
        _, text = create_key(store.of_tenant(tenant), "k", scopes, models)
        return {"authorization": f"Bearer {text}"}

    keys = {
        "download": key({"download"}),
        "own": key({"query", "download"}, {"pets"}),
        "train": key({"train"}),
        "query": key({"query"}),
        "others": key({"download"}, {"dogs"}),
        "stranger": key({"download"}, tenant="other"),
    }
    client.refresh()
    problem(client.get(PATH), 401, "key_required")
    for name in ("download", "own", "train"):
        assert client.get(PATH, headers=keys[name]).status_code == 200, name
    problem(client.get(PATH, headers=keys["query"]), 403, "scope_required")
    problem(client.get(PATH, headers=keys["others"]), 403, "model_not_allowed")
    problem(client.get(PATH, headers=keys["stranger"]), 404, "model_not_found")


@pytest.mark.usefixtures("pets")
def test_a_download_is_audited_once_an_hour_and_polls_are_not(client: Client):
    def records() -> list[dict[str, Any]]:
        return client.get("/v1/audit?action=model.download").json()["data"]

    tag = client.get(PATH).headers["etag"]
    assert [record["object"] for record in records()] == ["pets@1"]
    client.get(PATH)
    client.get(PATH, headers={"if-none-match": tag})
    client.get("/v1/models/pets@1/classes/dog/package")
    assert len(records()) == 1


@pytest.mark.usefixtures("pets")
def test_a_download_that_cannot_be_audited_is_refused(
    client: Client, problem: Problem, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patch:
        patch.setattr(client.context.audit_writer, "write_now", lambda *_: False)
        for _ in range(2):
            problem(client.get(PATH), 503, "unavailable")
    assert client.get(PATH).status_code == 200


@pytest.mark.usefixtures("pets")
def test_a_poll_has_the_same_answer_on_the_fast_path(client: Client):
    tag = client.get(PATH).headers["etag"]
    headers = {"host": "localhost", "if-none-match": tag, "x-request-id": "mine", "x-stms-local": "1:5"}
    expected = client.get(PATH, headers=headers)
    assert expected.status_code == 304
    assert fast_answer(client, PATH, headers, b"") == (dict(expected.headers), b"")
    assert prepare(client, PATH, headers).status == b"304 Not Modified"
    text = client.get("/metrics").text
    assert 'stms_local_queries_total{model="pets"} 10.0' in text
    route = 'route="/v1/models/{model}/classes/{class}/package"'
    assert f'stms_requests_total{{method="GET",{route},status="304"}} 2.0' in text


@pytest.mark.usefixtures("pets")
@pytest.mark.parametrize(
    "more",
    [{}, {"if-none-match": '"1-0"'}, {"if-none-match": "*", "content-length": "1"}, {"x-stms-local": "1"}],
)
def test_other_requests_for_packages_have_no_immediate_answer(client: Client, more: dict[str, str]):
    client.get(PATH)
    assert fast_answer(client, PATH, {"host": "localhost", **more}, b"") is None


@pytest.mark.usefixtures("pets")
def test_queries_that_clients_report_are_counted(client: Client):
    tag = client.get(PATH).headers["etag"]
    client.get(PATH, headers={"x-stms-local": "1:1200", "if-none-match": tag})
    client.get(PATH, headers={"x-stms-local": "1:34", "if-none-match": tag})
    text = client.get("/metrics").text
    assert 'stms_local_queries_total{model="pets"} 1234.0' in text
    assert 'stms_query_seconds_bucket{le="+Inf",model="pets"}' not in text
    route = 'route="/v1/models/{model}/classes/{class}/package"'
    assert f'stms_requests_total{{method="GET",{route},status="304"}} 2.0' in text


def test_the_encoder_of_records_is_sent_beside_the_student(client: Client, store: Store, problem: Problem):
    made = encoder()
    columns = made.layout.columns
    rng = np.random.default_rng(1)
    student = linear_student("a", rng.normal(size=columns))
    teacher = linear_teacher(["a", "b"], rng.normal(size=(2, columns)))
    publish(store, "people", {"a": student}, teacher, encoder=made)
    package = client.get("/v1/models/people/classes/a/package")
    sent = client.get("/v1/models/people@1/classes/a/encoder")
    assert sent.headers["content-type"] == "application/vnd.stms.encoder+safetensors"
    assert hashlib.sha256(sent.content).hexdigest() == package.headers["x-encoder"]
    assert sent.headers["etag"] == f'"1-{package.headers["x-encoder"]}"'
    assert Encoder.from_bytes(sent.content).names == made.names
    again = client.get("/v1/models/people/classes/a/encoder", headers={"if-none-match": sent.headers["etag"]})
    assert again.status_code == 304


def test_the_map_that_students_share_is_sent_once_beside_them(
    make_client: Callable[..., Client], client: Client, store: Store, problem: Problem
):
    rng = np.random.default_rng(0)
    shared = RbfBasis(np.zeros(3), np.ones(3), rng.normal(size=(40, 3)))
    students = {
        label: PackedStudent(
            shared, LinearForm(rng.normal(size=40), 0.5, np.zeros(40), 0.0), 0.0, label, shares_map=True
        )
        for label in ("a", "b")
    }
    students["c"] = linear_student("c", [1.0, 2.0, 3.0])
    publish(store, "kernel", students, linear_teacher(list(students), np.eye(3)))
    path = "/v1/models/kernel@1/classes/a/map"
    sent = client.get(path)
    assert (sent.status_code, sent.content) == (200, shared.to_bytes())
    assert sent.headers["content-type"] == "application/vnd.stms.map+safetensors"
    assert sent.headers["etag"] == f'"1-{shared.digest}"'
    assert client.get("/v1/models/kernel/classes/b/map").content == sent.content
    again = client.get(path, headers={"if-none-match": sent.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    headers = {"host": "localhost", "if-none-match": sent.headers["etag"]}
    assert fast_answer(client, path, headers, b"") is not None
    problem(client.get("/v1/models/kernel/classes/c/map"), 404, "map_not_found")
    problem(client.post(path), 405, "method_not_allowed")
    maps = {shared.digest: map_from_bytes(sent.content)}
    for label, content in zip(
        "ab", contents(client.post("/v1/models/kernel:packages", json={"classes": ["a", "b"]})), strict=True
    ):
        assert content == client.get(f"/v1/models/kernel/classes/{label}/package").content
        assert len(content) < shared.landmarks.nbytes + 2 * 40 * 8
        student = PackedStudent.from_bytes(content, maps=maps)
        for x in rng.normal(size=(5, 3)).tolist():
            answer = client.post(f"/v1/models/kernel/classes/{label}:query", json={"x": x}).json()
            assert answer["score"] == student.score(x) == students[label].score(x)
    small = make_client(max_package_bytes=1024)
    problem(small.get("/v1/models/kernel/classes/a/map"), 413, "package_too_large")


@pytest.mark.usefixtures("keys_required")
def test_the_map_of_another_tenant_is_not_there(client: Client, store: Store, problem: Problem):
    student = PackedStudent(
        RbfBasis(np.zeros(2), np.ones(2), np.ones((3, 2))),
        LinearForm(np.ones(3), 0.5, np.zeros(3), 0.0),
        0.0,
        "a",
        shares_map=True,
    )
    publish(store, "kernel", {"a": student}, linear_teacher(["a", "b"], np.eye(2)))
    path = "/v1/models/kernel/classes/a/map"
    for scopes, tenant, status, code in (
        ({"download"}, "other", 404, "model_not_found"),
        ({"query"}, "default", 403, "scope_required"),
    ):
        _, text = create_key(store.of_tenant(tenant), code, scopes)
        client.refresh()
        problem(client.get(path, headers={"authorization": f"Bearer {text}"}), status, code)


SEVERAL = "/v1/models/pets:packages"


def contents(sent: Any) -> list[bytes]:
    with tarfile.open(fileobj=io.BytesIO(sent.content), mode="r:") as archive:
        members = archive.getmembers()
        assert [member.name for member in members] == [f"{k}.safetensors" for k in range(len(members))]
        return [archive.extractfile(member).read() for member in members]  # type: ignore[union-attr]


def test_several_packages_are_one_answer(
    client: Client, pets: ModelVersion, publish_again: Callable[..., ModelVersion]
):
    sent = client.post(SEVERAL, json={"classes": ["dog", "cat"]})
    assert (sent.status_code, sent.headers["content-type"]) == (200, "application/x-tar")
    alone = [client.get(f"/v1/models/pets/classes/{label}/package").content for label in ("dog", "cat")]
    assert contents(sent) == alone
    digests = "".join(hashlib.sha256(content).hexdigest() for content in alone)
    assert sent.headers["etag"] == f'"1-{hashlib.sha256(digests.encode()).hexdigest()}"'
    assert (sent.headers["x-model"], sent.headers["x-model-version"]) == ("pets", "1")
    assert sent.headers["cache-control"] == "private, no-cache"
    for name in ("pets@latest", "pets@1"):
        path = f"/v1/models/{name}:packages"
        assert client.post(path, json={"classes": ["dog", "cat"]}).content == sent.content
    held = {"if-none-match": sent.headers["etag"]}
    again = client.post(SEVERAL, json={"classes": ["dog", "cat"]}, headers=held)
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", sent.headers["etag"])
    assert client.post(SEVERAL, json={"classes": ["cat", "dog"]}, headers=held).status_code == 200
    publish_again()
    client.refresh()
    moved = client.post(SEVERAL, json={"classes": ["dog", "cat"]}, headers=held)
    assert (moved.status_code, moved.headers["x-model-version"]) == (200, "2")


@pytest.mark.usefixtures("pets")
def test_several_packages_that_cannot_be_sent_are_refused(
    client: Client, make_client: Callable[..., Client], problem: Problem
):
    wrong: list[tuple[Any, int, str]] = [
        ({"classes": []}, 400, "missing"),
        ({"classes": ["cat", "cat"]}, 400, "duplicate"),
        ({"classes": ["cat", "bird", "fish"]}, 404, "class_not_found"),
        ({"classes": ["cat", "\x00"]}, 404, "class_not_found"),
        ({"classes": [f"c{k}" for k in range(257)]}, 413, "too_many_classes"),
        ({"classes": "cat"}, 400, "bad_body"),
        ({"classes": ["cat"], "x": 1}, 400, "bad_body"),
        ({}, 400, "bad_body"),
        ([], 400, "bad_body"),
    ]
    for body, status, code in wrong:
        assert problem(client.post(SEVERAL, json=body), status, code)
    assert problem(client.post(SEVERAL, content=b"{", headers={}), 400, "bad_body")
    named = {"classes": ["cat"]}
    assert problem(client.post("/v1/models/none:packages", json=named), 404, "model_not_found")
    assert problem(client.post("/v1/models/pets@9:packages", json=named), 404, "version_not_found")
    assert problem(client.post("/v1/models/a%2Fb:packages", json=named), 404, "model_not_found")
    assert problem(client.post(f"{SEVERAL}?class=cat", json=named), 400, "unknown_parameter")
    zipped = client.post(SEVERAL, content=gzip.compress(b"{}"), headers={"content-encoding": "gzip"})
    assert problem(zipped, 415, "bad_encoding")
    refused = client.get(SEVERAL)
    assert problem(refused, 405, "method_not_allowed")
    assert refused.headers["allow"] == "POST"
    # Each of them is smaller than that, and the headers of the tar file count.
    small = make_client(max_package_bytes=1024)
    assert small.get(PATH).status_code == 200
    assert problem(small.post(SEVERAL, json={"classes": ["cat", "dog"]}), 413, "package_too_large")


@pytest.mark.usefixtures("pets", "keys_required")
def test_several_packages_need_the_right_to_download_and_are_audited(
    client: Client, store: Store, problem: Problem
):
    named = {"classes": ["cat", "dog"]}
    assert problem(client.post(SEVERAL, json=named), 401, "key_required")
    wrong: list[tuple[set[str], frozenset[str], str]] = [
        ({"query"}, frozenset(), "scope_required"),
        ({"download"}, frozenset({"letters"}), "model_not_allowed"),
    ]
    for scopes, models, code in wrong:
        _, text = create_key(store, code, scopes, models)
        client.refresh()
        refused = client.post(SEVERAL, json=named, headers={"authorization": f"Bearer {text}"})
        assert problem(refused, 403, code)
    _, text = create_key(store, "right", {"download"}, frozenset({"pets"}))
    client.refresh()
    for _ in range(2):
        sent = client.post(SEVERAL, json=named, headers={"authorization": f"Bearer {text}"})
        assert sent.status_code == 200
    admin = {"authorization": f"Bearer {create_key(store, 'admin', {'admin'}, frozenset())[1]}"}
    client.refresh()
    records = client.get("/v1/audit?action=model.download", headers=admin).json()["data"]
    assert [record["object"] for record in records] == ["pets@1"]
