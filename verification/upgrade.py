"""An upgrade with jobs in every state: ``python -m verification.upgrade [--from COMMIT ...]``.

`stms api` and `stms worker` of the release before get jobs of several kinds into every state: ended in each
way, with a part of their students, without a teacher yet, queued, waiting for admission, and cancelled while
no worker runs. Then the database is upgraded, processes of this tree take over, and all jobs must end as they
should; those that had failed or were cancelled are tried again. Three ways to take over are tried:

stop      all old processes end by SIGTERM
kill      the old worker is killed
rolling   the new processes start beside the old ones, which end by SIGTERM afterwards

Traces count every student that a solver has trained. The last line is a JSON object:

jobs, students, compared   jobs, students stored before the upgrade, and students compared with those of the
                           same job without an interruption, of which ``identical`` have the same bits
untraced       students of which no training was seen: the worker was killed before it had sent the trace
repeated       students whose training began after they were stored, or that the new release trained twice
lost           jobs that ended otherwise than they should, or not at all, and records without their data
duplicated, corrupt   events, versions, blobs and answers that are there twice or are not what they were
unfinished     units of work and workflows that are left when all jobs have ended
states         numbers of jobs by the state in which the upgrade met them
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from app.commands.demo.temporary_server import sigterm_as_exit
from stms_client import StmsError
from tests.system.collector import Collector
from tests.system.deployment import QUICK_SOLVERS, ROOT, Deployment
from tests.system.postgres import NoPostgres, Postgres, postgres
from verification.chaos.audit import Audit
from verification.digests import checkout
from verification.upgrade_jobs import QUICK, WORKLOADS, Jobs, Key, Tables

RELEASE_BEFORE: Final = "1a0d69af"
"""The commit of the release before this one. Its students have the bits of today's."""
WAYS: Final = ("stop", "kill", "rolling")
DATABASES: Final = ("sqlite", "postgresql")
_STATES: Final = {"queued", "running", "succeeded", "partially_succeeded", "failed", "cancelled"}
_SETTINGS: Final = QUICK_SOLVERS | {
    "STMS_MAX_UNITS_PER_KEY": "1",
    "STMS_HEARTBEAT_SECONDS": "0.1",
    "STMS_SOLVER_STALL_SECONDS": "0",
    "STMS_TRACE_RATE": "1",
}


@dataclass(frozen=True, slots=True)
class Training:
    """A student that a solver has trained. began: seconds since the epoch."""

    student: Key
    began: float


@dataclass(slots=True)
class Outcome:
    """What one upgrade has shown; the lists name what is wrong."""

    jobs: int = 0
    students: int = 0
    compared: int = 0
    identical: int = 0
    untraced: int = 0
    states: Counter[str] = field(default_factory=Counter)
    repeated: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    corrupt: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)

    @property
    def faults(self) -> list[str]:
        """Everything that is wrong."""
        return [*self.repeated, *self.lost, *self.duplicated, *self.corrupt, *self.unfinished]


