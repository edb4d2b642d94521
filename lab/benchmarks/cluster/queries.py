"""Latency of warm queries at a constant rate while workers train on every core, against an idle machine.

query_p99_ratio      p99 while training : p99 idle, median over the rounds
query_p99_us         while training; query_idle_p99_us: idle
training_cores       processor time of the workers during the queries, in cores
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from lab.benchmarks.cluster.service import Cluster, cluster, cores, run_job
from lab.benchmarks.load import constant_rate
from lab.benchmarks.peers import json_body
from stms_client import Client
from tests.system.processes import two_cores

_COLUMNS, _CLASSES, _ROWS = 64, 10, 30_000
_SMALL_ROWS = 500
_SMALL = {"teacher": {"max_epochs": 5}, "student": {"max_epochs": 5}}
_ENDLESS = {
    "features": {"kind": "nystroem", "n_components": 800},
    "teacher": {"tolerance": 1e-9},
    "student": {"tolerance": 1e-9},
}
_UNDER_WAY_SECONDS = 120.0
_WARM_UP_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class QuerySize:
    """rate: requests per second. seconds: length of one round. rounds: number of rounds."""

    rate: float = 200.0
    seconds: float = 10.0
    rounds: int = 4


def measure(size: QuerySize) -> dict[str, Any]:
    """Measure the figures of this module."""
    with cluster(cores()) as service, service.service_client() as client:
        small = _upload(service, client, _SMALL_ROWS)
        big = _upload(service, client, _ROWS)
        run_job(client, small, "asked", _SMALL)
        label = client.dataset(small)["classes"][0]
        url = f"{service.url}/v1/models/asked/classes/{label}:query"
        client.query("asked", label, [0.0] * _COLUMNS)
        idle, busy, used = [], [], []
        for _ in range(size.rounds):
            service.until_idle()
            idle.append(_ask(service, url, size))
            jobs = [client.submit_job(big, f"busy-{n}", _ENDLESS)["id"] for n in range(cores())]
            try:
                _until_busy(client, jobs)
                before, started = service.workers_cpu_seconds(), time.monotonic()
                busy.append(_ask(service, url, size))
                used.append((service.workers_cpu_seconds() - before) / (time.monotonic() - started))
            finally:
                _cancel(client, jobs)
            print(
                f"  p99 idle {idle[-1]:9.1f} µs   training {busy[-1]:9.1f} µs   cores {used[-1]:.2f}",
                flush=True,
            )
    return {
        "query_p99_ratio": round(statistics.median(b / i for b, i in zip(busy, idle, strict=True)), 2),
        "query_p99_us": round(statistics.median(busy), 1),
        "query_idle_p99_us": round(statistics.median(idle), 1),
        "query_rate": size.rate,
        "training_cores": round(statistics.median(used), 2),
    }


def _ask(service: Cluster, url: str, size: QuerySize) -> float:
    row = np.random.default_rng(1).normal(size=_COLUMNS).round(6).tolist()
    headers = {"Authorization": f"Bearer {service.keys['one']}", "Content-Type": "application/json"}
    load = constant_rate(
        url, json_body(row), headers, rate=size.rate, seconds=size.seconds, connections=8, core=two_cores()[1]
    )
    if load.failed:
        raise RuntimeError(f"{load.failed} of {load.requests} queries failed.")
    return load.p99_us


def _until_busy(client: Client, jobs: list[str]) -> None:
    """Wait until every worker trains the teacher of its job, which outlasts the measurement."""
    deadline = time.monotonic() + _UNDER_WAY_SECONDS
    while not all(client.job(job)["stage"] == "teacher" for job in jobs):
        if time.monotonic() > deadline:
            raise RuntimeError("The workers did not start to train.")
        time.sleep(0.2)
    time.sleep(_WARM_UP_SECONDS)


def _cancel(client: Client, jobs: list[str]) -> None:
    for job in jobs:
        client.cancel_job(job)
    for job in jobs:
        while client.job(job)["state"] == "cancelling":
            time.sleep(0.1)


def _upload(service: Cluster, client: Client, rows: int) -> str:
    rng = np.random.default_rng(rows)
    y = rng.integers(0, _CLASSES, rows)
    X = rng.normal(size=(_CLASSES, _COLUMNS))[y] + rng.normal(size=(rows, _COLUMNS)) * 2
    file = service.folder / f"{rows}.npz"
    np.savez(file, X_train=X.astype(np.float32), y_train=y)
    return str(client.upload_dataset(file)["id"])
