"""Following a job whose server answers what the test wrote down."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest
from rich.console import Console
from rich.progress import Progress

from app.commands import job_progress
from app.commands.job_progress import describe_event, follow, report_end
from app.commands.output import CommandFailed
from app.commands.remote import ServerProblem, connect

JOB = "/v1/training-jobs/j1"


def job(state: str, done: int = 0, **more):
    return {
        "id": "j1",
        "model": "m",
        "state": state,
        "stage": "students",
        "progress": {"done": done, "total": 4, "share": done / 4},
        "warnings": [],
    } | more


def stream(*events: tuple[int, str]) -> bytes:
    return "".join(
        f'id: {number}\nevent: {kind}\ndata: {{"stage": "teacher"}}\n\n' for number, kind in events
    ).encode()


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr(job_progress, "_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(job_progress, "_POLL_SECONDS", 0.0)


def test_a_stream_that_ends_early_is_taken_up_again_where_it_was(written, capfd):
    written.on("GET", f"{JOB}/events", stream((1, "job_queued"), (2, "stage_started")))
    written.on("GET", f"{JOB}/events", {"detail": "busy"}, 503)
    written.on("GET", f"{JOB}/events", stream((3, "job_succeeded")))
    written.on("GET", JOB, job("running", 2))
    written.on("GET", JOB, job("succeeded", 4))
    with connect(written.address, None) as server:
        assert follow(server, "j1")["state"] == "succeeded"
    asked = [request for request in written.requests if request.path.endswith("/events")]
    assert [request.headers.get("Last-Event-ID") for request in asked] == [None, "2", "2"]
    assert "stage teacher" in capfd.readouterr().err


@pytest.fixture
def updates(monkeypatch):
    """What the bar of a terminal is changed to, in order."""
    shown = []
    update = Progress.update
    monkeypatch.setattr(
        Progress, "update", lambda self, task, **what: (shown.append(what), update(self, task, **what))
    )
    monkeypatch.setattr(job_progress, "error_console", lambda: Console(force_terminal=True))
    return shown


def test_the_bar_of_a_terminal_moves_between_events(written, updates, monkeypatch):
    """Its own requests move it: the stream of events may be silent for minutes."""
    written.on("GET", JOB, {"detail": "busy"}, 400)
    written.on("GET", JOB, job("queued"))
    written.on("GET", JOB, job("running", 1, estimated_finish="2026-11-21T11:00:00Z"))
    starving = {"code": "solver_starves", "message": "The solver waits."}
    written.on("GET", JOB, job("running", 2, warnings=[{"code": "schema_change"}, starving]))
    written.on("GET", JOB, job("succeeded", 4))

    def silent(*_arguments: object, **_options: object) -> Iterator[object]:
        while len(updates) < 4:
            time.sleep(0.01)
        yield from ()

    with connect(written.address, None) as server:
        monkeypatch.setattr(type(server), "follow_job", silent, raising=False)
        assert follow(server, "j1")["state"] == "succeeded"
    assert [(shown["description"], shown["completed"]) for shown in updates[:3]] == [
        ("queued", 0.0),
        ("training a small yes/no model for each class", 0.25),
        ("waiting: other programs use the processor", 0.5),
    ]
    assert re.match(r"finish about \d\d:\d\d:\d\d$", updates[1]["finish"])
    assert updates[2]["finish"] == ""


def test_a_refusal_ends_the_following(written):
    written.on("GET", f"{JOB}/events", {"detail": "There is no job j1.", "code": "job_not_found"}, 404)
    with connect(written.address, None) as server, pytest.raises(ServerProblem, match="There is no job"):
        follow(server, "j1")


def test_patience_with_a_lost_server_ends(written, monkeypatch):
    monkeypatch.setattr(job_progress, "_RECONNECT_SECONDS", 0.05)
    written.on("GET", f"{JOB}/events", {"detail": "busy"}, 503)
    with connect(written.address, None) as server, pytest.raises(CommandFailed, match="busy"):
        follow(server, "j1")


def test_quiet_following_prints_no_events(written, capfd):
    written.on("GET", f"{JOB}/events", stream((1, "stage_started")))
    written.on("GET", JOB, job("succeeded", 4))
    with connect(written.address, None) as server:
        follow(server, "j1", quiet=True)
    assert "stage teacher" not in capfd.readouterr().err


@pytest.mark.parametrize("state", ["failed", "cancelled", "partially_succeeded"])
def test_a_job_that_did_not_succeed_is_a_failure_with_its_reason(state):
    ended = job(state, error={"code": "x", "message": "The disk is full."})
    with pytest.raises(CommandFailed, match=f"{state.replace('_', ' ')}: The disk is full.$") as caught:
        report_end(ended)
    assert "stms jobs retry j1" in caught.value.details[1]


def test_success_is_told_unless_it_shall_be_quiet(capsys):
    report_end(job("succeeded", version=3))
    report_end(job("succeeded", version=None))
    report_end(job("succeeded", version=None, provenance={"features": {"reason": "Trees are best."}}))
    report_end(job("succeeded"), quiet=True)
    assert capsys.readouterr().out.splitlines() == [
        "Job j1 succeeded, version 3 of model m is published.",
        "Job j1 succeeded.",
        "Job j1 succeeded.",
        "Trees are best.",
    ]


def test_warnings_are_printed_even_of_a_quiet_job(capsys):
    warning = {"code": "student_worse_than_teacher", "label": "b", "message": "It has F 0.0 %."}
    change = {"code": "schema_change", "message": "Column 'Id' is not used."}
    report_end(job("succeeded", warnings=[change, warning]), quiet=True)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "Warning: Column 'Id' is not used.\nWarning, class b: It has F 0.0 %.\n"


@pytest.mark.parametrize(
    ("kind", "data", "line"),
    [
        ("student_warning", {"label": "b", "message": "No."}, "warning, class b: No."),
        (
            "student_replaced",
            {"label": "b", "replaced": "gsvm", "student_f1": 0.9, "teacher_f1": 0.91},
            (
                "student of class b: gsvm was clearly worse than its teacher on held-out rows; one with"
                " several rejections takes its place, with F 0.9000 (teacher 0.9100)"
            ),
        ),
        ("stage_progress", {}, None),
        ("stage_started", {"stage": "teacher"}, "stage teacher: training the model of all classes"),
        ("stage_started", {"stage": "odd"}, "stage odd"),
        (
            "teacher_finished",
            {"objective": 1.5, "gap": 1e-4, "iterations": 7, "seconds": 0.25},
            "teacher finished: objective 1.5, gap 0.0001, 7 iterations, 0.25 s",
        ),
        (
            "teacher_finished",
            {"gap": 1e-4, "features": {"kind": "kernel", "gamma": 0.25, "reason": "The best of 17 maps."}},
            (
                "teacher finished: objective –, gap 0.0001, – iterations, – s;"
                " features: kind kernel, gamma 0.25"
            ),
        ),
        (
            "stage_started",
            {"stage": "setting", "expected_seconds": 12.3},
            "stage setting: searching hyper-parameters, about 12 s",
        ),
        (
            "setting_chosen",
            {"tried": 54, "teacher_C": 200.0, "students": {"gsvm": {"C": 30.0, "margin": 1.0}}},
            "setting chosen, the best of 54 candidates: teacher C 200; gsvm: C 30 margin 1",
        ),
        (
            "student_finished",
            {"method": "automatic", "label": "a", "f1": 0.5, "objective": 0, "iterations": 0, "seconds": 0.5},
            "student automatic of class a: 0.5 s, F 0.5000",
        ),
        (
            "student_failed",
            {"method": "gsvm", "label": "a", "message": "no memory"},
            "student gsvm of class a failed: no memory",
        ),
        (
            "student_tuned",
            {
                "method": "gsvm",
                "label": "a",
                "C": 10.0,
                "margin": 1.0,
                "floor": 1.0,
                "score": 0.5,
                "points": 6,
            },
            "student gsvm of class a is tuned: C 10 margin 1 floor 1, score 0.5000, the best of 6 points",
        ),
        (
            "student_tuned",
            {"method": "compact", "label": "a", "n_landmarks": 25, "score": 0.5, "points": 2},
            "student compact of class a is tuned: 25 landmarks, score 0.5000, the best of 2 points",
        ),
        ("version_published", {"model": "m", "version": 2, "alias": None}, "published m version 2"),
        (
            "alias_not_moved",
            {"alias": "latest", "version": 4},
            "alias latest points to version 4: it was changed by hand after the job was submitted",
        ),
        (
            "alias_not_moved",
            {"alias": "latest", "version": None},
            "alias latest was deleted: it was changed by hand after the job was submitted",
        ),
        (
            "test_rows_in_training",
            {"rows": 3},
            "3 test rows stand in the training part, too: results on them are too good",
        ),
        ("job_failed", {"message": "no"}, "job failed: no"),
        ("worker_took_over", {}, "worker took over"),
    ],
)
def test_every_event_is_one_line(kind, data, line):
    assert describe_event(kind, data) == line


def test_a_log_has_a_line_a_minute_with_the_time_and_what_is_done(written, monkeypatch, capfd):
    monkeypatch.setattr(job_progress, "_LINE_SECONDS", 0.05)
    written.on("GET", f"{JOB}/events", stream((1, "stage_started")))
    written.on("GET", f"{JOB}/events", stream((2, "job_succeeded")))
    for _ in range(2):  # for the bar, and after the first stream
        written.on("GET", JOB, job("running", 1))
    written.on("GET", JOB, job("succeeded", 4))
    monkeypatch.setattr(job_progress, "_PAUSE_SECONDS", 0.5)
    with connect(written.address, None) as server:
        follow(server, "j1")
    lines = capfd.readouterr().err.splitlines()
    assert any(re.fullmatch(r"[0-9.]+ m?s: training the model of all classes", line) for line in lines)
