"""Use cases of training jobs, on both databases, with a queue that only records its calls."""

from __future__ import annotations

import dataclasses
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.domain.entities import Dataset, Job, JobState, StudentRow, StudentState, Worker
from app.domain.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    TooLarge,
    Unavailable,
    Unprocessable,
)
from app.domain.ports import JobQueue
from app.domain.training_spec import TeacherChoice, TrainingSpec
from app.services.class_table import students_of_class
from app.services.retention import delete_job
from app.services.training import (
    cancel_job,
    get_job,
    job_events,
    job_students,
    list_jobs,
    retry_job,
    submit_job,
)
from app.services.training_plan import check_memory, needed_memory
from app.settings import Settings
from app.store import paging
from app.store.repositories.jobs import Jobs
from app.store.unit_of_work import Store
from core.learners import STUDENTS, TEACHERS
from core.students.gated import SVM
from core.teachers.ssvm import SSVM
from tests.refusals import at_fault, refused_as
from tests.system import stored_dataset


class RememberingQueue(JobQueue):
    def __init__(self) -> None:
        self.enqueued: list[tuple[str, str]] = []
        self.cancelled: list[str] = []
        self.away = False

    def enqueue(self, job_id: str, workflow_id: str) -> None:
        self._check()
        self.enqueued.append((job_id, workflow_id))

    def cancel(self, workflow_id: str) -> None:
        self._check()
        self.cancelled.append(workflow_id)

    def ping(self) -> None:
        self._check()

    def _check(self) -> None:
        if self.away:
            raise Unavailable("away")


@pytest.fixture
def queue() -> RememberingQueue:
    return RememberingQueue()


def add_dataset(store: Store, classes: tuple[str, ...] = ("a", "b", "c"), **values) -> Dataset:
    with store.begin() as uow:
        return stored_dataset.add_dataset(uow, classes, **values)


@pytest.fixture
def dataset(store: Store) -> Dataset:
    return add_dataset(store)


def submit(store: Store, queue: JobQueue, dataset: Dataset, **changes) -> tuple[Job, bool]:
    arguments = {
        "dataset_id": dataset.id,
        "model": "letters",
        "spec": TrainingSpec(automatic=False),
        "created_by": "me",
        "idempotency_key": None,
        "body_digest": "body",
        "settings": Settings(),
    }
    return submit_job(store, queue, **(arguments | changes))


def set_state(store: Store, job: Job, *states: JobState) -> None:
    with store.begin() as uow:
        for state in states:
            uow.jobs.move(job.id, state)


def add_worker(store: Store, beat_at: float) -> None:
    with store.begin() as uow:
        uow.workers.beat(Worker("w", "host", 1, started_at=beat_at, beat_at=beat_at))


def add_student(store: Store, job: Job, index: int, method: str, state: StudentState) -> None:
    with store.begin() as uow:
        uow.students.save(StudentRow(job.id, index, "abc"[index], method, state, error="no"))


def event_types(store: Store, job: Job) -> list[str]:
    return [event.type for event in job_events(store, job.id)[0]]


def test_a_submitted_job_is_stored_and_queued(store, queue, dataset):
    spec = TrainingSpec.model_validate(
        {"student": {}, "evaluation": {"baselines": ["svm", "gsvm"]}, "seed": 5}
    )
    job, created = submit(store, queue, dataset, spec=spec)
    assert created
    assert get_job(store, job.id) == job
    assert job.state is JobState.QUEUED
    assert (job.progress_done, job.progress_total) == (0, 1 + 3 * 2)
    assert TrainingSpec.model_validate(job.spec) == spec
    assert job.provenance == {"seed": 5, "dataset_digest": dataset.digest}
    assert queue.enqueued == [(job.id, f"{job.id}.0")]
    assert event_types(store, job) == ["job_queued"]


