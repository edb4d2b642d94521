"""The worker as a process: start, stop, deregistration and takeover."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from dbos import error as dbos_error

from app.domain.entities import JobState
from app.domain.entities import Worker as WorkerRow
from app.domain.errors import Unavailable
from app.jobs import reconciler, takeover
from app.jobs import worker as module
from app.jobs.engine.client import DbosQueue
from app.jobs.engine.config import engine_url, quiet_engine_log
from app.jobs.worker import Worker
from app.services.training import cancel_job
from app.settings import Settings
from app.store.engine import open_engine
from app.store.repositories.events import Events
from app.store.unit_of_work import Store
from tests.app.jobs.conftest import open_service, wait_for


def test_a_worker_refuses_a_database_without_the_tables(tmp_path):
    worker = Worker(Settings(data_dir=tmp_path))
    with pytest.raises(Unavailable) as refused:
        worker.start()
    worker.stop()
    assert "stms db upgrade" in refused.value.message
    assert refused.value.reason == "schema_outdated"


WITH_ANOTHER_SOLVER = """
import functools, json, sys
from app.jobs import worker
from app.settings import Settings

worker.Worker = functools.partial(worker.Worker, solver_command=json.loads(sys.argv[1]))
sys.exit(worker.run_worker(Settings()))
"""


def test_a_worker_runs_until_a_signal(service, solver):
    command = [sys.executable, "-P", "-c", WITH_ANOTHER_SOLVER, json.dumps(solver.command)]
    environment = os.environ | {"STMS_DATA_DIR": str(service.settings.data_dir)}
    job = service.submit()
    with subprocess.Popen(command, env=environment) as process:
        try:
            service.ended(job)
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0
        finally:
            process.kill()
    assert service.job(job).state is JobState.SUCCEEDED


TERMINATED_WHILE_IT_STARTS = """
import os, signal, sys
from app.jobs import worker
from app.settings import Settings

start = worker.Worker.start

def interrupted(self):
    os.kill(os.getpid(), signal.SIGTERM)
    start(self)

