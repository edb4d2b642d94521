"""Sharing of the workers between jobs and API keys, with real workers on DBOS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.domain.entities import WAITING, Job, JobState, Priority
from app.domain.errors import Overloaded
from app.services.training import cancel_job, workers_of
from app.settings import Settings
from app.store.unit_of_work import Store
from tests.app.jobs.conftest import FakeSolver, Service, open_service, wait_for
from tests.refusals import refused_as

CHUNK = 10


@pytest.fixture
def crowd(store: Store, database_address: str, tmp_path: Path) -> Iterator[Service]:
    """A data set of a thousand classes, which are trained in units of ten."""
    url = None if database_address.startswith("sqlite") else database_address
    settings = Settings(data_dir=tmp_path, database_url=url, classes_per_chunk=CHUNK, solver_threads=1)
    opened = open_service(store, settings, [f"c{index}" for index in range(1000)])
    yield opened
    opened.queue.close()


def done(service: Service, job: Job) -> int:
    return service.job(job).progress_done


def is_running(service: Service, job: Job) -> bool:
    return bool(workers_of(service.store, [service.job(job)])[job.id])


@pytest.mark.long
def test_a_small_job_does_not_wait_for_the_end_of_a_large_one(crowd: Service, solver: FakeSolver):
    solver.plan(student_seconds=0.03)
    with crowd.worker(solver):
        large = crowd.submit(created_by="A")
        wait_for(lambda: done(crowd, large) > 2 * CHUNK)
        before = done(crowd, large)
        small = crowd.submit(created_by="B", classes=["c1", "c2", "c3"])
        assert crowd.ended(small).state is JobState.SUCCEEDED
        meanwhile = done(crowd, large) - before
        assert crowd.job(large).state is JobState.RUNNING
        # The unit that was running, and one for each pause of the slot between units of B.
        assert meanwhile <= 5 * CHUNK, f"{meanwhile} students of A were trained before B had its three"
        assert done(crowd, large) < 500
        cancel_job(crowd.store, crowd.queue, large.id)
        crowd.ended(large)


@pytest.mark.long
def test_large_jobs_of_two_keys_progress_equally(crowd: Service, solver: FakeSolver):
    solver.plan(student_seconds=0.01)
    with crowd.worker(solver):
        first = crowd.submit(created_by="A")
        wait_for(lambda: done(crowd, first) > 2 * CHUNK)
        others = [crowd.submit(created_by="B"), crowd.submit(created_by="B")]
        wait_for(lambda: all(done(crowd, job) > CHUNK for job in others))
        start = done(crowd, first), sum(done(crowd, job) for job in others)
        wait_for(lambda: sum(done(crowd, job) for job in others) - start[1] >= 5 * CHUNK)
        progress = done(crowd, first) - start[0], sum(done(crowd, job) for job in others) - start[1]
        # Two jobs of B get as much as one of A: fairness is between keys, not jobs.
        assert 0.4 <= progress[0] / progress[1] <= 2.5, progress
        for job in (first, *others):
            cancel_job(crowd.store, crowd.queue, job.id)
            crowd.ended(job)


@pytest.mark.long
def test_a_higher_priority_goes_first(crowd: Service, solver: FakeSolver):
    solver.plan(student_seconds=0.03)
    with crowd.worker(solver):
        low = crowd.submit(created_by="A", priority=Priority.LOW)
        wait_for(lambda: done(crowd, low) > CHUNK)
        classes = [f"c{index}" for index in range(5 * CHUNK)]
        high = crowd.submit(created_by="A", priority=Priority.HIGH, classes=classes)
        wait_for(lambda: done(crowd, high) > CHUNK)
        before = done(crowd, low)
        assert crowd.ended(high).state is JobState.SUCCEEDED
        assert done(crowd, low) - before <= 2 * CHUNK
        assert crowd.job(low).state is JobState.RUNNING
        cancel_job(crowd.store, crowd.queue, low.id)
        crowd.ended(low)


@pytest.mark.long
def test_the_units_of_a_key_are_limited(crowd: Service, solver: FakeSolver):
    crowd.settings.max_units_per_key = 1
    crowd.settings.worker_concurrency = 3
    solver.plan(student_seconds=0.02)
    classes = [f"c{index}" for index in range(6)]
    with crowd.worker(solver):
        jobs = [crowd.submit(created_by="A", classes=classes) for _ in range(2)]
        seen: set[int] = set()

        def all_ended() -> bool:
            with crowd.store.read() as uow:
                seen.add(uow.units.count_of_owner("default", "A"))
            return all(crowd.job(job).state.ended for job in jobs)

        wait_for(all_ended)
    assert max(seen) == 1
    assert {crowd.job(job).state for job in jobs} == {JobState.SUCCEEDED}


@pytest.mark.long
def test_the_next_worker_continues_a_job_whose_units_are_limited(crowd: Service, solver: FakeSolver):
    """Its coordinator repeats the steps of its first units while a later one is registered."""
    crowd.settings.max_units_per_key = 1
    solver.plan(student_seconds=0.05)
    with crowd.worker(solver):
        job = crowd.submit(classes=[f"c{index}" for index in range(10 * CHUNK)])
        wait_for(lambda: done(crowd, job) > 3 * CHUNK)
    assert crowd.job(job).state is JobState.RUNNING
    with crowd.worker(solver):
        assert crowd.ended(job, 60.0).state is JobState.SUCCEEDED
    assert crowd.job(job).attempt == 0


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.RUNNING])
def test_a_job_that_is_cancelled_immediately_leaves_no_unit_behind(crowd: Service, state: JobState):
    job = crowd.submit(created_by="A")
    with crowd.store.begin() as uow:
        uow.units.add(job.id, job.attempt, 0, tenant="default", owner="A", level=1)
        if state is JobState.RUNNING:
            uow.jobs.move(job.id, state)
    assert cancel_job(crowd.store, crowd.queue, job.id).state is JobState.CANCELLED
    with crowd.store.read() as uow:
        assert uow.units.count_of_owner("default", "A") == 0


@pytest.mark.long
def test_the_queued_jobs_of_a_key_are_limited(crowd: Service):
    crowd.settings.max_unfinished_jobs_per_key = 2
    for _ in range(2):
        crowd.submit(created_by="A")
    with refused_as(Overloaded, "too_many_unfinished_jobs"):
        crowd.submit(created_by="A")
    crowd.submit(created_by="B")


def test_a_heartbeat_reports_the_unit_and_its_job(crowd: Service, solver: FakeSolver):
    solver.plan(student_seconds=0.2)
    crowd.settings.heartbeat_seconds = 0.1
    with crowd.worker(solver) as worker:
        job = crowd.submit(classes=["c7", "c8", "c9"])

        def reported_units() -> tuple[dict, ...]:
            with crowd.store.read() as uow:
                (row,) = uow.workers.all()
            return row.units if row.units and row.units[0]["solver_pid"] else ()

        (unit,) = wait_for(reported_units)
        wait_for(lambda: unit["solver_pid"] in solver.pids())
        assert {name: unit[name] for name in ("job_id", "unit", "kind", "classes")} == {
            "job_id": job.id,
            "unit": 0,
            "kind": "prepare",
            "classes": 3,
        }
        assert workers_of(crowd.store, [crowd.job(job)]) == {job.id: [worker.executor_id]}
        crowd.ended(job)
        wait_for(lambda: not reported_units())
        assert workers_of(crowd.store, [crowd.job(job)]) == {job.id: ()}
    with crowd.store.read() as uow:
        assert uow.units.count_of_owner("default", "me") == 0


@pytest.mark.long
def test_a_job_starts_beside_64_large_jobs_of_another_key(crowd: Service, solver: FakeSolver):
    """At 20ce477 the large jobs took all 64 coordinators, and the small job waited for the end of one."""
    solver.plan(student_seconds=0.03)
    with crowd.worker(solver):
        large = [crowd.submit(created_by="A") for _ in range(64)]
        wait_for(lambda: sum(is_running(crowd, job) for job in large) >= 1)
        small = crowd.submit(created_by="B", classes=["c1", "c2"])
        assert small.stage == "queued"
        assert crowd.ended(small).state is JobState.SUCCEEDED
        states = [crowd.job(job) for job in large]
        assert sum(job.stage == WAITING for job in states) == 48
        for job in reversed(large):
            cancel_job(crowd.store, crowd.queue, job.id)
        crowd.ended(large[0])


def test_running_jobs_count_towards_the_limit_of_a_key(crowd: Service):
    crowd.settings.max_unfinished_jobs_per_key = 1
    job = crowd.submit(created_by="A")
    with crowd.store.begin() as uow:
        uow.jobs.move(job.id, JobState.RUNNING)
    with refused_as(Overloaded, "too_many_unfinished_jobs"):
        crowd.submit(created_by="A")
