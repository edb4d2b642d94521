"""Data sets over HTTP: uploaded, read, deleted, and rejected if invalid."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from app.services.datasets import list_datasets
from app.store.tables import blobs, dataset_classes
from app.store.unit_of_work import Store

Check = Callable[..., dict[str, Any]]
HEADERS = {"content-type": "text/csv"}


def test_a_file_becomes_a_data_set(client, csv: bytes):
    response = client.post("/v1/datasets", params={"name": "numbers"}, content=csv, headers=HEADERS)
    assert response.status_code == 201
    view = response.json()
    assert view["name"] == "numbers"
    assert view["classes"] == ["no", "yes"]
    assert (view["rows"], view["columns"]) == (40, 2)
    assert view["summary"]["class_counts"] == {"no": 20, "yes": 20}
    assert view["created_at"].endswith("Z")
    assert response.headers["location"] == f"/v1/datasets/{view['id']}"
    assert client.get(response.headers["location"]).json() == view


def test_the_same_bytes_twice_are_one_data_set(client, csv: bytes):
    first = client.post("/v1/datasets", content=csv, headers=HEADERS)
    second = client.post("/v1/datasets", params={"name": "other"}, content=csv, headers=HEADERS)
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json() == second.json()
    assert first.headers["etag"] == second.headers["etag"]


def test_a_form_with_a_file_is_accepted(client, csv: bytes):
    fields = {"label_column": "a", "name": "by form"}
    response = client.post("/v1/datasets", files={"file": ("numbers.csv", csv, "text/csv")}, data=fields)
    assert response.status_code == 400, "every value of column a is a class with one example"
    response = client.post("/v1/datasets", files={"file": ("numbers.csv", csv)})
    assert response.status_code == 201
    assert response.json()["name"] == "numbers"


def test_an_npz_file_with_a_test_part_is_accepted(client):
    rng = np.random.default_rng(0)
    buffer = io.BytesIO()
    X = rng.normal(size=(30, 4))
    np.savez(buffer, X=X, y=np.arange(30) % 3, X_test=X[:9], y_test=np.arange(9) % 3)
    headers = {"content-type": "application/x-npz"}
    view = client.post("/v1/datasets", content=buffer.getvalue(), headers=headers).json()
    assert (view["rows"], view["test_rows"], view["columns"], view["classes"]) == (30, 9, 4, ["0", "1", "2"])


def test_extras_of_a_data_set_are_shown(client):
    header = "privileged:depth,view:colour:red,view:colour:green,score:no,score:yes,answer\n"
    rows = "".join(f"{k},{k % 5},{k % 3},{k % 2},{1 - k % 2},{'no' if k % 2 else 'yes'}\n" for k in range(20))
    view = client.post("/v1/datasets", content=(header + rows).encode(), headers=HEADERS).json()
    summary = client.get(f"/v1/datasets/{view['id']}").json()["summary"]

    assert (view["rows"], view["columns"], view["classes"]) == (20, 2, ["no", "yes"])
    assert summary["privileged"] == {"columns": 1, "names": ["depth"]}
    assert summary["views"] == [{"name": "colour", "start": 0, "stop": 2}]
    assert summary["teacher_scores"] == {"accuracy": 1.0}


@pytest.mark.parametrize("place", ["query", "form"])
def test_rows_without_a_label_are_kept_where_that_is_asked_for(client, place):
    content = b"a,b,label\n1,2,no\n2,3,yes\n3,4,\n4,5,no\n5,6,yes\n"
    refused = client.post("/v1/datasets", content=content, headers=HEADERS)
    wrong = client.post("/v1/datasets", params={"unlabelled": "yes"}, content=content, headers=HEADERS)
    options = {"unlabelled": "accept"}
    if place == "query":
        kept = client.post("/v1/datasets", params=options, content=content, headers=HEADERS)
    else:
        kept = client.post("/v1/datasets", files={"file": ("a.csv", content)}, data=options)

    assert (refused.status_code, wrong.status_code, kept.status_code) == (400, 400, 201)
    assert refused.json()["errors"][0]["row"] == 2
    assert wrong.json()["errors"][0]["field"] == "unlabelled"
    assert kept.json()["summary"]["unlabelled_rows"] == 1
    assert kept.json()["summary"]["class_counts"] == {"no": 2, "yes": 2}


def test_an_unchanged_data_set_is_304(client, dataset_id: str):
    first = client.get(f"/v1/datasets/{dataset_id}")
    again = client.get(f"/v1/datasets/{dataset_id}", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]


def test_data_sets_are_listed_in_linked_pages(client):
    for i in range(5):
        body = b"a,b\n" + b"".join(b"%d,%d\n" % (k, k % 2) for k in range(4 + i))
        assert client.post("/v1/datasets", content=body, headers=HEADERS).status_code == 201
    seen, url, pages = [], "/v1/datasets?limit=2", 0
    while url:
        response = client.get(url)
        seen += [item["id"] for item in response.json()["data"]]
        link = response.links.get("next")
        assert response.json()["has_more"] == (link is not None)
        url = link and link["url"]
        pages += 1
    assert pages == 3
    assert seen == sorted(seen, reverse=True)
    assert len(set(seen)) == 5


def test_a_deleted_data_set_is_gone(client, dataset_id: str, problem: Check):
    assert client.delete(f"/v1/datasets/{dataset_id}").status_code == 204
    problem(client.get(f"/v1/datasets/{dataset_id}"), 404, "dataset_not_found")
    problem(client.delete(f"/v1/datasets/{dataset_id}"), 404, "dataset_not_found")


def test_a_data_set_in_use_is_not_deleted(client, dataset_id: str, problem: Check):
    job = client.post("/v1/training-jobs", json={"dataset_id": dataset_id, "model": "m"}).json()
    problem(client.delete(f"/v1/datasets/{dataset_id}"), 409, "dataset_in_use")
    client.post(f"/v1/training-jobs/{job['id']}/cancel")
    assert client.delete(f"/v1/datasets/{dataset_id}").status_code == 204


def test_invalid_values_are_reported_by_row_and_column(client, problem: Check):
    body = b"a,privileged:b,label\n1,2,x\n3,nan,y\n5,6,x\n7,,y\n"
    document = problem(client.post("/v1/datasets", content=body, headers=HEADERS), 400, "invalid_dataset")
    places = {(fault["row"], fault["column"]) for fault in document["errors"]}
    assert {(1, 0), (3, 0)} <= places


MIXED = b"age,job,seen,label\n39,none,2024-05-06,x\n,clerk,2024-05-07,y\n41,?,2024-05-08,x\n40,clerk,,y\n"


def test_a_table_of_texts_and_gaps_is_a_data_set_with_a_schema(client):
    made = client.post("/v1/datasets", content=MIXED, headers=HEADERS)
    assert made.status_code == 201, made.text
    document = client.get(f"/v1/datasets/{made.json()['id']}").json()
    schema = document["summary"]["schema"]
    assert [(one["name"], one["kind"], one["gaps"], one["nulls"]) for one in schema] == [
        ("age", "number", 1, {"": 1}),
        ("job", "category", 1, {"?": 1}),
        ("seen", "date", 1, {"": 1}),
    ]
    assert schema[1]["values"] == [{"value": "clerk", "rows": 2}, {"value": "none", "rows": 1}]
    rows = client.get(f"/v1/datasets/{document['id']}/rows?class=y").json()["data"]
    assert [row["x"] for row in rows] == [
        {"age": None, "job": "clerk", "seen": "2024-05-07"},
        {"age": 40, "job": "clerk", "seen": None},
    ]


def test_a_dry_run_stores_nothing(client):
    said = "dry_run=true&columns=age:category,seen:ignore&null_values=none"
    found = client.post(f"/v1/datasets?{said}", content=MIXED, headers=HEADERS)
    assert found.status_code == 200, found.text
    schema = found.json()["summary"]["schema"]
    assert [(one["kind"], one["gaps"]) for one in schema] == [("category", 1), ("category", 2), ("ignore", 1)]
    assert client.get("/v1/datasets").json()["data"] == []


def test_another_reading_of_the_columns_is_another_data_set(client):
    said = ("", "columns=age:category", "null_values=none", "columns=job:category", "null_values=other")
    made = [client.post(f"/v1/datasets?{one}", content=MIXED, headers=HEADERS) for one in said]
    ids = [one.json()["id"] for one in made]
    assert len({*ids[:3]}) == 3
    assert ids[3:] == [ids[0], ids[0]]


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"", HEADERS, 400),
        (b"a,b\n1,2\n3\n", HEADERS, 400),
        (b"a,label\n1,x\n2,x\n", HEADERS, 400),
        (b"\x80\x04pickle", {"content-type": "application/octet-stream"}, 415),
        (b"PK\x03\x04 cut off", {"content-type": "application/x-npz"}, 400),
        (b"PAR1", {"content-type": "application/vnd.apache.parquet"}, 400),
        (b"\x93NUMPY", {"content-type": "text/csv"}, 415),
    ],
)
def test_invalid_files_are_rejected(client, body: bytes, headers: dict[str, str], status: int):
    response = client.post("/v1/datasets", content=body, headers=headers)
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert client.get("/v1/datasets").json()["data"] == []


def test_an_upload_over_the_limit_is_stopped_while_it_arrives(make_client, problem: Check):
    client = make_client(max_upload_bytes=10_000)
    taken = 0

    async def pieces():
        nonlocal taken
        for _ in range(100):
            taken += 1
            yield b"1,2\n" * 250

    problem(client.post("/v1/datasets", content=pieces(), headers=HEADERS), 413, "body_too_large")
    # The transport asks for one piece ahead.
    assert taken <= 12
    problem(client.post("/v1/datasets", content=b"x" * 10_001, headers=HEADERS), 413, "body_too_large")


def test_an_upload_is_hashed_once(client, csv: bytes, monkeypatch: pytest.MonkeyPatch):
    hashes: list[Any] = []

    def counted(*arguments: Any) -> Any:
        hashes.append(hashlib.new("sha256", *arguments))
        return hashes[-1]

    monkeypatch.setattr(hashlib, "sha256", counted)
    response = client.post("/v1/datasets", content=csv, headers=HEADERS)
    assert response.status_code == 201
    digest = response.json()["digest"]
    assert [each.hexdigest() for each in hashes].count(digest) == 1


def test_a_truncated_upload_is_rejected_and_stores_nothing(client, csv: bytes, problem: Check):
    headers = HEADERS | {"content-length": str(len(csv) + 100)}
    problem(client.post("/v1/datasets", content=csv, headers=headers), 400, "truncated_upload")
    assert client.get("/v1/datasets").json()["data"] == []


def test_a_client_that_disconnects_stores_nothing(client, csv: bytes):
    messages = iter([{"type": "http.request", "body": csv, "more_body": True}, {"type": "http.disconnect"}])

    async def receive():
        return next(messages)

    sent = client.run(client.exchange("POST", "/v1/datasets", receive, {"content-type": "text/csv"}))
    assert sent[0]["status"] == 400
    assert client.get("/v1/datasets").json()["data"] == []


@pytest.mark.long
def test_a_file_that_needs_too_much_memory_is_413(make_client, csv: bytes, problem: Check):
    client = make_client(reader_memory_bytes=256 * 1024**2)
    line = b",".join([b"1"] * 500_000)
    problem(client.post("/v1/datasets", content=line + b"\n" + line), 413, "file_needs_too_much_memory")
    assert client.post("/v1/datasets", content=csv).status_code == 201
    assert client.context.reader.failures["memory"] == 1


def test_a_client_that_disconnects_while_its_file_is_read_ends_the_reading(make_client, csv: bytes):
    """The reader is stopped by SIGSTOP, so that the reading cannot end by itself."""
    client = make_client(reader_seconds=500.0)
    assert client.post("/v1/datasets", content=csv).status_code == 201
    reader = client.context.reader
    os.kill(reader.pids[0], signal.SIGSTOP)

    async def upload() -> Any:
        sent = iter([{"type": "http.request", "body": csv + b"1,2,no\n", "more_body": False}])

        async def receive() -> dict[str, Any]:
            message = next(sent, None)
            if message is None:
                while not reader.reading:
                    await asyncio.sleep(0.01)
                return {"type": "http.disconnect"}
            return message

        return await client.exchange("POST", "/v1/datasets", receive, {"content-type": "text/csv"})

    assert client.run(upload())[0]["status"] == 503
    assert reader.failures["cancelled"] == 1
    assert client.post("/v1/datasets", content=csv + b"1,2,yes\n").status_code == 201


def test_a_large_upload_is_written_in_pieces(client):
    body = b"a,b,label\n" + b"".join(b"%d,%d.5,%d\n" % (i, i, i % 3) for i in range(120_000))
    assert len(body) > 1 << 20
    view = client.post("/v1/datasets", content=body, headers=HEADERS).json()
    assert (view["rows"], view["size_bytes"]) == (120_000, len(body))


def test_rows_are_shown_page_by_page_and_by_class(client, dataset_id: str, problem: Check):
    path = f"/v1/datasets/{dataset_id}/rows"
    first = client.get(path, params={"limit": 3})
    assert first.json() == {
        "data": [
            {"id": 0, "row_id": 0, "label": "no", "x": [0.0, 0.0]},
            {"id": 1, "row_id": 1, "label": "yes", "x": [1.0, 1.0]},
            {"id": 2, "row_id": 2, "label": "no", "x": [2.0, 4.0]},
        ],
        "has_more": True,
    }
    assert client.get(first.links["next"]["url"]).json()["data"][0]["id"] == 3
    of_class = client.get(path, params={"class": "yes", "after": 30, "limit": 100}).json()
    assert ([row["id"] for row in of_class["data"]], of_class["has_more"]) == ([31, 33, 35, 37, 39], False)
    problem(client.get(path, params={"class": "maybe"}), 404, "class_not_found")
    problem(client.get(path, params={"part": "test"}), 404, "no_test_part")
    problem(client.get(path, params={"part": "all"}), 400, "invalid_parameter")
    problem(client.get("/v1/datasets/ds_none/rows"), 404, "dataset_not_found")


def test_rows_of_sparse_data_have_the_form_that_queries_take(client):
    content = b"+1 1:5 3:1.5\n-1 2:7\n+1 1:4\n-1 3:6\n"
    headers = {"content-type": "application/x-svmlight"}
    made = client.post("/v1/datasets", content=content, headers=headers).json()
    [row] = client.get(f"/v1/datasets/{made['id']}/rows?limit=1").json()["data"]
    assert row["x"] == {"indices": [0, 2], "values": [5.0, 1.5], "index_base": 0}


def test_rare_classes_are_named(client):
    content = b"a,b\n" + b"".join(b"%d,%s\n" % (k, b"rare" if k < 3 else b"usual") for k in range(40))
    warnings = client.post("/v1/datasets", content=content, headers=HEADERS).json()["summary"]["warnings"]
    assert [warning["code"] for warning in warnings] == ["counts_rows", "rare_classes"]
    warning = warnings[-1]
    assert "1 class has fewer than 10 examples, the smallest, 'rare', 3" in warning["message"]


MANY = 2500


def _many_classes(number: int = 0) -> bytes:
    lines = (b"%d,label-%05d of set %d\n" % (row % 97, row // 2, number) for row in range(2 * MANY))
    return b"a,label\n" + b"".join(lines)


def test_the_classes_of_a_data_set_come_in_pages(client):
    view = client.post("/v1/datasets", content=_many_classes(), headers=HEADERS).json()
    names = [f"label-{number:05d} of set 0" for number in range(MANY)]
    assert (view["class_count"], view["classes_truncated"]) == (MANY, True)
    assert view["classes"] == names[:1000]
    assert client.get(f"/v1/datasets/{view['id']}").json() == view
    url, found, sizes = f"/v1/datasets/{view['id']}/classes?limit=1000", [], []
    while url is not None:
        response = client.get(url)
        page = response.json()
        found += [(one["id"], one["label"]) for one in page["data"]]
        sizes.append(len(page["data"]))
        assert page["has_more"] == ("link" in response.headers)
        url = response.headers["link"].split("<")[1].split(">")[0] if page["has_more"] else None
    assert found == [*enumerate(names)]
    assert sizes == [1000, 1000, 500]
    page = client.get(f"/v1/datasets/{view['id']}/classes?limit=3&after=254").json()
    assert [one["id"] for one in page["data"]] == [255, 256, 257]
    assert [one["rows"] for one in page["data"]] == [2, 2, 2]
    page = client.get(f"/v1/datasets/{view['id']}/classes?limit=2&after=998").json()
    assert [one["rows"] for one in page["data"]] == [2, None], "rows are counted of the first 1000 classes"
    assert client.get(f"/v1/datasets/{view['id']}/classes?after={MANY}").json()["data"] == []
    assert client.get("/v1/datasets/ds_0/classes").status_code == 404
    rows = client.get(f"/v1/datasets/{view['id']}/rows", params={"class": names[1300]}).json()["data"]
    assert [(row["id"], row["label"]) for row in rows] == [(2600, names[1300]), (2601, names[1300])]


def test_lists_and_checks_read_no_names_of_classes(client, store: Store):
    """Of 150,000 classes they would take MiB for each data set."""
    for number in range(3):
        assert client.post("/v1/datasets", content=_many_classes(number), headers=HEADERS).status_code == 201
    read: list[str] = []

    @sa.event.listens_for(store.engine, "before_cursor_execute")
    def note(_connection, _cursor, statement, *_rest):
        read.append(statement)

    [newest, *_], _ = list_datasets(store, limit=10)
    with store.begin() as uow:
        uow.datasets.get(newest.id)
        uow.datasets.lock(newest.id)
        uow.datasets.by_digest(newest.digest)
        uow.quotas.used(store.tenant)
    assert len(read) >= 5
    assert not [statement for statement in read if "dataset_classes" in statement]
    assert not [statement for statement in read[:1] if "summary" in statement]
    response = client.get("/v1/datasets?limit=1000")
    for listed in response.json()["data"]:
        assert listed["class_count"] == MANY
        assert not {"classes", "summary"} & listed.keys()
    assert len(response.content) < 3 * 1000


def test_the_names_of_a_data_set_count_and_are_freed_with_it(client, store: Store):
    def stored() -> int:
        with store.read() as uow:
            return uow.quotas.used(store.tenant).stored_bytes

    before = stored()
    view = client.post("/v1/datasets", content=_many_classes(), headers=HEADERS).json()
    with store.read() as uow:
        digest = uow.datasets.get(view["id"]).blob_digest
        blob = uow.connection.execute(sa.select(blobs.c.size).where(blobs.c.digest == digest)).scalar_one()
    names = sum(len(f"label-{number:05d} of set 0") for number in range(MANY))
    assert stored() - before - blob > names
    assert client.delete(f"/v1/datasets/{view['id']}").status_code == 204
    assert stored() == before
    with store.read() as uow:
        assert uow.connection.execute(sa.select(dataset_classes.c.first)).all() == []


def test_a_data_set_whose_names_exceed_the_quota_is_refused(make_client, store, problem: Check):
    client = make_client(quota_stored_bytes=120_000)
    # Its rows take 60 kB, the names of its classes 60 kB as part of the rows and 75 kB beside them.
    problem(client.post("/v1/datasets", content=_many_classes(), headers=HEADERS), 413, "quota_stored_bytes")
    with store.read() as uow:
        assert uow.connection.execute(sa.select(blobs.c.digest)).all() == []


def test_a_long_name_of_a_column_is_refused(client, problem: Check):
    rows = b"".join(b"%d,%d,%d\n" % (k, k % 7, k % 2) for k in range(40))
    long = client.post("/v1/datasets", content=b"a" * 401 + b",b,label\n" + rows, headers=HEADERS)
    [fault] = problem(long, 400, "invalid_dataset")["errors"]
    assert (fault["code"], fault["column"]) == ("name_too_long", 0)
    assert len(long.content) < 2000
    fits = client.post("/v1/datasets", content=b"a" * 400 + b",b,label\n" + rows, headers=HEADERS)
    assert fits.status_code == 201


def test_how_a_file_was_read_is_said_and_can_be_said_instead(client):
    rows = b"".join(b"%s,%d,%d\n" % (b"xy"[k % 2 : k % 2 + 1], k * k, k % 3) for k in range(12))
    made = client.post("/v1/datasets", content=b"label,a,b\n" + rows, headers=HEADERS).json()
    reading = {one["name"]: (one["value"], one["reason"]) for one in made["reading"]}
    assert reading["label_column"] == ("label", "the only column with a usual name of a label")
    assert {"header", "separator", "decimal", "index_column", "null_values"} <= reading.keys()
    assert client.get(f"/v1/datasets/{made['id']}").json()["reading"] == made["reading"]
    said = client.post(
        "/v1/datasets?label_column=-1&header=yes&decimal=point",
        content=b"label,a,b\n" + rows.replace(b"x", b"1").replace(b"y", b"2"),
        headers=HEADERS,
    ).json()
    reading = {one["name"]: (one["value"], one["reason"]) for one in said["reading"]}
    assert reading["label_column"] == ("b", "given")
    assert (reading["header"], reading["decimal"]) == (("yes", "given"), (".", "given"))


def test_the_same_bytes_read_in_another_way_are_another_data_set(client):
    content = b"1 1:5 3:1.5\n2 2:7\n1 1:4\n2 3:6\n"
    headers = {"content-type": "application/x-svmlight"}
    first = client.post("/v1/datasets", content=content, headers=headers).json()
    same = client.post("/v1/datasets?index_base=1", content=content, headers=headers)
    other = client.post("/v1/datasets?index_base=0", content=content, headers=headers)
    assert (same.status_code, same.json()["id"]) == (200, first["id"])
    assert (other.status_code, other.json()["columns"]) == (201, 4)
    again = client.post("/v1/datasets", content=content, headers=headers)
    assert (again.status_code, again.json()["id"]) == (200, first["id"])


def test_what_is_doubtful_is_refused_with_the_way_to_say_it(client):
    content = b"kind,a,b\n" + b"".join(b"%d,%d,%d.5\n" % (k % 2, k * k, k) for k in range(12))
    refused = client.post("/v1/datasets", content=content, headers=HEADERS)
    assert (refused.status_code, refused.json()["code"]) == (400, "ambiguous_label_column")
    assert refused.json()["errors"][0]["field"] == "label_column"
    body = {"file": ("a.csv", content, "text/csv")}
    for field in ("kind", "0", "-3"):
        assert client.post("/v1/datasets", files=body, data={"label_column": field}).json()["classes"] == [
            "0",
            "1",
        ]
    wrong = client.post("/v1/datasets?header=maybe", content=content, headers=HEADERS)
    assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (400, "header")
