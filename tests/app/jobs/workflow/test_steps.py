"""The transactions of a job one by one, on both databases: each may be run again, or come too late."""

from __future__ import annotations

import threading

import pytest

from app.domain.entities import Job, JobState, StudentState
from app.jobs.solver.process import Prepared, StudentResult
from app.jobs.solver.transfer import Parcel
from app.jobs.workflow import steps
from app.jobs.workflow.finish import finish_job
from app.jobs.workflow.work_units import Crew
from app.settings import Settings
from app.store.engine import open_engine
from app.store.unit_of_work import Store
from tests.app.jobs.conftest import Service, open_service

REPORT = {
    "summary": {"objective": 1.0, "relative_gap": 0.1, "iterations": 2, "seconds": 3.0, "status": "stalled"},
    "seconds": {"teacher": 3.0},
    "threads": 2,
    "metrics": [{"class_index": 0, "label": "c0", "metrics": {"f1": 1.0}}],
}
PREPARED = Prepared(REPORT, Parcel(b"preparation"), Parcel(b"teacher"))
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
    step(service, steps.begin_job, job.id, 0, "w")
    return service.job(job)


def move(service: Service, job: Job, *states: JobState) -> None:
    with service.store.begin() as uow:
        for state in states:
            uow.jobs.move(job.id, state)


def student(index: int, packed: bytes | None = b"packed") -> StudentResult:
    row = ROW if packed is not None else {"code": "single_class", "message": "No example."}
    return StudentResult((index, "gsvm"), f"c{index}", row, packed)


def keep(service: Service, job: Job, *results: StudentResult):
    return step(service, steps.keep_students, job.id, 0, list(results))


def plan(service: Service, job: Job, first: int, stop: int):
    pairs = [(index, "gsvm") for index in range(first, stop)]
    return step(service, steps.plan_chunk, job.id, 0, pairs)["todo"]


def test_beginning_twice_is_beginning_once(service):
    job = service.submit()
    for _ in range(2):
        assert step(service, steps.begin_job, job.id, 0, "w") == {}
    assert service.job(job).state is JobState.RUNNING
    assert len(service.events(job, "job_started")) == 1


def test_the_plan_of_a_job_says_whether_it_is_one_chunk(service):
    job = service.submit()
    for crew, most, one_chunk in (
        (Crew(1, 1), 64, True),
        (Crew(1, 1), 4, False),
        (Crew(2, 1), 64, False),
        (Crew(2, 8), 64, True),
    ):
        plan = step(service, steps.plan_job, job.id, 0, crew, most)
        assert plan == {"targets": 6, "one_chunk": one_chunk}


LATE = [
    (steps.plan_job, (Crew(), 4)),
    (steps.cut_job, (Crew(), 4)),
    (steps.take_turn, (0, None)),
    (steps.begin_job, ("w",)),
    (steps.keep_preparation, (PREPARED,)),
    (steps.plan_chunk, ([(0, "gsvm")],)),
    (steps.keep_students, ([StudentResult((0, "gsvm"), "c0", ROW, b"packed")],)),
]


@pytest.mark.parametrize(("function", "arguments"), LATE, ids=lambda value: getattr(value, "__name__", ""))
@pytest.mark.parametrize(
    ("states", "attempt"),
    [
        ((JobState.CANCELLED,), 0),
        ((JobState.RUNNING, JobState.CANCELLING), 0),
        ((JobState.RUNNING, JobState.SUCCEEDED), 0),
        ((JobState.RUNNING,), 1),
        ((JobState.RUNNING, JobState.FAILED, JobState.QUEUED, JobState.RUNNING), -1),
    ],
)
def test_whoever_comes_late_changes_nothing(service, function, arguments, states, attempt):
    job = service.submit()
    move(service, job, *states)
    before = service.job(job), service.events(job)
    with pytest.raises(steps.Refused):
        step(service, function, job.id, attempt, *arguments)
    assert (service.job(job), service.events(job)) == before
    with service.store.read() as uow:
        assert not uow.students.of_job(job.id)
        assert uow.units.count_of_tenant("me") == 0


def test_a_late_step_waits_for_the_one_who_holds_the_job(postgres_address, tmp_path):
    """A retry is being committed while a step of the old attempt comes: it sees the new attempt."""
    store = Store(open_engine(postgres_address))
    service = open_service(store, Settings(data_dir=tmp_path))
    job = running(service)
    refused = threading.Event()

    def late() -> None:
        with pytest.raises(steps.Refused):
            step(service, steps.keep_students, job.id, 0, [student(0)])
        refused.set()

    thread = threading.Thread(target=late)
    with store.begin() as uow:
        uow.jobs.lock(job.id)
        uow.jobs.move(job.id, JobState.FAILED)
        thread.start()
        assert not refused.wait(0.3)
        uow.jobs.move(job.id, JobState.QUEUED, attempt=1)
        uow.jobs.move(job.id, JobState.RUNNING)
    thread.join(20.0)
    assert refused.is_set()
    with store.read() as uow:
        assert not uow.students.of_job(job.id)
    store.dispose()


def test_the_preparation_is_kept_once(service):
    job = running(service)
    digests = step(service, steps.keep_preparation, job.id, 0, PREPARED)
    assert step(service, steps.keep_preparation, job.id, 0, PREPARED) == {}
    assert step(service, steps.keep_preparation, job.id, 0, None) == {}
    now = service.job(job)
    assert (now.preparation_digest, now.teacher_digest) == tuple(digests.values())
    assert now.progress_done == 1
    assert len(service.events(job, "teacher_finished")) == 1
    with service.store.read() as uow:
        assert [row.method for row in uow.students.of_job(job.id)] == ["teacher"]


