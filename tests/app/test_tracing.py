"""Spans reach a collector with the right parents; without one nothing happens."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from app.domain.entities import Job, JobState
from app.domain.log_context import TraceContext, current_trace, traced
from app.jobs.solver.messages import StudentResult
from app.jobs.workflow.unit_trace import unit_trace
from app.jobs.workflow.work_units import PREPARE, WorkUnit
from app.tracing import Tracer, begin, open_tracer, parse_traceparent, traceparent
from tests.collector import Collector, collector

PARENT = "00-" + "4b" * 16 + "-" + "0a" * 8 + "-01"

__all__ = ["collector"]


@pytest.fixture
def tracer(collector: Collector) -> Iterator[Tracer]:
    found = open_tracer(collector.address, 0.0, "test", "1")
    assert found is not None
    yield found
    found.close()


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        (PARENT, True),
        (PARENT.replace("00-", "cc-", 1) + "-more", True),
        (PARENT[:-1] + "0", False),
        (PARENT.replace("4b" * 16, "00" * 16), False),
        (PARENT.replace("0a" * 8, "00" * 8), False),
        (PARENT.upper(), False),
        ("", False),
        ("\xff", False),
    ],
)
def test_only_a_valid_and_sampled_traceparent_is_joined(text: str, valid: bool):
    assert (parse_traceparent(text.encode("latin-1")) is not None) is valid


def test_without_a_collector_there_is_no_tracer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    assert open_tracer("", 1.0, "test", "1") is None
    assert traceparent() is None


def test_the_coin_decides_on_requests_without_a_traceparent(collector: Collector):
    never, always = Tracer(collector.address, 0.0, {}), Tracer(collector.address, 1.0, {})
    assert never.sample(None) is None
    assert never.sample(PARENT.encode()) == TraceContext("4b" * 16, "0a" * 8)
    first, second = always.sample(None), always.sample(PARENT[:-1].encode() + b"0")
    assert first is not None
    assert second is not None
    assert first.trace_id != second.trace_id
    assert first.span_id == ""
    never.close()
    always.close()


def test_spans_are_sent_as_otlp(collector: Collector, tracer: Tracer):
    tracer.query(None, 0.1, "pets", 3)
    tracer.query(PARENT.encode(), 0.25, "pets", 3)
    step = begin("step", TraceContext("4b" * 16, "0a" * 8), {"n": 1.5})
    step.error = "ValueError"
    with traced(step.context):
        assert traceparent() == f"00-{'4b' * 16}-{step.context.span_id}-01"
    tracer.finish(step)
    tracer.close()
    query, step = collector.spans()
    assert (query["traceId"], query["parentSpanId"], query["kind"]) == ("4b" * 16, "0a" * 8, 2)
    took = int(query["endTimeUnixNano"]) - int(query["startTimeUnixNano"])
    assert took >= 0.25e9
    assert query["attributes"] == [
        {"key": "stms.model", "value": {"stringValue": "pets"}},
        {"key": "stms.rows", "value": {"intValue": "3"}},
    ]
    assert step["status"] == {"code": 2, "message": "ValueError"}
    assert step["attributes"] == [{"key": "n", "value": {"doubleValue": 1.5}}]
    assert {"key": "service.name", "value": {"stringValue": "stms"}} in collector.resources[0]


def test_a_collector_that_is_gone_costs_spans_and_one_line(caplog: pytest.LogCaptureFixture):
    tracer = Tracer("http://127.0.0.1:9", 1.0, {})
    for _ in range(3):
        tracer.query(None, 0.0, "pets", 1)
        time.sleep(0.01)
    tracer.close()
    assert caplog.text.count("spans are dropped") == 1


def test_a_unit_has_queue_stages_and_students_with_the_right_parents(collector: Collector, tracer: Tracer):
    fields = {"dataset_id": "ds", "model": "m", "spec": {}, "stage": "", "created_by": "key"}
    fields |= {"progress_done": 0, "progress_total": 1, "created_at": 1000.0, "queued_at": 1001.0}
    job = Job("job_1", state=JobState.RUNNING, attempt=2, traceparent=PARENT, **fields)
    reported: list[Any] = []
    unit = WorkUnit("job_1", 2, PREPARE, 0, 2)
    with unit_trace(tracer, job, unit, "worker-1", is_first=True) as trace:
        report = trace.reporting(reported.append)
        report({"type": "progress", "stage": "teacher"})
        report({"type": "progress", "stage": "tuning"})
        row = {"seconds": 2.0, "objective": 0.5, "gap": 1e-3, "iterations": 7}
        trace.trained([StudentResult((0, "gsvm"), "cat", row, b"packed")])
        trace.trained([StudentResult((1, "gsvm"), "dog", {"code": "solver_died"}, None)])
    with unit_trace(tracer, job, WorkUnit("job_1", 2, 1, 2, 4), "worker-2", is_first=True):
        pass
    untraced = Job("job_2", state=JobState.RUNNING, attempt=0, **fields)
    with unit_trace(tracer, untraced, unit, "worker-1", is_first=True) as trace:
        trace.trained([])
        trace.enter("teacher")
        assert current_trace() is None
    tracer.close()
    assert [event["stage"] for event in reported] == ["teacher", "tuning"]
    spans = collector.spans()
    ids = {span["spanId"]: span for span in spans}
    names = [(span["name"], ids.get(span["parentSpanId"], {}).get("name")) for span in spans]
    assert sorted(names, key=str) == sorted(
        [
            ("queue", None),
            ("teacher", "unit"),
            ("student", "students"),
            ("student", "students"),
            ("students", "unit"),
            ("unit", "queue"),
            ("unit", "queue"),
        ],
        key=str,
    )
    assert {span["traceId"] for span in spans} == {"4b" * 16}
    [queue] = [span for span in spans if span["name"] == "queue"]
    assert (queue["parentSpanId"], queue["startTimeUnixNano"]) == ("0a" * 8, "1001000000000")
    failed = next(span for span in spans if span.get("status"))
    assert failed["status"]["message"] == "solver_died"
