"""The transactions of a job one by one, on both databases: each may be run again, or come too late."""

from __future__ import annotations

import pytest

from app.domain.entities import Job, JobState, StudentState
from app.jobs import steps
from app.jobs.finish import finish_job
from app.jobs.solver_process import Prepared, StudentResult
from app.settings import Settings
from app.store.unit_of_work import Store
from tests.app.jobs.conftest import Service, open_service

REPORT = {
    "summary": {"objective": 1.0, "relative_gap": 0.1, "iterations": 2, "seconds": 3.0, "status": "stalled"},
    "seconds": {"teacher": 3.0},
    "threads": 2,
    "metrics": [{"class_index": 0, "label": "c0", "metrics": {"f1": 1.0}}],
}
PREPARED = Prepared(REPORT, b"preparation", b"teacher")
ROW = {
    "objective": 1.0,
    "gap": 0.0,
    "iterations": 1,
    "seconds": 0.1,
    "status": "converged",
    "threshold": 0.5,
    "metrics": {},
}


@pytest.fixture
def service(store: Store, tmp_path) -> Service:
    return open_service(store, Settings(data_dir=tmp_path))


def step(service: Service, function, *arguments):
    with service.store.begin() as uow:
        return function(uow, *arguments)


def running(service: Service, **spec) -> Job:
    job = service.submit(**spec)
    step(service, steps.begin_job, job.id, 0, 4, "w")
    return service.job(job)


def move(service: Service, job: Job, *states: JobState) -> None:
    with service.store.begin() as uow:
        for state in states:
            uow.jobs.move(job.id, state)


def student(index: int, packed: bytes | None = b"packed") -> StudentResult:
    row = ROW if packed is not None else {"code": "single_class", "message": "No example."}
    return StudentResult((index, "gsvm"), f"c{index}", row, packed)


def test_beginning_twice_is_beginning_once(service):
    job = service.submit()
    plan = step(service, steps.begin_job, job.id, 0, 4, "w")
    assert plan == {"run": True, "chunk_size": 4, "chunks": 2}
    assert step(service, steps.begin_job, job.id, 0, 4, "w") == plan
    assert len(service.events(job, "job_started")) == 1


@pytest.mark.parametrize("states", [(JobState.CANCELLED,), (JobState.RUNNING, JobState.CANCELLING)])
def test_a_job_that_is_not_wanted_does_not_begin(service, states):
    job = service.submit()
    move(service, job, *states)
    assert step(service, steps.begin_job, job.id, 0, 4, "w") == {"run": False}


def test_an_old_attempt_does_not_begin(service):
    job = service.submit()
    assert step(service, steps.begin_job, job.id, 1, 4, "w") == {"run": False}


def test_the_preparation_is_kept_once(service):
    job = running(service)
    digests = step(service, steps.keep_preparation, job.id, PREPARED)
    assert step(service, steps.keep_preparation, job.id, PREPARED) == {}
    assert step(service, steps.keep_preparation, job.id, None) == {}
    now = service.job(job)
    assert (now.preparation_digest, now.teacher_digest) == tuple(digests.values())
    assert now.progress_done == 1
    assert len(service.events(job, "teacher_finished")) == 1
    with service.store.read() as uow:
        assert [row.method for row in uow.students.of_job(job.id)] == ["teacher"]


def test_a_student_is_kept_once(service):
    job = running(service)
    for _ in range(2):
        step(service, steps.keep_student, job.id, student(1))
    step(service, steps.keep_student, job.id, student(1, None))
    step(service, steps.keep_student, job.id, None)
    assert service.job(job).progress_done == 1
    assert [kind for kind, _ in service.events(job, "student_finished", "student_failed")] == [
        "student_finished"
    ]
    with service.store.read() as uow:
        (row,) = uow.students.of_job(job.id)
    assert (row.state, row.threshold, row.error) == (StudentState.SUCCEEDED, 0.5, None)


def test_a_tuned_student_is_kept_with_its_trace(service):
    job = running(service)
    chosen = {"C": 10.0, "margin": 0.5, "floor": 0.3, "score": 0.9, "standard_error": 0.01, "points": 6}
    metrics = {"accuracy": 1.0, "f1": 1.0, "auc": 1.0, "brier": 0.02, "calibration": "sigmoid"}
    row = ROW | {"chosen": chosen, "metrics": metrics}
    for trace in (b"first", b"second"):
        step(service, steps.keep_student, job.id, StudentResult((1, "gsvm"), "c1", row, b"packed", trace))
    step(service, steps.keep_student, job.id, student(2))
    (tuned,) = service.events(job, "student_tuned")
    assert tuned[1] == {"label": "c1", "class_index": 1, "method": "gsvm"} | chosen
    with service.store.read() as uow:
        assert [row.chosen for row in uow.students.of_job(job.id)] == [chosen, None]
        assert uow.students.trace(job.id, 1, "gsvm") == b"first"
        assert uow.students.trace(job.id, 2, "gsvm") is None
    step(service, steps.keep_preparation, job.id, PREPARED)
    step(service, finish_job, job.id, 0)
    with service.store.read() as uow:
        published = uow.models.of_job(job.id).metrics
    assert published["calibration"] == {"sigmoid": 1}
    assert published["means"]["gsvm"]["brier"] == 0.02
    assert "brier" not in published["means"]["teacher"]


