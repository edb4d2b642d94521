"""Counters that outlive what they count, and the figures of metrics."""

from __future__ import annotations

import time

from app.domain.entities import Job, JobState, Worker
from app.domain.figures import JOB_ERRORS, JOB_EVENTS, JOB_SECONDS_BUCKET, JOB_SECONDS_SUM, bucket_label
from app.services.health import _figures
from app.store.unit_of_work import Store


def job(name: str, *, tenant: str = "default", **values: object) -> Job:
    fields = {
        "dataset_id": "ds",
        "model": "m",
        "spec": {},
        "state": JobState.QUEUED,
        "attempt": 0,
        "stage": "",
        "progress_done": 1,
        "progress_total": 4,
        "created_at": time.time() - 100.0,
        "created_by": "key",
    }
    return Job(id=name, tenant=tenant, **fields | values)


def test_a_job_is_counted_when_it_ends(store: Store):
    with store.begin() as uow:
        uow.jobs.add(job("job_1"))
        uow.jobs.move("job_1", JobState.RUNNING, started_at=1000.0)
        uow.jobs.move("job_1", JobState.FAILED, finished_at=1045.0, error_code="solver_died")
    with store.read() as uow:
        before = uow.tallies.all()
    assert before == {
        (JOB_SECONDS_SUM, "failed"): 45.0,
        (JOB_SECONDS_BUCKET, bucket_label("failed", 45.0)): 1.0,
        (JOB_ERRORS, "solver_died"): 1.0,
    }
    with store.begin() as uow:
        uow.jobs.move("job_1", JobState.QUEUED, error_code=None)
        uow.jobs.move("job_1", JobState.CANCELLED)
    with store.read() as uow:
        after = uow.tallies.all()
    assert after.pop((JOB_SECONDS_SUM, "cancelled")) > 1e6, "since the first start"
    assert after.pop((JOB_SECONDS_BUCKET, bucket_label("cancelled", 1e6))) == 1.0
    assert after == before, "and nothing is counted again"


def test_only_rare_events_are_counted(store: Store):
    with store.begin() as uow:
        uow.jobs.add(job("job_1"))
        uow.events.append_all("job_1", [("solver_died", {}), ("stage_started", {}), ("solver_died", {})])
    with store.read() as uow:
        assert uow.tallies.all() == {(JOB_EVENTS, "solver_died"): 2.0}


def test_the_figures_are_those_of_all_tenants_and_workers(store: Store):
    now = time.time()
    with store.of_all_tenants().begin() as uow:
        uow.jobs.add(job("job_1", queued_at=now - 50.0))
        uow.jobs.add(job("job_2", tenant="acme", queued_at=now - 70.0))
        uow.jobs.add(job("job_3", state=JobState.RUNNING, queued_at=now - 900.0))
        uow.workers.beat(Worker("a", "here", 1, now, now, slots=3, units=({"job": "job_3"},)))
        uow.workers.beat(Worker("b", "here", 2, now, now - 60.0, slots=3))
        uow.workers.beat(Worker("c", "here", 3, now, now, slots=3, lost_at=now))
    figures = _figures(store, 30.0)
    assert figures is not None
    assert figures.jobs["queued"] == 2
    assert 70.0 <= figures.oldest_queued_seconds < 200.0
    assert (figures.units_done, figures.units_total) == (3, 12)
    assert figures.work_units == {"waiting": 3, "running": 0}, "without units, each job waits as one"
    assert figures.workers == {"alive": 1, "silent": 1, "lost": 1}
    assert (figures.slots, figures.busy) == (3, 1)


def test_a_job_waits_since_it_was_queued_again(store: Store):
    with store.begin() as uow:
        uow.jobs.add(job("job_1", state=JobState.FAILED))
        assert uow.jobs.oldest_queued_seconds() == 0.0
        uow.jobs.move("job_1", JobState.QUEUED)
        assert uow.jobs.oldest_queued_seconds() < 60.0