def test_a_student_is_kept_once(service):
    job = running(service)
    for _ in range(2):
        assert keep(service, job, student(1)) == {"kept": [[1, "gsvm"]]}
    keep(service, job, student(1, None))
    assert keep(service, job) == {"kept": []}
    assert service.job(job).progress_done == 1
    assert [kind for kind, _ in service.events(job, "student_finished", "student_failed")] == [
        "student_finished"
    ]
    with service.store.read() as uow:
        (row,) = uow.students.of_job(job.id)
    assert (row.state, row.threshold, row.error) == (StudentState.SUCCEEDED, 0.5, None)


def test_students_that_end_together_are_kept_together(service):
    job = running(service)
    before = service.job(job)
    keep(service, job, student(3))
    batch = [student(1), student(3), student(2, None), student(0)]
    assert keep(service, job, *batch) == {"kept": [[1, "gsvm"], [3, "gsvm"], [2, "gsvm"], [0, "gsvm"]]}
    told = service.events(job, "student_finished", "student_failed")
    assert [(kind, data["class_index"]) for kind, data in told] == [
        ("student_finished", 3),
        ("student_finished", 1),
        ("student_failed", 2),
        ("student_finished", 0),
    ]
    now = service.job(job)
    assert now.progress_done == 4
    assert now.revision == before.revision + 2, "one change a batch"
    with service.store.read() as uow:
        assert {row.class_index: row.state for row in uow.students.of_job(job.id)} == {
            0: StudentState.SUCCEEDED,
            1: StudentState.SUCCEEDED,
            2: StudentState.FAILED,
            3: StudentState.SUCCEEDED,
        }


def test_a_tuned_student_is_kept_with_its_trace(service):
    job = running(service)
    chosen = {"C": 10.0, "margin": 0.5, "floor": 0.3, "score": 0.9, "standard_error": 0.01, "points": 6}
    metrics = {"accuracy": 1.0, "f1": 1.0, "auc": 1.0, "brier": 0.02, "calibration": "sigmoid"}
    row = ROW | {"chosen": chosen, "metrics": metrics}
    for trace in (b"first", b"second"):
        keep(service, job, StudentResult((1, "gsvm"), "c1", row, b"packed", trace))
    keep(service, job, student(2))
    (tuned,) = service.events(job, "student_tuned")
    assert tuned[1] == {"label": "c1", "class_index": 1, "method": "gsvm"} | chosen
    with service.store.read() as uow:
        assert [row.chosen for row in uow.students.of_job(job.id)] == [chosen, None]
        assert uow.students.trace(job.id, 1, "gsvm") == b"first"
        assert uow.students.trace(job.id, 2, "gsvm") is None
    step(service, steps.keep_preparation, job.id, 0, PREPARED)
    step(service, finish_job, job.id, 0)
    with service.store.read() as uow:
        published = uow.models.of_job(job.id).metrics
    assert published["calibration"] == {"sigmoid": 1}
    assert published["means"]["gsvm"]["brier"] == 0.02
    assert "brier" not in published["means"]["teacher"]


def test_the_pace_of_students_is_measured_from_when_they_began(service):
    job = running(service)
    step(service, steps.keep_preparation, job.id, 0, PREPARED)
    assert service.job(job).provenance["students_since"] is None
    plan(service, job, 0, 4)
    begun = service.job(job).provenance
    assert begun["done_before"] == 1
    assert begun["students_since"] > 0.0
    with service.store.begin() as uow:
        # The solver of another chunk reads the data again, which is a stage too.
        uow.jobs.change(job.id, stage="data")
    plan(service, job, 4, 6)
    assert service.job(job).provenance == begun


def test_a_chunk_holds_what_is_missing_of_its_classes(service):
    job = running(service)
    keep(service, job, student(1))
    keep(service, job, student(5))
    assert plan(service, job, 0, 4) == [[0, "gsvm"], [2, "gsvm"], [3, "gsvm"]]
    assert plan(service, job, 4, 6) == [[4, "gsvm"]]
    assert [data for _, data in service.events(job, "stage_started")] == [{"stage": "students"}]


def test_finished_pairs_are_those_asked_about(service):
    job = running(service)
    keep(service, job, student(1))
    keep(service, job, student(2, None))
    keep(service, job, student(4))
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
    step(service, steps.keep_preparation, job.id, 0, PREPARED)
    keep(service, job, student(0))
    assert step(service, finish_job, job.id, 0) == {"state": "partially_succeeded"}
    with service.store.read() as uow:
        missing = next(row for row in uow.students.of_job(job.id) if row.class_index == 1)
    assert missing.state is StudentState.FAILED
    assert "chunk" in missing.error
    assert service.job(job).version == 1


def test_only_baselines_are_nothing_to_publish(service):
    job = running(service, classes=["c0"], evaluation={"baselines": ["svm"]})
    step(service, steps.keep_preparation, job.id, 0, PREPARED)
    result = StudentResult((0, "svm"), "c0", ROW, b"packed")
    keep(service, job, result)
    keep(service, job, student(0, None))
    assert step(service, finish_job, job.id, 0) == {"state": "failed"}
    assert service.job(job).version is None
