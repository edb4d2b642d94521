"""Classes of a published version over HTTP: one is added from a few rows, renamed and taken away again."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
from sklearn.datasets import load_digits

pytestmark = pytest.mark.long

Json = dict[str, Any]
Call = Callable[..., Any]
NEW = "9"


@pytest.fixture(scope="module")
def digits() -> tuple[Any, Any]:
    X, y = load_digits(return_X_y=True)
    return X, y.astype(str)


@pytest.fixture(scope="module")
def trained(train: Call, upload: Call, npz: Call, digits: tuple[Any, Any]) -> Json:
    """The job behind a version that does not know one of the digits."""
    X, y = digits
    known = np.flatnonzero(y != NEW)[:900]
    spec = {"features": {"kind": "nystroem", "n_components": 100}, "calibration": {"kind": "sigmoid"}}
    return train(upload(npz(X=X[known], y=y[known]), "npz")["id"], "digits_known", **spec)


@pytest.fixture(scope="module")
def added(http: httpx.Client, follow: Call, trained: Json, digits: tuple[Any, Any]) -> Json:
    X, y = digits
    rows = X[np.flatnonzero(y == NEW)[:30]].tolist()
    answer = http.post(
        "/v1/models/digits_known/classes",
        json={"name": NEW, "rows": rows, "max_false_positive_rate": 0.02, "alias": "candidate"},
    )
    assert answer.status_code == 202, answer.text
    assert answer.headers["location"] == f"/v1/training-jobs/{answer.json()['id']}"
    job = follow(answer.json())
    assert job["state"] == "succeeded", job["error"]
    return job


def answers(http: httpx.Client, model: str, label: str, rows: Any) -> Any:
    response = http.post(f"/v1/models/{model}/classes/{label}:query", json={"rows": rows.tolist()})
    assert response.status_code == 200, response.text
    return np.array([one["match"] for one in response.json()["results"]])


def test_the_new_class_is_recognised_and_keeps_its_budget(
    http: httpx.Client, added: Json, digits: tuple[Any, Any]
) -> None:
    X, y = digits
    yes = answers(http, "digits_known@candidate", NEW, X[1000:1400])
    truth = y[1000:1400] == NEW
    assert yes[truth].mean() > 0.6
    assert yes[~truth].mean() < 0.06
    found = added["provenance"]["addition"]
    assert (found["of"], found["examples"], found["class"]) == (30, 30, NEW)
    assert found["recall"]["low"] < found["accepted"] / 30 <= found["recall"]["high"]
    assert found["false_positives"]["accepted"] <= 0.02 * (found["false_positives"]["negatives"] + 1)
    assert found["conflicting"] == len(found["conflicts"])
    assert all(one["accepts"] > 1 and one["of"] == 30 for one in found["conflicts"])
    codes = [one["code"] for one in added["warnings"]]
    assert codes.count("class_conflict") == found["conflicting"]


def test_all_other_students_are_the_same(http: httpx.Client, trained: Json, added: Json) -> None:
    version = http.get(f"/v1/models/digits_known/versions/{added['version']}").json()
    assert version["classes"] == [str(digit) for digit in range(10)]
    assert version["teacher_digest"] is None
    for label in version["classes"][:-1]:
        before, after = (
            http.get(f"/v1/models/digits_known@{number}/classes/{label}/package")
            for number in (trained["version"], added["version"])
        )
        assert before.content == after.content
        assert before.status_code == 200
    latest = http.get("/v1/models/digits_known/aliases/latest").json()
    assert latest["version"] == trained["version"]
    refused = http.post(f"/v1/models/digits_known@{added['version']}:predict", json={"x": [0.0] * 64})
    assert (refused.status_code, refused.json()["code"]) == (404, "teacher_not_found")
    assert http.get(f"/v1/models/digits_known/versions/{added['version']}/bundle").status_code == 200
    onnx = http.get(f"/v1/models/digits_known@{added['version']}/classes/{NEW}/onnx")
    assert onnx.status_code in {200, 404}


def test_a_second_class_takes_what_the_first_has_stored(
    http: httpx.Client, service: Any, follow: Call, added: Json, digits: tuple[Any, Any]
) -> None:
    X, _ = digits
    body = {"name": "dark", "rows": (16.0 - X[:8]).tolist(), "base": "candidate"}
    job = follow(http.post("/v1/models/digits_known/classes", json=body).json())
    assert job["state"] == "succeeded", job["error"]
    version = http.get(f"/v1/models/digits_known/versions/{job['version']}").json()
    assert version["classes"][-2:] == [NEW, "dark"]
    assert answers(http, f"digits_known@{job['version']}", "dark", 16.0 - X[10:30]).mean() > 0.8
    same = [
        http.get(f"/v1/models/digits_known@{number}/classes/{NEW}/package").content
        for number in (added["version"], job["version"])
    ]
    assert same[0] == same[1]
    [row] = service.rows("SELECT COUNT(*) FROM jobs WHERE addition_digest IS NOT NULL")
    assert row[0] == 1
    assert job["warnings"][0]["code"] == "few_examples"


def test_an_added_class_is_renamed_and_one_is_taken_away(
    http: httpx.Client, added: Json, digits: tuple[Any, Any]
) -> None:
    X, _ = digits
    body = {"base": str(added["version"]), "rename": {NEW: "nine"}, "remove": ["0"]}
    answer = http.patch("/v1/models/digits_known/classes", json=body)
    assert answer.status_code == 201, answer.text
    number = answer.json()["version"]
    assert answer.json()["classes"] == [*map(str, range(1, 9)), "nine"]
    before = answers(http, f"digits_known@{added['version']}", NEW, X[:50])
    assert (answers(http, f"digits_known@{number}", "nine", X[:50]) == before).all()
    moved = http.put("/v1/models/digits_known/aliases/candidate", json={"version": number})
    assert moved.status_code == 428
    assert http.get(f"/v1/models/digits_known/versions/{number}/bundle").status_code == 200


def test_records_and_texts_are_examples(http: httpx.Client, train: Call, upload: Call, follow: Call) -> None:
    colours = ["red", "green", "blue"]
    lines = ["size,colour,kind"]
    lines += [f"{i % 50},{colours[i % 3]},{'big' if i % 50 > 25 else 'small'}" for i in range(300)]
    train(upload("\n".join(lines).encode())["id"], "things")
    records = [{"size": 200 + i, "colour": "blue"} for i in range(12)]
    body = {"name": "huge", "records": records}
    job = follow(http.post("/v1/models/things/classes", json=body).json())
    assert job["state"] == "succeeded", job["error"]
    asked = [{"size": 205, "colour": "blue"}, {"size": 10, "colour": "red"}]
    decided = http.post(f"/v1/models/things@{job['version']}/classes/huge:query", json={"records": asked})
    assert [one["match"] for one in decided.json()["results"]] == [True, False]
    wrong = http.post("/v1/models/things/classes", json=body | {"records": [*records, {"size": "x"}]})
    assert wrong.status_code == 400
    assert wrong.json()["errors"][0]["row"] == 12
    texts = ["text,kind"]
    texts += [
        f"the cat sat on mat {i},cat" if i % 2 else f"a dog ran to the park {i},dog" for i in range(200)
    ]
    train(upload("\n".join(texts).encode())["id"], "animals")
    more = [f"a cat and a dog saw the fish {i} on the mat" for i in range(10)]
    job = follow(http.post("/v1/models/animals/classes", json={"name": "both", "texts": more}).json())
    assert job["state"] == "succeeded", job["error"]
    asked = {"texts": [more[0], "the cat sat on mat 3"]}
    decided = http.post(f"/v1/models/animals@{job['version']}/classes/both:query", json=asked).json()
    assert [one["match"] for one in decided["results"]] == [True, False]


def test_examples_may_be_a_data_set_and_wrong_ones_are_named(
    http: httpx.Client,
    upload: Call,
    npz: Call,
    follow: Call,
    trained: Json,
    digits: tuple[Any, Any],
    problem: Call,
) -> None:
    X, y = digits
    rows = X[np.flatnonzero(y == NEW)[:20]]
    examples = upload(npz(X=rows, y=np.array(["a", "b"] * 10)), "npz")
    body: Json = {"name": NEW, "dataset_id": examples["id"], "base": str(trained["version"])}
    job = follow(http.post("/v1/models/digits_known/classes", json=body).json())
    assert job["state"] == "succeeded", job["error"]
    assert job["provenance"]["addition"]["of"] == 20
    path = "/v1/models/digits_known/classes"
    base = {"name": "x", "base": str(trained["version"])}
    for more, status, code in (
        ({"rows": [[0.0] * 64] * 4}, 400, "too_few_examples"),
        ({"rows": [[0.0] * 63] * 5}, 400, "wrong_columns"),
        ({"rows": [], "texts": []}, 422, "value_error"),
        ({"name": "1", "rows": [[0.0] * 64] * 5}, 400, "class_exists"),
        ({"dataset_id": "ds_none"}, 404, "dataset_not_found"),
        ({"rows": [[0.0] * 64] * 5, "protect": True}, 422, "extra_forbidden"),
    ):
        answer = http.post(path, content=json.dumps(base | more))
        assert answer.status_code == status, answer.text
        document = answer.json()
        assert code in {document["code"], *(one["code"] for one in document.get("errors", ()))}, document
