"""A stage: clients and faults on one deployment, followed by the audit."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from stms_client import Client
from verification.chaos import workloads
from verification.chaos.audit import Audit
from verification.chaos.clients import ClientPool
from verification.chaos.event_log import EventLog
from verification.chaos.faults import EMBEDDED, LONG_OUTAGE, SHARED, Faults, Kind
from verification.chaos.orphans import Orphans
from verification.chaos.plan import carry_out, plan
from verification.chaos.queries import Queries
from verification.chaos.readiness import Readiness
from verification.chaos.service import FaultyService, embedded_deployment, shared_deployment
from verification.chaos.takeovers import Takeovers

_FIRST_SECONDS = 3.0
_STANDSTILL_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class Size:
    """Size of a stage.

    faults: number of faults. seconds: time over which they are spread. jobs: minimum number of jobs.
    clients: number of concurrent clients. drain: most seconds to wait for jobs after the last fault.
    workloads: names of the workloads; None for all. long_outage: whether one outage of the database lasts
    longer than the timeout of a connection.
    """

    faults: int
    seconds: float
    jobs: int
    clients: int
    drain: float
    seed: int
    workloads: tuple[str, ...] | None = None
    long_outage: bool = True


@dataclass(slots=True)
class Outcome:
    """Result of a stage. takeovers: seconds. broken: errors of the injection. details: further counts."""

    faults: Counter[str] = field(default_factory=Counter)
    jobs: int = 0
    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    corrupt: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    takeovers: list[float] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)


def shared(folder: Path, event_log: EventLog, mark: str, size: Size) -> Outcome:
    """PostgreSQL, several servers and workers."""
    return _run(
        shared_deployment(folder, event_log, mark), SHARED, event_log, folder, size, with_takeovers=True
    )


def embedded(folder: Path, event_log: EventLog, mark: str, size: Size) -> Outcome:
    """`stms serve` on SQLite."""
    return _run(
        embedded_deployment(folder, event_log, mark), EMBEDDED, event_log, folder, size, with_takeovers=False
    )


def _run(
    opened: AbstractContextManager[FaultyService],
    kinds: Sequence[Kind],
    event_log: EventLog,
    folder: Path,
    size: Size,
    *,
    with_takeovers: bool,
) -> Outcome:
    outcome = Outcome()
    with opened as deployment:
        for kind, reason in deployment.unavailable.items():
            event_log.report(f"left out: {kind}, {reason}")
        deployment.start(size.seed)
        event_log.report(f"{len(deployment.apis)} servers and {len(deployment.workers)} workers are up")
        with Client(deployment.apis[0].url, next(iter(deployment.keys.values())), timeout=20) as client:
            references = workloads.run_references(client, workloads.upload(client, folder, size.workloads))
        event_log.report(f"undisturbed runs: {', '.join(references)}")
        orphans = Orphans(deployment)
        queries = Queries(deployment, references, size.seed)
        readiness = Readiness(deployment)
        takeovers = Takeovers(deployment) if with_takeovers else None
        found = [reference.workload for reference in references.values()]
        pool = ClientPool(deployment, found, number=size.clients, seed=size.seed)
        time.sleep(_FIRST_SECONDS)
        faults = Faults(deployment, takeovers)
        _harm(faults, kinds, event_log, size)
        _drain(pool, event_log, size)
        for watcher in (queries, readiness, takeovers):
            if watcher is not None:
                watcher.stop()
        reference_jobs = {name: reference.job_id for name, reference in references.items()}
        audit = Audit(deployment.database, pool.accepted, reference_jobs)
        with Client(deployment.apis[-1].url, next(iter(deployment.keys.values())), timeout=20) as client:
            audit.ask(client, references)
        orphans.stop()
        deployment.stop()
        remaining = orphans.remaining()
        outcome.orphans = [f"{pid}: {command}" for pid, command in remaining.items()]
        outcome.faults = faults.done
        outcome.jobs = len(pool.accepted)
        outcome.lost, outcome.corrupt = audit.findings.lost, audit.findings.corrupt + queries.wrong
        outcome.duplicated = audit.findings.duplicated + pool.duplicated
        outcome.takeovers = takeovers.seconds() if takeovers is not None else []
        outcome.broken = faults.broken
        outcome.details = _details(deployment, pool, queries, readiness, audit)
        if takeovers is not None:
            outcome.details |= _takeover_details(takeovers)
    return outcome


def _harm(faults: Faults, kinds: Sequence[Kind], event_log: EventLog, size: Size) -> None:
    possible = [kind for kind in faults.possible(kinds) if size.long_outage or kind.name != LONG_OUTAGE]
    planned = plan(possible, size.faults, size.seconds, size.seed)
    event_log.report(f"{size.faults} faults of {len(possible)} kinds in {size.seconds:.0f} s begin")
    carry_out(faults, planned, possible, event_log)
    event_log.report(f"the faults are over: {dict(faults.done)}")


def _drain(pool: ClientPool, event_log: EventLog, size: Size) -> None:
    """Wait until enough jobs were accepted and have ended, or no job has advanced for a while."""
    pool.stop_after(size.jobs)
    deadline = time.monotonic() + size.drain
    moved_at, moved = time.monotonic(), -1
    while pool.active and time.monotonic() < deadline:
        if pool.progress_count != moved:
            moved_at, moved = time.monotonic(), pool.progress_count
        if time.monotonic() - moved_at > _STANDSTILL_SECONDS:
            event_log.report(f"no job has advanced for {_STANDSTILL_SECONDS:.0f} s")
            break
        time.sleep(0.2)
    if pool.active:
        event_log.report(f"{pool.active} clients still wait")
    pool.abort()
    event_log.report(f"{len(pool.accepted)} jobs were accepted")


def _details(
    deployment: FaultyService, pool: ClientPool, queries: Queries, readiness: Readiness, audit: Audit
) -> dict[str, Any]:
    outages = [query for query in queries.done if deployment.outages.overlapping(query.began, query.ended)]
    during = Counter(
        query.failure for query in outages if query.failure and query.warm and not query.server_down
    )
    stories = Counter(job.scenario for job in pool.accepted.values())
    missed, alarms = readiness.ready_without_database(), readiness.not_ready_with_database()
    without_control = queries.without_control()
    return {
        "stories": dict(stories),
        "cancelled": sum(job.expected_state == "cancelled" for job in pool.accepted.values()),
        "retried": sum(job.retried for job in pool.accepted.values()),
        "given_up_for_dead_solvers": sum(job.solver_retries for job in pool.accepted.values()),
        "submissions": pool.submissions,
        "refused": len(pool.refused),
        "server_faults": dict(pool.faults),
        "calls_made_again": dict(pool.retries),
        "database_away_s": round(deployment.outages.seconds_within(0.0, deployment.event_log.now), 1),
        "queries": len(queries.done),
        "query_failures": dict(queries.failures()),
        "query_failures_of_warm_servers": dict(queries.failures(warm=True, server_down=False)),
        "queries_in_outages": len(outages),
        "query_failures_in_outages": dict(during),
        "queries_without_control": len(without_control),
        "query_failures_without_control": dict(
            Counter(query.failure for query in without_control if query.failure)
        ),
        "readiness_looks": len(readiness.probes),
        "ready_without_database": len(missed),
        "not_ready_with_database": dict(
            Counter(f"{probe.server}: {'; '.join(probe.reasons)}"[:150] for probe in alarms)
        ),
        "students_compared": audit.findings.compared,
        "students_identical": audit.findings.identical,
        "blobs_verified": audit.findings.blobs,
        "unclean_ends": deployment.unclean,
    }


def _takeover_details(takeovers: Takeovers) -> dict[str, Any]:
    seconds, orderly = takeovers.seconds(), takeovers.seconds(orderly=True)
    return {
        "takeovers": len(seconds),
        "takeover_p50_s": quantile(seconds, 0.5),
        "takeover_max_s": quantile(seconds, 1.0),
        "came_back": sum(case.outcome == "came_back" for case in takeovers.cases),
        "never_taken_over": [
            f"{case.kind} of {case.worker} at {case.began:.0f} s" for case in takeovers.never()
        ],
        "handovers": len(orderly),
        "handover_p95_s": quantile(orderly, 0.95),
    }


def quantile(seconds: Sequence[float], share: float) -> float | None:
    """The quantile, rounded to 10 ms; None for an empty sequence."""
    return round(float(np.quantile(seconds, share)), 2) if seconds else None
