"""Jobs that disagree with their workflows, and database outages."""

from __future__ import annotations

import threading

import pytest
from dbos import DBOS

from app.domain.entities import Job, JobState
from app.domain.errors import Unavailable
from app.jobs import reconciler as module
from app.jobs.engine.client import DbosQueue, WorkflowState
from app.jobs.engine.config import SCHEMA, engine_url
from app.jobs.errors import JobStopped, WorkerStopping
from app.jobs.reconciler import Reconciler
from app.jobs.workflow.running_job import CancellationCheck, ProgressReporter
from app.settings import Settings
from app.store.unit_of_work import Store
from tests.app.jobs.conftest import Service, wait_for
from tests.refusals import refused_as


class EngineStates(DbosQueue):
    """A queue whose workflow states a test sets."""

    def __init__(self) -> None:
        super().__init__(Settings())
        self.known: dict[str, WorkflowState] = {}
        self.enqueued: list[str] = []
        self.cancelled: list[str] = []

    def enqueue(self, job_id: str, workflow_id: str) -> None:
        self.enqueued.append(workflow_id)
        self.known[workflow_id] = WorkflowState("ENQUEUED", None)

    def enqueue_evaluation(self, evaluation_id: str, turn: int) -> None:
        self.enqueue(evaluation_id, f"{evaluation_id}.0")

    def cancel(self, workflow_id: str) -> None:
        self.cancelled.append(workflow_id)
        self.known[workflow_id] = WorkflowState("CANCELLED", None)

    def states(self, workflow_ids):
        return {name: self.known[name] for name in workflow_ids if name in self.known}


@pytest.fixture
def engine() -> EngineStates:
    return EngineStates()


def a_job(service: Service, engine: EngineStates, workflow: WorkflowState | None, *states: JobState) -> Job:
    job = service.submit()
    with service.store.begin() as uow:
        for state in states:
            job = uow.jobs.move(job.id, state)
    engine.enqueued.clear()
    if workflow is not None:
        engine.known[job.workflow_id] = workflow
    return job


@pytest.fixture(autouse=True)
def _fake_engine(service: Service, engine: EngineStates) -> None:
    service.queue = engine


@pytest.mark.parametrize("states", [(), (JobState.RUNNING,)])
def test_a_job_without_a_workflow_is_enqueued(service, engine, states):
    job = a_job(service, engine, None, *states)
    engine.known.clear()
    Reconciler(service.store, engine).check_jobs()
    assert engine.enqueued == [job.workflow_id]


@pytest.mark.parametrize("status", ["ENQUEUED", "PENDING"])
@pytest.mark.parametrize("states", [(), (JobState.RUNNING,)])
def test_an_active_job_is_not_changed(service, engine, status, states):
    job = a_job(service, engine, WorkflowState(status, None), *states)
    Reconciler(service.store, engine).check_jobs()
    assert service.job(job) == job
    assert not engine.enqueued


@pytest.mark.parametrize(
    ("workflow", "code", "words"),
    [
        (WorkflowState("ERROR", "boom"), "internal_error", "log of its worker"),
        (WorkflowState("MAX_RECOVERY_ATTEMPTS_EXCEEDED", None), "too_many_restarts", "too often"),
    ],
)
def test_an_unfinished_job_whose_workflow_has_ended_fails(service, engine, caplog, workflow, code, words):
    job = a_job(service, engine, workflow, JobState.RUNNING)
    Reconciler(service.store, engine).check_jobs()
    job = service.job(job)
    assert (job.state, job.error_code) == (JobState.FAILED, code)
    assert words in job.error_message
    assert "boom" not in job.error_message
    assert ("boom" in caplog.text) is (workflow.error is not None)


def test_a_job_without_the_result_that_its_workflow_had_is_tried_again_but_not_for_ever(service, engine):
    """After a power cut or a restore the engine's database may be newer than the service's."""
    job = a_job(service, engine, WorkflowState("SUCCESS", None), JobState.RUNNING)
    reconciler = Reconciler(service.store, engine)
    for attempt in (1, 2, 3):
        reconciler.check_jobs()
        job = service.job(job)
        assert (job.state, job.attempt, job.error_code) == (JobState.QUEUED, attempt, None)
        reconciler.check_jobs()
        assert engine.enqueued[-1] == job.workflow_id == f"{job.id}.{attempt}"
        engine.known[job.workflow_id] = WorkflowState("SUCCESS", None)
    reconciler.check_jobs()
    job = service.job(job)
    assert (job.state, job.error_code) == (JobState.FAILED, "records_lost")
    assert [data["code"] for _, data in service.events(job, "job_restarted")] == ["records_lost"] * 3