def test_the_pace_of_students_is_measured_from_when_they_began(service):
    job = running(service)
    step(service, steps.keep_preparation, job.id, PREPARED)
    assert service.job(job).provenance["students_since"] is None
    step(service, steps.plan_chunk, job.id, 0, 4)
    begun = service.job(job).provenance
    assert begun["done_before"] == 1
    assert begun["students_since"] > 0.0
    with service.store.begin() as uow:
        # The solver of another chunk reads the data again, which is a stage too.
        uow.jobs.change(job.id, stage="data")
    step(service, steps.plan_chunk, job.id, 1, 4)
    assert service.job(job).provenance == begun


def test_a_chunk_holds_what_is_missing_of_its_classes(service):
    job = running(service)
    step(service, steps.keep_student, job.id, student(1))
    step(service, steps.keep_student, job.id, student(5))
    assert step(service, steps.plan_chunk, job.id, 0, 4) == [[0, "gsvm"], [2, "gsvm"], [3, "gsvm"]]
    assert step(service, steps.plan_chunk, job.id, 1, 4) == [[4, "gsvm"]]
    assert [data for _, data in service.events(job, "stage_started")] == [{"stage": "students"}]


def test_finished_pairs_are_those_asked_about(service):
    job = running(service)
    step(service, steps.keep_student, job.id, student(1))
    step(service, steps.keep_student, job.id, student(2, None))
    step(service, steps.keep_student, job.id, student(4))
    with service.store.read() as uow:
        asked = [(0, "gsvm"), (1, "gsvm"), (1, "svm"), (2, "gsvm"), (3, "gsvm")]
        assert steps.finished_pairs(uow, job.id, asked) == {(1, "gsvm"), (2, "gsvm")}
        assert steps.finished_pairs(uow, job.id, []) == set()


def test_failing_ends_a_job_once(service):
    job = running(service)
    assert step(service, steps.fail_job, job.id, 1, "late", "Late.") == {"state": "running"}
    assert step(service, steps.fail_job, job.id, 0, "x", "Why.") == {"state": "failed"}
    assert step(service, steps.fail_job, job.id, 0, "y", "Again.") == {"state": "failed"}
    assert service.job(job).error_code == "x"
    assert len(service.events(job, "job_failed")) == 1


@pytest.mark.parametrize(
    "last", [lambda *a: steps.fail_job(*a, "x", "y"), finish_job, steps.settle_cancelled]
)
def test_a_job_that_is_to_be_cancelled_ends_cancelled_whatever_comes(service, last):
    job = running(service)
    move(service, job, JobState.CANCELLING)
    assert step(service, last, job.id, 0) == {"state": "cancelled"}
    assert step(service, last, job.id, 0) == {"state": "cancelled"}
    assert len(service.events(job, "job_cancelled")) == 1


def test_an_old_attempt_finishes_nothing(service):
    job = running(service)
    assert step(service, finish_job, job.id, 1) == {"state": "running"}
    assert step(service, steps.settle_cancelled, job.id, 0) == {"state": "running"}


def test_students_that_nobody_trained_are_told(service):
    job = running(service, classes=["c0", "c1"])
    step(service, steps.keep_preparation, job.id, PREPARED)
    step(service, steps.keep_student, job.id, student(0))
    assert step(service, finish_job, job.id, 0) == {"state": "partially_succeeded"}
    with service.store.read() as uow:
        missing = next(row for row in uow.students.of_job(job.id) if row.class_index == 1)
    assert missing.state is StudentState.FAILED
    assert "chunk" in missing.error
    assert service.job(job).version == 1


def test_only_baselines_are_nothing_to_publish(service):
    job = running(service, classes=["c0"], evaluation={"baselines": ["svm"]})
    step(service, steps.keep_preparation, job.id, PREPARED)
    result = StudentResult((0, "svm"), "c0", ROW, b"packed")
    step(service, steps.keep_student, job.id, result)
    step(service, steps.keep_student, job.id, student(0, None))
    assert step(service, finish_job, job.id, 0) == {"state": "failed"}
    assert service.job(job).version is None
