"""The service under test: its processes, its database and what faults can do to each of them."""

from __future__ import annotations

import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from app.services.keys import create_key
from app.store.engine import open_engine
from app.store.migrate import upgrade
from app.store.unit_of_work import Store
from benchmarks.chaos.journal import Journal, Span, Spans
from benchmarks.chaos.machinery import Clock, Disk, Network, NotPossible
from benchmarks.chaos.programs import MARK, Keeper, Program, command_line, descendants
from benchmarks.chaos.proxy import Proxy
from benchmarks.postgres import Postgres
from benchmarks.processes import free_port

T = TypeVar("T")

TENANTS = ("north", "south", "west")
_READY_SECONDS = 90.0
_SMALL_DISK_MB = 96
_SERVER_SETTINGS = {"max_connections": "300"}
_ROOT = Path(__file__).parents[2]


@dataclass(slots=True)
class Member:
    """One process of the service. proxy, network, clock: what lies between it and its database, or its time.

    url: of a server. cut: when it could not reach a database that ran or, being a worker, was stopped. child:
    of a program that is a family, the command by which the member is known.
    """

    program: Program
    cut: Spans
    url: str = ""
    proxy: Proxy | None = None
    network: Network | None = None
    clock: Clock | None = None
    child: str = ""

    @property
    def name(self) -> str:
        """Of people."""
        return f"{self.program.name}/{self.child}" if self.child else self.program.name

    @property
    def pid(self) -> int | None:
        """Of the running process."""
        pid = self.program.pid
        if pid is None or not self.child:
            return pid
        ending = f"app.cli {self.child}"
        return next((each for each in descendants(pid) if ending in command_line(each)), None)


