"""Events of a solver's progress."""

from __future__ import annotations

from app.domain.entities import JobState
from app.domain.event_text import describe_event
from app.jobs.workflow import running_job
from app.jobs.workflow.running_job import ProgressReporter


def test_searches_are_reported_within_the_stage_of_students(service, monkeypatch):
    monkeypatch.setattr(running_job, "_MIN_SECONDS", 0.0)
    monkeypatch.setattr(running_job, "_SHARE_OF_STAGE", 0.0)
    job = service.submit()
    with service.store.begin() as uow:
        uow.jobs.move(job.id, JobState.RUNNING, stage="students")
    report = ProgressReporter(service.store, job.id, 0)
    header = {"type": "progress", "done": 1, "total": 4, "label": "c1", "method": "gsvm", "gap": None}
    for stage in ("tuning", "tuning", "student", "sizes", "compact_rows"):
        report(header | {"stage": stage})
    events = service.events(job, "stage_started", "stage_progress")
    assert [(kind, data["stage"]) for kind, data in events] == [
        ("stage_progress", "tuning"),
        ("stage_progress", "students"),
        ("stage_progress", "tuning"),
        ("stage_progress", "students"),
    ]
    assert events[0][1] == {"stage": "tuning", "done": 1, "total": 4, "label": "c1", "method": "gsvm"}
    assert service.job(job).stage == "students"
    report(header | {"stage": "setting", "expected_seconds": 4.0})
    assert service.events(job, "stage_started") == [
        ("stage_started", {"stage": "setting", "expected_seconds": 4.0})
    ]
    report(header | {"stage": "tuning_teacher"})
    assert service.job(job).stage == "tuning_teacher"
    assert service.events(job, "stage_started")[1:] == [("stage_started", {"stage": "tuning_teacher"})]


def test_a_running_job_warns_while_its_solver_waits_for_the_processor(service):
    job = service.submit()
    report = ProgressReporter(service.store, job.id, 0)
    header = {"type": "progress", "stage": "student"}
    report(header | {"starves": True})
    assert service.job(job).warnings == [], "it does not run"
    with service.store.begin() as uow:
        uow.jobs.move(job.id, JobState.RUNNING, stage="students")
    report(header | {"starves": True})
    assert service.job(job).warnings == [
        {"code": "solver_starves", "message": "The solver waits: other programs use the processor."}
    ]
    report(header | {"starves": False})
    assert service.job(job).warnings == []
    events = service.events(job, "stage_progress")
    assert [describe_event(*event) for event in events] == ["waiting: other programs use the processor", None]
    report(header | {"starves": True})
    with service.store.begin() as uow:
        uow.jobs.move(job.id, JobState.FAILED)
    assert service.job(job).warnings == []


def test_the_start_of_each_stage_of_an_attempt_is_kept(service):
    job = service.submit()
    with service.store.begin() as uow:
        uow.jobs.move(job.id, JobState.RUNNING)
    report = ProgressReporter(service.store, job.id, 0)
    header = {"type": "progress", "done": 0, "total": 1}
    report(header | {"stage": "data"})
    began = service.job(job).provenance["stages"]
    for stage in ("choice", "data"):
        report(header | {"stage": stage})
    stages = service.job(job).provenance["stages"]
    assert set(stages) == {"data", "choice"}
    assert stages["data"] == began["data"] <= stages["choice"], "a stage that comes again continues"
