"""The client against a real server: from a file to decisions, in every format."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from stms_client import AsyncClient, Client, InvalidRequest, JobEvent, JobNotSucceeded, NotAllowed, NotFound
from tests.system.deployment import QUICK_SOLVERS, Deployment

ROWS = [[10.3, 0.2], [0.3, 0.2], [0.1, 10.4]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A server at its first start, whose API key the clients find by themselves."""
    folder = tmp_path_factory.mktemp("live")
    with (
        Deployment(folder, serve=True, is_new=False, settings=QUICK_SOLVERS) as started,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("STMS_DATA_DIR", str(started.data))
        yield started


@pytest.fixture(scope="module")
def stms(server: Deployment) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


@pytest.fixture(scope="module")
def trained(stms: Client, csv_file: Path) -> dict[str, Any]:
    """The job that made version 1 of the model "kinds"."""
    events: list[JobEvent] = []
    dataset = stms.upload_dataset(csv_file, label_column="kind")
    wish = {"teacher": {"C": 10}, "student": {"C": 10}}
    job = stms.submit_job(dataset["id"], "kinds", wish, idempotency_key="once")
    assert stms.submit_job(dataset["id"], "kinds", wish, idempotency_key="once")["id"] == job["id"]
    job = stms.wait_for_job(job["id"], progress=events.append)
    assert events[0].type == "job_queued"
    assert events[-1].type == "job_succeeded"
    return job


def test_a_program_that_does_not_find_the_key_is_refused(stms: Client, server: Deployment):
    with Client(server.url, api_key="") as stranger, pytest.raises(NotAllowed, match="key_required"):
        list(stranger.models())


def test_rows_of_a_data_set_are_read_page_by_page(stms: Client, trained):
    rows = list(stms.dataset_rows(trained["dataset_id"], page=7))
    assert [row["id"] for row in rows] == list(range(60))
    assert {row["label"] for row in stms.dataset_rows(trained["dataset_id"], "b")} == {"b"}
    assert stms.is_class("kinds", rows[0]["label"], rows[0]["x"])


def test_one_row_many_rows_and_arrays_have_the_same_answers(stms: Client, trained):
    single = [stms.query("kinds", "b", row) for row in ROWS]
    assert [decision.match for decision in single] == [True, False, False]
    assert (single[0].model, single[0].version) == ("kinds", 1)
    assert stms.is_class("kinds@latest", "b", np.array(ROWS[0]))
    sparse = stms.query("kinds@1", "b", {"indices": [0, 1], "values": ROWS[0]})
    assert sparse.score == pytest.approx(single[0].score, rel=1e-12)
    for rows in (ROWS, np.array(ROWS)):
        many = stms.query_rows("kinds", "b", rows)
        assert [d.score for d in many] == pytest.approx([d.score for d in single], rel=1e-12)
        assert list(many.matches) == [True, False, False]
        assert many.threshold == single[0].threshold
    small = stms.query_rows("kinds", "b", np.array(ROWS, np.float32))
    assert list(small.matches) == [True, False, False]


def test_an_explanation_contains_gate_and_rejection(stms: Client, trained):
    single = stms.query("kinds", "b", ROWS[0], explain=True)
    assert single.gate is not None
    assert single.rejection is not None
    assert single.gate - single.rejection == pytest.approx(single.score, abs=1e-12)
    for rows in (ROWS, np.array(ROWS)):
        first = stms.query_rows("kinds", "b", rows, explain=True)[0]
        assert first.gate == pytest.approx(single.gate, rel=1e-12)
        assert first.rejection == pytest.approx(single.rejection, rel=1e-12)


def test_several_classes_at_once_and_the_teacher(stms: Client, trained):
    found = stms.query_classes("kinds", ["a", "b", "c"], ROWS[0])
    assert {label: decision.match for label, decision in found.items()} == {"a": False, "b": True, "c": False}
    assert [stms.predict("kinds", row) for row in ROWS] == ["b", "a", "c"]


def test_models_and_aliases(stms: Client, trained):
    assert [model["name"] for model in stms.models()] == ["kinds"]
    assert stms.point_alias("kinds", "best", 1)["version"] == 1
    assert stms.point_alias("kinds", "best", 1)["version"] == 1
    assert {alias["alias"] for alias in stms.model("kinds")["aliases"]} == {"best", "latest"}
    with pytest.raises(NotFound):
        stms.point_alias("kinds", "best", 9)


def test_invalid_values_are_reported_by_row_and_column(stms: Client, trained):
    with pytest.raises(InvalidRequest) as caught:
        stms.query_rows("kinds", "b", [[1, 2], [1, 2, 3]])
    assert caught.value.faults[0]["row"] == 1
    with pytest.raises(InvalidRequest) as caught:
        stms.query_rows("kinds", "b", np.array([[1, 2], [1, np.nan]]))
    assert (caught.value.faults[0]["row"], caught.value.faults[0]["column"]) == (1, 1)
    with pytest.raises(NotFound) as missing:
        stms.is_class("kinds", "z", [1, 2])
    assert missing.value.request_id


def test_a_head_becomes_a_model(stms: Client, trained, tmp_path: Path):
    file = tmp_path / "head.npz"
    np.savez(file, weights=np.eye(3), labels=np.array(["x", "y", "z"]))
    assert stms.import_head(file, "axes")["version"] == 1
    assert stms.is_class("axes", "y", [0.0, 2.0, 1.0])


@pytest.mark.long
def test_from_arrays_to_a_curve_and_a_published_threshold(stms: Client, capsys):
    X = np.random.default_rng(1).normal(size=(90, 2)) + np.repeat([[0, 0], [9, 0], [0, 9]], 30, axis=0)
    y = np.repeat(["a", "b", "c"], 30)
    data = stms.upload_rows(X, y, name="corners", test=(X[::3], y[::3]))
    assert (data["rows"], data["test_rows"], data["classes"]) == (90, 30, ["a", "b", "c"])
    job = stms.submit_job(data["id"], "corners", {"teacher": {"C": 10}, "student": {"C": 10}})
    assert job.wait(progress=True).version == 1
    assert "corners: succeeded" in capsys.readouterr().err.splitlines()
    curve = job.curve("b")
    assert (curve.positives, curve.negatives, curve.threshold) == (10, 20, job.student("b")["threshold"])
    assert curve.threshold in curve.thresholds
    assert job.curve("b", method="teacher").positives == 10
    assert stms.publish_thresholds("corners", {"b": curve.cheapest()})["version"] == 2
    assert stms.query("corners@2", "b", X[40]).threshold == curve.cheapest()
    assert [event["type"] for event in stms.job_events(job.id)][-1] == "job_succeeded"
    assert [row["label"] for row in stms.classes("corners", 2)] == ["a", "b", "c"]
    assert stms.version("corners", "latest")["version"] == stms.alias("corners", "latest")["version"] == 1


JOBS = {"a": "clerk", "b": "cook", "c": "nurse"}
MEMBERS = {
    "age": [None if k % 9 == 0 else 20 + k % 40 for k in range(60)],
    "job": [JOBS["abc"[k % 3]] for k in range(60)],
    "since": [date(2010 + k % 9, 3, 1 + k % 9) for k in range(60)],
    "kind": ["abc"[k % 3] for k in range(60)],
}
QUICK = {"automatic": False, "features": {"kind": "linear"}}


@pytest.mark.parametrize("name", ["parquet", "jsonl"])
def test_a_table_is_uploaded_and_asked_about_by_records_and_columns(stms: Client, name: str):
    table = pa.table(MEMBERS) if name == "parquet" else MEMBERS
    data = stms.upload_table(table, label="kind", name=name)
    assert data["source_format"] == name
    kinds = {column["name"]: column["kind"] for column in data["summary"]["schema"]}
    assert kinds == {"age": "number", "job": "category", "since": "date"}
    stms.submit_job(data["id"], f"members-{name}", QUICK).wait()
    rows = [dict(zip(MEMBERS, row, strict=True)) for row in zip(*MEMBERS.values(), strict=True)]
    one = [stms.query(f"members-{name}", "b", row).score for row in rows[:5]]
    assert stms.query_rows(f"members-{name}", "b", rows[:5]).scores == one
    many = stms.query_rows(f"members-{name}", "b", table)
    assert many.scores[:5].tolist() == one
    assert many.matches.tolist() == [kind == "b" for kind in MEMBERS["kind"]]
    assert stms.predict(f"members-{name}", rows[1]) == "b"
    odd = rows[1] | {"job": "judge", "age": float("nan")}
    assert stms.query(f"members-{name}", "b", odd, explain=True).unseen == ["job"]
    assert stms.version(f"members-{name}")["encoder_digest"]


def test_texts_are_asked_about(stms: Client):
    words = {"spam": "win a big prize now and call", "ham": "see you at home for dinner tonight"}
    texts = {"text": [f"{words[kind]} {k}" for k in range(40) for kind in words], "kind": [*words] * 40}
    data = stms.upload_table(texts, label="kind", name="mails", columns={"text": "text"})
    stms.submit_job(data["id"], "mails", QUICK).wait()
    assert stms.is_class("mails", "spam", text="call now to win")
    assert stms.query_rows("mails", "spam", texts=["win a prize", "dinner"]).matches == [True, False]
    assert stms.query_classes("mails", ["spam", "ham"], text="win a prize")["spam"].match
    assert stms.predict("mails", text="dinner at home") == "ham"
    assert stms.query("mails", "ham", text="dinner of otters", explain=True).known_terms == {"text": 1}
    with pytest.raises(InvalidRequest, match="models whose columns are all numbers"):
        stms.query("mails", "ham", [1.0])


def test_keys_are_created_and_revoked(stms: Client, trained):
    made = stms.create_key("camera", scopes=["query"], models=["kinds"], expires_in_seconds=60)
    assert made["details"]["models"] == ["kinds"]
    with Client(stms.address, made["key"]) as camera:
        assert camera.whoami()["name"] == "camera"
        assert stms.revoke_key(made["details"]["id"])["revoked_at"] is not None
        with pytest.raises(NotAllowed):
            camera.whoami()
    assert made["details"]["id"] in {key["id"] for key in stms.api_keys()}


@pytest.mark.long
def test_a_cancelled_job_has_not_succeeded(stms: Client, trained):
    job = stms.submit_job(trained["dataset_id"], "other", {"seed": 3, "publish": False})
    stms.cancel_job(job["id"])
    with pytest.raises(JobNotSucceeded):
        stms.wait_for_job(job["id"])
    assert stms.retry_job(job["id"])["id"] == job["id"]
    assert stms.wait_for_job(job["id"])["state"] == "succeeded"
    assert job["id"] in {listed["id"] for listed in stms.jobs("succeeded")}
    assert {row["label"] for row in stms.students(job["id"])} == set("abc")


@pytest.mark.long
def test_the_asynchronous_client_sends_concurrent_requests(server: Deployment, trained, csv_file: Path):
    async def story() -> None:
        async with AsyncClient(server.url) as stms:
            asked = [stms.is_class("kinds", "b", ROWS[number % 3]) for number in range(60)]
            assert await asyncio.gather(*asked) == [True, False, False] * 20
            many = await stms.query_rows("kinds", "b", np.array(ROWS))
            assert many.matches.tolist() == [True, False, False]
            dataset = await stms.upload_dataset(csv_file, label_column="kind")
            assert dataset["id"] in [found["id"] async for found in stms.datasets()]
            events = [event.type async for event in stms.follow_job(trained["id"])]
            assert events[-1] == "job_succeeded"

    asyncio.run(story())
