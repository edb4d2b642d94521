"""One trace from a request over the queue and a worker to a student, in real processes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.collector import Collector, collector
from tests.system.deployment import Deployment

__all__ = ["collector"]

PETS = "a,b,class\n" + "".join(f"{i % 7},{(i * i) % 11},{'cat' if i % 2 else 'dog'}\n" for i in range(60))
TRACE = "5c" * 16


@pytest.mark.long
def test_a_trace_leads_from_the_request_to_the_student(tmp_path: Path, collector: Collector):
    settings = {
        "STMS_SPARE_SOLVER": "false",
        "STMS_TRACE_ENDPOINT": collector.address,
        "STMS_LOG_FORMAT": "json",
    }
    with (
        Deployment(tmp_path, serve=True, arguments=["--no-keys"], settings=settings) as server,
        server.client() as http,
    ):
        dataset = http.post("/v1/datasets", files={"file": ("pets.csv", PETS.encode())}).json()
        headers = {"traceparent": f"00-{TRACE}-{'0d' * 8}-01"}
        body = {"dataset_id": dataset["id"], "model": "pets"}
        job = http.post("/v1/training-jobs", json=body, headers=headers).json()
        deadline = time.monotonic() + 300
        while job["state"] not in ("succeeded", "failed"):
            assert time.monotonic() < deadline, job
            time.sleep(0.2)
            job = http.get(f"/v1/training-jobs/{job['id']}").json()
        assert job["state"] == "succeeded", job
        query = "/v1/models/pets/classes/cat:query"
        for sent in ({}, headers):
            assert http.post(query, json={"x": [1, 2]}, headers=sent).status_code == 200
    spans: list[dict[str, Any]] = collector.spans()
    assert {span["traceId"] for span in spans} == {TRACE}, "nothing else is traced at the rate 0"
    ids = {span["spanId"]: span for span in spans}
    paths = set()
    for span in spans:
        path = [span["name"]]
        while span["parentSpanId"] in ids:
            span = ids[span["parentSpanId"]]
            path.append(span["name"])
        assert span["parentSpanId"] == "0d" * 8, "the first span of each path is a child of the caller's"
        paths.add(tuple(reversed(path)))
    submit = "POST /v1/training-jobs"
    assert (submit, "queue", "unit", "teacher") in paths or any(
        path[:3] == (submit, "queue", "unit") for path in paths
    )
    assert (submit, "queue", "unit", "students", "student") in paths
    assert ("query",) in paths
    students = [span for span in spans if span["name"] == "student"]
    shown = {item["key"] for item in students[0]["attributes"]}
    assert {"stms.class", "stms.method", "stms.seconds", "stms.objective"} <= shown