def main() -> int:
    """0 if nothing is wrong, 1 otherwise, 2 without PostgreSQL or the commit."""
    parser = argparse.ArgumentParser(
        prog="python -m verification.upgrade",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--from", dest="old", default=RELEASE_BEFORE, help="commit [%(default)s]")
    parser.add_argument("--database", choices=(*DATABASES, "both"), default="both", help="[%(default)s]")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, help="only these")
    parser.add_argument("--kinds", nargs="+", choices=tuple(WORKLOADS), default=(), help="only these jobs")
    parser.add_argument("--quick", action="store_true", help=f"the same as --kinds {' '.join(QUICK)}")
    parser.add_argument("--keep", action="store_true", help="keep logs and databases, and print their folder")
    options = parser.parse_args()
    try:
        old = checkout(options.old)
    except subprocess.CalledProcessError as error:
        print(f"The commit {options.old} cannot be checked out: {error.stderr!r}", file=sys.stderr)
        return 2
    databases = DATABASES if options.database == "both" else (options.database,)
    workloads = options.kinds or (QUICK if options.quick else tuple(WORKLOADS))
    found: dict[str, Outcome] = {}
    started = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="stms-upgrade-"))
    try:
        # On SIGTERM all started processes are ended.
        with sigterm_as_exit():
            for database in databases:
                with _server(database) as server:
                    for way in options.ways:
                        place = folder / f"{database}-{way}"
                        found[place.name] = outcome = upgraded(place, old, server, way, workloads)
                        print(
                            f"{place.name}: {len(outcome.faults)} faults",
                            *outcome.faults,
                            sep="\n  ",
                            flush=True,
                        )
    except NoPostgres as error:
        print(error, file=sys.stderr)
        return 2
    finally:
        if options.keep:
            print(f"Logs and databases are kept in {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    figures = {"from": options.old, **document(found), "seconds": round(time.monotonic() - started)}
    print(json.dumps(figures))
    return int(any(outcome.faults for outcome in found.values()))


def document(found: Mapping[str, Outcome]) -> dict[str, Any]:
    """The sums of all upgrades as JSON, and the states by upgrade."""
    counts = {
        name: sum(getattr(outcome, name) for outcome in found.values())
        for name in ("jobs", "students", "compared", "identical", "untraced")
    }
    faults = {
        name: sum(len(getattr(outcome, name)) for outcome in found.values())
        for name in ("repeated", "lost", "duplicated", "corrupt", "unfinished")
    }
    return {**counts, **faults, "states": {name: dict(outcome.states) for name, outcome in found.items()}}


def upgraded(
    folder: Path, old_tree: Path, server: Postgres | None, way: str, workloads: Collection[str]
) -> Outcome:
    """Upgrade a service of the tree ``old_tree`` in one of the ways.

    folder: for its data and logs; it is made. server: of the database; None for SQLite. workloads: names of
    kinds of jobs. Raises RuntimeError, TimeoutError or StmsError if the jobs cannot be brought into their
    states, and AssertionError if a process of either release ends badly.
    """
    folder.mkdir()
    address = "" if server is None else server.create_database(folder.name)
    outcome = Outcome()
    with ExitStack() as stack:
        old_spans, new_spans = (stack.enter_context(collector()) for _ in range(2))
        slots = len(workloads) + 2
        old = _deployment(folder, "old", address, old_spans.address, slots=slots, tree=old_tree)
        _upgrade_database(old)
        stack.enter_context(old)
        tables = Tables(old.database)
        stack.callback(tables.close)
        jobs = Jobs(old, tables, workloads, folder)
        jobs.run_references()
        ended_badly = jobs.end_badly()
        to_cancel = jobs.interrupt()
        surplus = jobs.queue()
        new = _deployment(folder, "new", address, new_spans.address, slots=2)
        if way != "rolling":
            _end_worker(old, is_killed=way == "kill")
            jobs.cancel(to_cancel)
        for job_id in surplus:
            jobs.cancel(job_id)
        outcome.states = _states(jobs)
        outcome.lost += missing_states(outcome.states, way)
        before = {job_id: tables.job(job_id) for job_id in jobs.accepted}
        trained = {key for job_id in jobs.accepted for key in tables.trained(job_id)}
        if way != "rolling":
            _end(old, outcome)
        _upgrade_database(new)
        stack.enter_context(new)
        jobs.move_to(new)
        if way == "rolling":
            jobs.cancel(to_cancel)
            _end(old, outcome)
        jobs.wait()
        outcome.corrupt += _changed(jobs, before)
        for job_id in ended_badly:
            jobs.retry(job_id)
        jobs.wait()
        _ask(jobs, outcome)
        outcome.unfinished = tables.unfinished()
        _end(new, outcome)
        stored = tables.stored_at()
        by_old, by_new = (
            list(_trainings(spans, tables.jobs_of_traces())) for spans in (old_spans, new_spans)
        )
        outcome.repeated = repeated(by_old, by_new, stored)
        outcome.untraced = len(set(stored) - {each.student for each in (*by_old, *by_new)})
        _audit(new.database, jobs, outcome)
        outcome.students = len(trained)
    return outcome


def repeated(old: Sequence[Training], new: Sequence[Training], stored: Mapping[Key, float]) -> list[str]:
    """Students that were trained although they were stored, or more than once by the new release.

    What an interrupted release has trained and not stored is trained again. stored: when each student was
    stored, seconds since the epoch.
    """
    late = [each.student for each in (*old, *new) if each.began > stored.get(each.student, float("inf"))]
    twice = [student for student, times in Counter(each.student for each in new).items() if times > 1]
    return [f"{student} was trained after it was stored" for student in late] + [
        f"{student} was trained again by the new release" for student in twice
    ]


def _server(database: str) -> AbstractContextManager[Postgres | None]:
    """A PostgreSQL server, for which no power fails here; none for SQLite."""
    return postgres(settings={"fsync": "off"}) if database == "postgresql" else nullcontext()


@contextmanager
def collector() -> Iterator[Collector]:
    """A collector of traces while the block lasts."""
    opened = Collector()
    try:
        yield opened
    finally:
        opened.close()


def _deployment(
    folder: Path, name: str, database: str, traces: str, *, slots: int, tree: Path = ROOT
) -> Deployment:
    """One server and one worker on the common data. slots: units of work that the worker runs at a time."""
    settings = _SETTINGS | {
        "STMS_DATA_DIR": str(folder / "data"),
        "STMS_TRACE_ENDPOINT": traces,
        "STMS_WORKER_CONCURRENCY": str(slots),
    }
    logs = folder / name
    logs.mkdir()
    return Deployment(
        logs, api=1, workers=1, database=database, is_new=False, settings=settings, tree=tree, is_clean=True
    )


def _upgrade_database(service: Deployment) -> None:
    done = service.run("db", "upgrade")
    if done.returncode:
        raise RuntimeError(f"stms db upgrade failed: {done.stdout}{done.stderr}")


def _end_worker(service: Deployment, *, is_killed: bool) -> None:
    worker = service["worker-0"]
    if is_killed:
        worker.kill()
    else:
        worker.end()


def _end(service: Deployment, outcome: Outcome) -> None:
    """End all processes of a service; one that does not end well is no way to be upgraded."""
    codes = service.end()
    bad = {name: code for name, code in codes.items() if code not in (0, -9)}
    outcome.unfinished += [f"{name} in {service.folder.name} ended with {code}" for name, code in bad.items()]


def _states(jobs: Jobs) -> Counter[str]:
    """Numbers of jobs by state; those that are queued and not admitted are "waiting"."""
    found: Counter[str] = Counter()
    for job_id in jobs.accepted:
        job = jobs.tables.job(job_id)
        found["waiting" if job["state"] == "queued" and job["stage"] == "waiting" else job["state"]] += 1
    return found


def missing_states(states: Mapping[str, int], way: str) -> list[str]:
    """States that no job had, so that the upgrade has not met them."""
    # A worker that runs admits jobs in place of those that are cancelled, and ends the others. A job is
    # cancelled at once where no worker is alive, and a killed one passes for alive for seconds.
    more = {"stop": {"waiting"}, "kill": {"waiting", "cancelling"}, "rolling": set[str]()}
    wanted = _STATES | more[way]
    return [f"no job was {state} at the upgrade" for state in sorted(wanted - set(states))]


def _changed(jobs: Jobs, before: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Jobs that had ended before the upgrade and are not what they were then."""
    found = []
    for job_id, row in before.items():
        if row["finished_at"] is not None:
            now = jobs.tables.job(job_id)
            names = [name for name, value in row.items() if now.get(name) != value]
            if names:
                found.append(f"{job_id} ({row['state']}) has other values of {', '.join(names)}")
    return found


def _ask(jobs: Jobs, outcome: Outcome) -> None:
    """Compare the answers of models of before, and have those of all jobs that succeeded answer."""
    for job in jobs.accepted.values():
        reference = jobs.references[job.workload]
        row = jobs.tables.job(job.id)
        if row["state"] != "succeeded":
            continue
        try:
            with jobs.client(job.key) as client:
                found = reference.asked(client, f"{job.model}@{row['version']}")
        except StmsError as error:
            outcome.corrupt.append(f"{job.model} of {job.id} does not answer: {error}")
            continue
        if job.scenario == "reference" and found != reference.answers:
            outcome.corrupt.append(f"{job.model} of {job.id} answers otherwise than before the upgrade")


def _trainings(spans: Collector, jobs_of_traces: Mapping[str, str]) -> Iterator[Training]:
    for span in spans.spans():
        if span["name"] == "student" and span["traceId"] in jobs_of_traces:
            shown = {item["key"]: next(iter(item["value"].values())) for item in span["attributes"]}
            student = (jobs_of_traces[span["traceId"]], shown["stms.class"], shown["stms.method"])
            yield Training(student, int(span["startTimeUnixNano"]) / 1e9)


def _audit(address: str, jobs: Jobs, outcome: Outcome) -> None:
    reference_jobs = {name: reference.job_id for name, reference in jobs.references.items()}
    found = Audit(address, jobs.accepted, reference_jobs).findings
    outcome.jobs, outcome.compared, outcome.identical = len(jobs.accepted), found.compared, found.identical
    outcome.lost += found.lost
    outcome.duplicated += found.duplicated
    outcome.corrupt += found.corrupt


if __name__ == "__main__":
    sys.exit(main())
