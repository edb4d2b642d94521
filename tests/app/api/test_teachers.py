"""Imported heads over HTTP: uploaded, queried, listed, and rejected if invalid."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from safetensors.numpy import save

NAMES = ["cat", "größe/1:x", "日本"]
WEIGHTS = np.array([[1.0, 2.0], [3.0, -1.0], [0.5, 0.25]], dtype=np.float32)
BIAS = np.array([0.0, 1.0, -2.0])

Problem = Callable[..., dict[str, Any]]


def head(weights: Any = WEIGHTS, names: list[str] = NAMES, **arrays: Any) -> bytes:
    given = {"weights": np.asarray(weights), "bias": BIAS[: len(names)]} | arrays
    return save(given, {"labels": json.dumps(names)})


def send(client: Any, content: bytes, **params: str) -> Any:
    return client.post("/v1/teachers", params={"model": "faces"} | params, content=content)


def ask(client: Any, label: str, x: list[float], model: str = "faces") -> dict[str, Any]:
    response = client.post(f"/v1/models/{model}/classes/{quote(label, safe='')}:query", json={"x": x})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_the_classes_of_a_head_can_be_queried_immediately(client: Any):
    sent = send(client, head())
    assert sent.status_code == 201, sent.text
    assert sent.headers["location"] == "/v1/models/faces/versions/1"
    version = sent.json()
    assert version == client.get(sent.headers["location"]).json() | {"alias": "latest", "warnings": []}
    assert (version["method"], version["class_count"], version["classes"]) == ("head", 3, NAMES)
    assert (version["job_id"], version["dataset_digest"], version["columns"]) == (None, None, 2)
    for row, label in enumerate(NAMES):
        answer = ask(client, label, [1.0, 2.0])
        expected = float(WEIGHTS[row].astype(float) @ [1.0, 2.0] + BIAS[row])
        assert answer["score"] == pytest.approx(expected, rel=1e-12)
        assert (answer["match"], answer["threshold"], answer["version"]) == (expected >= 0, 0.0, 1)


def test_classes_that_look_alike_are_warned_of(client: Any):
    sent = client.post("/v1/teachers", params={"model": "alike"}, content=head(names=["1", "1.0", "x"]))
    assert [warning["code"] for warning in sent.json()["warnings"]] == ["labels_alike"]


def test_a_class_with_rivals_must_score_higher_and_the_answer_names_the_rival(client: Any):
    """No data set is needed: with two rivals of three classes the answer is that of the whole head."""
    assert send(client, head(thresholds=np.array([-9.0, -9.0, 4.0])), rivals="2").status_code == 201
    x = [1.0, 2.0]
    scores = WEIGHTS.astype(float) @ x + BIAS
    for row, label in enumerate(NAMES):
        path = f"/v1/models/faces/classes/{quote(label, safe='')}:query"
        answer = client.post(path, json={"x": x, "explain": True}).json()
        rejections = {NAMES[k]: scores[k] for k in range(3) if k != row} | {None: (-9.0, -9.0, 4.0)[row]}
        rival = max(rejections, key=rejections.__getitem__)
        assert answer.get("rival") == rival
        assert (answer["gate"], answer["threshold"]) == (pytest.approx(scores[row]), 0.0)
        assert answer["rejection"] == pytest.approx(rejections[rival])
        assert answer["match"] == (scores.argmax() == row)
        many = client.post(path, json={"rows": [x, [0, 0]], "explain": True}).json()["results"]
        assert (many[0]["piece"], many[0].get("rival")) == (answer["piece"], rival)
    third = client.post(
        f"/v1/models/faces/classes/{quote(NAMES[2])}:query", json={"x": [0, 0], "explain": True}
    )
    assert (third.json()["piece"], third.json()["rejection"], "rival" in third.json()) == (2, 4.0, False)


@pytest.mark.parametrize(
    "params", [{"rivals": "65"}, {"rivals": "-1"}, {"row_norm": "0"}, {"row_norm": "inf"}]
)
def test_rivals_and_row_norm_have_bounds(client: Any, problem: Problem, params: dict[str, str]):
    problem(send(client, head(), **params), 400, "invalid_parameter")


def test_imported_students_keep_their_thresholds(client: Any):
    content = head(thresholds=np.array([5.0, 5.1, -9.0]))
    assert send(client, content, kind="students").json()["method"] == "linear"
    assert [ask(client, label, [1.0, 2.0])["match"] for label in NAMES] == [True, False, True]


def test_the_same_head_again_is_the_same_version(client: Any):
    assert send(client, head()).status_code == 201
    again = send(client, head())
    assert (again.status_code, again.json()["version"]) == (200, 1)
    assert again.headers["location"] == "/v1/models/faces/versions/1"
    assert send(client, head(WEIGHTS * 2), alias="").json()["version"] == 2
    assert ask(client, "cat", [1.0, 0.0])["version"] == 1
    assert ask(client, "cat", [1.0, 0.0], "faces@2")["score"] == 2.0


def test_npz_files_and_forms_are_accepted(client: Any):
    buffer = io.BytesIO()
    np.savez(buffer, weight=WEIGHTS, labels=np.array(NAMES))
    sent = client.post("/v1/teachers?model=faces", files={"file": ("head.npz", buffer.getvalue())})
    assert sent.status_code == 201, sent.text
    assert ask(client, "cat", [1.0, 1.0])["score"] == 3.0


def test_the_whole_head_answers_a_prediction(client: Any):
    send(client, head())
    answer = client.post("/v1/models/faces:predict", json={"x": [1.0, 2.0], "scores": True}).json()
    expected = WEIGHTS.astype(float) @ [1.0, 2.0] + BIAS
    assert answer["label"] == NAMES[int(expected.argmax())]
    assert list(answer["scores"]) == NAMES
    np.testing.assert_allclose(list(answer["scores"].values()), expected)
    target = client.post("/v1/models/faces:predict", json={"x": [1.0, 2.0], "target": "日本"}).json()
    assert (target["match"], target["classes_evaluated"]) == (False, 2)
    missing = client.post("/v1/models/faces:predict", json={"x": [1.0, 2.0], "target": "bird"})
    assert missing.json()["code"] == "class_not_found"


def test_classes_are_listed_page_by_page(client: Any, pets: Any):
    names = [f"person {number}" for number in range(1001)]
    send(client, head(np.ones((1001, 2)), names, bias=np.zeros(1001)))
    shown = client.get("/v1/models/faces/versions/latest").json()
    assert (shown["classes"], shown["class_count"]) == ([], 1001)
    path, found = "/v1/models/faces/versions/1/classes?limit=600", []
    while path:
        response = client.get(path)
        found += response.json()["data"]
        path = response.links["next"]["url"] if response.json()["has_more"] else None
    assert found == [{"id": number, "label": name} for number, name in enumerate(names)]
    few = client.get("/v1/models/pets/versions/1/classes?limit=2").json()
    assert few == {"data": [{"id": 0, "label": "cat"}, {"id": 1, "label": "dog"}], "has_more": True}


def test_a_class_that_a_head_does_not_have_is_not_found(client: Any, problem: Problem):
    send(client, head())
    for _ in range(2):
        response = client.post("/v1/models/faces/classes/bird:query", json={"x": [1, 2]})
        problem(response, 404, "class_not_found")


def test_errors_name_row_and_column(client: Any, problem: Problem):
    weights = WEIGHTS.copy()
    weights[2, 1] = np.nan
    document = problem(send(client, head(weights)), 400, "invalid_head")
    fault = document["errors"][0]
    assert (fault["field"], fault["row"], fault["column"]) == ("weights", 2, 1)
    twins = problem(send(client, head(names=["a", "b", "a"])), 400, "invalid_head")
    assert twins["errors"][0]["row"] == 2
    problem(send(client, b"a,b\n1,2\n"), 415, "wrong_format")
    problem(send(client, b""), 415, "wrong_format")
    assert client.get("/v1/models/faces").status_code == 404


@pytest.mark.parametrize(
    "params", [{"model": "a b"}, {"kind": "forest"}, {"alias": "3"}, {"alias": "x" * 101}]
)
def test_invalid_parameters_are_rejected(client: Any, params: dict[str, str]):
    response = send(client, head(), **params)
    assert response.status_code == 400
    assert response.json()["errors"][0]["field"].endswith(next(iter(params)))


def test_a_head_over_a_limit_is_rejected_early(make_client: Any, problem: Problem):
    small = make_client(max_head_bytes=1024)
    problem(send(small, head(np.ones((300, 2)), [str(k) for k in range(300)])), 413, "body_too_large")
    assert list(small.context.files.folder.glob("stms-upload-*")) == []
    few = make_client(max_classes=2)
    problem(send(few, head()), 413, "too_many_classes")


def test_importing_a_head_requires_the_train_scope(make_client: Any, problem: Problem):
    client = make_client(require_keys=True)
    problem(send(client, head()), 401, "key_required")


def test_a_new_version_of_a_head_is_loaded_before_queries_use_it(client: Any):
    send(client, head())
    assert ask(client, "cat", [1.0, 0.0])["score"] == 1.0
    send(client, head(WEIGHTS * 3))
    assert ask(client, "cat", [1.0, 0.0])["score"] == 3.0


@pytest.mark.long
@pytest.mark.parametrize("harm", ["flip", "cut", "gone"])
def test_a_damaged_cache_file_is_fetched_again(make_client: Any, harm: str):
    rng = np.random.default_rng(3)
    weights, names = rng.standard_normal((3000, 64)), [f"c{k}" for k in range(3000)]
    first = make_client()
    version = send(first, head(weights, names, bias=np.zeros(3000))).json()
    path = first.context.files.path(version["teacher_digest"])
    whole = path.read_bytes()
    content = bytearray(whole)
    if harm == "flip":
        content[100:] = bytes(len(content) - 200) + content[-100:]
        path.unlink()
        path.write_bytes(content)
    elif harm == "cut":
        path.unlink()
        path.write_bytes(content[: len(content) // 2])
    else:
        path.unlink()
    second = make_client()
    for row in (0, 1500, 2999):
        answer = ask(second, names[row], [1.0] * 64)
        assert answer["score"] == pytest.approx(float(weights[row].sum()))
    assert path.read_bytes() == whole
