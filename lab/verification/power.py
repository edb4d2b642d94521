"""Power cuts of the embedded service: ``python -m lab.verification.power [--quick]``.

`stms serve` runs with a preloaded library that records what SQLite writes and syncs, while clients upload,
train, publish, move aliases, delete versions, and create and revoke keys. From the recording, the database
files are rebuilt as they may be after a power cut at hundreds of moments, with unsynced writes dropped, torn
or reordered. Each state is audited against the answers that clients had received by then; on some of them the
service is started again and must end all jobs. The same recording without the syncs that synchronous=NORMAL
omits shows what the audit finds with that setting.

The last line is a JSON object:

crash_points, power_lost   audited states, and acknowledged facts missing or contradicted in any of them
power_lost_normal          the same with synchronous=NORMAL; 0 would mean that the audit finds nothing
states_resumed             states on which the service was started again
commit_ms_full, commit_ms_normal   milliseconds of a small commit on this disk
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

from lab.verification.power_service import JOB_SECONDS, SET_UP, service, settings, use
from stms_client import Client
from tests.system.deployment import environment
from verification.chaos.isolation import NotSupported
from verification.chaos.power import SOURCE
from verification.chaos.power_states import Operation, acknowledge, crash_states, normal_synchronous, read_log

_COMMITS: Final = 300
_ENDED: Final = {"succeeded", "partially_succeeded", "failed", "cancelled"}


def main() -> int:
    """0 if nothing acknowledged is lost with the service's setting, and something is with NORMAL."""
    parser = argparse.ArgumentParser(prog="python -m lab.verification.power", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer jobs, states and restarts")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    jobs, points, resumed = (3, 60, 1) if options.quick else (8, 240, 4)
    folder = Path(tempfile.mkdtemp(prefix="stms-power-"))
    try:
        figures = measure(folder, jobs=jobs, points=points, resumed=resumed, seed=options.seed)
    except NotSupported as error:
        print(error, file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(figures))
    return int(figures["power_lost"] > 0 or not figures["power_lost_normal"])


def measure(folder: Path, *, jobs: int, points: int, resumed: int, seed: int) -> dict[str, Any]:
    """Record a run, rebuild and audit the states, and restart the service on some of them."""
    log = folder / "log"
    key = record(folder, log, jobs)
    operations = read_log(log)
    # Until the first answer nothing was promised.
    first = next(place for place, each in enumerate(operations) if each.kind == "A")
    chosen = random.Random(seed).sample(range(first, len(operations)), min(points, len(operations) - first))
    again = set(sorted(chosen)[:: max(1, len(chosen) // resumed)][:resumed])
    problems: list[str] = []
    for position, loss, state, told in crash_states(operations, chosen, seed):
        place = written(folder / "state", state)
        found = audit(place, told)
        if position in again:
            found += resume(place, key, told)
        problems += [f"cut at {position} ({loss}): {problem}" for problem in found]
    for problem in problems[:20]:
        print(problem)
    lost_normal = audit_all(folder, normal_synchronous(operations), chosen, seed)
    full, normal = commit_seconds(folder, "FULL"), commit_seconds(folder, "NORMAL")
    syncs = sum(each.kind == "S" for each in operations)
    print(f"{len(operations)} operations recorded, {syncs} of them syncs; {len(chosen)} power cuts audited")
    print(f"synchronous=NORMAL: {len(lost_normal)} findings, such as: {lost_normal[:1]}")
    return {
        "crash_points": len(chosen),
        "power_lost": len(problems),
        "power_lost_normal": len(lost_normal),
        "states_resumed": len(again),
        "commit_ms_full": round(1000 * full, 2),
        "commit_ms_normal": round(1000 * normal, 2),
    }


def record(folder: Path, log: Path, jobs: int) -> str:
    """Run the service and its clients under the recorder; returns the administrator's key."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise NotSupported("recording writes needs a C compiler")
    library = folder / "power.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, SOURCE, "-ldl"], check=True)
    data = folder / "data"
    data.mkdir(mode=0o700)
    recorded = {"LD_PRELOAD": str(library), "STMS_POWER_LOG": str(log)}
    # The tables are created under the recorder, too, since the states are rebuilt from nothing.
    program = [sys.executable, "-c", SET_UP, str(data)]
    made = subprocess.run(
        program, env=environment(settings(data) | recorded), check=True, capture_output=True, text=True
    )
    key = made.stdout.strip()
    acknowledge(log, {"kind": "key", "id": "_".join(key.split("_")[1:3])})
    with service(data, recorded) as running:
        use(running.url, key, partial(acknowledge, log), folder, jobs)
    return key


def written(folder: Path, state: Mapping[str, bytes]) -> Path:
    """A data folder with these files only."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    for name, content in state.items():
        (folder / name).write_bytes(content)
    return folder


def audit_all(folder: Path, operations: Sequence[Operation], chosen: Sequence[int], seed: int) -> list[str]:
    """Findings of all states of another recording. chosen: positions in the full one."""
    positions = [min(position, len(operations) - 1) for position in chosen]
    found = []
    for _, _, state, told in crash_states(operations, positions, seed):
        found += audit(written(folder / "state", state), told)
    return found


def audit(folder: Path, told: Iterable[Mapping[str, Any]]) -> list[str]:
    """Everything that contradicts the answers that clients had received."""
    try:
        for name in ("stms.sqlite", "jobs.sqlite"):
            if (folder / name).exists():
                with closing(sqlite3.connect(folder / name)) as database:
                    (state,) = database.execute("PRAGMA integrity_check").fetchone()
                if state != "ok":
                    return [f"{name}: {state}"]
        with closing(sqlite3.connect(folder / "stms.sqlite")) as database:
            return [problem for fact in told if (problem := _contradiction(database, fact))]
    except sqlite3.DatabaseError as error:
        return [f"a database cannot be read: {error}"]


def _contradiction(database: sqlite3.Connection, fact: Mapping[str, Any]) -> str | None:
    def one(query: str, *values: object) -> Any:
        row = database.execute(query, values).fetchone()
        return None if row is None else row[0]

    kind = fact["kind"]
    if kind == "version":
        return _wrong_version(one, fact)
    if kind == "deleted":
        model, number = fact["model"], fact["version"]
        if one("SELECT 1 FROM model_versions WHERE model = ? AND version = ?", model, number):
            return f"deleted version {model}@{number} is back"
        retired = one("SELECT version FROM retired_numbers WHERE model = ?", model) or 0
        return None if retired >= number else f"the number of {model}@{number} would be used again"
    if kind == "alias":
        revision = one("SELECT revision FROM aliases WHERE model = ? AND alias = 'stable'", fact["model"])
        if revision is None or revision < fact["revision"]:
            return f"alias {fact['model']}@stable is at revision {revision}, not {fact['revision']}"
        return None
    if kind == "revoked":
        revoked = one("SELECT revoked_at FROM api_keys WHERE id = ?", fact["id"])
        return None if revoked else f"revoked key {fact['id']} is valid"
    table = {"dataset": "datasets", "job": "jobs", "key": "api_keys"}[kind]
    return None if one(f"SELECT 1 FROM {table} WHERE id = ?", fact["id"]) else f"{kind} {fact['id']} is gone"


def _wrong_version(one: Callable[..., Any], fact: Mapping[str, Any]) -> str | None:
    """A version may have been deleted since, but never belong to another job."""
    model, number, job = fact["model"], fact["version"], fact["job"]
    owner = one("SELECT job_id FROM model_versions WHERE model = ? AND version = ?", model, number)
    if owner not in (None, job):
        return f"{model}@{number} was of {job} and is of {owner}"
    retired = one("SELECT version FROM retired_numbers WHERE model = ?", model) or 0
    if owner is None and retired < number:
        return f"{model}@{number} is gone, and its number is free"
    state = one("SELECT state FROM jobs WHERE id = ?", job)
    return None if state == "succeeded" else f"{job} is {state} after it had succeeded"


def resume(folder: Path, key: str, told: Sequence[Mapping[str, Any]]) -> list[str]:
    """Start the service on the state, have it end all jobs, and audit it again."""
    with service(folder) as running, Client(running.url, key, timeout=30) as client:
        deadline = time.monotonic() + JOB_SECONDS
        while unfinished := [job for job in client.jobs() if job["state"] not in _ENDED]:
            if time.monotonic() > deadline:
                return [f"{job['id']} is still {job['state']}" for job in unfinished]
            time.sleep(0.3)
        found = [
            f"{job['id']} is {job['state']}: {job.get('error')}"
            for job in client.jobs()
            if job["state"] != "succeeded"
        ]
    return found + audit(folder, told)


def commit_seconds(folder: Path, synchronous: str) -> float:
    """Median duration of a commit of one small row on this disk."""
    path = folder / f"{synchronous}.sqlite"
    seconds = []
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute(f"PRAGMA synchronous={synchronous}")
        database.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, text TEXT)")
        for _ in range(_COMMITS):
            began = time.perf_counter()
            database.execute("INSERT INTO rows (text) VALUES (?)", ("x" * 500,))
            seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


if __name__ == "__main__":
    sys.exit(main())
