"""What a tenant can make the service store and hold in memory at the edge of its quotas, in some minutes.

The tenant's quotas are small. `grower` repeats every way to store something. The database may grow by what
the quota of bytes says, a constant, and the records of the audit log; the processes by a constant. Queries,
and lists of others keep their limits of time. Whether a neighbour's small job ends meanwhile is reported, not
judged: it takes its turn after the unit of the tenant that is being trained, which may take minutes.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import psycopg

from app.processes.os_process import IDLE_NICENESS, ProcessName
from lab.verification.fairness import crowd
from lab.verification.limits.connections import finish_job
from lab.verification.limits.grower import MODULE, many_classes
from lab.verification.limits.judgement import Judgement
from lab.verification.limits.stage import Stage, database, small_csv, upload
from lab.verification.prober import Latencies
from tests.system.processes import memory

_MIB: Final = 1024**2
QUOTAS: Final = {
    "stored_bytes": 16 * _MIB,
    "datasets": 20,
    "versions": 20,
    "unfinished_jobs": 10,
    "keys": 20,
}
DATABASE_MORE_BYTES: Final = 24 * _MIB
"""Growth of the database beyond the quota of bytes: its log, indices, free pages and unfinished uploads."""
RECORD_BYTES: Final = 1024
"""Likewise for each change that was accepted: its record in the audit log, which is kept for a year."""
PROCESS_MORE_BYTES: Final = 64 * _MIB
MAX_P50_RATIO: Final = 2.0
MAX_LIST_RATIO: Final = 3.0
MAX_LIST_SECONDS: Final = 0.1
MAX_LIST_BYTES: Final = 8 * _MIB
_LISTS: Final = {
    "neighbour": ("/v1/datasets?limit=1000", "/v1/training-jobs?limit=1000", "/v1/models?limit=1000"),
    "operator": (
        "/v1/models?limit=1000",
        "/v1/usage?limit=1000",
        "/v1/audit?limit=1000",
        "/v1/keys?limit=1000",
    ),
}
_WARM_SECONDS: Final = 5.0
_WINDOW_SECONDS: Final = 3.0
_SETTLE_SECONDS: Final = 25.0


def measure(judgement: Judgement, cores: str, *, quick: bool) -> None:
    """On SQLite; afterwards, unless ``quick``, for a minute on PostgreSQL."""
    # As docs/operations.md advises for a machine that answers queries and trains.
    settings = {"STMS_SOLVER_NICENESS": str(IDLE_NICENESS), "STMS_SOLVER_THREADS": "1"}
    with Stage(serve=True, cores=cores, settings=settings, quotas=QUOTAS) as running:
        _measure(judgement, running, "growth", 40.0 if quick else 600.0)
    if not quick:
        with database(cores) as address:
            stage = Stage(serve=True, cores=cores, settings=settings, quotas=QUOTAS, database=address)
            with stage as running:
                _measure(judgement, running, "growth_postgresql", 60.0, address)


def _measure(
    judgement: Judgement, running: Stage, name: str, seconds: float, address: str | None = None
) -> None:
    with running.client("attacker") as client:
        dataset = upload(client, many_classes(0)).raise_for_status().json()["id"]
    with running.client("neighbour") as client:
        others = [upload(client, small_csv(n)).raise_for_status().json()["id"] for n in range(5)]
    target = dataclasses.replace(running.target(dataset), keys=(running.keys["attacker admin"],))
    prober, idle, crowded = running.prober(), Latencies(), Latencies()
    with crowd(target, "grow", MODULE):
        time.sleep(_WARM_SECONDS)
    time.sleep(_WARM_SECONDS)
    prober.measure(_WINDOW_SECONDS, idle)
    lists, sizes, size = _lists(running), _processes(running), _database_bytes(running, address)
    with crowd(target, "grow", MODULE) as statuses, ThreadPoolExecutor(1) as threads:
        deadline = time.monotonic() + seconds
        job = threads.submit(finish_job, running, others[0], "beside")
        while time.monotonic() < deadline:
            prober.measure(_WINDOW_SECONDS, crowded)
        judgement.note(f"{name}_job", job.result())
    judgement.note(f"{name}_answers", dict(statuses))
    accepted = sum(
        count for status, count in statuses.items() if status in {"200", "201", "202", "204", "303"}
    )
    allowed = QUOTAS["stored_bytes"] + DATABASE_MORE_BYTES + RECORD_BYTES * accepted
    growth = _database_bytes(running, address) - size
    judgement.at_most(f"{name}_database_mib", growth / _MIB, allowed / _MIB)
    for process, more in _settled_growth(running, sizes).items():
        judgement.at_most(f"{name}_{process}_mib", more / _MIB, PROCESS_MORE_BYTES / _MIB)
    prober.measure(_WINDOW_SECONDS, idle)
    judgement.equal(f"{name}_failed", len(crowded.failures), 0)
    judgement.at_most(f"{name}_p50_ratio", crowded.p50_ms / idle.p50_ms, MAX_P50_RATIO)
    judgement.note(f"{name}_p99_ms", crowded.p99_ms)
    for path, (took, length) in _lists(running).items():
        judgement.at_most(f"{name} {path} s", took, max(MAX_LIST_SECONDS, MAX_LIST_RATIO * lists[path][0]))
        judgement.at_most(f"{name} {path} MiB", length / _MIB, MAX_LIST_BYTES / _MIB)


def _lists(running: Stage) -> Mapping[str, tuple[float, int]]:
    """Seconds of the fastest of several tries, and bytes, of lists by who asks and path."""
    found = {}
    for key, paths in _LISTS.items():
        with running.client(key) as client:
            for path in paths:
                times = []
                for _ in range(5):
                    began = time.monotonic()
                    response = client.get(path).raise_for_status()
                    times.append(time.monotonic() - began)
                found[f"{key} {path}"] = (min(times), len(response.content))
    return found


def _processes(running: Stage) -> dict[str, int]:
    """Resident bytes of the server's processes and the worker."""
    return {name: memory([running.process(name)])[0] for name in ProcessName}


def _settled_growth(running: Stage, before: Mapping[str, int]) -> dict[str, int]:
    """Growth of the processes once freed memory is returned, or after a timeout."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while True:
        growth = {name: size - before[name] for name, size in _processes(running).items()}
        if max(growth.values()) <= PROCESS_MORE_BYTES or time.monotonic() > deadline:
            return growth
        time.sleep(0.5)


def _database_bytes(running: Stage, address: str | None) -> int:
    """Size of the SQLite files, or of the PostgreSQL database at an address."""
    if address is None:
        return sum(path.stat().st_size for path in running.data.glob("*.sqlite*"))
    with psycopg.connect(address) as connection:
        row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    return 0 if row is None else int(row[0])
