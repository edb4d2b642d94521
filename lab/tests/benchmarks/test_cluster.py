"""The cluster benchmark: its figures, targets and options."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lab.benchmarks.cluster import __main__ as program
from lab.benchmarks.cluster.letter import LetterSize, spent
from tests.system.postgres import NoPostgres


def at(second: float) -> str:
    return f"2026-01-01T00:00:{second:06.3f}Z"


def event(kind: str, second: float, **data: Any) -> dict[str, Any]:
    return {"type": kind, "at": at(second), "data": data}


# Figures and targets


def test_overhead_is_the_time_in_which_no_solver_works():
    job = {"created_at": at(0), "started_at": at(1), "finished_at": at(21)}
    events = [
        event("job_queued", 0),
        event("job_started", 1),
        event(
            "teacher_finished", 7, stage_seconds={"data": 1.0, "features": 1.0, "teacher": 2.5, "scores": 0.5}
        ),
        event("student_finished", 12, seconds=4.0),
        event("student_finished", 20, seconds=8.0),
        event("job_succeeded", 21),
    ]
    found = spent(job, events)
    assert (found["wall"], found["solving"]) == (21.0, 16.0)
    assert found["overhead"] == round(5 / 21, 4)
    parts = ("queued", "preparing_without_solving", "students_without_solving", "finishing")
    assert [found[name] for name in parts] == [1.0, 2.0, 1.0, 1.0]


def test_missed_targets_are_reported_but_not_parts_that_were_not_measured():
    result = {"fanout_speedup": 1.5, "job_overhead": 0.05, "status_p99_ms": None, "query_p99_ratio": 5.5}
    assert list(program.missed(result)) == [
        "fanout_speedup is 1.5; at least 1.6 is wanted",
        "query_p99_ratio is 5.5; at most 5 is wanted",
    ]


def test_parts_are_selected_and_a_failing_one_is_reported(monkeypatch, capsys):
    asked: list[Any] = []

    def measured(size: LetterSize, **which: bool) -> dict[str, Any]:
        asked.append(which)
        return {"job_overhead": 0.01}

    def breaks(_size: object) -> dict[str, Any]:
        raise NoPostgres("initdb is not installed")

    monkeypatch.setattr(program.letter, "measure", measured)
    monkeypatch.setattr(program.many, "measure", breaks)
    assert program.main(["--parts", "overhead,many"]) == 1
    out, err = capsys.readouterr()
    result = json.loads(out.splitlines()[-1])
    assert asked == [{"fanout": False, "overhead": True}]
    assert (result["job_overhead"], result["query_p99_ratio"]) == (0.01, None)
    assert "many could not be measured: initdb is not installed" in err
    with pytest.raises(SystemExit):
        program.main(["--parts", "speed"])
