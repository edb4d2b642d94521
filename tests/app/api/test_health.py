"""Health checks, version, metrics and the OpenAPI document."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from app.domain.entities import Worker
from app.processes.scoreboard import State
from app.services.keys import create_key
from app.store.unit_of_work import Store
from app.tracing import Span, parse_traceparent


def checks(response: Any) -> dict[str, bool]:
    return {check["name"]: check["ok"] for check in response.json()["checks"]}


def test_a_server_without_workers_is_ready_and_reports_it(client, queue):
    queue.down = True
    response = client.get("/readyz?verbose")
    assert response.status_code == 200
    assert checks(response) == {
        "database": True,
        "schema": True,
        "registry": True,
        "process": True,
        "processes": True,
        "job_engine": False,
        "workers": False,
    }
    assert client.get("/readyz").json() == {"ready": True}


def test_a_worker_with_a_recent_heartbeat_is_alive(client, store: Store):
    with store.begin() as uow:
        uow.workers.beat(Worker("w", "here", 1, time.time(), time.time()))
    assert all(checks(client.get("/readyz?verbose")).values())


def test_a_server_without_its_database_is_alive_but_not_ready(client, store: Store, pets):
    path, row = "/v1/models/pets/classes/cat:query", {"x": [1, 2, 3]}
    assert client.post(path, json=row).status_code == 200
    with store.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE registry_clock RENAME TO lost"))
        connection.execute(sa.text("DELETE FROM alembic_version"))
    client.refresh()
    response = client.get("/readyz?verbose")
    assert response.status_code == 503
    assert response.headers["retry-after"] == "2"
    assert checks(response)["schema"] is False
    assert checks(response)["registry"] is False
    assert client.get("/readyz").json() == {"ready": False}
    assert checks(client.get("/readyz/queries?verbose")) == {"keys": True, "registry": True, "process": True}
    assert client.get("/livez").json() == {"live": True}
    assert client.post(path, json=row).status_code == 200, "what is loaded still answers"
    with store.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE lost RENAME TO registry_clock"))
    client.refresh()
    assert checks(client.get("/readyz?verbose"))["registry"] is True


def test_a_server_that_starts_before_its_database_waits_for_it(make_client, store: Store, pets, problem):
    with store.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE registry_clock RENAME TO lost"))
    client = make_client(require_keys=True)
    problem(client.get("/v1/models"), 503, "keys_unavailable")
    assert client.get("/readyz/queries").status_code == 503
    with store.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE lost RENAME TO registry_clock"))
    client.refresh()
    problem(client.get("/v1/models"), 401, "key_required")
    assert client.get("/readyz/queries").json() == {"ready": True}


def test_a_server_is_not_ready_for_queries_after_the_longest_time_without_a_registry(
    client, store: Store, monkeypatch: pytest.MonkeyPatch
):
    with store.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE registry_clock RENAME TO lost"))
    client.refresh()
    assert client.get("/readyz/queries").status_code == 200, "by default for ever"
    monkeypatch.setattr(client.context.settings, "max_stale_seconds", 0.05)
    time.sleep(0.06)
    client.refresh()
    response = client.get("/readyz/queries?verbose")
    assert (response.status_code, checks(response)["registry"]) == (503, False)
    with store.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE lost RENAME TO registry_clock"))
    monkeypatch.setattr(client.context.settings, "max_stale_seconds", 60.0)
    client.refresh()
    assert client.get("/readyz/queries").status_code == 200


def test_the_version_is_returned(client):
    assert client.get("/version").json()["name"] == "stms"


def test_metrics_count_queries_jobs_and_loaded_models(client, store: Store, pets, dataset_id: str):
    client.post("/v1/training-jobs", json={"dataset_id": dataset_id, "model": "m"})
    for body in ({"x": [1, 2, 3]}, {"rows": [[1, 2, 3]] * 5}, {"x": [1]}):
        client.post("/v1/models/pets/classes/cat:query", json=body)
    client.post("/v1/models/nothing/classes/cat:query", json={"x": [1]})
    client.post("/v1/models/pets:predict", json={"x": [1, 2, 3]})
    client.get("/no/such/path")
    lines = client.get("/metrics").text.splitlines()
    for line in (
        'stms_queries_total{model="pets",status="200"} 2.0',
        'stms_queries_total{model="pets",status="400"} 1.0',
        'stms_queries_total{model="",status="404"} 1.0',
        'stms_query_rows_total{model="pets"} 6.0',
        'stms_query_seconds_count{model="pets"} 2.0',
        'stms_predictions_total{model="pets"} 1.0',
        'stms_jobs{state="queued"} 1.0',
        "stms_queries_in_flight 0.0",
        "stms_cache_entries 2.0",
        "stms_cache_misses_total 3.0",
        "stms_cache_hits_total 2.0",
        "stms_database_up 1.0",
        'stms_check_ok{check="workers"} 0.0',
        "stms_worker_slots 0.0",
        'stms_requests_total{method="POST",route="/v1/training-jobs",status="202"} 1.0',
        'stms_request_seconds_count{method="POST",route="/v1/training-jobs"} 1.0',
        'stms_requests_total{method="POST",route="/v1/models/{model}:predict",status="200"} 1.0',
        'stms_requests_total{method="_others",route="_others",status="404"} 1.0',
        "stms_registry_failing_seconds 0.0",
        "stms_audit_failures_total 0.0",
    ):
        assert line in lines, line
    assert any(line.startswith('stms_query_seconds_bucket{le="5e-05",model="pets"}') for line in lines)


def test_metrics_do_not_need_the_database(client, store: Store):
    with store.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE jobs RENAME TO lost"))
    text = client.get("/metrics").text
    assert "stms_database_up 0.0" in text
    assert "stms_jobs{" not in text


def test_metrics_that_are_late_are_unavailable(client, problem, monkeypatch):
    async def late() -> None:
        return None

    monkeypatch.setattr(client.context.probes.metrics_text, "get", late)
    problem(client.get("/metrics"), 503, "metrics_unavailable")


def test_the_openapi_document_has_every_path_and_its_errors(client):
    document = client.get("/openapi.json").json()
    query = document["paths"]["/v1/models/{model}/classes/{class}:query"]["post"]
    assert {parameter["name"] for parameter in query["parameters"]} >= {"model", "class"}
    # The inference protocol has errors of its own form.
    operations = [
        op for path, ops in document["paths"].items() if not path.startswith("/v2") for op in ops.values()
    ]
    assert len(operations) > 20
    for operation in operations:
        assert operation["responses"]["default"] == {"$ref": "#/components/responses/Problem"}
        assert "422" not in operation["responses"]
    assert set(document["components"]["securitySchemes"]) == {"bearer", "apiKey"}
    _resolve_all(document, document)


def _resolve_all(document: dict[str, Any], node: Any) -> None:
    if isinstance(node, dict):
        if "$ref" in node:
            target: Any = document
            for part in node["$ref"].removeprefix("#/").split("/"):
                target = target[part]
        for value in node.values():
            _resolve_all(document, value)
    elif isinstance(node, list):
        for value in node:
            _resolve_all(document, value)


def test_a_draining_process_is_not_ready(client):
    slot = client.context.metrics.slot
    slot.state = State.DRAINING
    response = client.get("/readyz?verbose")
    assert response.status_code == 503
    assert checks(response)["process"] is False
    assert client.get("/readyz/queries").status_code == 503
    assert client.get("/livez").status_code == 200
    slot.state = State.SERVING
    assert client.get("/readyz").status_code == 200


def test_missing_processes_are_reported(client):
    client.context.metrics.scoreboard.target_size = 3
    response = client.get("/readyz?verbose")
    assert response.status_code == 200, "this one answers"
    [check] = [check for check in response.json()["checks"] if check["name"] == "processes"]
    assert check == {
        "name": "processes",
        "ok": False,
        "needed": False,
        "detail": "1 of 3 serve; the others are being started",
    }


@pytest.mark.parametrize("path", ["/openapi.json", "/docs", "/docs/start.js", "/docs/swagger-ui.css"])
def test_what_never_changes_has_an_entity_tag(client, path: str):
    first = client.get(path)
    assert first.status_code == 200
    known = client.get(path, headers={"if-none-match": f'"other", W/{first.headers["etag"]}'})
    assert (known.status_code, known.content) == (304, b"")
    assert known.headers["etag"] == first.headers["etag"]
    assert client.get(path, headers={"if-none-match": '"other"'}).content == first.content


def test_the_openapi_document_is_encoded_once(client):
    assert client.control.encoded_openapi() is client.control.encoded_openapi()
    assert client.get("/openapi.json").json() == client.control.openapi()


def test_only_a_caller_with_a_valid_key_chooses_the_trace(client, store, keys_required, monkeypatch):
    text = create_key(store, "watcher", {"query"})[1]
    client.refresh()
    spans: list[Span] = []
    tracer = SimpleNamespace(sample=lambda header: header and parse_traceparent(header), finish=spans.append)
    monkeypatch.setattr(client.control.state, "context", replace(client.context, tracer=tracer))
    chosen = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}
    for path in ("/livez", "/version", "/nothing", "/v1/models", "/ui/sign-in"):
        client.get(path, headers=chosen)
        client.get(path, headers=chosen | {"authorization": "Bearer stms_wrong"})
    assert spans == []
    client.get("/v1/models", headers=chosen | {"authorization": f"Bearer {text}"})
    assert [span.context.trace_id for span in spans] == ["ab" * 16]
