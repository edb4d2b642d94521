from __future__ import annotations

import json
from typing import Any

SERVER = {
    "id": "srv_1",
    "host": "north",
    "pid": 7,
    "version": "1.0.0",
    "started_at": "2026-01-02T03:04:05Z",
    "beat_at": "2026-01-02T03:04:05Z",
    "alive": True,
    "processes": 2,
    "target_processes": 3,
    "queries": 120.0,
    "rows": 120.0,
    "failed_queries": 4.0,
    "requests": 9.0,
    "errors": 1.0,
    "queries_per_second": 12.34,
    "errors_per_second": 0.0,
    "refused_per_second": 0.51,
    "latency": {"p50": 0.0012, "p95": None, "p99": None},
    "history": [],
}


def test_servers_are_shown_with_their_figures(run, written):
    written.on("GET", "/v1/servers", {"data": [SERVER], "has_more": False})
    shown = run("servers", STMS_URL=written.address)
    assert shown.exit_code == 0, shown.output
    text = " ".join(shown.stdout.split())
    assert "north 7 1.0.0 yes" in text
    assert "2/3 12.3 0.5 1.2" in text
    assert json.loads(run("servers", "--json", STMS_URL=written.address).stdout) == [SERVER]


def test_a_key_is_shown_with_what_it_may_do(run, written):
    found = {"id": "key_1", "name": "camera", "tenant": "acme", "scopes": ["query"], "models": []}
    found |= {"expires_at": None, "server": "north", "version": "1.0.0"}
    written.on("GET", "/v1/whoami", found)
    text = " ".join(run("whoami", STMS_URL=written.address).stdout.split())
    assert "camera (key_1)" in text
    assert "models all" in text
    assert json.loads(run("whoami", "--json", STMS_URL=written.address).stdout) == found


def test_the_curve_of_a_student_is_a_table_of_thresholds(run, written):
    student = {"class_index": 3, "label": "A", "method": "gsvm", "threshold": 0.5}
    points = {"method": "gsvm", "positives": 4, "negatives": 10}
    points |= {"thresholds": [2.0, 0.5, -1.0], "tp": [1, 3, 4], "fp": [0, 1, 6]}
    students = "/v1/training-jobs/job_1/students"
    written.on("GET", students, {"data": [student | {"label": "AB"}, student]})
    written.on("GET", f"{students}/3/gsvm/curve", points)
    shown = run("jobs", "curve", "job_1", "A", STMS_URL=written.address)
    assert shown.exit_code == 0, shown.output
    lines = [" ".join(line.split()) for line in shown.stdout.splitlines()]
    assert "other rows 10" in lines
    assert "0.5 3 1 0.7500 0.1000 0.7500 0.7500" in lines
    assert written.requests[0].path == f"{students}?label=A"
    found = run("jobs", "curve", "job_1", "A", "--json", STMS_URL=written.address)
    assert json.loads(found.stdout) == points
    missing = run("jobs", "curve", "job_1", "B", STMS_URL=written.address)
    assert (missing.exit_code, "no trained student of class 'B'" in missing.stderr) == (1, True)


def test_a_version_is_published_with_other_thresholds(run, written):
    written.on("POST", "/v1/models/pets/versions", {"version": 4}, 201)
    thresholds = ("--threshold", "A=0.25", "--threshold", "b=c=-1e-3")
    shown = run("models", "publish", "pets", *thresholds, "--base", "3", STMS_URL=written.address)
    assert shown.exit_code == 0, shown.output
    assert "version 4 is published" in shown.stdout
    assert written.requests[0].json == {"base": "3", "thresholds": {"A": 0.25, "b=c": -0.001}}
    for text in ("A", "=1", "A=x"):
        refused = run("models", "publish", "pets", "--threshold", text, STMS_URL=written.address)
        assert (refused.exit_code, "CLASS=NUMBER" in refused.stderr) == (1, True)
    assert len(written.requests) == 1


def interval(estimate: float, low: float, high: float) -> dict[str, Any]:
    return {"estimate": estimate, "low": low, "high": high, "method": "wilson", "level": 0.95}


