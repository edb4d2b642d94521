"""The kinds of faults. Each is injected into a running process and undone afterwards where necessary."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import signal
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.system.postgres import Postgres, Shutdown
from tests.system.processes import command_line, descendants, is_alive
from verification.chaos.event_log import Interval
from verification.chaos.programs import marked
from verification.chaos.service import FaultyService, Instance
from verification.chaos.takeovers import ORDERLY, Case, Takeovers

LONG_OUTAGE = "postgres_long"
_HUNG_SECONDS = 30.0
_RETURN_SECONDS = 120.0
"""Longest wait for a process that was killed; it starts only once its database answers."""
_LOOK_SECONDS = 2.0
_LOOK_PAUSE = 0.1
LONG_OUTAGE_SECONDS = 32.0
"""Longer than a process waits for a connection, including the timeouts of its pool and of the connect."""


class NoTarget(Exception):
    """No running process can be the target of this fault now."""


@dataclass(frozen=True, slots=True)
class Kind:
    """weight: relative frequency. max_count: most faults of this kind in one run; 0 for no limit."""

    name: str
    weight: int
    max_count: int = 0


SHARED = (
    Kind("kill_worker", 12),
    Kind("kill_server", 7),
    Kind("kill_query_process", 6),
    Kind("kill_control", 6),
    Kind("stop_control", 5),
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
    Kind("standby_failover", 3),
    Kind("read_only_database", 3),
    Kind("end_sessions", 4),
    Kind("oom_group", 6),
    Kind("hung_solver", 6),
    Kind(LONG_OUTAGE, 1, max_count=1),
)
EMBEDDED = (
    Kind("disk_full_sqlite", 8),
    Kind("kill_worker", 4),
    Kind("kill_solver", 4),
    Kind("kill_server", 3),
    Kind("kill_query_process", 3),
    Kind("kill_control", 3),
    Kind("stop_control", 2),
    Kind("stop_worker", 3),
    Kind("oom_group", 2),
    Kind("power_cut", 6),
)


class Faults:
    """Injects faults and counts them. takeovers: measures how long workers without a job stay its owner.

    broken: errors of the injection itself, for which the service is not to blame.
    """

    def __init__(self, deployment: FaultyService, takeovers: Takeovers | None = None) -> None:
        self._deployment, self._takeovers = deployment, takeovers
        self._event_log = deployment.event_log
        self._lock = threading.Lock()
        self._busy: set[str] = set()
        self.done: Counter[str] = Counter()
        self.broken: list[str] = []

    def possible(self, kinds: Sequence[Kind]) -> list[Kind]:
        """The kinds that this machine and this deployment support."""
        return [kind for kind in kinds if kind.name not in self._deployment.unavailable]

    def inject(self, kind: str, rng: random.Random) -> bool:
        """Inject one fault and wait for its end. Returns False if there was no target."""
        act: Callable[[random.Random], None] = getattr(self, f"_{kind}")
        try:
            act(rng)
        except NoTarget:
            return False
        return True

    def _count(self, kind: str, **about: Any) -> None:
        with self._lock:
            self.done[kind] += 1
        self._event_log.record("fault", kind=kind, **about)

    def _kill_worker(self, rng: random.Random) -> None:
        instance, pid = _pick(rng, self._deployment.workers)
        self._begin_takeover("kill_worker", instance.name, pid)
        _signal(pid, signal.SIGKILL)
        self._count("kill_worker", worker=instance.name, pid=pid)

    def _kill_server(self, rng: random.Random) -> None:
        instance, pid = _pick(rng, self._deployment.apis)
        instance.program.mark_down("killed")
        _signal(pid, signal.SIGKILL)
        self._count("kill_server", server=instance.name, pid=pid)

    def _kill_query_process(self, rng: random.Random) -> None:
        """The server answers nothing until the manager has started another one."""
        instance, pid = _pick_process(rng, self._deployment.apis, control=False)
        with (
            self._exclusive(f"query process of {instance.name}"),
            instance.program.downtime.lasting("query process killed"),
        ):
            _signal(pid, signal.SIGKILL)
            # The next one has no models in memory yet.
            instance.program.starts += 1
            self._count("kill_query_process", server=instance.name, pid=pid)
            _until_answered(f"{instance.url}/livez")

    def _kill_control(self, rng: random.Random) -> None:
        """Queries go on without a control process."""
        instance, pid = _pick_process(rng, self._deployment.apis, control=True)
        with (
            self._exclusive(f"control process of {instance.name}"),
            instance.program.control_downtime.lasting("control process killed"),
        ):
            _signal(pid, signal.SIGKILL)
            self._count("kill_control", server=instance.name, pid=pid)
            _until_answered(f"{instance.url}/version")

    def _stop_control(self, rng: random.Random) -> None:
        """Queries go on while the control process hangs."""
        instance, pid = _pick_process(rng, self._deployment.apis, control=True)
        seconds = rng.uniform(1.0, 8.0)
        with (
            self._exclusive(f"control process of {instance.name}"),
            instance.program.control_downtime.lasting("control process stopped"),
        ):
            _signal(pid, signal.SIGSTOP)
            self._count("stop_control", server=instance.name, pid=pid, seconds=round(seconds, 1))
            time.sleep(seconds)
            _continue(pid)

    def _kill_solver(self, rng: random.Random) -> None:
        pid = self._solver(rng)
        _signal(pid, signal.SIGKILL)
        self._count("kill_solver", pid=pid)

    def _hung_solver(self, rng: random.Random) -> None:
        pid = self._solver(rng)
        with self._exclusive(f"hang {pid}"):
            _signal(pid, signal.SIGSTOP)
            self._count("hung_solver", pid=pid)
            until = time.monotonic() + _HUNG_SECONDS
            while is_alive(pid) and time.monotonic() < until:
                time.sleep(0.2)
            # An idle solver is not watched; it goes on.
            _continue(pid)

    def _oom_group(self, rng: random.Random) -> None:
        """Kill worker and solvers at once, as the kernel does with memory.oom.group."""
        instance, pid = _pick(rng, self._deployment.workers)
        solvers = [each for each in descendants(pid) if "solver" in command_line(each)]
        if not solvers:
            raise NoTarget
        self._begin_takeover("oom_group", instance.name, pid)
        for each in (*solvers, pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        self._count("oom_group", worker=instance.name, pid=pid, solvers=len(solvers))

    def _power_cut(self, rng: random.Random) -> None:
        """Kill everything at once, and lose what was written to the databases and not synced."""
        recorder, (program,) = self._deployment.recorder, self._deployment.programs
        # A full disk would keep the remaining files from being written back.
        with self._exclusive("fill data"), program.held_down("power cut") as pid:
            if recorder is None or pid is None:
                raise NoTarget
            for each in (pid, *descendants(pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
            until = time.monotonic() + _HUNG_SECONDS
            while marked(self._deployment.mark) and time.monotonic() < until:
                time.sleep(0.05)
            loss = recorder.cut(rng)
            self._count("power_cut", loss=loss.value)

    def _solver(self, rng: random.Random) -> int:
        workers = [worker.pid for worker in self._deployment.workers]
        solvers = [
            pid
            for worker in workers
            if worker is not None
            for pid in descendants(worker)
            if "solver" in command_line(pid)
        ]
        if not solvers:
            raise NoTarget
        return rng.choice(solvers)

    def _stop_worker(self, rng: random.Random) -> None:
        instance, pid = _pick(rng, self._deployment.workers)
        seconds = rng.uniform(1.0, 12.0)
        with self._exclusive(f"stop {pid}"):
            case = self._begin_takeover("stop_worker", instance.name, pid)
            interval = instance.disconnected.begin("stopped")
            _signal(pid, signal.SIGSTOP)
            self._count("stop_worker", worker=instance.name, pid=pid, seconds=round(seconds, 1))
            time.sleep(seconds)
            _continue(pid)
            instance.disconnected.finish(interval)
            self._resumed(case)

    def _stop_server(self, rng: random.Random) -> None:
        instance, pid = _pick(rng, self._deployment.apis)
        seconds = rng.uniform(1.0, 6.0)
        with self._exclusive(f"stop {pid}"):
            interval = instance.program.downtime.begin("stopped")
            stopped = [pid, *descendants(pid)]
            for each in stopped:
                with contextlib.suppress(NoTarget):
                    _signal(each, signal.SIGSTOP)
            self._count("stop_server", server=instance.name, pid=pid, seconds=round(seconds, 1))
            time.sleep(seconds)
            for each in stopped:
                _continue(each)
            instance.program.downtime.finish(interval)

    def _terminate_worker(self, rng: random.Random) -> None:
        instance, pid = _pick(rng, self._deployment.workers)
        self._begin_takeover(ORDERLY, instance.name, pid)
        _signal(pid, signal.SIGTERM)
        self._count("terminate_worker", worker=instance.name, pid=pid)

    def _reset_connections(self, rng: random.Random) -> None:
        instance = _choose(rng, [m for m in self._instances() if m.proxy is not None])
        if instance.proxy is None:
            raise NoTarget
        instance.disconnected.add_instant("connections reset")
        broken = instance.proxy.reset()
        self._count("reset_connections", instance=instance.name, connections=broken)

    def _stall_connections(self, rng: random.Random) -> None:
        instance = _choose(rng, [m for m in self._instances() if m.proxy is not None])
        if instance.proxy is None:
            raise NoTarget
        self._interrupt(
            "stall_connections", instance, rng.uniform(1.0, 12.0), instance.proxy.stall, instance.proxy.resume
        )

    def _cut_network(self, rng: random.Random) -> None:
        instance = _choose(rng, [m for m in self._instances() if m.network is not None])
        if (network := instance.network) is None:
            raise NoTarget
        self._interrupt(
            "cut_network", instance, rng.uniform(1.0, 14.0), network.disconnect, network.reconnect
        )

    def _interrupt(
        self,
        kind: str,
        instance: Instance,
        seconds: float,
        begin: Callable[[], object],
        end: Callable[[], object],
    ) -> None:
        """Keep an instance from its database for a time."""
        pid = instance.pid
        if pid is None:
            raise NoTarget
        with self._exclusive(f"{kind} {instance.name}"):
            case = self._begin_takeover(kind, instance.name, pid)
            interval = instance.disconnected.begin(kind)
            begin()
            self._count(kind, instance=instance.name, seconds=round(seconds, 1))
            time.sleep(seconds)
            end()
            instance.disconnected.finish(interval)
            self._resumed(case)

    def _clock_step(self, rng: random.Random) -> None:
        instance = _choose(rng, [m for m in self._instances() if m.clock is not None])
        if instance.clock is None:
            raise NoTarget
        seconds = rng.choice((-1.0, 1.0)) * rng.choice((2.0, 40.0, 700.0, 90_000.0))
        with self._exclusive(f"clock {instance.name}"):
            instance.clock.step(seconds)
            self._count("clock_step", instance=instance.name, seconds=seconds)
            time.sleep(rng.uniform(2.0, 15.0))
            instance.clock.step(0.0)

    def _disk_full_cache(self, rng: random.Random) -> None:
        self._fill("disk_full_cache", rng.choice(sorted(self._deployment.disks)), rng)

    def _disk_full_sqlite(self, rng: random.Random) -> None:
        # The database can still be read, so a server may report ready or not ready.
        interval = self._deployment.read_only.begin("disk full")
        try:
            self._fill("disk_full_sqlite", "data", rng)
        finally:
            self._deployment.read_only.finish(interval)

    def _fill(self, kind: str, disk: str, rng: random.Random) -> None:
        seconds = rng.uniform(2.0, 7.0)
        with self._exclusive(f"fill {disk}"):
            until = time.monotonic() + seconds
            self._deployment.disks[disk].fill()
            self._count(kind, disk=disk, seconds=round(seconds, 1))
            try:
                while time.monotonic() < until:
                    # Also fill the space that the programs free meanwhile.
                    self._deployment.disks[disk].fill()
                    time.sleep(0.2)
            finally:
                self._deployment.disks[disk].free()

    def _postgres_fast(self, rng: random.Random) -> None:
        self._restart("postgres_fast", Shutdown.FAST, rng.uniform(0.0, 1.0))

    def _postgres_crash(self, rng: random.Random) -> None:
        self._restart("postgres_crash", Shutdown.IMMEDIATE, rng.uniform(0.0, 1.0))

    def _postgres_long(self, _rng: random.Random) -> None:
        self._restart(LONG_OUTAGE, Shutdown.FAST, LONG_OUTAGE_SECONDS)

    def _standby_failover(self, rng: random.Random) -> None:
        """The primary crashes, and behind its address is a standby, which is promoted after a while."""
        seconds = rng.uniform(1.0, 6.0)
        with self._database("standby_failover") as postgres:
            postgres.restart_as_standby()
            self._count("standby_failover", seconds=round(seconds, 1))
            time.sleep(seconds)
            postgres.promote()

    def _read_only_database(self, rng: random.Random) -> None:
        seconds = rng.uniform(1.0, 6.0)
        with self._database("read_only_database") as postgres:
            postgres.set_read_only(on=True)
            try:
                self._count("read_only_database", seconds=round(seconds, 1))
                time.sleep(seconds)
            finally:
                postgres.set_read_only(on=False)

    def _end_sessions(self, _rng: random.Random) -> None:
        with self._database("end_sessions") as postgres:
            self._count("end_sessions", sessions=postgres.end_sessions())

    @contextmanager
    def _database(self, kind: str) -> Iterator[Postgres]:
        """The database server, which counts as away in the block. Raises NoTarget."""
        postgres = self._deployment.postgres
        if postgres is None or not self._deployment.database_lock.acquire(blocking=False):
            raise NoTarget
        interval = self._deployment.begin_outage(kind)
        try:
            yield postgres
        finally:
            self._deployment.outages.finish(interval)
            self._deployment.database_lock.release()

    def _restart(self, kind: str, how: Shutdown, pause: float) -> None:
        postgres = self._deployment.postgres
        if postgres is None or not self._deployment.database_lock.acquire(blocking=kind == LONG_OUTAGE):
            raise NoTarget
        interval: Interval = self._deployment.begin_outage(kind)
        try:
            postgres.stop(how)
            self._count(kind, seconds=round(pause, 1))
            time.sleep(pause)
            postgres.start()
        finally:
            self._deployment.outages.finish(interval)
            self._deployment.database_lock.release()

    @contextmanager
    def _exclusive(self, what: str) -> Iterator[None]:
        """Prevents two faults of one kind on one target at the same time. Raises NoTarget."""
        with self._lock:
            if what in self._busy:
                raise NoTarget
            self._busy.add(what)
        try:
            yield
        finally:
            with self._lock:
                self._busy.discard(what)

    def _begin_takeover(self, kind: str, worker: str, pid: int) -> Case | None:
        return None if self._takeovers is None else self._takeovers.begin(kind, worker, pid)

    def _resumed(self, case: Case | None) -> None:
        if self._takeovers is not None:
            self._takeovers.came_back(case)

    def _instances(self) -> list[Instance]:
        return [*self._deployment.apis, *self._deployment.workers]


def _choose(rng: random.Random, instances: list[Instance]) -> Instance:
    if not instances:
        raise NoTarget
    return rng.choice(instances)


def _pick(rng: random.Random, instances: list[Instance]) -> tuple[Instance, int]:
    """A random running instance and its process id."""
    running = [(instance, pid) for instance in instances if (pid := instance.pid) is not None]
    if not running:
        raise NoTarget
    return rng.choice(running)


def _pick_process(rng: random.Random, servers: list[Instance], *, control: bool) -> tuple[Instance, int]:
    """A random query process or control process of a server, with its id."""
    running = [(server, pid) for server in servers for pid in server.server_processes(control=control)]
    if not running:
        raise NoTarget
    return rng.choice(running)


def _until_answered(url: str) -> None:
    """Wait until a GET succeeds; gives up after a while."""
    until = time.monotonic() + _RETURN_SECONDS
    while time.monotonic() < until:
        try:
            urllib.request.urlopen(url, timeout=_LOOK_SECONDS).close()
        except (OSError, http.client.HTTPException):
            time.sleep(_LOOK_PAUSE)
        else:
            return


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError as error:
        raise NoTarget from error


def _continue(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
