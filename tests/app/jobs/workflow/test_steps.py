"""Each step of a job on both databases: run twice, and run too late."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from app.api.schemas import JobView
from app.domain.entities import Job, JobState, StudentState
from app.jobs.engine.config import JOB_QUEUE, TRAIN_MODEL, TRAIN_UNIT, UNIT_QUEUE
from app.jobs.engine.step_runner import Step
from app.jobs.errors import JobStopped
from app.jobs.solver.messages import PreparationResult, StudentResult
from app.jobs.solver.transfer import Transfer
from app.jobs.workflow import finish as finish_module
from app.jobs.workflow import steps
from app.jobs.workflow.finish import finish_job, total_students
from app.jobs.workflow.running_job import CancellationCheck, JobPlans
from app.jobs.workflow.work_units import Capacity
from app.services.training import retry_job
from app.settings import Settings
from app.store.engine import open_engine
from app.store.repositories.students import Students
from app.store.unit_of_work import Store
from tests.app.jobs.conftest import Service, open_service

REPORT = {
    "summary": {"objective": 1.0, "relative_gap": 0.1, "iterations": 2, "seconds": 3.0, "status": "stalled"},
    "seconds": {"teacher": 3.0},
    "threads": 2,
    "features": {"kind": "linear"},
    "metrics": [{"class_index": 0, "label": "c0", "metrics": {"f1": 1.0}}],
}
PREPARED = PreparationResult(REPORT, Transfer(b"preparation"), Transfer(b"teacher"))
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


def test_a_map_that_students_name_is_stored_and_counted_once(service):
    job = running(service)
    step(service, steps.store_preparation, job.id, 0, PREPARED)
    for index in range(3):
        packed = b"student %d" % index
        store_students(service, job, replace(student(index, packed), map=b"the map of all"))
    store_students(service, job, replace(student(3, b"student 3"), map=b"another"), student(4, b"student 4"))
    assert service.job(job).student_bytes == 5 * len(b"student 0") + len(b"the map of all") + len(b"another")
    with service.store.read() as uow:
        rows = uow.students.of_job(job.id, method="gsvm")
        assert [uow.blobs.read(row.map_digest) for row in rows if row.map_digest] == [
            *[b"the map of all"] * 3,
            b"another",
        ]
        digests = uow.retention.blobs_of_job(job.id, 100)
    assert {row.digest for row in rows} | {row.map_digest for row in rows} - {None} < digests


def finish(service: Service, job: Job, attempt: int = 0):
    """What a coordinator does at the end of a job, without DBOS."""
    key = (job.id, attempt)
    plan = JobPlans(service.store).of_job(job.id)
    check = CancellationCheck(service.store, threading.Event(), *key)
    totals = total_students(service.store, check, key, plan)
    return step(service, finish_job, *key, plan, totals, None)


def store_students(service: Service, job: Job, *results: StudentResult):
    return step(service, steps.store_students, job.id, 0, list(results))


def plan(service: Service, job: Job, first: int, stop: int):
    pairs = [(index, "gsvm") for index in range(first, stop)]
    return step(service, steps.plan_chunk, job.id, 0, pairs)["todo"]


def test_names_that_dbos_has_stored_do_not_change():
    """Unfinished jobs of every earlier release are resumed by these names."""
    functions = vars(steps) | vars(finish_module)
    names = {value.name for value in functions.values() if isinstance(value, Step)}
    assert names == {
        "plan_job",
        "cut_job",
        "take_turn",
        "begin_job",
        "keep_labels",
        "keep_preparation",
        "plan_chunk",
        "keep_students",
        "keep_addition",
        "finish_addition",
        "finish_job",
        "fail_job",
    }
    stored = (JOB_QUEUE, UNIT_QUEUE, TRAIN_MODEL, TRAIN_UNIT)
    assert stored == ("stms-jobs", "stms-units", "train_model", "train_unit")


def test_a_job_begins_once(service):
    job = service.submit()
    for _ in range(2):
        assert step(service, steps.begin_job, job.id, 0, "w") == {}
    assert service.job(job).state is JobState.RUNNING
    assert len(service.events(job, "job_started")) == 1


def test_the_plan_contains_whether_the_job_is_one_chunk(service):
    job = service.submit()
    for capacity, max_classes, one_chunk in (
        (Capacity(1, 1), 64, True),
        (Capacity(1, 1), 4, False),
        (Capacity(2, 1), 64, False),
        (Capacity(2, 8), 64, True),
    ):
        plan = step(service, steps.plan_job, job.id, 0, 6, capacity, max_classes)
        assert plan == {"targets": 6, "one_chunk": one_chunk}


LATE = [
    (steps.plan_job, (6, Capacity(), 4)),
    (steps.record_capacity, (Capacity(), 4)),
    (steps.queue_unit, (0, None)),
    (steps.begin_job, ("w",)),
    (steps.store_preparation, (PREPARED,)),
    (steps.plan_chunk, ([(0, "gsvm")],)),
    (steps.store_students, ([StudentResult((0, "gsvm"), "c0", ROW, b"packed")],)),
]


@pytest.mark.long
@pytest.mark.parametrize(("function", "arguments"), LATE, ids=lambda value: getattr(value, "name", ""))
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
def test_a_step_that_comes_late_changes_nothing(service, function, arguments, states, attempt):
    job = service.submit()
    move(service, job, *states)
    before = service.job(job), service.events(job)
    with pytest.raises(JobStopped):
        step(service, function, job.id, attempt, *arguments)
    assert (service.job(job), service.events(job)) == before
    with service.store.read() as uow:
        assert not uow.students.of_job(job.id)
        assert uow.units.count_of_owner("default", "me") == 0


def test_a_late_step_waits_for_the_lock_on_the_job(postgres_address, tmp_path):
    """A retry is being committed while a step of the old attempt comes: it sees the new attempt."""
    store = Store(open_engine(postgres_address))
    service = open_service(store, Settings(data_dir=tmp_path))
    job = running(service)
    refused = threading.Event()

    def late() -> None:
        with pytest.raises(JobStopped):
            step(service, steps.store_students, job.id, 0, [student(0)])
        refused.set()

    thread = threading.Thread(target=late)
    with store.begin() as uow:
        uow.jobs.lock(job.id)
        uow.jobs.move(job.id, JobState.FAILED)
        thread.start()
        assert not refused.wait(0.3)
        uow.jobs.move(job.id, JobState.QUEUED, attempt=1)
        uow.jobs.move(job.id, JobState.RUNNING)
    thread.join(120.0)
    assert refused.is_set()
    with store.read() as uow:
        assert not uow.students.of_job(job.id)
    store.dispose()


def test_the_preparation_is_stored_once(service):
    job = running(service)
    digests = step(service, steps.store_preparation, job.id, 0, PREPARED)
    assert step(service, steps.store_preparation, job.id, 0, PREPARED) == {}
    assert step(service, steps.store_preparation, job.id, 0, None) == {}
    now = service.job(job)
    assert (now.preparation_digest, now.teacher_digest) == tuple(digests.values())
    assert now.progress_done == 1
    assert len(service.events(job, "teacher_finished")) == 1
    with service.store.read() as uow:
        assert [row.method for row in uow.students.of_job(job.id)] == ["teacher"]


def test_test_rows_that_stand_in_the_training_part_are_an_event_of_the_job(service):
    job = running(service)
    result = replace(PREPARED, report=REPORT | {"test_rows_in_training": 3})
    step(service, steps.store_preparation, job.id, 0, result)
    assert service.events(job, "test_rows_in_training") == [("test_rows_in_training", {"rows": 3})]
    assert service.job(job).provenance["test_rows_in_training"] == 3


def test_the_test_part_of_a_job_is_an_event_and_provenance(service):
    job = running(service)
    part = {"source": "held_out", "rows": 30, "of": 150, "digest": "ab"}
    step(service, steps.store_preparation, job.id, 0, replace(PREPARED, report=REPORT | {"test_part": part}))
    assert service.events(job, "test_part") == [("test_part", part)]
    assert service.job(job).provenance["test_part"] == part


def test_a_student_is_stored_once(service):
    job = running(service)
    for _ in range(2):
        assert store_students(service, job, student(1)) == {"kept": [[1, "gsvm"]]}
    store_students(service, job, student(1, None))
    assert store_students(service, job) == {"kept": []}
    assert service.job(job).progress_done == 1
    assert [kind for kind, _ in service.events(job, "student_finished", "student_failed")] == [
        "student_finished"
    ]
    with service.store.read() as uow:
        (row,) = uow.students.of_job(job.id)
    assert (row.state, row.threshold, row.error) == (StudentState.SUCCEEDED, 0.5, None)


def test_students_that_finish_together_are_stored_together(service):
    job = running(service)
    before = service.job(job)
    store_students(service, job, student(3))
    batch = [student(1), student(3), student(2, None), student(0)]
    assert store_students(service, job, *batch) == {
        "kept": [[1, "gsvm"], [3, "gsvm"], [2, "gsvm"], [0, "gsvm"]]
    }
    events = service.events(job, "student_finished", "student_failed")
    assert [(kind, data["class_index"]) for kind, data in events] == [
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


def test_a_tuned_student_is_stored_with_its_trace(service):
    job = running(service)
    chosen = {"C": 10.0, "margin": 0.5, "floor": 0.3, "score": 0.9, "standard_error": 0.01, "points": 6}
    metrics = {"accuracy": 1.0, "f1": 1.0, "auc": 1.0, "brier": 0.02, "calibration": "sigmoid"}
    row = ROW | {"chosen": chosen, "metrics": metrics}
    for trace in (b"first", b"second"):
        store_students(service, job, StudentResult((1, "gsvm"), "c1", row, b"packed", trace))
    store_students(service, job, student(2))
    (tuned,) = service.events(job, "student_tuned")
    assert tuned[1] == {"label": "c1", "class_index": 1, "method": "gsvm"} | chosen
    with service.store.read() as uow:
        assert [row.chosen for row in uow.students.of_job(job.id)] == [chosen, None]
        assert uow.students.trace(job.id, 1, "gsvm") == b"first"
        assert uow.students.trace(job.id, 2, "gsvm") is None
    step(service, steps.store_preparation, job.id, 0, PREPARED)
    finish(service, job)
    with service.store.read() as uow:
        published = uow.models.of_job(job.id).metrics
    assert published["calibration"] == {"sigmoid": 1}
    assert published["means"]["gsvm"]["brier"] == 0.02
    assert "brier" not in published["means"]["teacher"]


def test_a_job_says_when_it_leaves_an_alias_where_an_operator_moved_it(service):
    first, older, retried = running(service), running(service), running(service)
    for job in (first, older):
        step(service, steps.store_preparation, job.id, 0, PREPARED)
        store_students(service, job, student(0))
    finish(service, first)
    with service.store.begin() as uow:
        uow.models.point("m", "latest", 1)
    finish(service, older)
    [(_, published)] = service.events(older, "version_published")
    assert published == {"model": "m", "version": 2, "alias": None}
    unmoved = {"alias": "latest", "version": 1}
    assert [data for _, data in service.events(older, "alias_not_moved")] == [unmoved]
    assert service.job(older).provenance["alias_not_moved"] == unmoved
    assert service.events(first, "alias_not_moved") == []
    step(service, steps.fail_job, retried.id, 0, "x", "Why.")
    assert retry_job(service.store, service.queue, retried.id, service.settings).alias_revision == 2, (
        "a retry is a new wish"
    )


def test_the_time_when_students_began_is_recorded_once(service):
    job = running(service)
    step(service, steps.store_preparation, job.id, 0, PREPARED)
    assert service.job(job).provenance["stages"] == {}
    plan(service, job, 0, 4)
    begun = service.job(job).provenance
    assert begun["done_before"] == 1
    assert begun["stages"]["students"] > 0.0
    with service.store.begin() as uow:
        # The solver of another chunk reads the data again, which is a stage too.
        uow.jobs.change(job.id, stage="data")
    plan(service, job, 4, 6)
    assert service.job(job).provenance == begun


def test_a_chunk_trains_only_the_missing_students_of_its_classes(service):
    job = running(service)
    store_students(service, job, student(1))
    store_students(service, job, student(5))
    assert plan(service, job, 0, 4) == [[0, "gsvm"], [2, "gsvm"], [3, "gsvm"]]
    assert plan(service, job, 4, 6) == [[4, "gsvm"]]
    assert [data for _, data in service.events(job, "stage_started")] == [{"stage": "students"}]


def test_finished_students_are_among_the_given_ones(service):
    job = running(service)
    store_students(service, job, student(1))
    store_students(service, job, student(2, None))
    store_students(service, job, student(4))
    with service.store.read() as uow:
        asked = [(0, "gsvm"), (1, "gsvm"), (1, "svm"), (2, "gsvm"), (3, "gsvm")]
        assert steps.finished_students(uow, job.id, asked) == {(1, "gsvm"), (2, "gsvm")}
        assert steps.finished_students(uow, job.id, []) == set()


def test_a_job_fails_once(service):
    job = running(service)
    assert step(service, steps.fail_job, job.id, 1, "late", "Late.") == {"state": "running"}
    assert step(service, steps.fail_job, job.id, 0, "x", "Why.") == {"state": "failed"}
    assert step(service, steps.fail_job, job.id, 0, "y", "Again.") == {"state": "failed"}
    assert service.job(job).error_code == "x"
    assert len(service.events(job, "job_failed")) == 1


@pytest.mark.parametrize(
    "last",
    [
        lambda uow, job, attempt: steps.fail_job(uow, job, attempt, "x", "y"),
        lambda uow, job, attempt: finish_job(uow, job, attempt, None, None, None),
        steps.settle_cancelled,
    ],
)
def test_a_cancelling_job_always_ends_as_cancelled(service, last):
    job = running(service)
    move(service, job, JobState.CANCELLING)
    assert step(service, last, job.id, 0) == {"state": "cancelled"}
    assert step(service, last, job.id, 0) == {"state": "cancelled"}
    assert len(service.events(job, "job_cancelled")) == 1


def test_an_old_attempt_finishes_nothing(service):
    job = running(service)
    assert step(service, finish_job, job.id, 1, None, None, None) == {"state": "running"}
    assert step(service, steps.settle_cancelled, job.id, 0) == {"state": "running"}


def test_students_that_were_not_trained_have_failed(service):
    job = running(service, classes=["c0", "c1"])
    step(service, steps.store_preparation, job.id, 0, PREPARED)
    store_students(service, job, student(0))
    assert finish(service, job) == {"state": "partially_succeeded"}
    with service.store.read() as uow:
        missing = next(row for row in uow.students.of_job(job.id) if row.class_index == 1)
    assert missing.state is StudentState.FAILED
    assert "chunk" in missing.error
    assert service.job(job).version == 1


WORSE = {"warning": "student_worse_than_teacher", "message": "It has F 0.0 %.", "teacher_f1": 0.9}


@pytest.mark.parametrize(
    ("on_failure", "state", "code"),
    [("warn", "succeeded", None), ("partial", "partially_succeeded", "students_not_good_enough")],
)
def test_a_student_that_does_not_pass_the_guard_is_named_everywhere(service, on_failure, state, code):
    job = running(service, classes=["c0", "c1"], guard={"on_failure": on_failure})
    step(service, steps.store_preparation, job.id, 0, PREPARED)
    poor = replace(student(1), row=ROW | {"metrics": ROW["metrics"] | {"guard": WORSE}})
    store_students(service, job, student(0), poor)
    assert finish(service, job) == {"state": state}
    warning = {
        "code": "student_worse_than_teacher",
        "label": "c1",
        "class_index": 1,
        "message": "It has F 0.0 %.",
    }
    ended = service.job(job)
    assert (ended.provenance["warnings"], ended.error_code) == ([warning], code)
    assert JobView.of_job(ended).warnings == [warning]
    ((_, told),) = service.events(job, "student_warning")
    assert told.items() >= warning.items()
    ((_, data),) = service.events(job, f"job_{state}")
    assert (data["warnings"], data["students_warned"], data["failed"]) == ([warning], 1, 0)
    with service.store.read() as uow:
        assert uow.models.of_job(job.id).metrics["warnings"] == [warning]


def test_a_student_that_was_replaced_is_an_event(service):
    job = running(service)
    row = ROW | {"metrics": {"guard": {"replaced": "gsvm", "student_f1": 0.9, "teacher_f1": 0.9}}}
    store_students(service, job, replace(student(1), row=row))
    ((_, data),) = service.events(job, "student_replaced")
    assert (data["label"], data["replaced"]) == ("c1", "gsvm")
    assert not service.events(job, "student_warning")


def test_students_are_counted_page_by_page(service, monkeypatch):
    """The old finish read all rows in one transaction, which PostgreSQL ends after four idle seconds."""
    monkeypatch.setattr(finish_module, "_CLASSES_PER_PAGE", 2)
    job = running(service, evaluation={"baselines": ["svm"]})
    step(service, steps.store_preparation, job.id, 0, PREPARED)
    for index in (0, 1, 4):
        store_students(service, job, student(index))
    store_students(service, job, student(3, None))
    pages = []
    results = Students.results
    monkeypatch.setattr(
        Students, "results", lambda *arguments: pages.append(results(*arguments)) or pages[-1]
    )
    assert finish(service, job) == {"state": "partially_succeeded"}
    assert [len(page) for page in pages] == [3, 1, 1], "two classes a page, one of them with a teacher row"
    ((_, data),) = service.events(job, "job_partially_succeeded")
    assert (data["students"], data["failed"]) == (3, 9)
    assert "'c0': It was not trained" in data["message"]
    with service.store.read() as uow:
        assert uow.models.of_job(job.id).metrics["means"]["teacher"] == {
            "accuracy": None,
            "f1": 1.0,
            "auc": None,
            "classes": 1,
        }


def test_a_plan_is_read_once_for_all_units_of_a_job(service, monkeypatch):
    job = running(service)
    plans = JobPlans(service.store)
    first = plans.of_job(job.id)
    assert (first.students, first.keys(4, 6)) == (6, [(4, "gsvm"), (5, "gsvm")])
    monkeypatch.setattr(service.store, "read", None)
    assert plans.of_job(job.id) is first


def test_a_job_with_baselines_only_publishes_nothing(service):
    job = running(service, classes=["c0"], evaluation={"baselines": ["svm"]})
    step(service, steps.store_preparation, job.id, 0, PREPARED)
    result = StudentResult((0, "svm"), "c0", ROW, b"packed")
    store_students(service, job, result)
    store_students(service, job, student(0, None))
    assert finish(service, job) == {"state": "failed"}
    assert service.job(job).version is None
