"""Schedules of training: what makes them due, that each occasion is one job and one event, and promotion."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from app.domain.entities import JobState, Json
from app.domain.errors import Unavailable
from app.domain.webhook import EVENTS, Webhook
from app.services.schedules import run_schedules
from app.settings import Settings
from app.store.repositories.schedules import Schedules
from app.store.tables import webhook_deliveries
from app.store.unit_of_work import Store

DAY = 86_400.0
PATH = "/v1/models/pets/schedule"
SPEC: Json = {"student": {"method": "svm"}, "evaluation": {"test_fraction": 0.25}}


def _rows(count: int, first: int = 0) -> bytes:
    lines = [f"{i % 5},{i % 7},{i},{'cat' if i % 2 else 'dog'}" for i in range(first, first + count)]
    return "\n".join(["a,b,c,label", *lines]).encode()


@pytest.fixture
def dataset_id(client: Any, store: Store, pets: Any) -> str:
    """The data set that version 1 of "pets" was trained on, with a webhook that hears of everything."""
    made = str(client.post("/v1/datasets?format=csv", content=_rows(60)).json()["id"])
    with store.begin() as uow:
        # It was trained on none of the rows that there are.
        rows = uow.blobs.put([bytes(8)])[0]
        uow.jobs.change(str(pets.job_id), spec=SPEC, dataset_id=made, rows_digest=rows)
        uow.webhooks.add(Webhook("wh_1", "w", "https://x", EVENTS, (), "cloudevents", 1.0, "t", "", None))
    return made


@pytest.fixture
def put(client: Any, dataset_id: str) -> Callable[..., Json]:
    def send(**body: Any) -> Json:
        answer = client.put(PATH, json=body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    return send


@pytest.fixture
def run(store: Store, queue: Any, tmp_path: Path) -> Callable[[float], int]:
    """Lets the elected worker look at schedules so many seconds from now."""
    settings = Settings(data_dir=tmp_path)
    return lambda seconds: run_schedules(store.of_all_tenants(), queue, settings, time.time() + seconds)


def told(store: Store, kind: str = "schedule") -> list[tuple[str, Json]]:
    with store.read() as uow:
        rows = uow.connection.execute(sa.select(webhook_deliveries.c.type, webhook_deliveries.c.data)).all()
    return [(row.type, row.data) for row in rows if row.type.startswith(kind)]


def end(store: Store, job_id: str, state: JobState, version: int | None = None) -> None:
    with store.begin() as uow:
        uow.jobs.move(job_id, JobState.RUNNING)
        uow.jobs.move(job_id, state)
        uow.jobs.change(job_id, version=version)


def test_a_schedule_is_set_changed_and_deleted_by_revision(client: Any, put: Any, problem: Any) -> None:
    problem(client.get(PATH), 404, "schedule_not_found")
    problem(client.delete(PATH, headers={"if-match": '"1"'}), 404, "schedule_not_found")
    problem(client.put("/v1/models/none/schedule", json={"every": "daily"}), 404, "alias_not_found")
    for body in (
        {},
        {"alarm": False},
        {"every": "hourly"},
        {"new_rows": 0},
        {"every": "daily", "promote": "if_gate_passes"},
        {"every": "daily", "promote": "always", "alias": "production"},
        {"every": "daily", "at": "noon"},
    ):
        problem(client.put(PATH, json=body), 422, "invalid_body")
    made = put(every="weekly", new_rows=5)
    assert (made["revision"], made["stopped"], made["outcome"]) == (1, False, None)
    assert made["next_at"] is not None
    assert client.get(PATH).json() == made
    problem(client.put(PATH, json={"every": "daily"}), 428, "precondition_required")
    stale = client.put(PATH, json={"every": "daily"}, headers={"if-match": '"7"'})
    problem(stale, 412, "precondition_failed")
    changed = client.put(PATH, json={"alarm": True}, headers={"if-match": '"1"'})
    assert (changed.json()["revision"], changed.json()["next_at"]) == (2, None)
    assert client.delete(PATH, headers={"if-match": changed.headers["etag"]}).status_code == 204
    problem(client.get(PATH), 404, "schedule_not_found")


def test_a_tenant_has_so_many_schedules(
    client: Any, dataset_id: str, problem: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.services.schedules.MAX_SCHEDULES", 0)
    problem(client.put(PATH, json={"every": "daily"}), 409, "too_many_schedules")


def test_by_time_one_job_is_begun_and_missed_times_are_made_up_for_once(
    client: Any, put: Any, run: Any, store: Store
) -> None:
    put(every="daily")
    assert [run(0), run(DAY - 60)] == [0, 0]
    assert run(5.5 * DAY) == 1
    assert run(5.5 * DAY) == 0, "its job has not ended"
    [job] = [one for one in client.get("/v1/training-jobs").json()["data"] if one["state"] == "queued"]
    assert job["provenance"]["scheduled"]["reason"] == "daily"
    assert job["provenance"]["retrained_from"]["version"] == 1
    assert job["hyperparameters"]["alias"] is None
    end(store, job["id"], JobState.FAILED)
    assert [run(5.6 * DAY), run(5.6 * DAY)] == [0, 0]
    assert client.get(PATH).json()["outcome"] == "failed"
    assert run(6.1 * DAY) == 1
    assert [kind for kind, _ in told(store)] == ["schedule.queued"] * 2


def test_new_rows_begin_a_job_on_the_newest_revision(
    client: Any, put: Any, run: Any, dataset_id: str
) -> None:
    put(new_rows=10)
    assert run(0) == 0
    for count, first, begun in ((9, 1000, 0), (1, 2000, 1)):
        more = client.post(
            "/v1/datasets", params={"format": "csv", "rare_classes": "keep"}, content=_rows(count, first)
        ).json()["id"]
        body = {"append_dataset_id": more}
        revised = client.post(f"/v1/datasets/{dataset_id}@latest/revisions", json=body)
        assert revised.status_code == 201, revised.text
        assert run(0) == begun
    schedule = client.get(PATH).json()
    assert schedule["dataset_id"] == revised.json()["id"]
    assert (
        client.get(f"/v1/training-jobs/{schedule['job_id']}").json()["dataset_id"] == schedule["dataset_id"]
    )


def test_a_worker_that_dies_in_between_begins_one_job_and_tells_of_it_once(
    client: Any, put: Any, run: Any, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(every="daily")

    def die(*_: object, **__: object) -> None:
        raise Unavailable("killed")

    with monkeypatch.context() as patch:
        patch.setattr(Schedules, "note", die)
        with pytest.raises(Unavailable):
            run(2 * DAY)
    assert told(store) == []
    run(2 * DAY)
    run(2 * DAY)
    jobs = [one for one in client.get("/v1/training-jobs").json()["data"] if one["state"] == "queued"]
    assert [data["job_id"] for _, data in told(store)] == [one["id"] for one in jobs]
    assert len(jobs) == 1


def test_what_cannot_be_trained_is_told_once_and_failures_stop_it(
    client: Any, put: Any, run: Any, store: Store
) -> None:
    put(every="daily", classes="changed", stop_after_failures=2)
    assert [run(1.5 * DAY), run(1.5 * DAY)] == [0, 0]
    [(kind, data)] = told(store)
    assert (kind, data["code"], data["reason"]) == ("schedule.skipped", "nothing_changed", "daily")
    changed = client.put(
        PATH, json={"every": "daily", "stop_after_failures": 2}, headers={"if-match": '"1"'}
    ).json()
    for day in (1.5, 2.5):
        assert run(day * DAY) == 1
        end(store, client.get(PATH).json()["job_id"], JobState.FAILED)
        run(day * DAY)
    after = client.get(PATH).json()
    assert (after["failures"], after["stopped"], after["revision"]) == (2, True, changed["revision"])
    assert run(30 * DAY) == 0
    assert [kind for kind, _ in told(store)][-1] == "schedule.stopped"


@pytest.mark.parametrize("verdict", ["not_worse", "worse", None])
def test_an_alias_moves_only_through_its_gate(
    client: Any,
    put: Any,
    run: Any,
    store: Store,
    pets: Any,
    dataset_id: str,
    publish_again: Any,
    verdict: Any,
) -> None:
    client.put("/v1/models/pets/aliases/production", json={"version": 1})
    if verdict is not None:
        gate = {"dataset_id": dataset_id, "rule": "no_class_worse", "tolerance": 0.5}
        assert client.put("/v1/models/pets/aliases/production/gate", json=gate).status_code == 200
    put(every="daily", alias="production", promote="if_gate_passes")
    assert run(1.5 * DAY) == 1
    made = publish_again(alias=None)
    version = made.version
    with store.begin() as uow:
        uow.jobs.change(str(made.job_id), rows_digest=uow.blobs.put([bytes(8)])[0])
    end(store, client.get(PATH).json()["job_id"], JobState.SUCCEEDED, version)
    run(1.5 * DAY)
    if verdict is None:
        assert client.get(PATH).json()["outcome"] == "not_promoted:no_gate"
    else:
        found = client.get(PATH).json()
        assert found["outcome"] == "evaluating", found
        run(1.5 * DAY)
        with store.begin() as uow:
            uow.evaluations.begin(found["evaluation_id"])
            uow.evaluations.succeed(
                found["evaluation_id"], {"verdict": verdict, "rows_used": 60}, {"classes": []}
            )
        run(1.5 * DAY)
        outcome = "promoted" if verdict == "not_worse" else "not_promoted:gate_failed"
        assert client.get(PATH).json()["outcome"] == outcome
        [(_, data)] = told(store, "evaluation")
        assert (data["state"], data["verdict"], data["version"]) == ("succeeded", verdict, f"pets@{version}")
    moved = version if verdict == "not_worse" else 1
    assert client.get("/v1/models/pets/aliases/production").json()["version"] == moved
