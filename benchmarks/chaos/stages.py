"""A stage: a house, its customers and its faults, then the audit."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from app.client import Client
from benchmarks.chaos import recipes
from benchmarks.chaos.audit import Audit
from benchmarks.chaos.customers import Customers
from benchmarks.chaos.faults import EMBEDDED, LONG_OUTAGE, SHARED, Faults, Kind
from benchmarks.chaos.house import House, embedded_house, shared_house
from benchmarks.chaos.journal import Journal
from benchmarks.chaos.orphans import Orphans
from benchmarks.chaos.plan import carry_out, plan
from benchmarks.chaos.queries import Queries
from benchmarks.chaos.readiness import Readiness
from benchmarks.chaos.takeovers import Takeovers

_FIRST_SECONDS = 3.0
_STANDSTILL_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class Size:
    """Of a stage. seconds: in which the faults come. jobs: at least. customers: jobs under way at a time.

    drain: most seconds for jobs to end when the faults are over. recipes: some by name, or all. long_outage:
    whether the database goes away once for longer than connections are waited for.
    """

    faults: int
    seconds: float
    jobs: int
    customers: int
    drain: float
    seed: int
    recipes: tuple[str, ...] | None = None
    long_outage: bool = True


@dataclass(slots=True)
class Outcome:
    """What a stage showed. takeovers: seconds. broken: faults that could not be made. told: the rest."""

    faults: Counter[str] = field(default_factory=Counter)
    jobs: int = 0
    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    corrupt: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    takeovers: list[float] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    told: dict[str, Any] = field(default_factory=dict)


def shared(folder: Path, journal: Journal, mark: str, size: Size) -> Outcome:
    """PostgreSQL, several servers and workers."""
    return _run(shared_house(folder, journal, mark), SHARED, journal, folder, size, with_takeovers=True)


def embedded(folder: Path, journal: Journal, mark: str, size: Size) -> Outcome:
    """`stms serve` on SQLite."""
    return _run(embedded_house(folder, journal, mark), EMBEDDED, journal, folder, size, with_takeovers=False)


def _run(
    opened: AbstractContextManager[House],
    kinds: Sequence[Kind],
    journal: Journal,
    folder: Path,
    size: Size,
    *,
    with_takeovers: bool,
) -> Outcome:
    outcome = Outcome()
    with opened as house:
        for kind, reason in house.unavailable.items():
            journal.say(f"left out: {kind}, {reason}")
        house.start(size.seed)
        journal.say(f"{len(house.apis)} servers and {len(house.workers)} workers are up")
        with Client(house.apis[0].url, next(iter(house.keys.values())), timeout=20) as client:
            references = recipes.run_undisturbed(client, recipes.upload(client, folder, size.recipes))
        journal.say(f"undisturbed runs: {', '.join(references)}")
        orphans = Orphans(house)
        queries = Queries(house, references, size.seed)
        readiness = Readiness(house)
        takeovers = Takeovers(house) if with_takeovers else None
        found = [reference.recipe for reference in references.values()]
        customers = Customers(house, found, number=size.customers, seed=size.seed)
        time.sleep(_FIRST_SECONDS)
        faults = Faults(house, takeovers)
        _harm(faults, kinds, journal, size)
        _drain(customers, journal, size)
        for watcher in (queries, readiness, takeovers):
            if watcher is not None:
                watcher.stop()
        audit = Audit(house.database, customers.accepted, references)
        with Client(house.apis[-1].url, next(iter(house.keys.values())), timeout=20) as client:
            audit.ask(client)
        orphans.stop()
        house.stop()
        left = orphans.left()
        outcome.orphans = [f"{pid}: {command}" for pid, command in left.items()]
        outcome.faults = faults.done
        outcome.jobs = len(customers.accepted)
        outcome.lost, outcome.corrupt = audit.found.lost, audit.found.corrupt + queries.wrong
        outcome.duplicated = audit.found.duplicated + customers.doubled
        outcome.takeovers = takeovers.seconds() if takeovers is not None else []
        outcome.broken = faults.broken
        outcome.told = _told(house, customers, queries, readiness, audit)
        if takeovers is not None:
            outcome.told |= _told_of_takeovers(takeovers)
    return outcome


def _harm(faults: Faults, kinds: Sequence[Kind], journal: Journal, size: Size) -> None:
    possible = [kind for kind in faults.possible(kinds) if size.long_outage or kind.name != LONG_OUTAGE]
    planned = plan(possible, size.faults, size.seconds, size.seed)
    journal.say(f"{size.faults} faults of {len(possible)} kinds in {size.seconds:.0f} s begin")
    carry_out(faults, planned, possible, journal)
    journal.say(f"the faults are over: {dict(faults.done)}")


def _drain(customers: Customers, journal: Journal, size: Size) -> None:
    """Until enough jobs were accepted and all have ended, or for a while nothing has come any further."""
    customers.finish_at(size.jobs)
    deadline = time.monotonic() + size.drain
    moved_at, moved = time.monotonic(), -1
    while customers.under_way and time.monotonic() < deadline:
        if customers.moves != moved:
            moved_at, moved = time.monotonic(), customers.moves
        if time.monotonic() - moved_at > _STANDSTILL_SECONDS:
            journal.say(f"nothing has moved for {_STANDSTILL_SECONDS:.0f} s")
            break
        time.sleep(0.2)
    if customers.under_way:
        journal.say(f"{customers.under_way} clients still wait")
    customers.give_up()
    journal.say(f"{len(customers.accepted)} jobs were accepted")


def _told(
    house: House, customers: Customers, queries: Queries, readiness: Readiness, audit: Audit
) -> dict[str, Any]:
    outages = [asked for asked in queries.asked if house.away.touching(asked.began, asked.ended)]
    during = Counter(
        asked.failure for asked in outages if asked.failure and asked.warm and not asked.troubled
    )
    stories = Counter(job.story for job in customers.accepted.values())
    missed, alarms = readiness.ready_without_database(), readiness.not_ready_with_database()
    return {
        "stories": dict(stories),
        "cancelled": sum(job.wanted == "cancelled" for job in customers.accepted.values()),
        "retried": sum(job.retried for job in customers.accepted.values()),
        "given_up_for_dead_solvers": sum(job.given_up for job in customers.accepted.values()),
        "submissions": customers.submissions,
        "refused": len(customers.refused),
        "server_faults": dict(customers.faults),
        "calls_made_again": dict(customers.refusals),
        "database_away_s": round(house.away.within(0.0, house.journal.now), 1),
        "queries": len(queries.asked),
        "query_failures": dict(queries.failures()),
        "query_failures_of_warm_servers": dict(queries.failures(warm=True, troubled=False)),
        "queries_in_outages": len(outages),
        "query_failures_in_outages": dict(during),
        "readiness_looks": len(readiness.looks),
        "ready_without_database": len(missed),
        "not_ready_with_database": dict(
            Counter(f"{look.server}: {'; '.join(look.reasons)}"[:150] for look in alarms)
        ),
        "students_compared": audit.found.compared,
        "students_identical": audit.found.identical,
        "blobs_verified": audit.found.blobs,
        "unclean_ends": house.unclean,
    }


def _told_of_takeovers(takeovers: Takeovers) -> dict[str, Any]:
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
    """None of nothing."""
    return round(float(np.quantile(seconds, share)), 2) if seconds else None