worker.Worker.start = interrupted
sys.exit(worker.run_worker(Settings()))
"""


@pytest.mark.long
def test_a_signal_while_a_worker_starts_ends_it(service):
    command = [sys.executable, "-P", "-c", TERMINATED_WHILE_IT_STARTS]
    environment = os.environ | {"STMS_DATA_DIR": str(service.settings.data_dir)}
    assert subprocess.run(command, env=environment, timeout=120, check=False).returncode == 0
    with service.store.read() as uow:
        assert uow.workers.all() == []


def test_the_jobs_file_is_in_wal_mode(service, solver):
    with service.worker(solver):
        connection = sqlite3.connect(service.settings.data_dir / "jobs.sqlite")
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        connection.close()


def test_a_job_submitted_before_the_first_worker_is_not_lost(service, solver):
    # DBOS has no tables yet, so the job cannot be enqueued.
    job = service.submit()
    with pytest.raises(Unavailable):
        service.queue.ping()
    with service.worker(solver):
        assert service.ended(job).state is JobState.SUCCEEDED


@pytest.mark.long
def test_a_worker_takes_over_from_a_dead_one_and_records_it_later_if_blocked(service, solver, monkeypatch):
    append, refused = Events.append, list[str]()

    def refuse_once(self: Events, job_id: str, event: str, data: Any) -> Any:
        if event == "worker_took_over" and not refused:
            refused.append(job_id)
            raise Unavailable("The dead worker still has the row.", code="database_busy")
        return append(self, job_id, event, data)

    monkeypatch.setattr(Events, "append", refuse_once)
    solver.plan(student_seconds=0.3)
    service.settings.heartbeat_seconds, service.settings.takeover_seconds = 0.1, 1.0
    with service.worker(solver) as first:
        job = service.submit()
        wait_for(lambda: service.events(job, "student_finished"))
    # The first worker's row stays, as it has work. The next worker has another name, as on another machine.
    blocker = module.claim_identity(service.settings)
    try:
        with service.worker(solver) as second:
            assert second.executor_id == "local-1" != first.executor_id
            assert service.ended(job).state is JobState.SUCCEEDED
    finally:
        blocker.release()
    assert refused == [job.id]
    assert service.events(job, "worker_took_over") == [
        ("worker_took_over", {"from": ["local-0"], "by": "local-1"})
    ]
    trained = [data["class_index"] for _, data in service.events(job, "student_finished")]
    assert sorted(trained) == list(range(6))


@pytest.mark.long
def test_chunks_and_jobs_run_side_by_side_on_postgresql(postgres_address, solver, tmp_path):
    settings = Settings(
        data_dir=tmp_path, database_url=postgres_address, classes_per_chunk=1, worker_concurrency=3
    )
    store = Store(open_engine(settings.app_database_url))
    service = open_service(store, settings)
    solver.plan(student_seconds=0.05)
    try:
        with service.worker(solver):
            jobs = [service.submit(classes=["c0", "c1", "c2"]) for _ in range(2)]
            assert [service.ended(job).state for job in jobs] == [JobState.SUCCEEDED] * 2
            for job in jobs:
                trained = [
                    (data["class_index"], data["method"])
                    for _, data in service.events(job, "student_finished")
                ]
                assert sorted(trained) == [(k, "gsvm") for k in range(3)]
                ended = service.job(job)
                assert ended.progress_done == ended.progress_total
            solver.plan(student_seconds=500)
            job = service.submit()
            wait_for(lambda: service.job(job).stage == "students")
            cancel_job(store, service.queue, job.id)
            assert service.ended(job).state is JobState.CANCELLED
    finally:
        service.queue.close()
        store.dispose()


def test_a_worker_that_cannot_deregister_logs_it(service, solver, monkeypatch, caplog):
    def away(_queue: DbosQueue, _executor: str) -> set[str]:
        raise Unavailable("The job queue cannot be reached.")

    with service.worker(solver):
        monkeypatch.setattr(DbosQueue, "work_of", away)
    assert "could not deregister" in caplog.text


def test_workflows_that_do_not_stop_are_logged(service, solver, monkeypatch, caplog):
    monkeypatch.setattr(
        "app.jobs.workflow.work_units.RunningUnits.wait_until_idle", lambda _self, _seconds: False
    )
    with service.worker(solver):
        pass
    assert "did not stop" in caplog.text


def test_a_hanging_thread_does_not_keep_the_process_alive(monkeypatch):
    release = threading.Event()
    left = []
    monkeypatch.setattr(module.os, "_exit", left.append)
    monkeypatch.setattr(module.time, "monotonic", itertools.chain([0.0], itertools.repeat(5.0)).__next__)
    monkeypatch.setattr(module.logging, "shutdown", lambda: None)
    thread = threading.Thread(target=release.wait, name="stuck")
    # Other tests of this process may have left threads of their own.
    monkeypatch.setattr(module.threading, "enumerate", lambda: [threading.current_thread(), thread])
    thread.start()
    try:
        module._exit_despite_threads()
    finally:
        release.set()
        thread.join()
    assert left == [0]


@pytest.mark.long
def test_a_lost_worker_is_listed_for_a_minute(service, solver, monkeypatch):
    with service.store.begin() as uow:
        uow.workers.beat(WorkerRow("ghost", "h", 1, started_at=0.0, beat_at=0.0))
    service.settings.heartbeat_seconds, service.settings.takeover_seconds = 0.1, 0.5

    def names() -> list[str]:
        with service.store.read() as uow:
            return [row.executor_id for row in uow.workers.all()]

    def lost() -> list[str]:
        with service.store.read() as uow:
            return [row.executor_id for row in uow.workers.all() if row.lost_at is not None]

    with service.worker(solver):
        wait_for(lambda: lost() == ["ghost"])
        assert names() == ["ghost", "local-0"]
        monkeypatch.setattr(takeover, "_LISTED_SECONDS", 0.0)
        wait_for(lambda: names() == ["local-0"])


def test_work_that_was_claimed_and_never_started_is_queued_again(service, solver, monkeypatch):
    """The simulation found it: the connection broke while a claim committed, and the job waited for ever."""
    monkeypatch.setattr(reconciler, "_OWN_WORK_SECONDS", 0.1)
    monkeypatch.setattr(reconciler, "_POLL_SECONDS", 0.2)
    with service.worker(solver) as worker:
        job = service.ended(service.submit())
        wait_for(lambda: service.queue.states([job.workflow_id])[job.workflow_id].ended)
        with sqlite3.connect(service.settings.data_dir / "jobs.sqlite", timeout=30) as connection:
            claimed = "UPDATE workflow_status SET status = 'PENDING', executor_id = ? WHERE workflow_uuid = ?"
            connection.execute(claimed, (worker.executor_id, job.workflow_id))
        connection.close()
        wait_for(lambda: service.queue.states([job.workflow_id])[job.workflow_id].ended)
    assert service.job(job) == job


def test_dbos_gets_plain_urls(tmp_path):
    assert engine_url(Settings(data_dir=tmp_path)) == f"sqlite:///{tmp_path / 'jobs.sqlite'}"
    address = "postgresql+psycopg://u:p%40ss@h/d"
    assert engine_url(Settings(data_dir=tmp_path, database_url=address)) == (
        "postgresql://u:p%40ss@h/d?target_session_attrs=read-write"
    )
    address = "postgresql://h,i/d?target_session_attrs=any"
    assert engine_url(Settings(data_dir=tmp_path, database_url=address)) == address, "the address decides"


def test_the_log_of_dbos_gets_one_handler():
    quiet_engine_log()
    handlers = list(module.logging.getLogger("dbos").handlers)
    quiet_engine_log()
    assert module.logging.getLogger("dbos").handlers == handlers


def test_a_cancelled_workflow_is_no_error_in_the_log(caplog):
    quiet_engine_log()
    log = module.logging.getLogger("dbos")
    for error in (dbos_error.DBOSAwaitedWorkflowCancelledError("w1"), ValueError("broken")):
        log.error("Exception encountered:", exc_info=error)
    assert [record.exc_info[0] for record in caplog.records] == [ValueError]


def test_stopping_is_prompt(service, solver):
    with service.worker(solver):
        started = time.monotonic()
    assert time.monotonic() - started < 20.0