def test_a_job_whose_workflow_was_cancelled_is_cancelled(service, engine):
    job = a_job(service, engine, WorkflowState("CANCELLED", None), JobState.RUNNING)
    Reconciler(service.store, engine).check_jobs()
    assert service.job(job).state is JobState.CANCELLED


def test_a_cancelling_job_is_cancelled_together_with_its_workflow(service, engine, monkeypatch):
    monkeypatch.setattr(module, "_CANCEL_GRACE_SECONDS", 0.05)
    job = a_job(service, engine, WorkflowState("PENDING", None), JobState.RUNNING, JobState.CANCELLING)
    reconciler = Reconciler(service.store, engine)
    reconciler.check_jobs()
    assert engine.cancelled == [job.workflow_id]
    assert service.job(job).state is JobState.CANCELLING

    def settled() -> bool:
        reconciler.check_jobs()
        return service.job(job).state is JobState.CANCELLED

    wait_for(settled)
    reconciler.check_jobs()
    assert [kind for kind, _ in service.events(job)].count("job_cancelled") == 1


def test_a_job_that_ends_meanwhile_is_not_changed(service, engine, monkeypatch, caplog):
    caplog.set_level("INFO")
    job = a_job(service, engine, WorkflowState("CANCELLED", None), JobState.RUNNING)
    pages = Reconciler._pages

    def late(reconciler: Reconciler):
        for jobs in list(pages(reconciler)):
            with service.store.begin() as uow:
                uow.jobs.move(job.id, JobState.SUCCEEDED)
            yield jobs

    monkeypatch.setattr(Reconciler, "_pages", late)
    Reconciler(service.store, engine).check_jobs()
    assert service.job(job).state is JobState.SUCCEEDED


def test_every_page_of_jobs_is_checked(service, engine, monkeypatch):
    monkeypatch.setattr(module, "_PAGE", 2)
    jobs = [a_job(service, engine, None) for _ in range(5)]
    engine.known.clear()
    Reconciler(service.store, engine).check_jobs()
    assert sorted(engine.enqueued) == sorted(job.workflow_id for job in jobs)


@pytest.mark.parametrize("error", [Unavailable("away"), ZeroDivisionError("surprise")])
def test_the_reconciler_survives_errors(service, engine, monkeypatch, error, caplog):
    monkeypatch.setattr(module, "_POLL_SECONDS", 0.02)
    monkeypatch.setattr(engine, "forget_before", lambda _moment: 0)
    job = a_job(service, engine, None)
    engine.known.clear()
    states = engine.states
    failures = [error]

    def failing_once(ids):
        if failures:
            raise failures.pop()
        return states(ids)

    monkeypatch.setattr(engine, "states", failing_once)
    reconciler = Reconciler(service.store, engine)
    reconciler.start()
    try:
        wait_for(lambda: engine.enqueued == [job.workflow_id])
    finally:
        reconciler.stop()
    assert "reconciler" in caplog.text


def test_a_reconciler_that_never_started_can_be_stopped(service, engine):
    Reconciler(service.store, engine).stop()


def test_old_workflow_records_are_deleted_until_none_is_left(service, engine, monkeypatch):
    left = [1000, 3, 0]
    monkeypatch.setattr(engine, "forget_before", lambda _moment: left.pop(0))
    Reconciler(service.store, engine).clean()
    assert left == []


