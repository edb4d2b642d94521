"""Bundles over HTTP: who may take one, what a download says, and what an upload answers."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from safetensors.numpy import save

from app.domain import bundle
from app.services import onnx_export
from app.services.keys import create_key
from app.store.unit_of_work import Store
from tests.app.api.conftest import publish_pets
from tests.app.serving.written_records import encoder
from tests.app.started import Client
from tests.reference.packed_students import CASES, some_rows
from tests.system.published import linear_student, linear_teacher, publish

PATH = "/v1/models/pets/versions/1/bundle"
Problem = Callable[..., dict[str, Any]]


@pytest.mark.usefixtures("pets")
def test_a_version_is_downloaded_and_imported_and_answers_alike(client: Client):
    sent = client.get(PATH)
    assert sent.status_code == 200
    assert sent.headers["content-type"] == "application/x-tar"
    assert int(sent.headers["content-length"]) == len(sent.content)
    assert sent.headers["content-disposition"] == 'attachment; filename="pets-1.stms.tar"'
    assert client.get("/v1/models/pets/versions/latest/bundle").content == sent.content
    made = client.post("/v1/bundles", params={"model": "animals", "alias": "live"}, content=sent.content)
    assert made.status_code == 201, made.text
    assert made.headers["location"] == "/v1/models/animals/versions/1"
    assert made.json() == client.get(made.headers["location"]).json() | {"alias": "live"}
    for x in np.random.default_rng(0).normal(size=(20, 3)).tolist():
        answers = [
            client.post(f"/v1/models/{model}/classes/cat:query", json={"x": x}).json()
            for model in ("pets", "animals@live")
        ]
        assert answers[0]["score"] == answers[1]["score"]
    again = client.post("/v1/bundles", params={"model": "animals"}, content=sent.content)
    assert (again.status_code, again.json()["version"], again.json()["alias"]) == (200, 1, None)
    assert "<bdi>pets</bdi>, version 1" in client.get("/ui/models/animals/versions/1").text
    job = made.json()["job_id"]
    assert client.get(f"/v1/training-jobs/{job}").json()["provenance"]["imported"]["model"] == "pets"
    for page in (f"/ui/jobs/{job}", f"/ui/jobs/{job}/classes/0", "/ui/jobs", "/ui/models/animals"):
        assert client.get(page).status_code == 200, page
    retried = client.post(f"/v1/training-jobs/{job}:retry")
    assert 400 <= retried.status_code < 500


@pytest.mark.usefixtures("pets")
def test_a_part_without_teacher_answers_queries_and_says_why_it_predicts_nothing(
    client: Client, problem: Problem
):
    whole = client.get(PATH).content
    wanted = {"class": ["日本", "dog"], "teacher": "false"}
    part = client.get(PATH, params=wanted)
    assert part.status_code == 200, part.text
    assert len(part.content) < len(whole)
    assert b'"cat"' not in part.content
    assert client.get(PATH, params=wanted | {"class": ["dog", "日本", "dog"]}).content == part.content
    made = client.post("/v1/bundles", params={"model": "few"}, content=part.content)
    assert made.status_code == 201, made.text
    assert (made.json()["classes"], made.json()["teacher_digest"]) == (["dog", "日本"], None)
    x = [0.5, 1.5, -2.0]
    answers = [
        client.post(f"/v1/models/{model}/classes/dog:query", json={"x": x}).json()
        for model in ("pets", "few")
    ]
    assert answers[0]["score"] == answers[1]["score"]
    problem(client.post("/v1/models/few/classes/cat:query", json={"x": x}), 404, "class_not_found")
    for _ in range(2):
        refused = problem(client.post("/v1/models/few:predict", json={"x": x}), 404, "teacher_not_found")
        assert "bundle without teacher" in refused["detail"]
    assert "Not in the bundle" in client.get("/ui/models/few/versions/1").text
    for page in ("/ui/models/few", "/ui/models/few/ask", f"/ui/jobs/{made.json()['job_id']}"):
        assert client.get(page).status_code == 200, page
    problem(client.get(PATH, params={"class": "cow"}), 404, "class_not_found")
    problem(client.get(PATH, params={"class": ["cat"] * 257}), 400, "invalid_parameter")
    problem(client.get(PATH, params={"class": ""}), 400, "invalid_parameter")


@pytest.mark.usefixtures("pets")
def test_a_server_with_trusted_keys_refuses_an_unsigned_bundle(
    make_client: Callable[..., Client], tmp_path: Path, problem: Problem
):
    keys = tmp_path / "trusted.pem"
    public = ec.generate_private_key(ec.SECP256R1()).public_key()
    keys.write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    client = make_client(bundle_keys=keys)
    data = client.get(PATH).content
    refused = problem(
        client.post("/v1/bundles", params={"model": "few"}, content=data), 422, "unsigned_bundle"
    )
    assert refused["errors"][0]["field"] == "model.sig"
    with_noise = io.BytesIO(data)
    bundle.attach(with_noise, b"noise")
    sent = client.post("/v1/bundles", params={"model": "few"}, content=with_noise.getvalue())
    problem(sent, 422, "wrong_signature")
    assert client.get("/v1/models/few").status_code == 404


@pytest.mark.usefixtures("pets")
def test_a_download_is_conditional_and_can_be_resumed(client: Client, problem: Problem):
    whole = client.get(PATH)
    assert client.get("/ui/models/pets/versions/1/bundle").content == whole.content
    assert 'versions/1/bundle"' in client.get("/ui/models/pets/versions/1").text
    tag = whole.headers["etag"]
    assert client.get(PATH, headers={"if-none-match": tag}).status_code == 304
    rest = client.get(PATH, headers={"range": "bytes=1000-", "if-range": tag})
    assert (rest.status_code, rest.content) == (206, whole.content[1000:])
    size = len(whole.content)
    assert rest.headers["content-range"] == f"bytes 1000-{size - 1}/{size}"
    assert client.get(PATH, headers={"range": "bytes=1000-", "if-range": '"old"'}).content == whole.content
    assert client.get(PATH, headers={"range": "bytes=5-6"}).content == whole.content
    problem(client.get(PATH, headers={"range": f"bytes={size}-"}), 400, "bad_range")
    head = client.request("HEAD", PATH)
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(size))
    problem(client.get("/v1/models/pets/versions/9/bundle"), 404, "version_not_found")
    problem(client.get("/v1/models/dogs/versions/1/bundle"), 404, "version_not_found")


@pytest.mark.usefixtures("pets", "keys_required")
def test_only_keys_that_may_download_get_a_bundle(client: Client, store: Store, problem: Problem):
    def key(scopes: set[str], models: set[str] = frozenset(), tenant: str = "default") -> dict[str, str]:
        _, text = create_key(store.of_tenant(tenant), "k", scopes, models)
        return {"authorization": f"Bearer {text}"}

    keys = {
        "query": key({"query"}),
        "download": key({"download"}),
        "pets": key({"download", "query"}, {"pets"}),
        "dogs": key({"download"}, {"dogs"}),
        "train": key({"train"}),
        "other": key({"train"}, tenant="other"),
    }
    admin = key({"admin"})
    client.refresh()
    assert {name: client.get(PATH, headers=headers).status_code for name, headers in keys.items()} == {
        "query": 403,
        "download": 200,
        "pets": 200,
        "dogs": 403,
        "train": 200,
        "other": 404,
    }
    problem(client.get(PATH, headers=keys["query"]), 403, "scope_required")
    problem(client.get(PATH, headers=keys["dogs"]), 403, "model_not_allowed")
    data = client.get(PATH, headers=keys["train"]).content
    for name in ("query", "download", "pets"):
        problem(client.post("/v1/bundles", content=data, headers=keys[name]), 403, "scope_required")
    assert client.post("/v1/bundles", content=data, headers=keys["other"]).status_code == 201
    assert client.get("/v1/models", headers=keys["other"]).json()["data"][0]["name"] == "pets"
    records = client.get("/v1/audit?action=model.export", headers=admin).json()["data"]
    assert len(records) == 4
    assert records[0]["object"] == "pets@1"
    assert records[0]["details"]["bundle"]


@pytest.mark.usefixtures("pets")
def test_what_is_no_bundle_is_refused_with_the_member_at_fault(
    client: Client, problem: Problem, make_client: Callable[..., Client]
):
    data = client.get(PATH).content
    assert problem(client.post("/v1/bundles", content=b"x" * 2000), 400, "invalid_bundle")["errors"]
    damaged = bytearray(data)
    damaged[-2000] ^= 1
    fault = problem(client.post("/v1/bundles", content=bytes(damaged)), 400, "invalid_bundle")["errors"][0]
    assert fault["field"].startswith("blobs/")
    newer = data.replace(b"stms.bundle.1", b"stms.bundle.7")
    problem(client.post("/v1/bundles", content=newer), 422, "newer_format")
    params = {"model": "../x"}
    assert client.post("/v1/bundles", params=params, content=data).status_code == 400
    assert client.post("/v1/bundles", params={"alias": "7"}, content=data).status_code == 400
    small = make_client(max_bundle_bytes=1024)
    assert small.post("/v1/bundles", content=data).status_code == 413


def test_an_older_version_needs_to_be_allowed(client: Client, store: Store, problem: Problem):
    publish_pets(store)
    publish_pets(store, sign=-1.0)
    old, new = (client.get(f"/v1/models/pets/versions/{number}/bundle").content for number in (1, 2))
    assert client.post("/v1/bundles", params={"model": "copy"}, content=new).status_code == 201
    problem(client.post("/v1/bundles", params={"model": "copy"}, content=old), 409, "older_version")
    params = {"model": "copy", "allow_older": "true"}
    assert client.post("/v1/bundles", params=params, content=old).status_code == 201


ONNX = "/v1/models/pets/versions/latest/onnx"


@pytest.mark.usefixtures("pets")
def test_a_student_is_downloaded_as_an_onnx_model(client: Client, problem: Problem):
    sent = client.get(ONNX, params={"class": "größe/1:x"})
    assert sent.status_code == 200, sent.text
    assert sent.headers["content-type"] == "application/vnd.onnx"
    run = onnxruntime.InferenceSession(sent.content, providers=["CPUExecutionProvider"])
    properties = run.get_modelmeta().custom_metadata_map
    assert (properties["stms.model"], properties["stms.version"]) == ("pets", "1")
    X = np.random.default_rng(1).normal(size=(50, 3))
    match, score = run.run(None, {"x": X})
    body = {"rows": X.tolist()}
    answer = client.post("/v1/models/pets/classes/gr%C3%B6%C3%9Fe%2F1:x:query", json=body).json()
    assert [row["match"] for row in answer["results"]] == match.tolist()
    np.testing.assert_allclose([row["score"] for row in answer["results"]], score, atol=1e-11)
    tag = sent.headers["etag"]
    again = client.get(ONNX, params={"class": "größe/1:x"}, headers={"if-none-match": tag})
    assert again.status_code == 304
    problem(client.get(ONNX, params={"class": "cow"}), 404, "class_not_found")
    problem(client.get(ONNX), 400, "invalid_parameter")


def test_a_class_of_a_head_is_an_onnx_model_too(client: Client):
    head = save({"weights": np.eye(3, dtype=np.float32)}, {"labels": '["a", "b", "c"]'})
    made = client.post("/v1/teachers", params={"model": "axes", "rivals": 1}, content=head)
    assert made.status_code == 201
    sent = client.get("/v1/models/axes/versions/1/onnx", params={"class": "b"})
    run = onnxruntime.InferenceSession(sent.content, providers=["CPUExecutionProvider"])
    X = np.array([[0.0, 1.0, 0.5], [2.0, 1.0, 0.0]])
    assert run.run(["match"], {"x": X})[0].tolist() == [True, False]


def test_a_student_that_names_its_map_has_it_in_its_onnx_model(client: Client, store: Store):
    whole = dataclasses.replace(CASES["rbf-polytope-none"], label="whole")
    students = {"whole": whole, "named": dataclasses.replace(whole, label="named", shares_map=True)}
    publish(store, "kernel", students, linear_teacher(list(students), np.zeros((2, whole.map.n_columns))))
    X = some_rows(whole, 40)
    scores = []
    for label in students:
        sent = client.get("/v1/models/kernel/versions/1/onnx", params={"class": label})
        run = onnxruntime.InferenceSession(sent.content, providers=["CPUExecutionProvider"])
        scores.append(run.run(["score"], {"x": X})[0])
    np.testing.assert_array_equal(*scores)
    # Scores of rows with huge numbers are huge, too.
    np.testing.assert_allclose(scores[0], whole.scores(X), rtol=1e-9, atol=1e-9)


def test_records_that_onnx_cannot_say_are_refused_by_name(client: Client, store: Store, problem: Problem):
    known = encoder(with_note=True)
    d = known.layout.columns
    student = linear_student("a", np.ones(d))
    publish(store, "people", {"a": student}, linear_teacher(["a"], np.ones((1, d))), encoder=known)
    sent = client.get("/v1/models/people/versions/1/onnx", params={"class": "a"})
    refused = [error["field"] for error in problem(sent, 422, "no_onnx_form")["errors"]]
    assert refused == ["since", "place", "note"]


def test_students_and_encoders_beyond_a_size_are_not_exported_as_onnx(
    client: Client, store: Store, problem: Problem, monkeypatch: pytest.MonkeyPatch
):
    known = encoder(with_note=False)
    d = known.layout.columns
    student = linear_student("a", np.ones(d))
    publish(store, "people", {"a": student}, linear_teacher(["a"], np.ones((1, d))), encoder=known)
    publish_pets(store)
    monkeypatch.setattr(onnx_export, "MAX_ENCODER_BYTES", 10)
    refused = client.get("/v1/models/people/versions/1/onnx", params={"class": "a"})
    assert "encoder" in problem(refused, 413, "onnx_too_large")["detail"]
    assert client.get(ONNX, params={"class": "cat"}).status_code == 200
    monkeypatch.setattr(onnx_export, "MAX_BYTES", 10)
    refused = client.get(ONNX, params={"class": "cat"})
    assert "student" in problem(refused, 413, "onnx_too_large")["detail"]
