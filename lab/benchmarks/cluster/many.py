"""One job of many small classes, and how far it slows down other clients.

status_p50_ms, status_p99_ms   GET of the job's status, repeated while the job runs
events_p99_ms                  GET of a page of its newest events
small_job_start_s              longest time from submission to start of a small job of another tenant
many_wall_s                    wall time of the large job
many_students                  number of its students at the end
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from lab.benchmarks.cluster.letter import _moment
from lab.benchmarks.cluster.service import Cluster, cluster, events, run_job
from stms_client import Client

_PAUSE_SECONDS = 0.02
_SMALL_PAUSE_SECONDS = 5.0
_FEW = {
    "features": {"kind": "linear"},
    "teacher": {"tolerance": 0.1, "max_epochs": 2},
    "student": {"tolerance": 0.1, "max_epochs": 3},
}


@dataclass(frozen=True, slots=True)
class ManySize:
    """Of the data set."""

    classes: int = 10_000
    rows_a_class: int = 3
    columns: int = 16


def measure(size: ManySize) -> dict[str, Any]:
    """All figures of this page."""
    with cluster(1) as service, service.service_client() as client, service.service_client("other") as other:
        big = _upload(service, client, size)
        small = _upload(service, other, ManySize(classes=3, rows_a_class=10, columns=4))
        run_job(other, small, "warm-up", _FEW)
        job = client.submit_job(big, "many", _FEW)["id"]
        _until_students(client, job)
        started = time.monotonic()
        with _Watch(service, job, small) as watch:
            ended = client.wait_for_job(job, patience=900)
        print(f"  students took {time.monotonic() - started:.0f} s", flush=True)
        told = sum(event["type"] == "student_finished" for event in events(client, job))
    return {
        "status_p50_ms": _quantile(watch.status, 0.5),
        "status_p99_ms": _quantile(watch.status, 0.99),
        "status_calls": len(watch.status),
        "events_p99_ms": _quantile(watch.pages, 0.99),
        "small_job_start_s": round(max(watch.starts), 3) if watch.starts else None,
        "small_jobs": len(watch.starts),
        "many_wall_s": round(_moment(ended["finished_at"]) - _moment(ended["created_at"]), 1),
        "many_students": told,
        "many_classes": size.classes,
    }


class _Watch:
    """Two threads that send requests while a job runs. All values are in seconds.

    status, pages: latencies of the calls. starts: from submission to start of each small job.
    """

    def __init__(self, service: Cluster, job_id: str, small: str) -> None:
        self._service, self._job_id, self._small = service, job_id, small
        self._stopping = threading.Event()
        self.status: list[float] = []
        self.pages: list[float] = []
        self.starts: list[float] = []
        # Daemon threads: they must not keep the process alive if the block is left by an error.
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._look, self._submit)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stopping.set()
        if kind is None:
            for thread in self._threads:
                thread.join()

    def _look(self) -> None:
        with self._service.service_client() as client:
            while not self._stopping.wait(_PAUSE_SECONDS):
                started = time.perf_counter()
                document = client.job(self._job_id)
                self.status.append(time.perf_counter() - started)
                if len(self.status) % 10 == 0:
                    self._page(client, int(document["progress"]["done"]))

    def _page(self, client: Client, done: int) -> None:
        started = time.perf_counter()
        path = f"/v1/training-jobs/{self._job_id}/events"
        next(client.pages(path, limit=100, after=max(0, done - 50)), None)
        self.pages.append(time.perf_counter() - started)

    def _submit(self) -> None:
        with self._service.service_client("other") as client:
            while not self._stopping.is_set():
                _, told = run_job(client, self._small, "small", _FEW)
                at = {event["type"]: _moment(event["at"]) for event in told}
                self.starts.append(at["job_started"] - at["job_queued"])
                self._stopping.wait(_SMALL_PAUSE_SECONDS)


def _until_students(client: Client, job_id: str) -> None:
    while client.job(job_id)["stage"] in {"queued", "features", "teacher", "scores", "loading"}:
        time.sleep(0.2)


def _upload(service: Cluster, client: Client, size: ManySize) -> str:
    rng = np.random.default_rng(size.classes)
    y = np.repeat(np.arange(size.classes), size.rows_a_class)
    centres = rng.normal(size=(size.classes, size.columns)) * 3
    X = centres[y] + rng.normal(size=(len(y), size.columns))
    file = service.folder / f"{size.classes}.npz"
    np.savez(file, X_train=X.astype(np.float32), y_train=y)
    return str(client.upload_dataset(file)["id"])


def _quantile(seconds: list[float], share: float) -> float | None:
    return round(float(np.quantile(seconds, share)) * 1e3, 2) if seconds else None