def away(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse():
        raise Unavailable("The database is away.")

    for way in ("read", "peek", "begin"):
        monkeypatch.setattr(store, way, refuse)


def test_work_continues_while_the_database_is_unavailable(service, engine, monkeypatch, caplog):
    job = a_job(service, engine, None, JobState.RUNNING)
    check = CancellationCheck(service.store, threading.Event(), job.id, 0)
    with monkeypatch.context() as outage:
        away(service.store, outage)
        check()
        ProgressReporter(service.store, job.id, 0)({"stage": "teacher", "done": 0, "total": 1})
    assert "cannot be read" in caplog.text
    assert "not stored" in caplog.text


def test_the_check_raises_for_another_attempt_and_a_stopping_worker(service, engine):
    job = a_job(service, engine, None, JobState.RUNNING)
    stopping = threading.Event()
    CancellationCheck(service.store, stopping, job.id, 0)()
    with pytest.raises(JobStopped):
        CancellationCheck(service.store, stopping, job.id, 1)()
    stopping.set()
    with pytest.raises(WorkerStopping):
        CancellationCheck(service.store, stopping, job.id, 0)()


def test_retries_outlast_an_outage_but_not_the_job(service, engine, monkeypatch):
    monkeypatch.setattr("app.jobs.workflow.running_job._RETRY_SECONDS", 0.01)
    job = a_job(service, engine, None, JobState.RUNNING)
    check = CancellationCheck(service.store, threading.Event(), job.id, 0)
    failures = [Unavailable("away"), Unavailable("away")]

    def call() -> str:
        if failures:
            raise failures.pop()
        return "done"

    assert check.retry_while_unavailable(call) == "done"
    with service.store.begin() as uow:
        uow.jobs.move(job.id, JobState.FAILED)
    failures[:] = [Unavailable("away")] * 1000
    with pytest.raises(JobStopped):
        check.retry_while_unavailable(call)


def test_progress_of_another_attempt_is_dropped(service, engine):
    job = a_job(service, engine, None, JobState.RUNNING)
    ProgressReporter(service.store, job.id, 1)({"stage": "teacher", "done": 0, "total": 1})
    assert not service.events(job, "stage_started")


def test_progress_is_stored_at_a_limited_rate(service, engine, monkeypatch):
    job = a_job(service, engine, None, JobState.RUNNING)
    clock = [0.0]
    monkeypatch.setattr("app.jobs.workflow.running_job.time.monotonic", lambda: clock[0])
    report = ProgressReporter(service.store, job.id, 0)
    for done in range(1000):
        report({"type": "progress", "stage": "teacher", "done": done, "total": 1000, "gap": None})
        clock[0] += 0.1
    assert service.job(job).stage == "teacher"
    events = service.events(job, "stage_progress")
    assert 40 < len(events) < 150
    assert set(events[0][1]) == {"stage", "done", "total"}


def test_the_queue_of_a_service_without_a_worker_yet_is_unavailable(tmp_path):
    queue = DbosQueue(Settings(data_dir=tmp_path))
    with pytest.raises(Unavailable):
        queue.ping()
    queue.close()
    queue.close()


def test_a_queue_that_cannot_be_opened_is_unavailable(tmp_path):
    queue = DbosQueue(Settings(data_dir=tmp_path, database_url="postgresql://nobody@127.0.0.1:1/none"))
    for call in (queue.ping, lambda: queue.enqueue("j", "j.0"), lambda: queue.cancel("j.0")):
        with refused_as(Unavailable, "queue_unavailable"):
            call()
    queue.close()


def test_the_queue_enqueues_once_cancels_and_deletes_records(tmp_path):
    settings = Settings(data_dir=tmp_path)
    DBOS.migrate(engine_url(settings), schema=SCHEMA)
    queue = DbosQueue(settings)
    queue.register_queues()
    queue.ping()
    for _ in range(2):
        queue.enqueue("job_1", "job_1.0")
    assert queue.states(["job_1.0", "job_2.0"]) == {"job_1.0": WorkflowState("ENQUEUED", None)}
    assert queue.states([]) == {}
    assert queue.work_of("local-0") == set()
    assert not queue.requeue("local-0", "job_1.0"), "it waits, and runs in no worker"
    for _ in range(2):
        queue.cancel("job_1.0")
    queue.cancel("job_2.0")
    assert queue.states(["job_1.0"])["job_1.0"].ended
    assert queue.forget_before(0.0) == 0
    assert queue.forget_before(2e10) == 1
    assert queue.states(["job_1.0"]) == {}
    queue.close()


def test_a_job_that_cannot_be_settled_does_not_keep_the_others_from_it(service, engine, monkeypatch, caplog):
    first, second = (a_job(service, engine, WorkflowState("ERROR", "boom"), JobState.RUNNING) for _ in "ab")
    settle = Reconciler._settle

    def fails(self, job, workflow):
        if job.id == first.id:
            raise ValueError("its rows are damaged")
        settle(self, job, workflow)

    monkeypatch.setattr(Reconciler, "_settle", fails)
    Reconciler(service.store, engine).check_jobs()
    assert [service.job(job).state for job in (first, second)] == [JobState.RUNNING, JobState.FAILED]
    assert f"job {first.id} could not be settled" in caplog.text


def test_jobs_that_wait_for_admission_are_not_looked_up_in_the_engine(service, engine, monkeypatch):
    """However many jobs one tenant submits, a pass costs what the coordinated ones cost."""
    jobs = [service.submit() for _ in range(3)]
    with service.store.begin() as uow:
        for job in jobs[1:]:
            uow.jobs.change(job.id, stage="waiting")
    asked = []
    monkeypatch.setattr(EngineStates, "states", lambda _self, names: asked.extend(names) or {})
    monkeypatch.setattr(module, "admit_waiting_jobs", lambda *_: None)
    Reconciler(service.store, engine).check_jobs()
    assert asked == [jobs[0].workflow_id]