CHOSEN = {
    "label": "A", "threshold": 0.25, "was": -1.0, "positives": 10, "negatives": 90,
    "recall": interval(0.8, 0.49, 0.94), "false_positive_rate": interval(0.03, 0.011, 0.09), "yes_rate": 0.04,
    "precision": 0.05, "cost_per_1000": interval(81.2, 60.0, 101.0), "threshold_range": [0.1, 0.3],
}  # fmt: skip


def test_rules_choose_thresholds(run, written):
    written.on("POST", "/v1/models/pets/versions", {"version": 4}, 201)
    written.on("POST", "/v1/models/pets/thresholds", {"base": 3, "classes": [CHOSEN]})
    rules = (
        "--cost",
        "A=20:1",
        "--share",
        "A=0.2%",
        "--recall",
        "b=c=95%",
        "--max-false-yes",
        "*=0.01",
        "--capacity",
        "c=20:1000",
    )
    options = ("models", "publish", "pets", *rules, "--confidence", "90%")
    shown = run(*options, "--dry-run", STMS_URL=written.address)
    assert shown.exit_code == 0, shown.output
    assert " ".join(shown.stdout.split()) == (
        "Class A: threshold 0.25 in place of -1; recall 80 % (49 to 94), wrong yes 3 % (1.1 to 9) of other"
        " rows, precision 5 %, 1000 queries cost 81.2 (60 to 101)."
    )
    choose = {
        "*": {"max_false_positive_rate": 0.01, "confidence": 0.9},
        "A": {"cost": {"missed_yes": 20.0, "false_yes": 1.0}, "share": 0.002},
        "b=c": {"recall": 0.95, "confidence": 0.9},
        "c": {"capacity": {"yes_per_day": 20, "queries_per_day": 1000.0}},
    }
    assert [request.json for request in written.requests] == [{"base": "latest", "choose": choose}]
    assert run(*options, STMS_URL=written.address).exit_code == 0
    # The version that the thresholds were chosen at, wherever the alias points now.
    assert written.requests[-1].json == {"base": "3", "choose": choose}
    for given, words in (
        (("--cost", "A=20"), "A=20:1"),
        (("--dry-run", "--threshold", "A=1"), "what rules choose"),
        ((), "Give --threshold"),
    ):
        refused = run("models", "publish", "pets", *given, STMS_URL=written.address)
        assert (refused.exit_code, words in refused.stderr) == (1, True)


def test_the_thresholds_of_a_class_are_listed(run, written):
    row = {"version": 4, "threshold": 0.5, "rule": "given", "created_at": "2026-01-01T00:00:00Z"}
    rows = [row | {"created_by": "key_1", "aliases": ["production"]}]
    written.on("GET", "/v1/models/pets/thresholds", {"data": rows, "has_more": False})
    shown = run("models", "thresholds", "pets", "A", STMS_URL=written.address)
    assert (shown.exit_code, "production" in shown.stdout) == (0, True)
    assert written.requests[0].path == "/v1/models/pets/thresholds?class=A"


def test_jobs_are_filtered_and_counted(run, written):
    written.on("GET", "/v1/training-jobs", {"data": []})
    written.on("GET", "/v1/training-jobs/counts", {"counts": {"running": 2, "partially_succeeded": 1}})
    filters = ("--state", "running", "--model", "pets", "--created-by", "key_1", "--since", "1970-01-02")
    assert run("jobs", "list", *filters, STMS_URL=written.address).exit_code == 0
    expected = "?status=running&model=pets&created_by=key_1&since=86400.0"
    assert written.requests[0].path == f"/v1/training-jobs{expected}"
    lines = run("jobs", "counts", STMS_URL=written.address).stdout.splitlines()
    assert [" ".join(line.split()) for line in lines] == ["running 2", "partially succeeded 1"]
    counts = run("jobs", "counts", "--json", STMS_URL=written.address).stdout
    assert json.loads(counts) == {"running": 2, "partially_succeeded": 1}
