"""The kinds of faults: each does its harm to something that runs, and undoes what has to be undone."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.chaos.house import House, Member
from benchmarks.chaos.journal import Span
from benchmarks.chaos.programs import command_line, descendants
from benchmarks.chaos.takeovers import ORDERLY, Case, Takeovers
from benchmarks.postgres import Shutdown

LONG_OUTAGE = "postgres_long"
LONG_OUTAGE_SECONDS = 32.0
"""Longer than a process waits for a connection, its pool's wait and its connect together."""


class NoTarget(Exception):
    """Nothing runs that this fault could be done to now."""


@dataclass(frozen=True, slots=True)
class Kind:
    """weight: how often it comes, next to the others. most: of it in one run; 0 for any number."""

    name: str
    weight: int
    most: int = 0


SHARED = (
    Kind("kill_worker", 12),
    Kind("kill_server", 7),
    Kind("kill_solver", 11),
    Kind("stop_worker", 10),
    Kind("stop_server", 5),
    Kind("terminate_worker", 8),
    Kind("reset_connections", 8),
    Kind("stall_connections", 5),
    Kind("cut_network", 6),
    Kind("clock_step", 6),
    Kind("disk_full_cache", 5),
    Kind("postgres_fast", 3),
    Kind("postgres_crash", 3),
    Kind(LONG_OUTAGE, 1, most=1),
)
EMBEDDED = (
    Kind("disk_full_sqlite", 8),
    Kind("kill_worker", 4),
    Kind("kill_solver", 4),
    Kind("kill_server", 3),
    Kind("stop_worker", 3),
)


