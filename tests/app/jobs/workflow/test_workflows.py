"""Jobs run by a real worker on DBOS, with the fake solver."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from app.domain.entities import JobState, StudentState
from app.jobs.solver.process import Solver
from app.jobs.takeover import requeue_work_of
from app.services.training import cancel_job, job_students, retry_job
from app.store.repositories.units import Units
from app.store.tables import datasets
from tests.app.jobs.conftest import CLASSES, is_alive, wait_for


def finished(service, job) -> list[tuple[int, str]]:
    return [(data["class_index"], data["method"]) for _, data in service.events(job, "student_finished")]


def test_a_job_trains_every_class_and_publishes(service, solver):
    with service.worker(solver) as worker:
        job = service.ended(service.submit(evaluation={"baselines": ["svm"]}))
    assert job.state is JobState.SUCCEEDED
    assert (job.progress_done, job.progress_total) == (13, 13)
    assert sorted(finished(service, job)) == [(k, m) for k in range(6) for m in ("gsvm", "svm")]
    assert solver.done().count("start") == 1
    assert "restore" not in solver.done()
    types = [kind for kind, _ in service.events(job)]
    assert types[:2] == ["job_queued", "job_started"]
    assert types[-2:] == ["version_published", "job_succeeded"]
    assert service.events(job, "job_started")[0][1]["executor"] == worker.executor_id == "local-0"
    teacher = service.events(job, "teacher_finished")[0][1]
    assert (teacher["objective"], teacher["gap"], teacher["iterations"]) == (1.5, 1e-4, 7)
    stages = [data["stage"] for _, data in service.events(job, "stage_started")]
    assert stages == ["teacher", "students"]
    assert job.provenance["preparation_digest"] == job.preparation_digest
    assert job.provenance["threads"] == 1
    assert job.provenance["features"] == {"kind": "linear"}
    assert job.provenance["teacher_digest"] == job.teacher_digest
    assert set(job.provenance["versions"]) >= {"python", "numpy", "scipy", "numba", "scikit-learn", "stms"}


@pytest.mark.long
def test_a_published_version_has_the_means_of_every_method(service, solver):
    with service.worker(solver):
        job = service.ended(service.submit(alias="stable"))
    with service.store.read() as uow:
        version = uow.models.version("m", job.version)
        assert uow.models.alias("m", "stable").version == job.version == 1
        row = uow.students.served(job.id, "c3", "gsvm")
        assert uow.blobs.read(row.digest) == b"3-gsvm"
        assert uow.blobs.read(version.teacher_digest) == b"teacher"
    assert version.classes == CLASSES
    assert version.metrics["means"]["gsvm"] == {"accuracy": 0.875, "f1": 0.75, "auc": None, "classes": 6}
    assert version.metrics["means"]["teacher"]["accuracy"] == 1.0


@pytest.mark.long
def test_a_job_may_end_without_a_version(service, solver):
    with service.worker(solver):
        job = service.ended(service.submit(publish=False, classes=["c2"]))
    assert (job.state, job.version) == (JobState.SUCCEEDED, None)
    assert finished(service, job) == [(2, "gsvm")]


@pytest.mark.long
def test_many_classes_are_trained_in_chunks_by_one_solver(service, solver):
    service.settings.classes_per_chunk = 2
    with service.worker(solver):
        job = service.ended(service.submit())
    assert job.state is JobState.SUCCEEDED
    assert sorted(finished(service, job)) == [(k, "gsvm") for k in range(6)]
    assert solver.done().count("prepare") == 1
    assert solver.done().count("start") == 1
    assert "restore" not in solver.done()


def test_two_jobs_share_a_worker(service, solver):
    service.settings.worker_concurrency = 2
    solver.plan(student_seconds=0.1)
    with service.worker(solver):
        jobs = [service.submit() for _ in range(2)]
        assert {service.ended(job).state for job in jobs} == {JobState.SUCCEEDED}
    with service.store.read() as uow:
        assert [version.version for version in uow.models.versions("m", limit=100)[0]] == [2, 1]


def test_bad_data_fail_the_job_with_the_message_of_the_solver(service, solver):
    solver.plan(fail_prepare=["class_too_small", "The class 'x' has 1 example."])
    with service.worker(solver):
        job = service.ended(service.submit())
    assert job.state is JobState.FAILED
    assert (job.error_code, job.error_message) == ("class_too_small", "The class 'x' has 1 example.")
    assert service.events(job)[-1] == (
        "job_failed",
        {"code": job.error_code, "message": job.error_message},
    )


def test_a_failed_class_does_not_stop_the_others(service, solver):
    solver.plan(fail={"2": ["single_class", "No example."]})
    with service.worker(solver):
        job = service.ended(service.submit())
        assert job.state is JobState.PARTIALLY_SUCCEEDED
        assert job.error_code == "students_failed"
        assert "1 of 6" in job.error_message
        assert "'c2'" in job.error_message
        assert "No example." in job.error_message
        assert job.version == 1
        row = next(row for row in job_students(service.store, job.id)[0] if row.class_index == 2)
        assert (row.state, row.error) == (StudentState.FAILED, "No example.")
        assert job.progress_done == job.progress_total

        solver.plan()
        revision = _revision(service)
        retry_job(service.store, service.queue, job.id, service.settings)
        again = service.ended(job)
    assert (again.state, again.attempt, again.version) == (JobState.SUCCEEDED, 1, 1)
    assert (again.error_code, again.error_message) == (None, None)
    assert sorted(finished(service, job)) == [(k, "gsvm") for k in range(6)]
    assert solver.done().count("prepare") == 1
    assert solver.done().count("train-0-gsvm") == 1
    assert _revision(service) > revision
    assert len(service.events(job, "version_published")) == 1


def _revision(service) -> int:
    with service.store.read() as uow:
        return uow.registry.revision()


def test_a_job_without_any_student_has_failed(service, solver):
    solver.plan(fail={str(index): ["x", "broken"] for index in range(6)})
    with service.worker(solver):
        job = service.ended(service.submit())
    assert (job.state, job.version) == (JobState.FAILED, None)
    assert "6 of 6" in job.error_message


def test_a_job_survives_one_death_of_its_solver(service, solver):
    solver.plan(die={"prepare": 1, "3": 1})
    with service.worker(solver):
        job = service.ended(service.submit())
    assert job.state is JobState.SUCCEEDED
    assert sorted(finished(service, job)) == [(k, "gsvm") for k in range(6)]
    assert solver.done().count("start") == 3


def test_a_class_that_kills_the_solver_twice_has_failed(service, solver):
    solver.plan(die={"3": 9})
    with service.worker(solver):
        job = service.ended(service.submit())
    assert job.state is JobState.PARTIALLY_SUCCEEDED
    assert sorted(finished(service, job)) == [(k, "gsvm") for k in (0, 1, 2, 4, 5)]
    assert "SIGSEGV" in job.error_message
    assert solver.done().count("train-3-gsvm") == 2


@pytest.mark.long
def test_a_job_fails_whose_preparation_kills_the_solver_twice(service, solver):
    solver.plan(die={"prepare": 9})
    with service.worker(solver):
        job = service.ended(service.submit())
    assert (job.state, job.error_code) == (JobState.FAILED, "solver_died")
    assert "SIGSEGV" in job.error_message


@pytest.mark.parametrize("chunk_size", [64, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("stage", ["prepare", "students"])
def test_a_cancel_ends_the_solver_in_the_middle_of_its_work(service, solver, stage, chunk_size):
    service.settings.classes_per_chunk = chunk_size
    solver.plan(prepare_seconds=500 if stage == "prepare" else 0, student_seconds=500)
    seen = {"prepare": "start", "students": "train-0-gsvm"}[stage]
    with service.worker(solver):
        job = service.submit()
        wait_for(lambda: seen in solver.done())
        pid = solver.pids()[-1]
        wait_for(lambda: is_alive(pid))
        assert cancel_job(service.store, service.queue, job.id).state is JobState.CANCELLING
        wait_for(lambda: not any(is_alive(pid) for pid in solver.pids()), 60.0)
        assert service.ended(job).state is JobState.CANCELLED
    assert [kind for kind, _ in service.events(job)][-2:] == ["job_cancelling", "job_cancelled"]


def test_a_retried_job_continues_where_it_was_cancelled(service, solver):
    solver.plan(student_seconds=0.3)
    with service.worker(solver):
        job = service.submit()
        wait_for(lambda: len(finished(service, job)) == 2)
        cancel_job(service.store, service.queue, job.id)
        assert service.ended(job).state is JobState.CANCELLED
        solver.plan()
        retry_job(service.store, service.queue, job.id, service.settings)
        assert service.ended(job).state is JobState.SUCCEEDED
    assert sorted(finished(service, job)) == [(k, "gsvm") for k in range(6)]
    assert solver.done().count("prepare") == 1


def test_a_retried_job_keeps_the_labels_that_it_stored(service, solver):
    with service.store.engine.begin() as connection:
        connection.execute(sa.update(datasets).values(summary={"unlabelled_rows": 50}))
    solver.plan(prepare_seconds=500)
    with service.worker(solver):
        job = service.submit(labelling={"method": "ssodm"})
        wait_for(lambda: service.job(job).labels_digest is not None)
        cancel_job(service.store, service.queue, job.id)
        assert service.ended(job).state is JobState.CANCELLED
        solver.plan()
        retry_job(service.store, service.queue, job.id, service.settings)
        assert service.ended(job).state is JobState.SUCCEEDED
    assert solver.done().count("label") == 1
    assert service.events(job, "labels_stored")[0][1]["labelled"] == 50


def test_the_next_worker_continues_the_job_of_a_stopped_one(service, solver):
    solver.plan(student_seconds=0.3)
    with service.worker(solver):
        job = service.submit()
        wait_for(lambda: len(finished(service, job)) >= 2)
    assert not any(is_alive(pid) for pid in solver.pids())
    assert service.job(job).state is JobState.RUNNING
    with service.worker(solver):
        assert service.ended(job).state is JobState.SUCCEEDED
    assert sorted(finished(service, job)) == [(k, "gsvm") for k in range(6)]
    assert solver.done().count("prepare") == 1
    assert job.attempt == 0


@pytest.mark.long
def test_an_unexpected_error_names_its_class_only(service, solver, monkeypatch):
    def broken(*_arguments):
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(Solver, "prepare", broken)
    with service.worker(solver):
        job = service.ended(service.submit())
    assert (job.state, job.error_code) == (JobState.FAILED, "internal_error")
    assert "ZeroDivisionError" in job.error_message
    assert "secret" not in job.error_message


def test_a_worker_without_work_deregisters_when_it_stops(service, solver):
    with service.worker(solver) as worker:
        with service.store.read() as uow:
            assert [row.executor_id for row in uow.workers.all()] == [worker.executor_id]
        service.ended(service.submit())
    with service.store.read() as uow:
        assert not uow.workers.all()


@pytest.mark.long
def test_an_execution_whose_work_was_taken_over_stores_nothing_more(service, solver):
    """As after a freeze: the work is recovered elsewhere while this execution still runs."""
    service.settings.worker_concurrency = 2
    # As many threads as classes: the job is one chunk.
    service.settings.solver_threads = 6
    solver.plan(student_seconds=0.4)
    with service.worker(solver) as worker:
        job = service.submit()
        wait_for(lambda: finished(service, job))
        (first,) = solver.pids()
        assert len(list(requeue_work_of(service.queue, worker.executor_id))) == 2
        wait_for(lambda: len(solver.pids()) == 2)
        wait_for(lambda: not is_alive(first))
        assert service.ended(job).state is JobState.SUCCEEDED
    assert sorted(finished(service, job)) == [(k, "gsvm") for k in range(6)]
    assert solver.done().count("prepare") == 1
    assert service.job(job).progress_done == 7


@pytest.mark.long
def test_a_large_teacher_reaches_the_database_through_a_file(service, solver):
    size = 10 * 1024**2 + 17
    solver.plan(large_teacher=size)
    with service.worker(solver):
        job = service.ended(service.submit(classes=["c1"]))
    assert job.state is JobState.SUCCEEDED
    with service.store.read() as uow:
        version = uow.models.version("m", job.version)
        assert version.teacher_digest == job.teacher_digest
        assert uow.blobs.size(version.teacher_digest) == size
        assert uow.blobs.read(version.teacher_digest) == b"t" * size


# Faults that no worker sees: the counts and records in the database decide


def count_starts(monkeypatch, starts: int, *, chunks_only: bool = False) -> None:
    """Units find that they were started ``starts`` times since their last result."""

    def start(self, job_id, attempt, number, *_arguments) -> int:
        return starts if number or not chunks_only else 1

    monkeypatch.setattr(Units, "start", start)


def test_a_preparation_that_ends_its_workers_fails_after_three_recoveries(service, solver, monkeypatch):
    count_starts(monkeypatch, 5)
    with service.worker(solver):
        job = service.ended(service.submit())
    assert (job.state, job.error_code) == (JobState.FAILED, "too_many_restarts")
    assert job.error_message.startswith("4 workers ended")
    assert "prepare" not in solver.done()


@pytest.mark.long
def test_a_class_that_ends_its_workers_fails_alone(service, solver, monkeypatch):
    service.settings.classes_per_chunk = 3
    count_starts(monkeypatch, 5, chunks_only=True)
    with service.worker(solver):
        job = service.ended(service.submit())
    assert job.state is JobState.PARTIALLY_SUCCEEDED
    failed = service.events(job, "student_failed")
    assert {(data["class_index"], data["code"]) for _, data in failed} == {
        (0, "too_many_restarts"),
        (3, "too_many_restarts"),
    }
    assert [line for line in solver.done() if line.startswith("train")] == [
        f"train-{index}-gsvm" for index in (1, 2, 4, 5)
    ]


def test_a_start_is_recorded_before_the_solver_and_a_result_clears_it(service, solver):
    solver.plan(student_seconds=0.5)

    def starts() -> list[int]:
        with closing(sqlite3.connect(service.settings.data_dir / "stms.sqlite")) as database:
            return [row[0] for row in database.execute("SELECT starts FROM job_units")]

    with service.worker(solver):
        job = service.submit(classes=["c0", "c1"])
        assert wait_for(lambda: "prepare" in solver.done())
        assert starts() == [1]
        service.ended(job)


@pytest.mark.long
def test_a_job_ends_at_its_time_limit(service, solver):
    solver.plan(student_seconds=30)
    with service.worker(solver):
        job = service.ended(service.submit(time_limit_seconds=1.5))
    assert (job.state, job.error_code) == (JobState.FAILED, "time_limit")
    assert not any(map(is_alive, solver.pids()))


@pytest.mark.long
def test_a_full_cache_repeats_the_writing_and_then_gives_the_unit_back(service, solver, monkeypatch):
    monkeypatch.setattr("app.jobs.solver.process._BACK_OFF_SECONDS", 0.01)
    monkeypatch.setattr("app.jobs.solver.retry._MAX_CACHE_ROUNDS", 3)
    solver.plan(cache_full=6)
    with service.worker(solver):
        job = service.ended(service.submit())
    assert (job.state, job.attempt) == (JobState.SUCCEEDED, 1)
    assert solver.done().count("write") == 7, "four in the first attempt, then two and one that succeeds"
    assert solver.done().count("prepare") == 2, "once an attempt"
    assert [data["code"] for _, data in service.events(job, "job_restarted")] == ["cache_full"]


def copy_of(path: Path) -> bytes:
    """The database as it is now, without what is written later."""
    copy = path.with_suffix(".copy")
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    return copy.read_bytes()


@pytest.mark.long
@pytest.mark.parametrize("older", ["stms.sqlite", "jobs.sqlite"])
@pytest.mark.parametrize("event", ["job_queued", "teacher_finished", "student_finished"])
def test_databases_of_two_moments_are_reconciled(service, solver, older, event, tmp_path):
    """As after a power cut with unsynced writes, or the restore of one database only."""
    service.settings.classes_per_chunk = 2
    solver.plan(prepare_seconds=0.3, student_seconds=0.2)
    with service.worker(solver):
        job = service.submit()
        wait_for(lambda: service.events(job, event) and (tmp_path / older).exists())
        before = copy_of(tmp_path / older)
        service.ended(job)
    service.queue.close()
    service.store.dispose()
    for leftover in tmp_path.glob(f"{older}-*"):
        leftover.unlink()
    (tmp_path / older).write_bytes(before)
    with service.worker(solver):
        job = service.ended(job)
    assert (job.state, job.error_code, job.version) == (JobState.SUCCEEDED, None, 1)
    assert sorted(finished(service, job)) == [(k, "gsvm") for k in range(6)]
    assert len(service.events(job, "version_published")) == 1
