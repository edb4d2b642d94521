"""Idle and slow connections without a key, at small limits of open files.

Meanwhile queries of a valid key over kept and new connections, from the same address, are all answered, the
worker finishes a job of another key, and afterwards the descriptors are free again.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import httpx

from app.processes.os_process import ProcessName
from lab.verification.fairness import crowd
from lab.verification.limits.judgement import Judgement
from lab.verification.limits.stage import ENDED, Stage, small_csv, submit, upload
from lab.verification.limits.ways import MODULE
from lab.verification.prober import Latencies

CASES: Final = ((256, "idle_400"), (256, "slow_2000"), (1024, "idle_1100"), (1024, "slow_2000"))
"""Limit of open files of every process, and the connections that are opened."""
_QUERIES: Final = 1000
_QUICK_RATE: Final = 50.0
_MORE_FILES: Final = 16
"""Files that a server may keep open after a crowd: connections to its database."""
_FREE_SECONDS: Final = 20.0
_JOB_SECONDS: Final = 60.0


def measure(judgement: Judgement, cores: str, *, quick: bool) -> None:
    """All of `CASES`. cores: of the service."""
    for limit in sorted({limit for limit, _ in CASES}):
        with Stage(serve=True, cores=cores, open_files=limit) as running:
            for way in [way for each, way in CASES if each == limit]:
                seconds = 6.0 if quick else 60.0 if way.startswith("idle") else 30.0
                _measure(judgement, running, f"connections_{limit}_{way}", way, seconds, quick=quick)


def _measure(
    judgement: Judgement, running: Stage, name: str, way: str, seconds: float, *, quick: bool
) -> None:
    if not running.is_alive():
        judgement.equal(f"{name}_alive", value=False, expected=True)
        return
    with running.client("neighbour") as client:
        dataset = upload(client, small_csv(0)).raise_for_status().json()["id"]
    files = running.files(ProcessName.QUERY)
    latencies = Latencies()
    prober = running.prober(rate=_QUICK_RATE if quick else _QUERIES / seconds, new_connections=True)
    with crowd(running.target(), way, MODULE) as statuses, ThreadPoolExecutor(1) as threads:
        job = threads.submit(finish_job, running, dataset, name)
        prober.measure(seconds, latencies)
        ended = job.result()
    judgement.note(f"{name}_closed", statuses.get("0", 0))
    judgement.note(f"{name}_queries", len(latencies.seconds))
    judgement.equal(f"{name}_failed", len(latencies.failures), 0)
    judgement.note(f"{name}_failures", sorted(set(latencies.failures))[:3])
    judgement.note(f"{name}_p99_ms", latencies.p99_ms)
    judgement.equal(f"{name}_job", ended, "succeeded")
    judgement.equal(f"{name}_alive", running.is_alive(), expected=True)
    if running.is_alive():
        judgement.at_most(f"{name}_files_left", _files_left(running, files), _MORE_FILES)


def finish_job(running: Stage, dataset: str, model: str) -> str:
    """Submit a small job of the neighbour and wait for its end; returns its state, or what failed."""
    deadline = time.monotonic() + _JOB_SECONDS
    with running.client("neighbour", 10.0) as client:
        try:
            job = submit(client, dataset, model).raise_for_status().json()
            while job["state"] not in ENDED and time.monotonic() < deadline:
                time.sleep(0.5)
                job = client.get(f"/v1/training-jobs/{job['id']}").raise_for_status().json()
        except httpx.HTTPError as error:
            return f"{type(error).__name__}: {error}"
    return str(job["state"])


def _files_left(running: Stage, before: int) -> int:
    """Files that are open in excess of ``before`` once the connections of a crowd are closed."""
    deadline = time.monotonic() + _FREE_SECONDS
    while (left := running.files(ProcessName.QUERY) - before) > _MORE_FILES and time.monotonic() < deadline:
        time.sleep(0.2)
    return left
