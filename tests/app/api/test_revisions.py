"""Revisions of data sets over HTTP: rows appended and deleted, what is skipped, and what is refused."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from app.store.unit_of_work import Store
from tests.app.api.conftest import CSV

TABLE = b"colour,size,kind\nred,1,a\nblue,,a\nred,3,b\n,4,b\ngreen,5,b\n"


@pytest.fixture
def upload(client: Any) -> Callable[..., str]:
    """Uploads a file and returns the id of its data set."""

    def send(content: bytes, file_format: str = "csv", **parameters: str) -> str:
        answer = client.post("/v1/datasets", content=content, params={"format": file_format, **parameters})
        assert answer.status_code in (200, 201), answer.text
        return str(answer.json()["id"])

    return send


@pytest.fixture
def revise(client: Any) -> Callable[..., Any]:
    """Sends a revision of a data set."""
    return lambda dataset, **body: client.post(f"/v1/datasets/{dataset}/revisions", json=body)


def _rows(client: Any, dataset: str, **parameters: str) -> list[dict[str, Any]]:
    answer = client.get(f"/v1/datasets/{dataset}/rows", params={"limit": 100, **parameters})
    assert answer.status_code == 200, answer.text
    return list(answer.json()["data"])


def test_rows_are_deleted_and_appended_in_a_data_set_of_its_own(
    client: Any, upload: Any, revise: Any
) -> None:
    base, before = upload(CSV), None
    before = client.get(f"/v1/datasets/{base}")
    assert before.json()["change"] is None
    standing = {name: before.json()[name] for name in ("series", "revision", "latest", "parent")}
    assert standing == {"series": base, "revision": 1, "latest": base, "parent": None}
    header, first, second, *_ = CSV.splitlines()
    more = b"\n".join([header, second, first, *(line.replace(b",", b"1,", 1) for line in (first, second))])
    other = upload(more, rare_classes="keep")
    made = revise(base, append_dataset_id=other, delete={"rows": [0, 0, 39]}, note="rows of March")
    assert made.status_code == 201, made.text
    document = made.json()
    assert made.headers["location"] == f"/v1/datasets/{document['id']}"
    assert document["change"] == {
        "added": 3,
        "deleted": 2,
        "relabelled": 0,
        "equal_rows_skipped": 1,
        "classes_changed": ["no", "yes"],
        "appended": other,
        "note": "rows of March",
    }
    assert (document["series"], document["revision"], document["parent"]) == (base, 2, base)
    assert document["rows"] == document["summary"]["rows"] == 41
    assert sum(document["summary"]["class_counts"].values()) == 41
    kept = [(row["label"], row["x"]) for row in _rows(client, base)]
    added = [(row["label"], row["x"]) for row in _rows(client, other)]
    expected = [*kept[1:39], *(row for row in added if row not in kept[1:39])]
    assert [(row["label"], row["x"]) for row in _rows(client, document["id"])] == expected
    # The first one stays, but for the name of the newest.
    after = client.get(f"/v1/datasets/{base}", headers={"if-none-match": before.headers["etag"]})
    assert after.json() == before.json() | {"latest": document["id"]}


def test_the_same_changes_are_the_same_data_set_and_revisions_are_counted(
    client: Any, upload: Any, revise: Any
) -> None:
    base = upload(CSV)
    first = revise(base, delete={"rows": [3]}).json()
    again = revise(base, delete={"rows": [3, 3]}, note="said twice")
    assert (again.status_code, again.json()["id"]) == (200, first["id"])
    branch = revise(base, delete={"rows": [4]}).json()
    last = revise(first["id"], delete={"rows": [0]}).json()
    assert [one["revision"] for one in (first, branch, last)] == [2, 3, 4]
    assert {one["series"] for one in (first, branch, last)} == {base}
    assert last["parent"] == first["id"]
    assert client.get(f"/v1/datasets/{branch['id']}").json()["latest"] == last["id"]
    assert client.delete(f"/v1/datasets/{last['id']}").status_code == 204
    assert client.delete(f"/v1/datasets/{base}").status_code == 204
    assert client.get(f"/v1/datasets/{first['id']}").json()["latest"] == branch["id"]
    assert revise(branch["id"], delete={"rows": [0]}).json()["revision"] == 4


def test_a_revision_is_trained_on_as_any_data_set(client: Any, upload: Any, revise: Any) -> None:
    made = revise(upload(CSV), delete={"rows": [3]}).json()["id"]
    job = client.post("/v1/training-jobs", json={"dataset_id": made, "model": "m"})
    assert (job.status_code, job.json()["dataset_id"]) == (202, made)


def test_tables_of_texts_and_gaps(client: Any, upload: Any, revise: Any) -> None:
    base = upload(TABLE)
    other = upload(b"kind,size,colour\na,7,violet\nb,3,red\nb,,\n", label_column="kind", rare_classes="keep")
    made = revise(base, append_dataset_id=other)
    assert made.status_code == 201, made.text
    assert made.json()["change"]["equal_rows_skipped"] == 1
    rows = [row["x"] | {"kind": row["label"]} for row in _rows(client, made.json()["id"])]
    assert rows[5:] == [
        {"colour": "violet", "size": 7, "kind": "a"},
        {"colour": None, "size": None, "kind": "b"},
    ]
    schema = {column["name"]: column for column in made.json()["summary"]["schema"]}
    assert (schema["colour"]["gaps"], schema["colour"]["distinct"], schema["size"]["gaps"]) == (2, 4, 2)
    assert made.json()["summary"]["label_column"] == "kind"


def test_sparse_rows_and_a_test_part(client: Any, upload: Any, revise: Any) -> None:
    base = upload(b"a 1:1 3:2\na 2:4\nb 1:3\nb 3:9\nb 2:8\n", "svmlight")
    other = upload(b"a 1:5\nb 2:8\n", "svmlight", rare_classes="keep", index_base="1")
    made = revise(base, append_dataset_id=other).json()
    assert (made["rows"], made["change"]["equal_rows_skipped"]) == (6, 1)
    assert _rows(client, made["id"])[-1]["x"] == {"indices": [0], "values": [5.0], "index_base": 0}
    file = io.BytesIO()
    X = np.arange(8.0)[:, None]
    np.savez(file, X_train=X, y_train=["a", "b"] * 4, X_test=X[:2] + 0.5, y_test=["b", "a"])
    tested = upload(file.getvalue(), "npz")
    revised = revise(tested, delete={"rows": [0]}).json()
    assert (revised["rows"], revised["test_rows"], revised["summary"]["test"]["rows"]) == (7, 2, 2)
    assert _rows(client, revised["id"], part="test") == _rows(client, tested, part="test")
    gone = revise(tested, delete={"rows": [0, 2, 4, 6]})
    assert (gone.status_code, gone.json()["code"]) == (422, "test_part_without_class")


def test_what_is_refused(client: Any, upload: Any, revise: Any) -> None:
    base, other = upload(CSV), upload(TABLE)
    same = upload(b"\n".join(CSV.splitlines()[:5]) + b"\n")
    for body, status, code in [
        ({}, 422, "empty_change"),
        ({"note": "nothing"}, 422, "empty_change"),
        ({"append_dataset_id": same}, 422, "empty_change"),
        ({"append_dataset_id": base}, 422, "empty_change"),
        ({"append_dataset_id": other}, 422, "wrong_columns"),
        ({"append_dataset_id": "ds_none"}, 404, "dataset_not_found"),
        ({"delete": {"rows": [1, 40]}}, 400, "unknown_row"),
        ({"delete": {"rows": [*range(40)]}}, 400, "empty"),
        ({"delete": {"rows": [*range(39)]}}, 400, "single_class"),
    ]:
        answer = revise(base, **body)
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert "rows are 0 to 39" in revise(base, delete={"rows": [40]}).json()["errors"][0]["message"]
    absent = revise("ds_none", delete={"rows": [0]})
    assert (absent.status_code, absent.json()["code"]) == (404, "dataset_not_found")
    scores = io.BytesIO()
    np.savez(scores, X=np.eye(4), y=["a", "b", "a", "b"], teacher_scores=np.eye(4)[:, :2])
    answer = revise(upload(scores.getvalue(), "npz"), delete={"rows": [0]})
    assert (answer.status_code, answer.json()["code"]) == (422, "has_scores")


@pytest.mark.parametrize(
    "body",
    [
        {"delete": {"rows": []}},
        {"delete": {"rows": [-1]}},
        {"delete": {"rows": ["1"]}},
        {"delete": {"rows": [2**31]}},
        {"delete": [1]},
        {"append_dataset_id": "../x"},
        {"append_dataset_id": "d", "note": "a\nb"},
        {"append_dataset_id": "d", "note": "x" * 501},
        {"append": "ds_1"},
    ],
)
def test_a_body_that_is_none_is_refused_before_anything_is_read(revise: Any, body: dict[str, Any]) -> None:
    answer = revise("ds_none", **body)
    assert answer.status_code in (400, 422)
    assert answer.json()["errors"]


@pytest.mark.parametrize(
    ("limit", "value", "status", "code"),
    [
        ("max_rows", 41, 413, "too_many_rows"),
        ("quota_datasets", 2, 409, "quota_datasets"),
    ],
)
def test_limits_hold_for_revisions(make_client: Any, limit: str, value: int, status: int, code: str) -> None:
    client = make_client(**{limit: value})
    lines = CSV.splitlines()
    ids = [
        client.post("/v1/datasets?format=csv", content=b"\n".join([lines[0], *rows]) + b"\n").json()["id"]
        for rows in (lines[1:], [line.replace(b",", b"1,", 1) for line in lines[1:]])
    ]
    answer = client.post(f"/v1/datasets/{ids[0]}/revisions", json={"append_dataset_id": ids[1]})
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


def test_confirmed_rows_keep_their_meaning(client: Any, upload: Any, revise: Any, store: Store) -> None:
    base = upload(CSV)
    with store.begin() as uow:
        dataset = uow.datasets.get(base)
        uow.datasets.delete(base)
        values = {"summary": dataset.summary | {"confirmed_rows": [1, 4, 9]}}
        uow.datasets.add(type(dataset)(**{**_fields(dataset), **values}), ("no", "yes"))
    made = revise(base, delete={"rows": [0, 4, 7]}).json()
    assert made["summary"]["confirmed_rows"] == [0, 6]
    assert not math.isnan(made["summary"]["features"][0]["mean"])


def _fields(dataset: Any) -> dict[str, Any]:
    return {name: getattr(dataset, name) for name in dataset.__dataclass_fields__}


def test_rows_get_other_labels_by_number_and_by_an_id_that_they_keep(
    client: Any, upload: Any, revise: Any
) -> None:
    base = upload(CSV)
    before = _rows(client, base)
    first = revise(
        base, delete={"rows": [0]}, relabel=[{"row": 3, "label": "maybe"}, {"row": 4, "label": "maybe"}]
    )
    assert first.status_code == 201, first.text
    change = first.json()["change"]
    assert (change["relabelled"], change["deleted"]) == (2, 1)
    assert "maybe" in change["classes_changed"]
    rows = _rows(client, first.json()["id"])
    assert [row["row_id"] for row in rows] == list(range(1, 40))
    assert [row["label"] for row in rows[2:4]] == ["maybe", "maybe"]
    back = revise(first.json()["id"], relabel=[{"id": row, "label": before[row]["label"]} for row in (3, 4)])
    assert back.status_code == 201, back.text
    assert [(row["label"], row["x"]) for row in _rows(client, back.json()["id"])] == [
        (row["label"], row["x"]) for row in before[1:]
    ]
    same = [{"row": 0, "label": before[1]["label"]}]
    for body, status, code in [
        ({"relabel": same}, 422, "empty_change"),
        ({"relabel": [{"id": 0, "label": "yes"}]}, 400, "unknown_row"),
        ({"relabel": [{"row": 39, "label": "yes"}]}, 400, "unknown_row"),
        ({"relabel": same * 2}, 400, "given_twice"),
        ({"relabel": same, "delete": {"rows": [0]}}, 400, "given_twice"),
        ({"relabel": [{"row": 0, "label": "alone"}]}, 400, "class_too_small"),
        ({"relabel": [{"row": 0, "id": 1, "label": "yes"}]}, 422, "invalid_body"),
    ]:
        answer = revise(back.json()["id"], **body)
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


def test_the_newest_revision_has_a_name(client: Any, upload: Any, revise: Any) -> None:
    base = upload(CSV)
    made = revise(f"{base}@latest", delete={"rows": [3]}).json()
    last = revise(f"{made['id']}@latest", delete={"rows": [3]}).json()
    for name in (base, made["id"], last["id"]):
        assert client.get(f"/v1/datasets/{name}@latest").json()["id"] == last["id"]
    assert [row["row_id"] for row in _rows(client, f"{base}@latest")][2:5] == [2, 5, 6]
    job = client.post("/v1/training-jobs", json={"dataset_id": f"{base}@latest", "model": "m"})
    assert (job.status_code, job.json()["dataset_id"]) == (202, last["id"])
    none = client.get("/v1/datasets/ds_none@latest")
    assert (none.status_code, none.json()["code"]) == (404, "dataset_not_found")


def test_a_file_to_append_may_have_a_single_class(client: Any, upload: Any, revise: Any) -> None:
    base, line = upload(CSV), CSV.splitlines()[1]
    one = upload(b"\n".join([CSV.splitlines()[0], line.replace(b",", b"7,", 1)]) + b"\n", rare_classes="keep")
    made = revise(base, append_dataset_id=one)
    assert (made.status_code, made.json()["rows"]) == (201, 41)
    job = client.post("/v1/training-jobs", json={"dataset_id": one, "model": "m"})
    assert (job.status_code, job.json()["code"]) == (400, "class_too_small")
