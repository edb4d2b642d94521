"""One server and several workers with a temporary PostgreSQL server."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from stms_client import Client
from tests.system.deployment import Deployment
from tests.system.postgres import postgres
from tests.system.processes import Process, cpu_seconds, family

_IDLE_SECONDS = 120.0
_QUIET_LOOKS = 3
_QUIET_CORES = 0.15
"""Processor time of an idle worker, in cores."""


class Cluster(Deployment):
    """A server and workers, each with one solver thread, and keys of two tenants and an administrator."""

    def __init__(self, workers: int, database: str) -> None:
        keys = {"one": {"train"}, "other": {"train"}, "administrator": {"admin"}}
        settings = {"STMS_SOLVER_THREADS": "1", "STMS_LOG_LEVEL": "WARNING", "STMS_SOLVER_NICENESS": "5"}
        super().__init__(api=1, workers=workers, database=database, keys=keys, settings=settings)
        self.workers = [process for process in self.processes.values() if process.name != "api-0"]

    def service_client(self, tenant: str = "one") -> Client:
        """A client with the key of a tenant."""
        return Client(self.url, self.keys[tenant], timeout=600)

    def workers_cpu_seconds(self) -> float:
        """Processor seconds of the workers and of their running solvers."""
        return sum(_family_cpu_seconds(worker) for worker in self.workers)

    def until_idle(self) -> None:
        """Wait until the workers are idle; after a job they still start a solver for the next one.

        Raises RuntimeError after a timeout.
        """
        deadline, quiet = time.monotonic() + _IDLE_SECONDS, 0
        while quiet < _QUIET_LOOKS:
            if time.monotonic() > deadline:
                raise RuntimeError("The workers do not become idle.")
            before = self.workers_cpu_seconds()
            time.sleep(1.0)
            spent = abs(self.workers_cpu_seconds() - before)
            quiet = quiet + 1 if spent < _QUIET_CORES * len(self.workers) else 0


@contextmanager
def cluster(workers: int) -> Iterator[Cluster]:
    """Context manager of a server and ``workers`` workers with a temporary PostgreSQL server."""
    with (
        postgres(settings={"max_connections": "200"}) as server,
        Cluster(workers, server.create_database("stms")) as running,
    ):
        yield running


def run_job(
    client: Client, dataset_id: str, model: str, hyperparameters: Mapping[str, Any]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Submit a job and wait for its end; returns it and its events. Raises JobNotSucceeded."""
    job = client.submit_job(dataset_id, model, hyperparameters)
    ended = client.wait_for_job(job["id"], patience=600)
    return ended, events(client, job["id"])


def events(client: Client, job_id: str) -> list[dict[str, Any]]:
    """All events of a job."""
    return list(client.pages(f"/v1/training-jobs/{job_id}/events", limit=1000))


def _family_cpu_seconds(worker: Process) -> float:
    try:
        return cpu_seconds(family(worker.pid))
    except OSError:
        # A solver ended after the processes were listed; measure again.
        return _family_cpu_seconds(worker)


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0))
