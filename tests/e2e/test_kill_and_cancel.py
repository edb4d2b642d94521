"""Real worker processes and real solvers, killed, stopped and cancelled in the middle of real work."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from app.domain.entities import Job, JobState
from app.domain.training_spec import TrainingSpec
from app.jobs.engine.client import DbosQueue
from app.services.datasets import register_dataset
from app.services.training import cancel_job, get_job, job_events, retry_job, submit_job
from app.settings import Settings
from app.store.blob_cache import BlobCache
from app.store.engine import open_engine
from app.store.unit_of_work import Store
from tests.system.deployment import environment
from tests.system.processes import Process, command_line, descendants, is_alive, wait_for

SLOW = {
    "threshold": {"rule": "f1", "folds": 3},
    "evaluation": {"baselines": ["svm"]},
    "tuning": {"grid": {"C": [10, 100, 1000, 10000], "margins": [0.3, 1.0]}, "folds": 8},
}
"""Folds, a search and a baseline: students that last some seconds, so that one is under way at a kill."""
PAIRS = {(index, method): 1 for index in range(10) for method in ("gsvm", "svm")}


def solvers(worker: int) -> list[int]:
    """Living solvers of a worker; it may have other children for a moment, as any program does."""
    return [pid for pid in descendants(worker) if "app.jobs.solver" in command_line(pid)]


@dataclass
class House:
    settings: Settings
    store: Store
    queue: DbosQueue
    dataset_id: str

    @contextmanager
    def worker(self) -> Iterator[Process]:
        """A worker process; killed at the end if the test has not ended it."""
        given = {
            "STMS_DATA_DIR": str(self.settings.data_dir),
            "STMS_REMOTE_TEACHERS": self.settings.remote_teachers,
            "STMS_SOLVER_THREADS": "1",
            # A solver of the lowest priority would make no progress on a busy machine, and one of normal
            # priority could finish before the test observes it.
            "STMS_SOLVER_NICENESS": "4",
            # Without a spare solver the only child of the worker is the solver of the job.
            "STMS_SPARE_SOLVER": "false",
            "STMS_HEARTBEAT_SECONDS": "0.2",
            "STMS_TAKEOVER_SECONDS": "5",
        }
        if self.settings.database_url is not None:
            given["STMS_DATABASE_URL"] = self.settings.database_url.get_secret_value()
        command = [sys.executable, "-P", "-m", "app.jobs.worker"]
        process = Process("worker", command, self.settings.data_dir, environment(given))
        process.start()
        try:
            yield process
        finally:
            process.kill()

    def submit(self, **spec: Any) -> Job:
        job, _ = submit_job(
            self.store,
            self.queue,
            dataset_id=self.dataset_id,
            model="digits",
            spec=TrainingSpec.model_validate(SLOW | spec),
            created_by="me",
            idempotency_key=None,
            body_digest="",
            settings=self.settings,
        )
        return job

    def register(self, arrays: dict[str, Any]) -> str:
        """Id of a new data set of these arrays."""
        file = self.settings.data_dir / "rows.npz"
        np.savez(file, **arrays)
        files = BlobCache.of(self.settings)
        with files.writing("rows.tmp") as upload:
            upload.write(file.read_bytes())
            options: dict[str, Any] = {"created_by": "me", "limits": self.settings}
            return register_dataset(self.store, files, upload, **options)[0].id

    def state(self, job: Job) -> JobState:
        return get_job(self.store, job.id).state

    def events(self, job: Job, event_type: str) -> list[dict[str, Any]]:
        found, _ = job_events(self.store, job.id, limit=100_000)
        return [event.data for event in found if event.type == event_type]

    def workers(self) -> dict[str, int]:
        """Process ids by name."""
        with self.store.read() as uow:
            return {worker.executor_id: worker.pid for worker in uow.workers.all()}

    def is_frozen_at_work(self, name: str, pid: int, job: Job) -> bool:
        """Stop a worker in its tracks, with a unit of the job that has not ended; else let it go on.

        It stays stopped for as long as a coordinator may take to see that a unit has ended, and not for as
        long as it takes to be given up.
        """
        os.kill(pid, signal.SIGSTOP)
        time.sleep(1.2)
        with self.store.read() as uow:
            if name in uow.units.workers_of([job.id]).get(job.id, []):
                return True
        os.kill(pid, signal.SIGCONT)
        return False

    def is_stopped_after_first(self, solver: int, job: Job) -> bool:
        """Stop a solver if a student of the job is stored; else let it go on.

        It stands still while the students are counted, so that it cannot train them all meanwhile.
        """
        os.kill(solver, signal.SIGSTOP)
        if self.trained(job):
            return True
        os.kill(solver, signal.SIGCONT)
        return False

    def trained(self, job: Job) -> Counter[tuple[int, str]]:
        return Counter((data["class_index"], data["method"]) for data in self.events(job, "student_finished"))


@contextmanager
def open_house(settings: Settings) -> Iterator[House]:
    house = House(settings, Store(open_engine(settings.app_database_url)), DbosQueue(settings), "")
    X, y = load_digits(return_X_y=True)
    parts = train_test_split(X, y, train_size=800, test_size=200, random_state=0, stratify=y)
    house.dataset_id = house.register(
        dict(zip(("X_train", "X_test", "y_train", "y_test"), parts, strict=True))
    )
    try:
        yield house
    finally:
        house.queue.close()
        house.store.dispose()


@pytest.fixture
def house(database_address: str, tmp_path: Path) -> Iterator[House]:
    settings = Settings.model_validate({"data_dir": tmp_path, "database_url": database_address})
    with open_house(settings) as opened:
        yield opened


def test_a_killed_worker_loses_nothing_and_repeats_nothing(house: House):
    with house.worker() as worker:
        job = house.submit()
        [solver] = wait_for(lambda: solvers(worker.pid))
        wait_for(lambda: house.is_stopped_after_first(solver, job))
        worker.kill()
        wait_for(lambda: not is_alive(solver))
    kept = house.trained(job)
    assert house.state(job) is JobState.RUNNING
    assert len(kept) < len(PAIRS)
    with house.worker():
        wait_for(lambda: house.state(job).ended)
    assert house.state(job) is JobState.SUCCEEDED
    assert house.trained(job) == PAIRS
    assert len(house.events(job, "teacher_finished")) == 1
    assert len(house.events(job, "version_published")) == 1
    assert get_job(house.store, job.id).attempt == 0


TUNED = {
    "tuning": {
        "grid": {"C": [10, 30, 100, 300, 1000, 3000, 10000], "margins": [0.1, 0.3, 1.0]},
        "folds": 8,
        "strategy": "exhaustive",
    },
    "evaluation": {"baselines": []},
}


@pytest.mark.long
def test_a_worker_killed_in_the_tuning_repeats_neither_teachers_nor_finished_students(house: House):
    with house.worker() as worker:
        job = house.submit(**TUNED)
        wait_for(lambda: house.trained(job))
        worker.kill()
    kept = house.trained(job)
    assert len(kept) < 10
    with house.worker():
        wait_for(lambda: house.state(job).ended)
    assert house.state(job) is JobState.SUCCEEDED
    assert house.trained(job) == {(index, "gsvm"): 1 for index in range(10)}
    tuned = [event["class_index"] for event in house.events(job, "student_tuned")]
    assert sorted(tuned) == list(range(10))
    stages = [event["stage"] for event in house.events(job, "stage_started")]
    assert stages.count("tuning_teacher") == stages.count("teacher") == 1
    with house.store.read() as uow:
        rows = uow.students.of_job(job.id, method="gsvm")
        assert all(uow.students.trace(job.id, row.class_index, "gsvm") for row in rows)
    assert all(row.metrics["brier"] < row.metrics["base_brier"] for row in rows)


@pytest.mark.long
def test_a_cancel_stops_the_solver(house: House):
    with house.worker() as worker:
        job = house.submit()
        wait_for(lambda: house.trained(job))
        [solver] = solvers(worker.pid)
        cancel_job(house.store, house.queue, job.id)
        wait_for(lambda: not is_alive(solver))
        wait_for(lambda: house.state(job) is JobState.CANCELLED)
        assert worker.is_running


@pytest.mark.long
def test_a_terminated_worker_ends_its_solver_and_leaves_the_job(house: House):
    with house.worker() as worker:
        job = house.submit()
        wait_for(lambda: house.trained(job))
        [solver] = solvers(worker.pid)
        worker.send(signal.SIGTERM)
        assert worker.wait(60.0) == 0
        assert not is_alive(solver)
    assert house.state(job) is JobState.RUNNING
    with house.worker():
        wait_for(lambda: house.state(job).ended)
    assert house.state(job) is JobState.SUCCEEDED
    assert house.trained(job) == PAIRS


@pytest.mark.long
def test_a_job_cancelled_while_its_worker_is_dead_ends_cancelled(house: House):
    with house.worker() as worker:
        job = house.submit()
        wait_for(lambda: house.trained(job))
        worker.kill()
        assert cancel_job(house.store, house.queue, job.id).state is JobState.CANCELLING
    trained = house.trained(job)
    with house.worker():
        wait_for(lambda: house.state(job).ended)
    assert house.state(job) is JobState.CANCELLED
    assert house.trained(job) == trained


@pytest.mark.long
def test_another_worker_takes_over_from_a_dead_one(postgres_address: str, tmp_path: Path):
    settings = Settings(data_dir=tmp_path, database_url=postgres_address)
    with open_house(settings) as house, house.worker() as one, house.worker() as other:
        wait_for(lambda: len(house.workers()) == 2)
        # longer than a worker waits before it takes over: each has seen the other alive
        time.sleep(6.0)
        job = house.submit()
        wait_for(lambda: house.trained(job))
        owner = house.events(job, "job_started")[0]["executor"]
        dead, living = (one, other) if house.workers()[owner] == one.pid else (other, one)
        # The classes fan out: both train.
        pids = wait_for(lambda: solvers(dead.pid) and solvers(living.pid) and solvers(dead.pid))
        wait_for(lambda: house.is_frozen_at_work(owner, dead.pid, job))
        dead.kill()
        dead.wait()
        wait_for(lambda: not any(map(is_alive, pids)))
        wait_for(lambda: house.events(job, "worker_took_over"))
        wait_for(lambda: house.state(job).ended)
        assert house.state(job) is JobState.SUCCEEDED
        assert house.trained(job) == PAIRS
        for takeover in house.events(job, "worker_took_over"):
            assert takeover["from"] == [owner]
            assert house.workers()[takeover["by"]] == living.pid


def everything(house: House, job: Job) -> tuple[Any, ...]:
    """All stored data of a job."""
    with house.store.read() as uow:
        return uow.jobs.get(job.id), uow.events.after(job.id, 0, limit=10**6), uow.students.of_job(job.id)


@dataclass
class Frozen:
    """A worker that is frozen in the middle of a job, which another worker has taken over since."""

    house: House
    job: Job
    name: str
    process: Process
    solvers: list[int]

    def wake(self) -> None:
        """And wait until it has seen what happened: it ends its solvers and goes on under another name."""
        self.process.send(signal.SIGCONT)
        wait_for(lambda: not any(map(is_alive, self.solvers)))

        def has_begun_anew() -> bool:
            names = [name for name, pid in self.house.workers().items() if pid == self.process.pid]
            return any(name != self.name for name in names)

        wait_for(has_begun_anew)
        assert self.process.is_running


@pytest.fixture
def frozen(postgres_address: str, tmp_path: Path) -> Iterator[Frozen]:
    settings = Settings(data_dir=tmp_path, database_url=postgres_address)
    with open_house(settings) as house, house.worker() as one, house.worker() as other:
        wait_for(lambda: len(house.workers()) == 2)
        job = house.submit()
        wait_for(lambda: house.trained(job))
        name = house.events(job, "job_started")[0]["executor"]
        first = one if house.workers()[name] == one.pid else other
        wait_for(lambda: house.is_frozen_at_work(name, first.pid, job))
        pids = solvers(first.pid)
        wait_for(lambda: house.events(job, "worker_took_over"))
        yield Frozen(house, job, name, first, pids)


@pytest.mark.long
def test_a_frozen_worker_wakes_after_its_job_was_finished_and_changes_nothing(frozen: Frozen):
    house, job = frozen.house, frozen.job
    wait_for(lambda: house.state(job).ended)
    before = everything(house, job)
    assert before[0].state is JobState.SUCCEEDED
    assert house.trained(job) == PAIRS
    frozen.wake()
    assert everything(house, job) == before


@pytest.mark.long
def test_a_frozen_worker_wakes_after_its_job_was_cancelled_and_changes_nothing(frozen: Frozen):
    house, job = frozen.house, frozen.job
    cancel_job(house.store, house.queue, job.id)
    wait_for(lambda: house.state(job).ended)
    before = everything(house, job)
    assert before[0].state is JobState.CANCELLED
    frozen.wake()
    assert everything(house, job) == before


@pytest.mark.long
def test_a_frozen_worker_wakes_while_its_job_is_tried_again_and_leaves_it_alone(frozen: Frozen):
    house, job = frozen.house, frozen.job
    cancel_job(house.store, house.queue, job.id)
    wait_for(lambda: house.state(job).ended)
    retry_job(house.store, house.queue, job.id, house.settings)
    frozen.wake()
    wait_for(lambda: house.state(job).ended)
    assert house.state(job) is JobState.SUCCEEDED
    assert house.trained(job) == PAIRS
    assert len(house.events(job, "version_published")) == 1
    assert get_job(house.store, job.id).attempt == 1
