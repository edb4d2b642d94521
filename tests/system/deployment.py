"""The whole service as processes of this machine: the one way in which tests and measurements start it.

with Deployment(api=2, workers=3, database=address, keys={"trainer": {"train"}}) as service:
    service["worker-1"].kill()
    service.client("trainer").get("/v1/training-jobs")
"""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import httpx

from app.commands.demo.temporary_server import sigterm_as_exit
from app.commands.remote import connect
from app.services.first_key import FILE_NAME
from app.services.keys import create_key
from app.store.engine import open_engine
from app.store.migrate import upgrade
from app.store.unit_of_work import Store
from stms_client import Client
from tests.system.processes import Process, family, free_port

ROOT: Final = Path(__file__).parents[2]
QUICK_SOLVERS: Final = {
    "STMS_SOLVER_THREADS": "1",
    "STMS_SOLVER_NICENESS": "0",
    "STMS_SPARE_SOLVER": "false",
}
"""Settings with which small jobs are over soon, also on a busy machine."""
_ALIVE_SECONDS: Final = 30.0
_END_SECONDS: Final = 120.0


def environment(settings: Mapping[str, str] | None = None, tree: Path = ROOT) -> dict[str, str]:
    """Environment of a program of ``tree`` with these settings and none of the caller's STMS_ variables."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("STMS_")}
    return inherited | {"PYTHONPATH": str(tree)} | dict(settings or {})


def stms(*arguments: object) -> list[str]:
    """A command of the service. No module of the working folder is imported."""
    return [sys.executable, "-P", "-m", "app.cli", *map(str, arguments)]


def prepare_database(
    address: str,
    keys: Mapping[str, Collection[str]] | None = None,
    prepare: Callable[[Store], object] | None = None,
) -> dict[str, str]:
    """Create or upgrade the tables, run ``prepare``, and make keys. Returns their texts by name.

    keys: scopes by name.
    """
    upgrade(address)
    store = Store(open_engine(address))
    try:
        if prepare is not None:
            prepare(store)
        return {name: create_key(store, name, scopes)[1] for name, scopes in (keys or {}).items()}
    finally:
        store.dispose()


class Deployment:
    """Servers and workers on one database, which are ready in the block and end with it.

    Processes are called "serve" (server and worker together), "api-0", …, "worker-0", …. Their data are in
    ``folder``/data, their logs beside it; without a folder, both are temporary. An exception that leaves the
    block gets the ends of all logs as a note.

    database: address; by default SQLite in the data folder. keys, prepare: as in `prepare_database`; they are
    used before the start unless ``is_new`` is false, when the database is as the caller or a server of
    ``tree`` makes it. settings: environment variables other than the defaults. arguments: of every server.
    cores: as in `Process`. open_files: soft and hard limit of a process. tree: of the program. verify: how a
    client trusts a server with a certificate, as in httpx. is_clean: raise AssertionError after the block if
    a process ended by itself, with another code than 0, or logged a traceback.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        serve: bool = False,
        api: int = 0,
        workers: int = 0,
        database: str = "",
        keys: Mapping[str, Collection[str]] | None = None,
        prepare: Callable[[Store], object] | None = None,
        is_new: bool = True,
        settings: Mapping[str, str] | None = None,
        arguments: Sequence[object] = (),
        cores: int | str | None = None,
        open_files: int | None = None,
        tree: Path = ROOT,
        verify: ssl.SSLContext | None = None,
        is_clean: bool = False,
    ) -> None:
        self._stack = ExitStack()
        self.folder = folder or Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="stms-")))
        own = {"STMS_DATA_DIR": str(self.folder / "data")} | dict(settings or {})
        self.data = Path(own["STMS_DATA_DIR"])
        self.keys: dict[str, str] = {}
        self.urls: list[str] = []
        self.processes: dict[str, Process] = {}
        self.database = database or f"sqlite:///{self.data / 'stms.sqlite'}"
        self.environ = environment(own | ({"STMS_DATABASE_URL": database} if database else {}), tree)
        self._wanted_keys, self._prepare, self._is_new = keys, prepare, is_new
        self._arguments, self._cores, self._open_files = tuple(arguments), cores, open_files
        self._scheme = "https" if "STMS_TLS_CERTIFICATE" in self.environ else "http"
        # Without authorities, whose loading takes 25 ms, unless the servers have certificates.
        self._verify = verify or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._is_clean = is_clean
        commands = ["serve"] * serve + ["api"] * api + ["worker"] * workers
        for command in commands:
            self.add(command)

    def add(self, command: str, *arguments: object, settings: Mapping[str, str] | None = None) -> Process:
        """One more process, which is not started. command: serve, api or worker. settings: of its own."""
        count = sum(name.partition("-")[0] == command for name in self.processes)
        url = ""
        if command != "worker":
            port = free_port()
            self.urls.append(f"{self._scheme}://127.0.0.1:{port}")
            url = f"{self.urls[-1]}/readyz"
            arguments = ("--port", port, *self._arguments, *arguments)
        limit = self._open_files
        program = [*([f"--nofile={limit}:{limit}"] if limit else []), *stms(command, *arguments)]
        process = Process(
            command if command == "serve" else f"{command}-{count}",
            ["prlimit", *program] if limit else program,
            self.folder,
            self.environ | dict(settings or {}),
            cores=self._cores,
            url=url,
        )
        self.processes[process.name] = process
        return process

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.push(self._stack)
            self.data.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._is_new:
                self.keys |= prepare_database(self.database, self._wanted_keys, self._prepare)
            stack.callback(self.end)
            for process in self.processes.values():
                process.start()
            self.wait_until_ready()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        with self._stack:
            faults = self._faults() if self._is_clean and error is None else []
            if error is not None:
                error.add_note(self.said())
            assert not faults, f"{faults}\n{self.said()}"

    def __getitem__(self, name: str) -> Process:
        return self.processes[name]

    @property
    def url(self) -> str:
        """Origin of the first server."""
        return self.urls[0]

    @property
    def ports(self) -> list[int]:
        """Of all servers."""
        return [int(url.rpartition(":")[2]) for url in self.urls]

    @property
    def port(self) -> int:
        """Of the first server."""
        return self.ports[0]

    @property
    def first_key(self) -> str:
        """The key for everything that a server makes at its start on a database without keys."""
        return (self.data / FILE_NAME).read_text(encoding="ascii").strip()

    @property
    def pids(self) -> list[int]:
        """Process ids of all processes that run, and of their descendants."""
        running = [process.pid for process in self.processes.values() if process.is_running]
        return [pid for parent in running for pid in family(parent)]

    def client(self, key: str = "", seconds: float = 120.0, **options: Any) -> httpx.Client:
        """A client of the first server with one of ``keys``; without a key if the name is empty.

        options: arguments of `httpx.Client`.
        """
        headers = {"Authorization": f"Bearer {self.keys[key]}"} if key else {}
        return httpx.Client(
            base_url=self.url,
            headers=headers,
            timeout=seconds,
            trust_env=False,
            verify=self._verify,
            **options,
        )

    def run(self, *arguments: object, **settings: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the service on the same machine to its end. settings: further ones."""
        port = {"STMS_PORT": str(self.port)} if self.urls else {}
        environ = self.environ | port | settings
        command = stms(*arguments)
        return subprocess.run(
            command, env=environ, cwd=self.folder, capture_output=True, text=True, check=False, timeout=120
        )

    def said(self) -> str:
        """The ends of all logs."""
        return "\n".join(f"{name} said:\n{process.said()}" for name, process in self.processes.items())

    def wait_until_ready(self) -> None:
        """Wait until every server is ready and every worker has sent a heartbeat. Raises RuntimeError."""
        workers = [process for process in self.processes.values() if not process.url and process.is_running]
        for process in self.processes.values():
            if process.url and process.is_running:
                process.wait_until_ready(partial(self._is_ready, process))
        for process in workers[-1:]:
            process.wait_until_ready(lambda: self.workers_alive() >= len(workers))

    def workers_alive(self) -> int:
        """Number of the workers that have sent a heartbeat not long ago."""
        store = Store(open_engine(self.database))
        try:
            with store.read() as uow:
                return len(uow.workers.alive(_ALIVE_SECONDS))
        finally:
            store.dispose()

    def end(self) -> dict[str, int | None]:
        """End all processes. Returns the exit codes by name; None of those that had to be killed."""
        for process in self.processes.values():
            process.begin_end()
        return {name: process.end(_END_SECONDS) for name, process in self.processes.items()}

    def _is_ready(self, process: Process) -> bool:
        # In detail, the answer also says whether there is a worker.
        query = "?verbose" if process.name == "serve" else ""
        try:
            answer = httpx.get(process.url + query, timeout=5, trust_env=False, verify=self._verify)
        except httpx.TransportError:
            return False
        checks = answer.json().get("checks", ()) if query else ()
        return answer.is_success and all(check["ok"] for check in checks)

    def _faults(self) -> list[str]:
        """End all processes. Returns what no process may do: end by itself or badly, or log a traceback."""
        started = {name: process for name, process in self.processes.items() if process.log.exists()}
        ended = {name for name, process in started.items() if not process.is_running}
        codes = self.end()
        found = []
        for name, process in started.items():
            if name in ended and not process.was_signalled:
                found.append(f"{name} ended by itself")
            if name not in ended and codes[name] != 0:
                found.append(f"{name} ended with {codes[name]}")
            if "Traceback" in process.log.read_text(encoding="utf-8", errors="replace"):
                found.append(f"{name} logged a traceback")
        return found


@contextmanager
def job_service(**settings: str) -> Iterator[tuple[Client, Path]]:
    """`stms serve` for jobs of a benchmark: a connection that may everything, and a folder for files.

    SIGTERM ends it like the end of the block. settings: as in `Deployment`.
    """
    with (
        sigterm_as_exit(),
        Deployment(serve=True, is_new=False, settings=settings) as service,
        connect(service.url, service.first_key) as client,
    ):
        yield client, service.folder