@dataclass(slots=True)
class House:
    """Everything that is up. Faults of the database are made one at a time, under ``database_lock``.

    database: address, straight. away: when it did not run. unclear: when it could be read only. disks: small
    ones by name. keys: of the tenants. unavailable: kinds of faults that cannot be made here, and why.
    unclean: programs that did not end as they should.
    """

    journal: Journal
    mark: str
    database: str
    apis: list[Member]
    workers: list[Member]
    keys: dict[str, str]
    away: Spans
    unclear: Spans
    postgres: Postgres | None = None
    disks: dict[str, Disk] = field(default_factory=dict)
    unavailable: dict[str, str] = field(default_factory=dict)
    programs: list[Program] = field(default_factory=list)
    database_lock: threading.Lock = field(default_factory=threading.Lock)
    keeper: Keeper | None = None
    unclean: list[str] = field(default_factory=list)

    def down(self, why: str) -> Span:
        """Note that the database is away from now on."""
        return self.away.begin(why)

    def start(self, seed: int) -> None:
        """Start all programs, and keep them until `stop`."""
        for program in self.programs:
            program.start()
        self.keeper = Keeper(self.programs, seed)
        for api in self.apis:
            _until_ready(api)

    def stop(self) -> None:
        """End all programs, workers first; ``unclean`` gets those that had to be killed or failed."""
        if self.keeper is None:
            return
        self.keeper.stop()
        self.keeper = None
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
def shared_house(folder: Path, journal: Journal, mark: str, *, workers: int = 3) -> Iterator[House]:
    """PostgreSQL, two server processes and several workers, not yet started.

    The first server and the first worker have a clock of their own; the second server and the second worker
    reach the database by a proxy, the third worker from a network of its own, where that is possible.
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
        house = House(
            journal, mark, address, [], [], _prepare(address), Spans(journal), Spans(journal), postgres
        )
        house.unavailable = unavailable
        for name in ("server", "worker"):
            place = folder / f"{name}-disk"
            disk = _possible(unavailable, "disk_full_cache", partial(Disk, place, _SMALL_DISK_MB))
            if disk is not None:
                stack.callback(disk.close)
                house.disks[name] = disk
        library = _possible(unavailable, "clock_step", lambda: Clock.build(folder))
        stack.callback(house.stop)
        maker = _Maker(folder, house, library, stack)
        maker.server("api-0", clock=True)
        maker.server("api-1", proxied=True)
        for number in range(workers):
            maker.worker(f"worker-{number}", number, network)
        yield house


class _Maker:
    """Makes the members of a shared house."""

    def __init__(self, folder: Path, house: House, library: Path | None, stack: ExitStack) -> None:
        self._folder, self._house, self._library, self._stack = folder, house, library, stack

    def server(self, name: str, *, clock: bool = False, proxied: bool = False) -> None:
        port = free_port()
        member = self._member(name, ["api", "--port", str(port)], "server", clock=clock, proxied=proxied)
        member.url = f"http://127.0.0.1:{port}"
        self._house.apis.append(member)

    def worker(self, name: str, number: int, network: Network | None) -> None:
        inside = network if number % 3 == 2 else None
        member = self._member(
            name,
            ["worker"],
            "worker",
            clock=number == 0,
            proxied=number > 0 and inside is None,
            network=inside,
        )
        self._house.workers.append(member)

    def _member(
        self,
        name: str,
        arguments: list[str],
        disk: str,
        *,
        clock: bool = False,
        proxied: bool = False,
        network: Network | None = None,
    ) -> Member:
        house, postgres = self._house, self._house.postgres
        if postgres is None:
            raise RuntimeError("a shared house has a database server")
        proxy = None
        database = postgres.address("stms", host=network.host if network else "127.0.0.1")
        if proxied:
            proxy = Proxy(postgres.port)
            self._stack.callback(proxy.close)
            database = postgres.address("stms", port=proxy.port)
        cache = house.disks[disk].folder if disk in house.disks else _made(self._folder / f"{disk}-disk")
        environ = _environ(house.mark, self._folder) | {
            "STMS_DATABASE_URL": database,
            "STMS_CACHE_DIR": str(cache / "cache"),
        }
        own = None
        if clock and self._library is not None:
            own = Clock(self._folder / f"{name}.clock", self._library)
            environ |= own.environ()
        command = [*(network.enter() if network else []), sys.executable, "-m", "app.cli", *arguments]
        program = Program(name, command, environ, self._folder, house.journal)
        house.programs.append(program)
        return Member(program, Spans(house.journal), "", proxy, network, own)


@contextmanager
def embedded_house(folder: Path, journal: Journal, mark: str) -> Iterator[House]:
    """`stms serve` on SQLite, its data folder on a small disk where that is possible; not yet started."""
    with ExitStack() as stack:
        unavailable: dict[str, str] = {}
        disk = _possible(unavailable, "disk_full_sqlite", lambda: Disk(folder / "disk", _SMALL_DISK_MB))
        if disk is not None:
            stack.callback(disk.close)
        data = _made((disk.folder if disk else folder) / "data")
        address = f"sqlite:///{data / 'stms.sqlite'}"
        house = _house(journal, mark, address)
        house.unavailable = unavailable
        if disk is not None:
            house.disks["data"] = disk
        stack.callback(house.stop)
        port = free_port()
        command = [sys.executable, "-m", "app.cli", "serve", "--port", str(port)]
        environ = _environ(mark, folder) | {"STMS_DATA_DIR": str(data)}
        program = Program("serve", command, environ, folder, journal)
        house.programs.append(program)
        house.apis.append(Member(program, Spans(journal), f"http://127.0.0.1:{port}", child="api"))
        house.workers.append(Member(program, Spans(journal), child="worker"))
        yield house


def _house(journal: Journal, mark: str, address: str, postgres: Postgres | None = None) -> House:
    keys = _prepare(address)
    return House(journal, mark, address, [], [], keys, Spans(journal), Spans(journal), postgres)


def _environ(mark: str, folder: Path) -> dict[str, str]:
    """The defaults of the service but for the threads, of which the machine has few.

    Solvers do not stand back: on a busy machine the jobs would not come on between two faults.
    """
    return {
        MARK: mark,
        "PYTHONPATH": str(_ROOT),
        "STMS_DATA_DIR": str(_made(folder / "data")),
        "STMS_SOLVER_THREADS": "1",
        "STMS_SOLVER_NICENESS": "0",
    }


def _prepare(address: str) -> dict[str, str]:
    """Make the tables; returns the tenants' keys."""
    upgrade(address)
    store = Store(open_engine(address))
    try:
        return {name: create_key(store, name, {"train"})[1] for name in TENANTS}
    finally:
        store.dispose()


def _possible(unavailable: dict[str, str], kind: str, make: Callable[[], T]) -> T | None:
    try:
        return make()
    except NotPossible as error:
        unavailable[kind] = str(error)
        return None


def _until_ready(api: Member) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while True:
        try:
            urllib.request.urlopen(f"{api.url}/readyz", timeout=5).close()
        except (OSError, urllib.error.URLError) as error:
            if time.monotonic() > deadline:
                said = api.program.log.read_text(errors="replace")
                raise RuntimeError(f"{api.name} does not get ready ({error}):\n{said[-4000:]}") from error
            time.sleep(0.1)
        else:
            return


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
