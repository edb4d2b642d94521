"""Workers with a fake solver that fails as planned, and helpers to inspect their work."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app.domain.entities import Dataset, Job, Priority
from app.domain.training_spec import TrainingSpec
from app.jobs.engine.client import DbosQueue
from app.jobs.solver.messages import SolverSettings, StudentResult
from app.jobs.worker import Worker
from app.services.training import get_job, job_events, submit_job
from app.settings import Settings
from app.store.unit_of_work import Store
from tests.system.stored_dataset import add_dataset

FAKE_SOLVER = Path(__file__).with_name("fake_solver.py")
CLASSES = tuple(f"c{index}" for index in range(6))
SETTINGS = SolverSettings(
    dataset_id="ds_1", spec={}, threads=1, log_level="INFO", database_url="sqlite:///secret"
)
STUDENTS = [(index, "gsvm") for index in range(4)]


def wait_for(condition: Callable[[], Any], seconds: float = 300.0) -> Any:
    """The first true value of the condition; fails the test after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"the condition was not met in {seconds} s")
        time.sleep(0.05)
    return value


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def never_stop() -> None:
    return None


def ignore(_progress: dict) -> None:
    return None


def flat(batches: Iterable[list[StudentResult]]) -> list[StudentResult]:
    return [result for batch in batches for result in batch]


def script(code: str) -> list[str]:
    """A solver process that runs ``code`` after reading and answering ``open``."""
    start = (
        "import os, sys, time\n"
        "from app.jobs.solver.messages import read_message, write_message\n"
        "def send(header, *blobs): write_message(sys.stdout.buffer, header, blobs)\n"
        "def read(): return read_message(sys.stdin.buffer)\n"
        "TWO = {'transfers': {'preparation': None, 'teacher': None}}\n"
    )
    return [sys.executable, "-c", start + code]


OPENED = "read(); send({'type': 'opened'}); read()\n"


@dataclass
class FakeSolver:
    """The plan of `fake_solver.py` and its log."""

    folder: Path

    @property
    def command(self) -> list[str]:
        return [sys.executable, str(FAKE_SOLVER), str(self.folder / "plan.json"), str(self.folder / "log")]

    def plan(self, **behaviour: Any) -> None:
        (self.folder / "plan.json").write_text(json.dumps(behaviour), encoding="utf-8")

    def done(self) -> list[str]:
        """The logged actions of the solvers in order, without their process ids."""
        lines = (self.folder / "log").read_text(encoding="utf-8").splitlines()
        return [line.rpartition(" ")[0] for line in lines]

    def pids(self) -> list[int]:
        lines = (self.folder / "log").read_text(encoding="utf-8").splitlines()
        return sorted({int(line.rpartition(" ")[2]) for line in lines})


@pytest.fixture
def solver(tmp_path: Path) -> FakeSolver:
    fake = FakeSolver(tmp_path / "solver")
    fake.folder.mkdir()
    fake.plan()
    (fake.folder / "log").touch()
    return fake


@dataclass
class Service:
    """A store with one data set of six classes, a queue, and workers on request."""

    settings: Settings
    store: Store
    queue: DbosQueue
    dataset: Dataset

    def submit(self, *, created_by: str = "me", priority: Priority = Priority.NORMAL, **spec: Any) -> Job:
        job, _ = submit_job(
            self.store,
            self.queue,
            dataset_id=self.dataset.id,
            model="m",
            spec=TrainingSpec.model_validate({"automatic": False} | spec),
            created_by=created_by,
            idempotency_key=None,
            body_digest="",
            settings=self.settings,
            priority=priority,
        )
        return job

    def job(self, job: Job) -> Job:
        return get_job(self.store, job.id)

    def ended(self, job: Job, seconds: float = 300.0) -> Job:
        wait_for(lambda: self.job(job).state.ended, seconds)
        return self.job(job)

    def events(self, job: Job, *types: str) -> list[tuple[str, dict[str, Any]]]:
        events, _ = job_events(self.store, job.id, limit=100_000)
        return [(event.type, event.data) for event in events if not types or event.type in types]

    @contextmanager
    def worker(self, solver: FakeSolver) -> Iterator[Worker]:
        worker = Worker(self.settings, solver.command)
        try:
            worker.start()
            yield worker
        finally:
            worker.stop()


def open_service(store: Store, settings: Settings, classes: Sequence[str] = CLASSES) -> Service:
    with store.begin() as uow:
        dataset = add_dataset(uow, classes, test_rows=10)
    return Service(settings, store, DbosQueue(settings), dataset)


@pytest.fixture
def service(sqlite_store: Store, tmp_path: Path) -> Iterator[Service]:
    opened = open_service(
        sqlite_store, Settings(data_dir=tmp_path, spare_solver=False, idle_solver_seconds=600.0)
    )
    yield opened
    opened.queue.close()
