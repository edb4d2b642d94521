"""Metrics of one process and of several, as Prometheus reads them."""

from __future__ import annotations

import subprocess
import sys
import threading
from importlib import metadata
from itertools import pairwise

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics_families
from prometheus_client.parser import text_string_to_metric_families

from app.domain.figures import (
    JOB_ERRORS,
    JOB_EVENTS,
    JOB_SECONDS_BUCKET,
    JOB_SECONDS_SUM,
    WEBHOOK_ATTEMPTS,
    DatabaseFigures,
    bucket_label,
)
from app.processes import metrics as module
from app.processes.database_metrics import DatabaseMetrics
from app.processes.exposition import BUCKETS
from app.processes.metrics import ERROR_CODES, MAX_MODELS, MAX_ROUTES, OVERFLOW_LABEL, Metrics
from app.processes.scoreboard import Scoreboard, State

COUNTING = """
import sys
from app.processes.scoreboard import Scoreboard, State
from app.processes.metrics import Metrics
scoreboard = Scoreboard.inherited(int(sys.argv[1]))
slot = scoreboard.slots[int(sys.argv[2])]
slot.claim(State.SERVING)
metrics = Metrics(scoreboard, slot)
metrics.add_gauge("stms_queries_in_flight", "Queries in progress.", lambda: 3)
metrics.add_counter("stms_cache_hits", "Hits.", lambda: 10)
for _ in range(1000):
    metrics.answered("pets", 2, 0.004)
metrics.refused("cars", 429)
metrics.publish()
if sys.argv[3] == "leave":
    slot.release()
"""