class Faults:
    """Injects faults and counts them. takeovers: measures how long workers without a job stay its owner.

    broken: errors of the injection itself, for which the service is not to blame.
    """

    def __init__(self, house: House, takeovers: Takeovers | None = None) -> None:
        self._house, self._takeovers = house, takeovers
        self._journal = house.journal
        self._lock = threading.Lock()
        self._under_way: set[str] = set()
        self.done: Counter[str] = Counter()
        self.broken: list[str] = []

    def possible(self, kinds: Sequence[Kind]) -> list[Kind]:
        """Those that this machine and this house allow."""
        return [kind for kind in kinds if kind.name not in self._house.unavailable]

    def inject(self, kind: str, rng: random.Random) -> bool:
        """Do one, to its end; whether there was anything to do it to."""
        act: Callable[[random.Random], None] = getattr(self, f"_{kind}")
        try:
            act(rng)
        except NoTarget:
            return False
        return True

    def _count(self, kind: str, **about: Any) -> None:
        with self._lock:
            self.done[kind] += 1
        self._journal.note("fault", kind=kind, **about)

    def _kill_worker(self, rng: random.Random) -> None:
        member, pid = _pick(rng, self._house.workers)
        self._lose("kill_worker", member.name, pid)
        _signal(pid, signal.SIGKILL)
        self._count("kill_worker", worker=member.name, pid=pid)

    def _kill_server(self, rng: random.Random) -> None:
        member, pid = _pick(rng, self._house.apis)
        member.program.doom("killed")
        _signal(pid, signal.SIGKILL)
        self._count("kill_server", server=member.name, pid=pid)

    def _kill_solver(self, rng: random.Random) -> None:
        workers = [worker.pid for worker in self._house.workers]
        solvers = [
            pid
            for worker in workers
            if worker is not None
            for pid in descendants(worker)
            if "solver" in command_line(pid)
        ]
        if not solvers:
            raise NoTarget
        pid = rng.choice(solvers)
        _signal(pid, signal.SIGKILL)
        self._count("kill_solver", pid=pid)

    def _stop_worker(self, rng: random.Random) -> None:
        member, pid = _pick(rng, self._house.workers)
        seconds = rng.uniform(1.0, 12.0)
        with self._alone(f"stop {pid}"):
            case = self._lose("stop_worker", member.name, pid)
            span = member.cut.begin("stopped")
            _signal(pid, signal.SIGSTOP)
            self._count("stop_worker", worker=member.name, pid=pid, seconds=round(seconds, 1))
            time.sleep(seconds)
            _continue(pid)
            member.cut.finish(span)
            self._come_back(case)

    def _stop_server(self, rng: random.Random) -> None:
        member, pid = _pick(rng, self._house.apis)
        seconds = rng.uniform(1.0, 6.0)
        with self._alone(f"stop {pid}"):
            span = member.program.troubled.begin("stopped")
            _signal(pid, signal.SIGSTOP)
            self._count("stop_server", server=member.name, pid=pid, seconds=round(seconds, 1))
            time.sleep(seconds)
            _continue(pid)
            member.program.troubled.finish(span)

    def _terminate_worker(self, rng: random.Random) -> None:
        member, pid = _pick(rng, self._house.workers)
        self._lose(ORDERLY, member.name, pid)
        _signal(pid, signal.SIGTERM)
        self._count("terminate_worker", worker=member.name, pid=pid)

    def _reset_connections(self, rng: random.Random) -> None:
        member = _choose(rng, [m for m in self._members() if m.proxy is not None])
        if member.proxy is None:
            raise NoTarget
        member.cut.moment("connections reset")
        broken = member.proxy.reset()
        self._count("reset_connections", member=member.name, connections=broken)

    def _stall_connections(self, rng: random.Random) -> None:
        member = _choose(rng, [m for m in self._members() if m.proxy is not None])
        seconds = rng.uniform(1.0, 12.0)
        pid = member.pid
        if member.proxy is None or pid is None:
            raise NoTarget
        with self._alone(f"stall {member.name}"):
            case = self._lose("stall_connections", member.name, pid)
            span = member.cut.begin("connections stalled")
            member.proxy.stall()
            self._count("stall_connections", member=member.name, seconds=round(seconds, 1))
            time.sleep(seconds)
            member.proxy.resume()
            member.cut.finish(span)
            self._come_back(case)

    def _cut_network(self, rng: random.Random) -> None:
        member = _choose(rng, [m for m in self._members() if m.network is not None])
        seconds = rng.uniform(1.0, 14.0)
        pid = member.pid
        if member.network is None or pid is None:
            raise NoTarget
        with self._alone(f"cut {member.name}"):
            case = self._lose("cut_network", member.name, pid)
            span = member.cut.begin("network cut")
            member.network.pull()
            self._count("cut_network", member=member.name, seconds=round(seconds, 1))
            time.sleep(seconds)
            member.network.plug()
            member.cut.finish(span)
            self._come_back(case)

    def _clock_step(self, rng: random.Random) -> None:
        member = _choose(rng, [m for m in self._members() if m.clock is not None])
        if member.clock is None:
            raise NoTarget
        seconds = rng.choice((-1.0, 1.0)) * rng.choice((2.0, 40.0, 700.0, 90_000.0))
        with self._alone(f"clock {member.name}"):
            member.clock.step(seconds)
            self._count("clock_step", member=member.name, seconds=seconds)
            time.sleep(rng.uniform(2.0, 15.0))
            member.clock.step(0.0)

    def _disk_full_cache(self, rng: random.Random) -> None:
        self._fill("disk_full_cache", rng.choice(sorted(self._house.disks)), rng)

    def _disk_full_sqlite(self, rng: random.Random) -> None:
        # What is in the files can still be read: whether a server is ready then, both may be said.
        span = self._house.unclear.begin("disk full")
        try:
            self._fill("disk_full_sqlite", "data", rng)
        finally:
            self._house.unclear.finish(span)

    def _fill(self, kind: str, disk: str, rng: random.Random) -> None:
        seconds = rng.uniform(2.0, 7.0)
        with self._alone(f"fill {disk}"):
            until = time.monotonic() + seconds
            self._house.disks[disk].fill()
            self._count(kind, disk=disk, seconds=round(seconds, 1))
            try:
                while time.monotonic() < until:
                    # What the programs delete meanwhile is taken, too.
                    self._house.disks[disk].fill()
                    time.sleep(0.2)
            finally:
                self._house.disks[disk].free()

    def _postgres_fast(self, rng: random.Random) -> None:
        self._restart("postgres_fast", Shutdown.FAST, rng.uniform(0.0, 1.0))

    def _postgres_crash(self, rng: random.Random) -> None:
        self._restart("postgres_crash", Shutdown.IMMEDIATE, rng.uniform(0.0, 1.0))

    def _postgres_long(self, _rng: random.Random) -> None:
        self._restart(LONG_OUTAGE, Shutdown.FAST, LONG_OUTAGE_SECONDS)

    def _restart(self, kind: str, how: Shutdown, pause: float) -> None:
        postgres = self._house.postgres
        if postgres is None or not self._house.database_lock.acquire(blocking=kind == LONG_OUTAGE):
            raise NoTarget
        span: Span = self._house.down(kind)
        try:
            postgres.stop(how)
            self._count(kind, seconds=round(pause, 1))
            time.sleep(pause)
            postgres.start()
        finally:
            self._house.away.finish(span)
            self._house.database_lock.release()

    @contextmanager
    def _alone(self, what: str) -> Iterator[None]:
        """One thing is done to one target once at a time. Raises NoTarget while it is."""
        with self._lock:
            if what in self._under_way:
                raise NoTarget
            self._under_way.add(what)
        try:
            yield
        finally:
            with self._lock:
                self._under_way.discard(what)

    def _lose(self, kind: str, worker: str, pid: int) -> Case | None:
        return None if self._takeovers is None else self._takeovers.begin(kind, worker, pid)

    def _come_back(self, case: Case | None) -> None:
        if self._takeovers is not None:
            self._takeovers.came_back(case)

    def _members(self) -> list[Member]:
        return [*self._house.apis, *self._house.workers]


def _choose(rng: random.Random, members: list[Member]) -> Member:
    if not members:
        raise NoTarget
    return rng.choice(members)


def _pick(rng: random.Random, members: list[Member]) -> tuple[Member, int]:
    """One that runs, and its process."""
    running = [(member, pid) for member in members if (pid := member.pid) is not None]
    if not running:
        raise NoTarget
    return rng.choice(running)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError as error:
        raise NoTarget from error


def _continue(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
