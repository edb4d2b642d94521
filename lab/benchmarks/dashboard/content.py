"""What the measured server shows: a running job with 10 000 classes, and two versions of as many."""

from __future__ import annotations

import dataclasses
import json
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

import numpy as np

from app.domain.curves import pack
from app.domain.entities import Job, JobState, StudentRow, StudentState, new_id
from app.settings import Settings
from app.store.engine import open_engine
from app.store.tables import job_students, jobs
from app.store.unit_of_work import Store
from tests.system.deployment import prepare_database
from tests.system.published import publish_linear
from tests.system.query_service import digits

CLASSES: Final = 10_000
_BINS: Final = 10
_GRID: Final = 560


@dataclass(frozen=True, slots=True)
class Content:
    """What was stored. running, ended: ids of jobs with `CLASSES` classes. pages: addresses to look at."""

    query_key: str
    operator_key: str
    running: str
    ended: str
    pages: dict[str, str]


def fill(folder: Path) -> Content:
    """Make the database in ``folder``."""
    keys = {"query": {"query"}, "operator": {"operator"}}
    texts = prepare_database(Settings(data_dir=folder).app_database_url, keys, digits)
    store = open_store(folder)
    try:
        random = np.random.default_rng(0)
        versions = [_version(store) for _ in range(2)]
        _measure(store, versions, random)
        running = _running_job(store, random)
        for number in range(60):
            _job(store, state=list(JobState)[number % len(JobState)])
        ended = str(versions[1])
        compare = "/ui/models/many/compare?a=1&b=2"
        pages = {
            "jobs": "/ui/jobs",
            "running job": f"/ui/jobs/{running}",
            "ended job": f"/ui/jobs/{ended}",
            "class": f"/ui/jobs/{ended}/classes/0",
            "models": "/ui/models",
            "model": "/ui/models/many",
            "version": "/ui/models/many/versions/2",
            "compare": compare,
            "console": "/ui/models/digits/ask",
            "data sets": "/ui/datasets",
            "keys": "/ui/keys",
            "audit log": "/ui/audit",
            "workers": "/ui/workers",
            "health": "/ui/health",
            "traffic": "/ui/traffic",
        }
        return Content(texts["query"], texts["operator"], running, ended, pages)
    finally:
        store.dispose()


@contextmanager
def working(folder: Path, content: Content) -> Iterator[None]:
    """As if workers trained the running job: four students a second and an event each."""
    stop = Event()
    store = open_store(folder)

    def work() -> None:
        done = CLASSES // 2
        while not stop.wait(0.25):
            with store.begin() as uow:
                one = (job_students.c.job_id == content.running) & (job_students.c.class_index == done)
                uow.connection.execute(job_students.update().where(one).values(state="succeeded"))
                where = jobs.c.id == content.running
                uow.connection.execute(jobs.update().where(where).values(progress_done=done))
                uow.events.append(content.running, "student_failed", {"label": str(done), "method": "svm"})
            done += 1

    thread = Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        store.dispose()


def open_store(folder: Path) -> Store:
    """The database of a server with its data in ``folder``."""
    return Store(open_engine(Settings(data_dir=folder).app_database_url))


def _version(store: Store) -> str:
    """A version of the model "many" with few packed students; its rows are added by `_measure`."""
    return str(publish_linear(store, "many", np.eye(8)).job_id)


def _measure(store: Store, job_ids: list[str], random: np.random.Generator) -> None:
    base = random.beta(8, 2, CLASSES)
    for number, job_id in enumerate(job_ids):
        scores = np.clip(base + number * random.normal(0.01, 0.03, CLASSES), 0.0, 1.0)
        rows = [_row(job_id, k, float(score), StudentState.SUCCEEDED) for k, score in enumerate(scores)]
        with store.begin() as uow:
            uow.connection.execute(job_students.delete().where(job_students.c.job_id == job_id))
            uow.students.save_all(rows)
            uow.students.keep_curves([((0, "svm"), pack(_curve(random)))], job_id)
            uow.students.keep_trace(job_id, 0, "svm", zlib.compress(json.dumps(_trace(random)).encode()))


def _running_job(store: Store, random: np.random.Generator) -> str:
    job = _job(store, state=JobState.RUNNING, stage="students", progress_done=CLASSES // 2)
    states = [StudentState.SUCCEEDED if k < CLASSES // 2 else StudentState.PENDING for k in range(CLASSES)]
    with store.begin() as uow:
        uow.students.save_all(
            [
                _row(job.id, k, float(score) if state is StudentState.SUCCEEDED else None, state)
                for k, (score, state) in enumerate(zip(random.beta(8, 2, CLASSES), states, strict=True))
            ]
        )
        for number in range(100):
            uow.events.append(job.id, "student_failed", {"label": str(number), "method": "svm"})
    return job.id


def _job(store: Store, **columns: Any) -> Job:
    now = time.time()
    job = Job(
        id=new_id("job"),
        dataset_id="ds_none",
        model="many",
        spec={},
        state=JobState.QUEUED,
        attempt=0,
        stage="waiting",
        progress_done=0,
        progress_total=CLASSES + 1,
        created_at=now,
        created_by="benchmark",
        started_at=now,
    )
    job = dataclasses.replace(job, **columns)
    with store.begin() as uow:
        uow.jobs.add(job)
    return job


def _row(job_id: str, k: int, f1: float | None, state: StudentState) -> StudentRow:
    metrics: dict[str, Any] = {}
    if f1 is not None:
        shares = {"f1": f1, "auc": f1, "accuracy": f1, "brier": 1 - f1, "base_brier": 0.2}
        counts = {"tp": 90, "fp": 10, "tn": 880, "fn": 20, "calibration_error": 0.01, "reason": None}
        bins = [
            {
                "low": b / _BINS,
                "high": (b + 1) / _BINS,
                "count": 10,
                "probability": b / _BINS,
                "observed": 0.5,
            }
            for b in range(_BINS)
        ]
        metrics = shares | counts | {"reliability": bins}
    return StudentRow(job_id, k, f"class {k:05d}", "svm", state, 1.5, 1e-5, 20, 0.3, "optimal", 0.1, metrics)


def _curve(random: np.random.Generator) -> dict[str, Any]:
    points = 201
    return {
        "positives": 2000,
        "negatives": 20_000,
        "thresholds": np.linspace(3.0, -3.0, points).tolist(),
        "tp": np.sort(random.integers(0, 2000, points)).tolist(),
        "fp": np.sort(random.integers(0, 20_000, points)).tolist(),
    }


def _trace(random: np.random.Generator) -> dict[str, Any]:
    points = [
        {
            "C": 10.0 ** (k % 7),
            "margin": (k // 7) % 8 / 8,
            "floor": k // 56 / 10,
            "folds": 4,
            "score": float(score),
        }
        | {"standard_error": 0.01, "gap": 1e-4, "seconds": 0.1}
        for k, score in enumerate(random.beta(8, 2, _GRID))
    ]
    best = max(points, key=lambda point: point["score"])
    return {"chosen": best | {"strategy": "exhaustive"}, "points": points}