def samples(metrics: Metrics) -> dict[str, float]:
    """Every sample by name and labels, parsed as a Prometheus server does."""
    values = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            values[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return values


def test_both_formats_say_the_same():
    metrics = Metrics()
    metrics.answered("pets", 5, 0.002)
    metrics.responded("GET", "/livez", 200, 0.001)
    metrics.refused("pets", 429)
    metrics.publish()
    text = metrics.render(open_metrics=True).decode()
    assert text.endswith("\n# EOF\n")
    assert text.count("# EOF") == 1
    families = list(open_metrics_families(text))
    assert {"stms_queries", "stms_requests", "stms_query_seconds"} <= {family.name for family in families}
    values = {(one.name, *sorted(one.labels.items())): one.value for part in families for one in part.samples}
    others = text_string_to_metric_families(metrics.render().decode())
    expected = {(one.name, *sorted(one.labels.items())): one.value for part in others for one in part.samples}
    assert values.keys() == expected.keys()
    steady = {key for key in values if key[0].startswith(("stms_queries", "stms_requests", "stms_query"))}
    assert {key: values[key] for key in steady} == {key: expected[key] for key in steady}


def test_all_counters_and_gauges_are_rendered():
    metrics = Metrics()
    metrics.answered("pets", 1, 0.00004)
    metrics.answered("pets", 5, 0.002)
    metrics.answered("pets", 1, 60.0)
    metrics.refused("pets", 400)
    metrics.refused("", 404)
    metrics.refused("", 418)
    metrics.predicted("pets")
    metrics.add_gauge("stms_loaded", "Loaded.", lambda: 7)
    metrics.responded("GET", "/v1/jobs/{id}", 200, 0.002)
    metrics.responded("GET", "/v1/jobs/{id}", 404, 0.2)
    metrics.failed("cache_full")
    metrics.failed("not_found")
    shown = samples(metrics)
    assert shown["stms_queries_total{model=pets,status=200}"] == 3
    assert shown["stms_queries_total{model=pets,status=400}"] == 1
    assert shown["stms_queries_total{model=,status=404}"] == 1
    assert shown["stms_queries_total{model=,status=other}"] == 1
    assert shown["stms_query_rows_total{model=pets}"] == 7
    assert shown["stms_predictions_total{model=pets}"] == 1
    assert shown["stms_query_seconds_count{model=pets}"] == 3
    assert shown["stms_query_seconds_sum{model=pets}"] == pytest.approx(60.00204)
    assert shown["stms_query_seconds_bucket{le=5e-05,model=pets}"] == 1
    assert shown["stms_query_seconds_bucket{le=0.002,model=pets}"] == 2
    assert shown["stms_query_seconds_bucket{le=10.0,model=pets}"] == 2
    assert shown["stms_query_seconds_bucket{le=+Inf,model=pets}"] == 3
    assert shown["stms_loaded"] == 7
    route = "method=GET,route=/v1/jobs/{id}"
    assert shown[f"stms_requests_total{{{route},status=200}}"] == 1
    assert shown[f"stms_requests_total{{{route},status=404}}"] == 1
    assert shown[f"stms_request_seconds_bucket{{le=0.002,{route}}}"] == 1
    assert shown[f"stms_request_seconds_count{{{route}}}"] == 2
    assert shown[f"stms_request_seconds_sum{{{route}}}"] == pytest.approx(0.202)
    assert "GET /v1/jobs/{id}" not in metrics.counts()
    assert shown["stms_errors_total{reason=cache_full}"] == 1
    assert not any("not_found" in name for name in shown)
    assert shown[f"stms_build_info{{version={metadata.version('stms')}}}"] == 1
    assert shown["stms_processes"] == 1
    assert shown["process_cpu_seconds_total"] > 0
    assert shown["process_resident_memory_bytes"] > 1e6
    assert shown["process_open_fds"] > 2


def test_buckets_begin_at_50_microseconds_and_end_at_10_seconds():
    assert BUCKETS[0] == 50e-6
    assert BUCKETS[-1] == 10.0
    assert list(BUCKETS) == sorted(BUCKETS)
    assert all(high <= 2.6 * low for low, high in pairwise(BUCKETS))


def test_counts_are_summed_over_processes_and_outlive_them():
    scoreboard = Scoreboard.shared(3)
    scoreboard.target_size = 2

    def count(slot: int, end: str) -> None:
        command = [sys.executable, "-c", COUNTING, str(scoreboard.file), str(slot), end]
        subprocess.run(command, pass_fds=[scoreboard.file], check=True)

    scoreboard.slots[0].claim(State.SERVING)
    ours = Metrics(scoreboard, scoreboard.slots[0])
    ours.add_gauge("stms_queries_in_flight", "Queries in progress.", lambda: 1)
    ours.add_counter("stms_cache_hits", "Hits.", lambda: 2)
    ours.answered("pets", 1, 0.1)
    count(1, "stay")
    count(2, "leave")
    shown = samples(ours)
    assert shown["stms_queries_total{model=pets,status=200}"] == 2001
    assert shown["stms_query_rows_total{model=pets}"] == 4001
    assert shown["stms_query_seconds_count{model=pets}"] == 2001
    assert shown["stms_queries_total{model=cars,status=429}"] == 2
    assert shown["stms_queries_in_flight"] == 4, "a process that has ended has no queries in progress"
    assert shown["stms_cache_hits_total"] == 22
    assert shown["stms_processes"] == 2
    assert ours.processes() == module.ProcessCounts(2, 2, False)

    cpu = shown["process_cpu_seconds_total"]
    count(2, "leave")
    scoreboard.crash_count = 1
    shown = samples(ours)
    assert shown["stms_query_seconds_count{model=pets}"] == 3001, (
        "the successor continues from the values of the slot"
    )
    assert shown["stms_cache_hits_total"] == 32
    assert shown["process_cpu_seconds_total"] > cpu
    assert shown["stms_process_deaths_total"] == 1
    scoreboard.slots[0].state = State.DRAINING
    assert ours.processes() == module.ProcessCounts(1, 2, True)
    scoreboard.close()


def test_concurrent_threads_lose_no_count():
    metrics = Metrics()

    def count() -> None:
        for _ in range(20_000):
            metrics.answered("pets", 1, 0.001)
            metrics.refused("pets", 429)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(before)
    counted = metrics.counts()["pets"]
    assert counted.statuses == {"200": 80_000, "429": 80_000}
    assert counted.rows == sum(counted.buckets) == 80_000


def test_the_number_of_model_labels_is_bounded():
    metrics = Metrics()
    for number in range(MAX_MODELS + 50):
        metrics.answered(f"model-{number}", 1, 0.001)
    metrics.answered("m" * 100, 1, 0.001)
    counted = metrics.counts()
    assert len(counted) == MAX_MODELS
    assert counted[OVERFLOW_LABEL].statuses["200"] == 53
    assert sum(of.rows for of in counted.values()) == MAX_MODELS + 51


def test_the_longest_name_of_a_model_is_a_label():
    metrics = Metrics()
    metrics.answered("m" * 100, 1, 0.001)
    assert metrics.counts()["m" * 100].rows == 1
    metrics.answered("m" * 208, 1, 0.001)
    assert metrics.counts()[OVERFLOW_LABEL].rows == 1


def test_the_number_of_registered_values_is_bounded():
    metrics = Metrics()
    # Four are taken by the process itself.
    for number in range(124 - len(ERROR_CODES)):
        metrics.add_gauge(f"value_{number}", "", float)
    with pytest.raises(ValueError, match="At most 128"):
        metrics.add_gauge("one_more", "", float)


def test_the_number_of_routes_is_bounded():
    metrics = Metrics()
    for number in range(MAX_ROUTES + 50):
        metrics.responded("GET", f"/{number}", 200, 0.001)
    counted = metrics.route_counts()
    assert len(counted) == MAX_ROUTES
    assert counted[OVERFLOW_LABEL, OVERFLOW_LABEL].statuses["200"] == 51
    for number in range(MAX_MODELS):
        metrics.answered(f"model-{number}", 1, 0.001)
    assert len(metrics.counts()) == MAX_MODELS, "routes take no place of models"


def test_the_figures_of_the_database_are_rendered():
    figures = DatabaseFigures(
        {"queued": 2},
        12.5,
        {"waiting": 7, "running": 1},
        3,
        9,
        {"alive": 2, "silent": 1},
        4,
        1,
        {
            (JOB_SECONDS_SUM, "failed"): 70.0,
            (JOB_SECONDS_BUCKET, bucket_label("failed", 70.0)): 1.0,
            (JOB_ERRORS, "solver_died"): 1.0,
            (JOB_EVENTS, "solver_died"): 2.0,
            (WEBHOOK_ATTEMPTS, "dead"): 3.0,
        },
        deliveries=7,
        late_seconds=2.5,
    )
    metrics = Metrics()
    metrics.add_collector(DatabaseMetrics(lambda: ({"schema": False}, figures)))
    shown = samples(metrics)
    assert shown["stms_database_up"] == 1
    assert shown["stms_check_ok{check=schema}"] == 0
    assert shown["stms_jobs{state=queued}"] == 2
    assert shown["stms_jobs_oldest_queued_seconds"] == 12.5
    assert (shown["stms_units{state=waiting}"], shown["stms_units{state=running}"]) == (7, 1)
    assert shown["stms_unfinished_students{state=total}"] == 9
    assert shown["stms_workers{state=silent}"] == 1
    assert (shown["stms_worker_slots"], shown["stms_worker_slots_busy"]) == (4, 1)
    assert shown["stms_job_seconds_bucket{le=60.0,outcome=failed}"] == 0
    assert shown["stms_job_seconds_bucket{le=120.0,outcome=failed}"] == 1
    assert shown["stms_job_seconds_count{outcome=failed}"] == 1
    assert shown["stms_job_seconds_sum{outcome=failed}"] == 70
    assert shown["stms_job_errors_total{code=solver_died}"] == 1
    assert shown["stms_job_events_total{type=solver_died}"] == 2
    assert shown["stms_webhook_attempts_total{outcome=dead}"] == 3
    assert shown["stms_webhook_attempts_total{outcome=delivered}"] == 0
    assert shown["stms_worker_failures_total{part=webhook requests}"] == 0
    assert (shown["stms_webhook_deliveries_waiting"], shown["stms_webhook_late_seconds"]) == (7, 2.5)
    assert shown["stms_job_events_total{type=job_restarted}"] == 0, (
        "a counter that appears late hides its start"
    )


def test_an_unreachable_database_shows_no_jobs():
    metrics = Metrics()
    metrics.add_collector(DatabaseMetrics(lambda: ({"database": False}, None)))
    shown = samples(metrics)
    assert shown["stms_database_up"] == 0
    assert shown["stms_check_ok{check=database}"] == 0
    assert not any(name.startswith("stms_jobs") for name in shown)


def test_slots_of_another_layout_are_left_out():
    scoreboard = Scoreboard.shared(2)
    ours, theirs = (Metrics(scoreboard, slot) for slot in scoreboard.slots)
    for metrics in (ours, theirs):
        metrics.answered("pets", 1, 0.001)
    assert ours.counts()["pets"].rows == 2
    scoreboard.slots[1].reset_layout(1.0)
    assert ours.counts()["pets"].rows == 1
    assert Metrics(scoreboard, scoreboard.slots[1]).counts()["pets"].rows == 1
    scoreboard.close()


def test_label_values_are_escaped():
    metrics = Metrics()
    metrics.answered('a"b\\c\nd', 1, 0.001)
    assert samples(metrics)['stms_query_rows_total{model=a"b\\c\nd}'] == 1
