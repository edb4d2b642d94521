"""The service under test: its processes, its database, and the handles with which faults are injected."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from app.processes.os_process import ProcessName
from tests.system.deployment import environment, prepare_database, stms
from tests.system.postgres import Postgres
from tests.system.processes import answers, descendants, free_port, process_name
from verification.chaos.event_log import EventLog, Interval, Intervals
from verification.chaos.isolation import Clock, Disk, Network, NotSupported
from verification.chaos.power import PowerRecorder
from verification.chaos.programs import MARK, Program, Supervisor
from verification.chaos.proxy import Proxy

T = TypeVar("T")

TENANTS = ("north", "south", "west")
_SMALL_DISK_MB = 96
_SERVER_SETTINGS = {"max_connections": "300"}


@dataclass(slots=True)
class Instance:
    """One server or worker process.

    disconnected: intervals in which it could not reach the running database or, for a worker, was stopped.
    url: address of a server. proxy: proxy before its database. network: network namespace in which it runs.
    clock: its fake clock. child: name of the child process that is meant, where ``program`` starts several.
    """

    program: Program
    disconnected: Intervals
    url: str = ""
    proxy: Proxy | None = None
    network: Network | None = None
    clock: Clock | None = None
    child: str = ""

    @property
    def name(self) -> str:
        """Name in logs and reports."""
        return f"{self.program.name}/{self.child}" if self.child else self.program.name

    @property
    def pid(self) -> int | None:
        """Process id; None while it does not run."""
        pid = self.program.pid
        if pid is None or not self.child:
            return pid
        return next((each for each in descendants(pid) if process_name(each) == self.child), None)

    def server_processes(self, *, control: bool) -> list[int]:
        """Ids of the query processes of a server, or of its control process."""
        pid = self.program.pid
        name = ProcessName.CONTROL if control else ProcessName.QUERY
        return [] if pid is None else [each for each in descendants(pid) if process_name(each) == name]


@dataclass(slots=True)
class FaultyService:
    """All processes of the service that gets faults, with its database.

    database: its address without a proxy. outages: intervals in which it did not run. read_only: intervals
    in which its disk was full. disks: small disks by name. keys: API keys by tenant. unavailable: kinds of
    faults that this machine does not support, with the reason. recorder: for power cuts. unclean: programs
    that had to be killed or failed at the end. database_lock: serialises faults of the database.
    """

    event_log: EventLog
    mark: str
    database: str
    apis: list[Instance]
    workers: list[Instance]
    keys: dict[str, str]
    outages: Intervals
    read_only: Intervals
    postgres: Postgres | None = None
    disks: dict[str, Disk] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)
    programs: list[Program] = field(default_factory=list)
    database_lock: threading.Lock = field(default_factory=threading.Lock)
    recorder: PowerRecorder | None = None
    supervisor: Supervisor | None = None
    unclean: list[str] = field(default_factory=list)

    def begin_outage(self, reason: str) -> Interval:
        """Record that the database is down from now on."""
        return self.outages.begin(reason)

    def start(self, seed: int) -> None:
        """Start all programs and supervise them until `stop`."""
        for program in self.programs:
            program.start()
        self.supervisor = Supervisor(self.programs, seed)
        for api in self.apis:
            api.program.process.wait_until_ready(partial(answers, f"{api.url}/readyz"))

    def stop(self) -> None:
        """Stop all programs; those that had to be killed or that failed are added to ``unclean``."""
        if self.supervisor is None:
            return
        self.supervisor.stop()
        self.supervisor = None
        ending = [threading.Thread(target=self._end, args=(program,)) for program in self.programs]
        for thread in ending:
            thread.start()
        for thread in ending:
            thread.join()

    def _end(self, program: Program) -> None:
        code = program.stop()
        if code != 0:
            self.unclean.append(f"{program.name}: {'killed' if code is None else code}")


@contextmanager
def shared_deployment(
    folder: Path, event_log: EventLog, mark: str, *, workers: int = 3
) -> Iterator[FaultyService]:
    """Two servers and several workers with a PostgreSQL server; they are not started yet.

    The first server and the first worker have a fake clock, the second server and the second worker connect
    to the database through a proxy, and the third worker runs in a network namespace, where supported.
    """
    with ExitStack() as stack:
        unavailable: dict[str, str] = {}
        network = _possible(unavailable, "cut_network", Network)
        if network is not None:
            stack.callback(network.close)
        postgres = Postgres(
            _made(folder / "postgres"),
            hosts=["127.0.0.1", *([network.host] if network else [])],
            networks=[network.range] if network else [],
            settings=_SERVER_SETTINGS,
        )
        stack.callback(postgres.stop)
        postgres.start()
        address = postgres.create_database("stms")
        deployment = _deployment(event_log, mark, address, postgres)
        deployment.unavailable = unavailable
        for name in ("server", "worker"):
            place = folder / f"{name}-disk"
            disk = _possible(unavailable, "disk_full_cache", partial(Disk, place, _SMALL_DISK_MB))
            if disk is not None:
                stack.callback(disk.close)
                deployment.disks[name] = disk
        library = _possible(unavailable, "clock_step", lambda: Clock.build(folder))
        stack.callback(deployment.stop)
        builder = _Builder(folder, deployment, library, stack)
        builder.server("api-0", clock=True)
        builder.server("api-1", proxied=True)
        for number in range(workers):
            builder.worker(f"worker-{number}", number, network)
        yield deployment


class _Builder:
    """Creates the instances of a shared deployment."""

    def __init__(
        self, folder: Path, deployment: FaultyService, library: Path | None, stack: ExitStack
    ) -> None:
        self._folder, self._deployment, self._library, self._stack = folder, deployment, library, stack

    def server(self, name: str, *, clock: bool = False, proxied: bool = False) -> None:
        port = free_port()
        instance = self._instance(name, ["api", "--port", str(port)], "server", clock=clock, proxied=proxied)
        instance.url = f"http://127.0.0.1:{port}"
        self._deployment.apis.append(instance)

    def worker(self, name: str, number: int, network: Network | None) -> None:
        inside = network if number % 3 == 2 else None
        instance = self._instance(
            name,
            ["worker"],
            "worker",
            clock=number == 0,
            proxied=number > 0 and inside is None,
            network=inside,
        )
        self._deployment.workers.append(instance)

    def _instance(
        self,
        name: str,
        arguments: list[str],
        disk: str,
        *,
        clock: bool = False,
        proxied: bool = False,
        network: Network | None = None,
    ) -> Instance:
        deployment, postgres = self._deployment, self._deployment.postgres
        if postgres is None:
            raise RuntimeError("a shared deployment has a database server")
        proxy = None
        database = postgres.address("stms", host=network.host if network else "127.0.0.1")
        if proxied:
            proxy = Proxy(postgres.port)
            self._stack.callback(proxy.close)
            database = postgres.address("stms", port=proxy.port)
        cache = (
            deployment.disks[disk].folder
            if disk in deployment.disks
            else _made(self._folder / f"{disk}-disk")
        )
        environ = _environ(deployment.mark, self._folder) | {
            "STMS_DATABASE_URL": database,
            "STMS_CACHE_DIR": str(cache / "cache"),
        }
        own = None
        if clock and self._library is not None:
            own = Clock(self._folder / f"{name}.clock", self._library)
            environ |= own.environ()
        command = [*(network.enter() if network else []), *stms(*arguments)]
        program = Program(name, command, environ, self._folder, deployment.event_log)
        deployment.programs.append(program)
        return Instance(program, Intervals(deployment.event_log), "", proxy, network, own)


@contextmanager
def embedded_deployment(folder: Path, event_log: EventLog, mark: str) -> Iterator[FaultyService]:
    """`stms serve` on SQLite, with its data on a small disk where supported; it is not started yet."""
    with ExitStack() as stack:
        unavailable: dict[str, str] = {}
        disk = _possible(unavailable, "disk_full_sqlite", lambda: Disk(folder / "disk", _SMALL_DISK_MB))
        if disk is not None:
            stack.callback(disk.close)
        data = _made((disk.folder if disk else folder) / "data")
        address = f"sqlite:///{data / 'stms.sqlite'}"
        deployment = _deployment(event_log, mark, address)
        deployment.unavailable = unavailable
        if disk is not None:
            deployment.disks["data"] = disk
        stack.callback(deployment.stop)
        port = free_port()
        command = stms("serve", "--port", port)
        environ = _environ(mark, folder) | {"STMS_DATA_DIR": str(data)}
        recorder = _possible(unavailable, "power_cut", lambda: PowerRecorder(folder, data))
        if recorder is not None:
            recorder.begin()
            environ |= recorder.environ()
        deployment.recorder = recorder
        program = Program("serve", command, environ, folder, event_log)
        deployment.programs.append(program)
        deployment.apis.append(Instance(program, Intervals(event_log), f"http://127.0.0.1:{port}"))
        deployment.workers.append(Instance(program, Intervals(event_log), child=ProcessName.WORKER))
        yield deployment


def _deployment(
    event_log: EventLog, mark: str, address: str, postgres: Postgres | None = None
) -> FaultyService:
    keys = prepare_database(address, {name: {"train"} for name in TENANTS})
    return FaultyService(
        event_log, mark, address, [], [], keys, Intervals(event_log), Intervals(event_log), postgres
    )


def _environ(mark: str, folder: Path) -> dict[str, str]:
    """Environment of all programs: default settings, except for the solvers.

    Solvers run with one thread and at normal priority; otherwise jobs would hardly advance between faults.
    A solver that hangs is detected within seconds, so that jobs end within the run.
    """
    return environment(
        {
            MARK: mark,
            "STMS_DATA_DIR": str(_made(folder / "data")),
            "STMS_SOLVER_THREADS": "1",
            "STMS_SOLVER_NICENESS": "0",
            "STMS_SOLVER_STALL_SECONDS": "10",
        }
    )


def _possible(unavailable: dict[str, str], kind: str, make: Callable[[], T]) -> T | None:
    try:
        return make()
    except NotSupported as error:
        unavailable[kind] = str(error)
        return None


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