def test_concurrent_requests_with_one_idempotency_key_create_one_job(store, queue, dataset):
    barrier = threading.Barrier(4)
    made: list[tuple[Job, bool]] = []

    def request() -> None:
        barrier.wait()
        made.append(submit(store, queue, dataset, idempotency_key="twin"))

    threads = [threading.Thread(target=request) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({job.id for job, _ in made}) == 1
    assert sum(created for _, created in made) == 1
    other, created = submit(store, queue, dataset, idempotency_key="twin", created_by="you")
    assert created
    assert {job.id for job in list_jobs(store, limit=10)[0]} == {made[0][0].id, other.id}


@pytest.mark.parametrize("name", ["", "-x", "a b", "é", "x" * 101, "a@b"])
def test_an_invalid_model_name_is_rejected(store, queue, dataset, name):
    with at_fault(InvalidRequest, field="model"):
        submit(store, queue, dataset, model=name)


def test_a_single_class_is_rejected(store, queue):
    with refused_as(InvalidRequest, "single_class"):
        submit(store, queue, add_dataset(store, ("only",)))


def test_a_test_part_too_small_for_the_classes_is_rejected(store, queue, dataset):
    spec = TrainingSpec.model_validate({"evaluation": {"test_fraction": 0.02}})
    with refused_as(InvalidRequest, "test_part_too_small"):
        submit(store, queue, dataset, spec=spec)


@pytest.mark.parametrize(
    ("values", "code"), [({"columns": 5}, "wrong_columns"), ({"classes": ("a", "z")}, "unknown_class")]
)
def test_test_data_must_fit_the_training_data(store, queue, dataset, values, code):
    other = add_dataset(store, **values)
    spec = TrainingSpec.model_validate({"evaluation": {"dataset_id": other.id}})
    with refused_as(InvalidRequest, code) as refused:
        submit(store, queue, dataset, spec=spec)
    assert refused.value.faults[0].field == "hyperparameters.evaluation.dataset_id"


def test_students_of_another_tenants_job_are_not_found(store, queue, dataset):
    job, _ = submit(store, queue, dataset)
    with store.begin() as uow:
        uow.students.save(StudentRow(job.id, 1, "b", "gsvm", StudentState.SUCCEEDED))
    assert [row.label for row in students_of_class(store, job.id, 1)] == ["b"]
    with refused_as(NotFound, "student_not_found"):
        students_of_class(store, job.id, 0)
    with refused_as(NotFound, "job_not_found"):
        students_of_class(store.of_tenant("other"), job.id, 1)


def test_records_to_test_on_are_matched_by_name_whichever_part_has_a_schema(store, queue, dataset):
    schema = {"schema": [{"name": "a", "kind": "number", "distinct": 9}]}
    wide = add_dataset(store, columns=5, summary=schema)
    for train, test in ((dataset, wide), (wide, dataset)):
        spec = TrainingSpec.model_validate({"evaluation": {"dataset_id": test.id}})
        assert submit(store, queue, train, spec=spec)[1]


def test_classes_that_only_the_test_part_has_are_named_with_the_remedy(store, queue, dataset):
    other = add_dataset(store, classes=("a", "B"))
    said = {"evaluation": {"dataset_id": other.id}}
    with pytest.raises(InvalidRequest) as refused:
        submit(store, queue, dataset, spec=TrainingSpec.model_validate(said))
    assert """say so: evaluation.class_names={"B": "b"} (--set '""" in refused.value.message
    assert "evaluation.unknown_classes=drop" in refused.value.message
    said["evaluation"]["class_names"] = {"B": "b"}
    job, _ = submit(store, queue, dataset, spec=TrainingSpec.model_validate(said))
    assert job.spec["evaluation"]["class_names"] == {"B": "b"}
    said["evaluation"]["class_names"] = {"B.": "b"}
    with pytest.raises(InvalidRequest, match=r"has no class 'B\.'; it has 2 classes: 'a', 'B'\."):
        submit(store, queue, dataset, spec=TrainingSpec.model_validate(said))
    alone = TrainingSpec.model_validate({"evaluation": {"class_names": {"B": "b"}}})
    with refused_as(InvalidRequest, "no_test_data"):
        submit(store, queue, dataset, spec=alone)
    said["evaluation"]["class_names"] = {}
    said["evaluation"]["unknown_classes"] = "drop"
    job, _ = submit(store, queue, dataset, spec=TrainingSpec.model_validate(said))
    assert job.spec["evaluation"]["unknown_classes"] == "drop"
    said["evaluation"]["dataset_id"] = add_dataset(store, classes=("y", "z")).id
    spec = TrainingSpec.model_validate(said)
    with pytest.raises(InvalidRequest, match="2 of the 2 classes"):
        submit(store, queue, dataset, spec=spec)


def test_a_data_set_for_tests_only_is_not_trained_on_and_one_without_labels_tests_nothing(
    store, queue, dataset
):
    rare = add_dataset(store, summary={"single_row_classes": 1})
    with refused_as(InvalidRequest, "class_too_small"):
        submit(store, queue, rare)
    submit(store, queue, dataset, spec=TrainingSpec.model_validate({"evaluation": {"dataset_id": rare.id}}))
    bare = add_dataset(store, summary={"unlabelled_rows": rare.rows})
    spec = TrainingSpec.model_validate({"evaluation": {"dataset_id": bare.id}})
    with refused_as(InvalidRequest, "no_labels"):
        submit(store, queue, dataset, spec=spec)


def test_a_running_job_waits_for_its_worker(store, queue, dataset):
    job, _ = submit(store, queue, dataset)
    set_state(store, job, JobState.RUNNING)
    add_worker(store, time.time())
    assert cancel_job(store, queue, job.id).state is JobState.CANCELLING
    assert cancel_job(store, queue, job.id).state is JobState.CANCELLING
    assert event_types(store, job).count("job_cancelling") == 1


def test_a_running_job_without_live_workers_is_cancelled_immediately(store, queue, dataset):
    job, _ = submit(store, queue, dataset)
    set_state(store, job, JobState.RUNNING)
    add_worker(store, time.time() - 60)
    assert cancel_job(store, queue, job.id).state is JobState.CANCELLED


def test_a_retry_keeps_what_is_finished(store, queue, dataset):
    job, _ = submit(store, queue, dataset)
    set_state(store, job, JobState.RUNNING)
    add_student(store, job, 0, "teacher", StudentState.SUCCEEDED)
    add_student(store, job, 0, "gsvm", StudentState.SUCCEEDED)
    add_student(store, job, 1, "gsvm", StudentState.FAILED)
    with store.begin() as uow:
        digest, _ = uow.blobs.put([b"preparation"])
        uow.jobs.change(job.id, preparation_digest=digest)
        uow.jobs.move(job.id, JobState.FAILED, error_code="x", error_message="y")
    again = retry_job(store, queue, job.id, Settings())
    assert (again.state, again.attempt) == (JobState.QUEUED, 1)
    assert (again.progress_done, again.progress_total) == (2, 4)
    assert (again.error_code, again.error_message, again.finished_at, again.started_at) == (None,) * 4
    assert again.preparation_digest == digest
    assert queue.enqueued[-1] == (job.id, f"{job.id}.1")
    rows, _ = job_students(store, job.id)
    states = {(row.class_index, row.method): (row.state, row.error) for row in rows}
    assert states[0, "gsvm"][0] is StudentState.SUCCEEDED
    assert states[1, "gsvm"] == (StudentState.PENDING, None)
    assert event_types(store, job)[-1] == "job_retried"


@pytest.mark.parametrize(
    "states", [(), (JobState.RUNNING,), (JobState.RUNNING, JobState.SUCCEEDED), (JobState.CANCELLING,)]
)
def test_only_an_ended_job_with_something_missing_is_retried(store, queue, dataset, states):
    job, _ = submit(store, queue, dataset)
    set_state(store, job, *states)
    with refused_as(Conflict, "job_not_retriable"):
        retry_job(store, queue, job.id, Settings())


def test_a_job_without_its_data_set_is_not_retried(store, queue, dataset):
    test = add_dataset(store, ("a", "b"))
    job, _ = submit(store, queue, dataset)
    other, _ = submit(
        store, queue, dataset, spec=TrainingSpec.model_validate({"evaluation": {"dataset_id": test.id}})
    )
    cancel_job(store, queue, job.id)
    cancel_job(store, queue, other.id)
    with store.begin() as uow:
        uow.datasets.delete(test.id)
    with pytest.raises(NotFound):
        retry_job(store, queue, other.id, Settings())
    assert retry_job(store, queue, job.id, Settings()).state is JobState.QUEUED


def test_untrained_students_are_pending(store, queue, dataset):
    spec = TrainingSpec.model_validate(
        {"classes": ["c", "a"], "student": {}, "evaluation": {"baselines": ["svm"]}}
    )
    job, _ = submit(store, queue, dataset, spec=spec)
    set_state(store, job, JobState.RUNNING)
    add_student(store, job, 0, "gsvm", StudentState.SUCCEEDED)
    add_student(store, job, 0, "teacher", StudentState.SUCCEEDED)
    first, more = job_students(store, job.id, limit=1)
    assert more
    assert [(row.class_index, row.method, row.state.value) for row in first] == [
        (0, "gsvm", "succeeded"),
        (0, "svm", "pending"),
        (0, "teacher", "succeeded"),
    ]
    rest, more = job_students(store, job.id, after=0)
    assert not more
    assert [(row.label, row.method, row.state.value) for row in rest] == [
        ("c", "gsvm", "pending"),
        ("c", "svm", "pending"),
    ]
    only, _ = job_students(store, job.id, method="svm")
    assert [(row.label, row.method) for row in only] == [("a", "svm"), ("c", "svm")]


def test_an_ended_job_lists_its_students(store, queue, dataset):
    job, _ = submit(store, queue, dataset)
    set_state(store, job, JobState.RUNNING)
    add_student(store, job, 1, "gsvm", StudentState.SUCCEEDED)
    set_state(store, job, JobState.FAILED)
    with store.begin() as uow:
        uow.datasets.delete(dataset.id)
    rows, more = job_students(store, job.id)
    assert not more
    assert [row.label for row in rows] == ["b"]


def a_job(**values) -> Job:
    job = Job("job_1", "ds_1", "m", {}, JobState.RUNNING, 0, "students", 5, 11, 0.0, "me", started_at=100.0)
    return dataclasses.replace(job, **values)


@pytest.mark.parametrize(
    ("spec", "field", "code"),
    [
        ({"compact": {}}, "hyperparameters.compact", "compact_sparse"),
        ({"tuning": {"folds": 16}}, "hyperparameters.tuning.folds", "too_many_folds"),
        ({"inputs": {"columns": {"x": {"kind": "text"}}}}, "hyperparameters.inputs.columns", "no_names"),
    ],
)
def test_hyperparameters_that_do_not_suit_the_data_set_are_rejected(store, queue, spec, field, code):
    odd = add_dataset(store, rows=20, summary={"sparse": True})
    wanted = TrainingSpec.model_validate({"evaluation": {"test_fraction": 0.25}} | spec)
    with refused_as(Unprocessable, code) as refused:
        submit(store, queue, odd, spec=wanted)
    assert [fault.field for fault in refused.value.faults] == [field]


def test_trees_take_tables_with_texts_that_have_other_columns_too(store, queue):
    spec = TrainingSpec.model_validate({"teacher": {"method": "forest"}})
    columns = [("note", "text"), ("age", "number"), ("job", "category")]
    schema = [{"name": name, "kind": kind, "distinct": 9} for name, kind in columns]
    assert submit(store, queue, add_dataset(store, summary={"schema": schema}), spec=spec)[1]
    for summary in ({"schema": schema[:1]}, {"sparse": True}):
        with refused_as(Unprocessable, "dense_rows_needed") as refused:
            submit(store, queue, add_dataset(store, summary=summary), spec=spec)
        assert [fault.field for fault in refused.value.faults] == ["hyperparameters.teacher.method"]


@pytest.mark.parametrize(("place", "registry"), [("student", STUDENTS), ("teacher", TEACHERS)])
@pytest.mark.parametrize(
    ("need", "code"),
    [
        ("privileged", "no_privileged"),
        ("views", "no_views"),
        ("teacher_scores", "no_teacher_scores"),
    ],
)
def test_a_learner_that_needs_extras_is_rejected_without(store, queue, place, registry, need, code):
    kind = {"student": SVM, "teacher": SSVM}[place]
    demanding = type("Demanding", (kind,), {"name": "demanding", "needs": frozenset({need})})
    with registry.registered(demanding):
        spec = TrainingSpec(automatic=False)
        chosen = demanding() if place == "student" else TeacherChoice(spec=demanding())
        spec = spec.model_copy(update={place: chosen})
        with refused_as(Unprocessable, code) as refused:
            submit(store, queue, add_dataset(store), spec=spec)
        assert [fault.field for fault in refused.value.faults] == [f"hyperparameters.{place}.method"]
        rich = add_dataset(store, summary={need: {"columns": 1}})
        assert submit(store, queue, rich, spec=spec)[1]


def test_a_labelling_without_labels_takes_no_labelled_rows(store, queue, dataset):
    spec = TrainingSpec.model_validate({"labelling": {"method": "odmc", "clusters": 2}})
    with refused_as(Unprocessable, "has_labels"):
        submit(store, queue, dataset, spec=spec)


REMOTE = {"method": "remote", "url": "http://triton:8000", "model": "net"}
ALLOWED = Settings(remote_teachers="http://triton:8000")


@pytest.mark.parametrize(
    ("changed", "settings", "field", "code"),
    [
        ({}, Settings(), "url", "remote_not_allowed"),
        ({"url": "http://triton"}, ALLOWED, "url", "remote_not_allowed"),
        ({"columns": ["a", "b", "d"]}, ALLOWED, "columns", "missing_class"),
        ({"columns": ["a", "b", "c", "c"]}, ALLOWED, "columns", "duplicate"),
        ({}, ALLOWED.model_copy(update={"max_dataset_bytes": 2399}), "method", "too_many_scores"),
    ],
)
def test_a_remote_teacher_that_cannot_serve_is_rejected(
    store, queue, dataset, changed, settings, field, code
):
    spec = TrainingSpec.model_validate({"teacher": REMOTE | changed})
    with refused_as(Unprocessable, code) as refused:
        submit(store, queue, dataset, spec=spec, settings=settings)
    assert [fault.field for fault in refused.value.faults] == [f"hyperparameters.teacher.{field}"]


def test_a_remote_teacher_takes_no_records(store, queue):
    records = add_dataset(store, summary={"schema": [{"name": "a", "kind": "text"}]})
    spec = TrainingSpec.model_validate({"teacher": REMOTE})
    with refused_as(Unprocessable, "needs_numbers"):
        submit(store, queue, records, spec=spec, settings=ALLOWED)


def test_a_remote_teacher_needs_no_scores_in_the_data_but_room_for_its_own(store, queue, dataset):
    spec = TrainingSpec.model_validate({"teacher": REMOTE | {"columns": ["d", "c", "b", "a"]}})
    used = 10**6
    job, created = submit(store, queue, dataset, spec=spec, settings=ALLOWED)
    assert created
    with store.begin() as uow:
        before = uow.quotas.used("default").stored_bytes
        uow.remote_scores.save(job.id, 0, 0, bytes(used))
        uow.remote_scores.save(job.id, 1, 0, bytes(7))
        assert uow.quotas.used("default").stored_bytes == before + used + 7
        assert uow.quotas.used("other").stored_bytes == 0
    full = ALLOWED.model_copy(update={"quota_stored_bytes": before + used + 7 + 2399})
    with refused_as(TooLarge, "quota_stored_bytes"):
        submit(store, queue, dataset, spec=spec, settings=full)
    room = full.model_copy(update={"quota_stored_bytes": full.quota_stored_bytes + 1})
    assert submit(store, queue, dataset, spec=spec, settings=room)[1]


def test_a_job_that_changes_state_during_cancellation_is_checked_again(store, queue, dataset, monkeypatch):
    job, _ = submit(store, queue, dataset)
    add_worker(store, time.time())
    move = Jobs.move
    moved = []

    def overtaken(jobs: Jobs, job_id: str, state: JobState, **values) -> Job:
        if not moved:
            # what another transaction would have done between the read and the write
            moved.append(True)
            raise Conflict("Job is running.", code="job_state")
        return move(jobs, job_id, state, **values)

    monkeypatch.setattr(Jobs, "move", overtaken)
    assert cancel_job(store, queue, job.id).state is JobState.CANCELLED


def stored_bytes(store: Store, dataset: Dataset) -> int:
    with store.read() as uow:
        return uow.blobs.size(dataset.blob_digest)


def beat(store: Store, name: str, solver_bytes: int, threads: int = 1) -> None:
    """A worker that is alive."""
    with store.begin() as uow:
        now = uow.workers.clock()
        uow.workers.beat(Worker(name, "host", 1, 1.0, now, threads=threads, solver_bytes=solver_bytes))


def test_a_worker_with_just_enough_memory_or_of_unknown_memory_takes_a_job(store, queue):
    wide = add_dataset(store, rows=5_000_000)
    spec = TrainingSpec.model_validate({"features": {"kind": "fourier"}})
    needed = needed_memory(wide, spec, stored_bytes(store, wide), threads=1)
    beat(store, "small", needed - 1)
    with refused_as(Unprocessable, "not_enough_memory"):
        submit(store, queue, wide, spec=spec)
    beat(store, "small", needed)
    submit(store, queue, wide, spec=spec)
    beat(store, "small", needed, threads=8)
    with refused_as(Unprocessable, "not_enough_memory"):
        submit(store, queue, wide, spec=spec)
    beat(store, "small", needed - 1)
    beat(store, "unknown", 0)
    submit(store, queue, wide, spec=spec)


def test_a_job_that_fits_into_no_worker_is_refused(store, queue):
    wide = add_dataset(store, rows=5_000_000)
    spec = TrainingSpec.model_validate({"features": {"kind": "nystroem", "n_components": 20_000}})
    job, _ = submit(store, queue, wide, spec=spec)
    assert job.state is JobState.QUEUED, "without workers nothing is known"
    beat(store, "small", 4 * 10**9)
    with refused_as(Unprocessable, "not_enough_memory", match=r"5000000 rows and 3 classes") as refused:
        submit(store, queue, wide, spec=spec)
    assert refused.value.faults[0].field == "hyperparameters.features.n_components"
    submit(store, queue, wide, spec=TrainingSpec())
    beat(store, "large", 10**13)
    submit(store, queue, wide, spec=spec)


def test_many_classes_are_refused_with_what_there_is_and_what_would_fit(store, queue):
    """Scores, dual variables and lists of classes are rows times classes, and those of folds are more."""
    many = dataclasses.replace(add_dataset(store, rows=200_000), class_count=10_000, columns=100)
    spec = TrainingSpec.model_validate({"automatic": False})
    stored = 8 * 100 * 200_000
    needed = needed_memory(many, spec, stored, threads=2)
    cells = 8 * 10_000 * 200_000
    assert 3 * cells < needed < 5 * cells
    beat(store, "small", 8 * 10**9, threads=2)
    words = (
        r"2000000000 scores; the worker that it suits best gives a solver 8\.0 GB\. "
        r"What would fit: \d+ rows, or \d+ classes\."
    )
    with store.begin() as uow, refused_as(Unprocessable, "not_enough_memory", match=words):
        check_memory(uow, many, spec)
    fewer = dataclasses.replace(many, rows=20_000)
    assert needed_memory(fewer, spec, stored // 10, threads=2) < 8 * 10**9


@pytest.mark.parametrize(
    ("summary", "least"),
    [
        # Each value of a category is a column, and a text as many as there may be terms.
        ({"schema": [{"name": "c", "kind": "category", "distinct": 50}]}, 8 * 50 * 100_000),
        ({"schema": [{"name": "t", "kind": "text"}]}, 8 * 3 * 8192),
    ],
)
def test_columns_of_records_are_counted_as_they_are_encoded(store, summary, least):
    plain = dataclasses.replace(add_dataset(store, rows=100_000), columns=1)
    spec = TrainingSpec.model_validate({"automatic": False, "features": {"kind": "linear"}})
    known = needed_memory(plain, spec, 10**6, threads=1)
    assert needed_memory(dataclasses.replace(plain, summary=summary), spec, 10**6, threads=1) >= known + least


def test_sparse_rows_are_counted_as_they_are_stored(store):
    dense = dataclasses.replace(add_dataset(store, rows=100_000), columns=50_000)
    sparse = dataclasses.replace(dense, summary={"sparse": True})
    spec = TrainingSpec.model_validate({"automatic": False, "features": {"kind": "linear"}})
    assert needed_memory(dense, spec, 10**7, threads=1) > 8 * 100_000 * 50_000
    assert needed_memory(sparse, spec, 10**7, threads=1) < 10**9


def test_of_concurrent_retries_one_queues_the_job(store, queue, dataset):
    """Before, each of them did on PostgreSQL, also while the job of the first was running already."""
    job, _ = submit(store, queue, dataset)
    cancel_job(store, queue, job.id)
    start = threading.Barrier(6)

    def retry() -> str:
        start.wait()
        try:
            return retry_job(store, queue, job.id, Settings()).state.value
        except Conflict as conflict:
            return str(conflict.reason)

    with ThreadPoolExecutor(6) as pool:
        outcomes = [future.result() for future in [pool.submit(retry) for _ in range(6)]]
    assert sorted(outcomes) == [*["job_not_retriable"] * 5, "queued"]
    events, _ = job_events(store, job.id)
    assert [event.type for event in events] == ["job_queued", "job_cancelled", "job_retried"]
    assert get_job(store, job.id).attempt == 1


def test_a_late_retry_does_not_take_a_running_job_back(store, queue, dataset, monkeypatch):
    """A retry that has read the job as cancelled waits for the one that is queueing and starting it."""
    job, _ = submit(store, queue, dataset)
    cancel_job(store, queue, job.id)
    locked: list[str] = []
    lock = Jobs.lock
    monkeypatch.setattr(Jobs, "lock", lambda self, job_id: locked.append(job_id) or lock(self, job_id))
    for change in (retry_job, cancel_job):
        locked.clear()
        change(store, queue, job.id, *([Settings()] if change is retry_job else []))
        assert locked[0] == job.id, "the row is locked before its state is looked at"
    locked.clear()
    delete_job(store, job.id)
    assert locked == [job.id]


def test_pages_of_the_students_of_a_running_job_end_where_the_stored_ones_do(
    store, queue, dataset, monkeypatch
):
    job, _ = submit(store, queue, dataset)
    with store.begin() as uow:
        uow.jobs.move(job.id, JobState.RUNNING)
        uow.students.save_all(
            [
                StudentRow(job.id, number, label, "gsvm", StudentState.FAILED, error="x" * 400)
                for number, label in enumerate("ab")
            ]
        )
    monkeypatch.setattr(paging, "PAGE_BYTES", 700)
    seen, after, more = [], -1, True
    while more:
        page, more = job_students(store, job.id, after=after, limit=10)
        seen.append([(row.label, row.state.value) for row in page])
        after = page[-1].class_index
    assert seen == [[("a", "failed")], [("b", "failed"), ("c", "pending")]]
