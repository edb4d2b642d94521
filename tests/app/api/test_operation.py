"""Who asks, what servers do, filters of lists, and the history of aliases, over HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from app.domain.entities import JobState, StudentRow, StudentState
from app.processes.exposition import BUCKETS
from app.processes.metrics import Metrics
from app.services.keys import create_key
from app.serving.model_figures import ModelFigures, quantile
from app.serving.server_beats import Figures, ServerBeats
from app.store.unit_of_work import Store


@pytest.fixture
def submit(client, dataset_id: str) -> Callable[..., Any]:
    def submit(model: str) -> Any:
        body = {"dataset_id": dataset_id, "model": model}
        return client.post("/v1/training-jobs", json=body).json()

    return submit


def test_a_key_learns_what_it_may_do(make_client, store: Store):
    client = make_client(require_keys=True)
    _, text = create_key(store, "door camera", {"query"}, {"pets"})
    client.refresh()
    found = client.get("/v1/whoami", headers={"authorization": f"Bearer {text}"}).json()
    assert (found["name"], found["tenant"], found["expires_at"]) == ("door camera", "default", None)
    assert (found["scopes"], found["models"]) == (["query"], ["pets"])
    assert found["server"]
    assert client.get("/v1/whoami").status_code == 401


def test_figures_are_totals_rates_and_latencies():
    metrics, figures = Metrics(), Figures()

    def step(now: float):
        return figures.step(now, metrics.counts(), list(metrics.route_counts().values()))

    assert step(1000.0)["queries_per_second"] == 0.0
    for _ in range(90):
        metrics.answered("pets", 2, 0.0019)
    for _ in range(10):
        metrics.answered("cars", 1, 0.019)
    metrics.refused("pets", 404)
    metrics.refused("pets", 503)
    metrics.responded("GET", "/v1/models", 200, 0.1)
    metrics.responded("GET", "/v1/models", 500, 0.1)
    found = step(1005.0)
    assert (found["queries"], found["rows"], found["failed_queries"]) == (100, 190, 2)
    assert (found["requests"], found["errors"]) == (2, 2)
    assert found["queries_per_second"] == pytest.approx(20.0)
    assert found["errors_per_second"] == pytest.approx(0.4)
    assert (found["refused"], found["refused_per_second"]) == (1, pytest.approx(0.2))
    assert found["unanswered"] == {"404": 1, "503": 1}
    assert sum(found["buckets"]) == 100
    assert [(one["model"], one["queries_per_second"]) for one in found["models"]] == [
        ("pets", 18.0),
        ("cars", 2.0),
    ]
    assert 0.0015 < found["latency"]["p50"] < 0.002
    assert 0.01 < found["latency"]["p99"] <= 0.02
    assert [point[:3] for point in found["history"]] == [[1000.0, 0.0, 0.0], [1005.0, 20.0, 0.4]]
    later = step(1100.0)
    assert later["queries"] == 100
    assert later["queries_per_second"] == 0.0, "ten seconds are over"
    assert later["latency"] == {"p50": None, "p95": None, "p99": None}, "and so is the minute"
    assert (later["unanswered"], later["models"], sum(later["buckets"])) == ({}, [], 0)


def test_the_ten_most_asked_models_have_rates_latencies_and_a_history():
    metrics, figures = Metrics(), ModelFigures()
    metrics.answered("old", 1, 0.5)
    assert figures.step(1000.0, metrics.counts()) == [], "what was before the first step is not known"
    for number in range(12):
        for _ in range(number + 1):
            metrics.answered(f"model-{number:02d}", 1, 0.0019)
    metrics.refused("model-11", 429)
    found = figures.step(1002.0, metrics.counts())
    assert [one["model"] for one in found] == [f"model-{number:02d}" for number in range(11, 1, -1)]
    assert (found[0]["history"], found[0]["queries_per_second"]) == ([0.0, 6.0], 6.0)
    assert found[0]["refused_per_second"] == 0.5
    assert sum(found[0]["buckets"]) == 12
    assert 0.0015 < found[0]["latency"]["p50"] < found[0]["latency"]["p99"] < 0.002
    for step in range(1, 40):
        metrics.answered("model-00", 1, 0.0019)
        found = figures.step(1002.0 + 2 * step, metrics.counts())
    assert [one["model"] for one in found] == ["model-00"], "the minute of all others is over"
    assert found[0]["queries_per_second"] == 0.5
    assert 30 <= sum(found[0]["buckets"]) <= 36
    assert len(found[0]["history"]) == 41


def test_a_quantile_beyond_the_last_bucket_is_its_bound():
    counts = [0.0] * (len(BUCKETS) + 1)
    assert quantile(counts, 0.5) is None
    counts[-1] = 3.0
    assert quantile(counts, 0.5) == BUCKETS[-1]


def test_servers_are_listed_while_they_report(client, store: Store):
    beats = ServerBeats(store, client.context.metrics, "srv_1")
    beats.beat()
    rows = {row["id"]: row for row in client.get("/v1/servers").json()["data"]}
    assert rows["srv_1"]["alive"] is True
    assert rows["srv_1"]["processes"] == 1
    assert len(rows["srv_1"]["history"]) == 1
    with store.begin() as uow:
        uow.servers.forget_silent(3600.0)
        assert any(row.id == "srv_1" for row in uow.servers.all())
        time.sleep(0.01)
        uow.servers.forget_silent(0.0)
        assert uow.servers.all() == []


def test_jobs_are_filtered_and_counted(client, submit, store: Store):
    first, second = submit(model="a"), submit(model="b")
    with store.begin() as uow:
        uow.jobs.move(second["id"], JobState.CANCELLED)
    path = "/v1/training-jobs"

    def ids(query: str) -> list[str]:
        return [job["id"] for job in client.get(f"{path}?{query}").json()["data"]]

    assert ids("model=a") == [first["id"]]
    assert ids(f"created_by={first['created_by']}") == [second["id"], first["id"]]
    assert ids("created_by=somebody") == []
    assert ids(f"since={time.time() + 100}") == []
    assert ids(f"since={time.time() - 100}&status=cancelled") == [second["id"]]
    counts = client.get(f"{path}/counts").json()["counts"]
    assert (counts["queued"], counts["cancelled"], counts["running"]) == (1, 1, 0)


def test_students_are_sorted_and_found(client, submit, store: Store):
    job = submit(model="a")
    with store.begin() as uow:
        for index, (label, score) in enumerate((("Ape", 0.5), ("bee", 0.9), ("apron", 0.7))):
            uow.students.save(
                StudentRow(job["id"], index, label, "gsvm", StudentState.SUCCEEDED, metrics={"f1": score})
            )
    path = f"/v1/training-jobs/{job['id']}/students?method=gsvm"

    def labels(query: str) -> list[str]:
        return [row["label"] for row in client.get(f"{path}&{query}").json()["data"]]

    assert labels("sort=f1") == ["Ape", "apron", "bee"]
    assert labels("sort=-f1&label=ap") == ["apron", "Ape"]
    assert client.get(f"{path}&sort=taste").json()["code"] == "invalid_parameter"
    first = client.get(f"{path}&sort=-f1&limit=2")
    assert [row["label"] for row in first.json()["data"]] == ["bee", "apron"]
    assert first.json()["has_more"] is True
    second = client.get(first.links["next"]["url"]).json()
    assert ([row["label"] for row in second["data"]], second["has_more"]) == (["Ape"], False)


def test_the_history_of_an_alias_outlives_it(client, store: Store, pets, problem):
    path = "/v1/models/pets/aliases/production"
    problem(client.get(f"{path}/history"), 404, "alias_not_found")
    client.put(path, json={"version": 1})
    revision = client.get(path).headers["etag"]
    client.put(path, json={"version": 1}, headers={"if-match": revision})
    revision = client.get(path).headers["etag"]
    client.delete(path, headers={"if-match": revision})
    moves = client.get(f"{path}/history").json()["data"]
    assert [(move["previous"], move["version"]) for move in moves] == [(1, None), (1, 1), (None, 1)]
    assert {move["actor"] for move in moves} == {"anonymous"}
    page = client.get(f"{path}/history?limit=2")
    assert page.json()["has_more"] is True
    rest = client.get(page.links["next"]["url"]).json()
    assert [move["id"] for move in rest["data"]] == [moves[2]["id"]]
