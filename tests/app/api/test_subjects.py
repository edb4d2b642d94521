"""Subjects over HTTP: whose rows, samples and feedback are deleted, and whose are not."""

from __future__ import annotations

from typing import Any

import numpy as np

from app.domain.monitors import FeedbackItem
from app.services.feedback import give_feedback
from app.services.keys import create_key
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.unit_of_work import Store
from tests.app.monitored import SAMPLING, publish_watched, store_samples, watch

ROWS = b"a,who,label\n" + b"".join(
    b"%d,%s,%s\n" % (i, (b"anna", b"bob", b"")[i % 3], b"yes" if i % 2 else b"no") for i in range(36)
)


def _upload(client: Any, headers: Any = None, content: bytes = ROWS) -> dict[str, Any]:
    said = {"format": "csv", "subject_column": "who", "label_column": "label"}
    answer = client.post("/v1/datasets", params=said, content=content, headers=headers or {})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def test_rows_of_all_series_are_deleted_and_those_of_others_stay(client: Any) -> None:
    first = _upload(client)
    assert first["summary"]["subjects"] == 2
    assert [column["name"] for column in first["summary"]["schema"]] == ["a"]
    made = client.post(f"/v1/datasets/{first['id']}/revisions", json={"delete": {"rows": [1]}}).json()
    second = _upload(client, content=ROWS + b"99,carla,no\n")
    erased = client.delete("/v1/subjects/bob")
    assert erased.status_code == 200, erased.text
    found = {one["series"]: one for one in erased.json()["datasets"]}
    assert set(found) == {first["id"], second["id"]}
    assert sorted(found[first["id"]]["deleted"]) == sorted([first["id"], made["id"]])
    for series, rows in ((first["id"], 24), (second["id"], 25)):
        latest = client.get(f"/v1/datasets/{series}@latest").json()
        assert (latest["id"], latest["rows"]) == (found[series]["revision"], rows)
        assert latest["summary"]["subjects"] == 2 - (series == first["id"])
    assert client.get(f"/v1/datasets/{made['id']}").status_code == 404
    assert client.delete("/v1/subjects/bob").json()["datasets"] == []
    by_revision = client.post(
        f"/v1/datasets/{first['id']}@latest/revisions", json={"delete": {"subjects": ["anna", "nobody"]}}
    )
    assert by_revision.json()["change"]["deleted"] == 12


def test_a_data_set_of_one_subject_alone_is_deleted(client: Any) -> None:
    alone = _upload(client, content=ROWS.replace(b",bob,", b",anna,").replace(b",,", b",anna,"))
    [one] = client.delete("/v1/subjects/anna").json()["datasets"]
    assert (one["revision"], one["deleted"], one["rows"]) == (None, [alone["id"]], 36)
    assert "No row" in one["reason"]


def test_another_tenant_erases_its_own(make_client: Any, store: Store) -> None:
    keys = {
        "own": create_key(store, "own", {"train"})[1],
        "other": create_key(store.of_tenant("acme"), "acme", {"train"})[1],
    }
    client = make_client(require_keys=True)
    sent = {name: {"authorization": f"Bearer {key}"} for name, key in keys.items()}
    mine = _upload(client, sent["own"])
    nothing = client.delete("/v1/subjects/bob", headers=sent["other"]).json()
    assert nothing == {"samples": 0, "feedback": 0, "datasets": [], "versions": []}
    assert client.get(f"/v1/datasets/{mine['id']}@latest", headers=sent["other"]).status_code == 404
    assert client.get(f"/v1/datasets/{mine['id']}@latest", headers=sent["own"]).json()["id"] == mine["id"]


def test_samples_and_feedback_are_deleted(client: Any, store: Store, tmp_path: Any) -> None:
    publish_watched(store)
    monitor = watch(store, BlobCache.of(Settings(data_dir=tmp_path)))
    ids = store_samples(store, monitor, [(True, 0.5)] * 4, asked=20, yes=8)
    items = [
        FeedbackItem(sample=one, correct=False, subject=whom)
        for one, whom in zip(ids, ("bob", "anna", "bob", None), strict=True)
    ]
    report: Any = {"request_id": "r", "label": "a", "model": "pets", "answer": True, "correct": True}
    items.append(FeedbackItem(**report, subject="bob"))
    give_feedback(store, SAMPLING, items, "tests")
    erased = client.delete("/v1/subjects/bob").json()
    assert (erased["samples"], erased["feedback"]) == (2, 3)
    with store.begin() as uow:
        assert set(uow.feedback.samples(ids)) == {ids[1], ids[3]}
        assert uow.feedback.count_reports(monitor.id) == 0


def test_pseudonyms_are_of_the_tenant_and_not_of_the_name(client: Any, store: Store) -> None:
    with store.begin() as uow:
        keys = [uow.subjects.of_tenant(tenant).make_key() for tenant in ("a", "b", "a")]
    assert keys[0] == keys[2] != keys[1]
    assert np.unique(np.frombuffer(keys[0], dtype=np.uint8)).size > 8


def test_columns_that_name_nobody_are_refused(client: Any, problem: Any) -> None:
    lists = b'{"a": 1, "who": [1, 2], "label": "x"}\n{"a": 2, "who": [3, 4], "label": "y"}\n' * 2
    for content, said, code in [
        (lists, {"format": "jsonl", "subject_column": "who"}, "not_a_name"),
        (ROWS, {"format": "csv", "subject_column": "nobody"}, "unknown_column"),
        (b"a,label\n1,x\n2,y\n3,x\n4,y\n", {"format": "csv", "subject_column": "a"}, "no_columns"),
    ]:
        answer = client.post("/v1/datasets", params={"label_column": "label"} | said, content=content)
        document = problem(answer, 400, answer.json()["code"])
        assert [one["code"] for one in document["errors"]] == [code], document
