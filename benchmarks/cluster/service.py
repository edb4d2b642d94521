"""One server and several workers with a temporary PostgreSQL server."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.services.keys import create_key
from app.store.engine import open_engine
from app.store.migrate import upgrade
from app.store.unit_of_work import Store
from benchmarks.chaos.event_log import EventLog
from benchmarks.chaos.programs import Program
from benchmarks.postgres import postgres
from benchmarks.processes import cpu_seconds, family, free_port, wait_for_port
from stms_client import Client

_START_SECONDS = 90.0
_IDLE_SECONDS = 120.0
_QUIET_LOOKS = 3
_QUIET_CORES = 0.15
"""Processor time of an idle worker, in cores."""
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster. keys: API keys of two tenants and an administrator, by name. folder: for files."""

    url: str
    keys: Mapping[str, str]
    folder: Path
    server: Program
    workers: tuple[Program, ...]

    def client(self, tenant: str = "one") -> Client:
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
def cluster(workers: int, *, threads: int = 1) -> Iterator[Cluster]:
    """Context manager of a server and ``workers`` workers, each with ``threads`` solver threads."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stms-cluster-")))
        server = stack.enter_context(postgres(settings={"max_connections": "200"}))
        address = server.create_database("stms")
        keys = _prepare(address)
        port = free_port()
        event_log = EventLog()
        # The service runs with its default settings; the caller's STMS_ variables are not inherited.
        environ = {
            "PYTHONPATH": str(_ROOT),
            "STMS_DATABASE_URL": address,
            "STMS_DATA_DIR": str(folder / "data"),
            "STMS_SOLVER_THREADS": str(threads),
            "STMS_LOG_LEVEL": "WARNING",
        }
        command = [sys.executable, "-P", "-m", "app.cli"]
        programs = [Program("api", [*command, "api", "--port", str(port)], environ, folder, event_log)]
        programs += [
            Program(f"worker-{n}", [*command, "worker"], environ, folder, event_log) for n in range(workers)
        ]
        for program in programs:
            stack.callback(program.stop)
            program.start()
        wait_for_port(port, _START_SECONDS, 0.1)
        found = Cluster(f"http://127.0.0.1:{port}", keys, folder, programs[0], tuple(programs[1:]))
        _wait_for_workers(found, workers)
        yield found


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


def _family_cpu_seconds(program: Program) -> float:
    pid = program.pid
    if pid is None:
        return 0.0
    try:
        return cpu_seconds(family(pid))
    except OSError:
        # A solver ended after the processes were listed; measure again.
        return _family_cpu_seconds(program)


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _prepare(address: str) -> dict[str, str]:
    upgrade(address)
    store = Store(open_engine(address))
    try:
        keys = {name: create_key(store, name, {"train"})[1] for name in ("one", "other")}
        return keys | {"administrator": create_key(store, "administrator", {"admin"})[1]}
    finally:
        store.dispose()


def _wait_for_workers(found: Cluster, number: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    with found.client("administrator") as client:
        while sum(worker["alive"] for worker in client.pages("/v1/workers")) < number:
            if time.monotonic() > deadline:
                said = "\n".join(worker.log.read_text(errors="replace")[-2000:] for worker in found.workers)
                raise RuntimeError(f"The workers did not start:\n{said}")
            time.sleep(0.1)
