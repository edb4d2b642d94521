"""A temporary PostgreSQL server, which can be started, stopped in each shutdown mode, and removed.

It uses the installed programs of PostgreSQL, runs as an unprivileged user, and listens on TCP.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any

import psycopg

from tests.system.processes import Starter, free_port

_START_SECONDS = 60.0
_STOP_SECONDS = 60.0


class NoPostgres(Exception):
    """The programs of PostgreSQL are not installed or cannot run here."""


class Shutdown(Enum):
    """Shutdown mode: FAST ends sessions and writes a checkpoint, IMMEDIATE is a crash."""

    FAST = signal.SIGINT
    IMMEDIATE = signal.SIGQUIT


class Postgres:
    """A server with its data in ``folder``, stopped until `start`. Raises NoPostgres.

    hosts: addresses on which it listens. networks: address ranges of clients, in addition to loopback.
    settings: configuration parameters by name.
    """

    def __init__(
        self,
        folder: Path,
        *,
        hosts: Sequence[str] = ("127.0.0.1",),
        networks: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._programs = programs()
        self._identity = _unprivileged()
        self._folder = folder
        self._hosts = tuple(hosts)
        self._settings = dict(settings or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._starter = Starter()
        self.port = free_port()
        if self._identity:
            os.chown(folder, self._identity["user"], self._identity["group"])
        self._create(networks)

    def address(self, database: str = "postgres", *, host: str = "127.0.0.1", port: int | None = None) -> str:
        """URL of a database, by default with the server's own host and port."""
        return f"postgresql://stms@{host}:{port or self.port}/{database}"

    @property
    def log(self) -> Path:
        """Content of the server's log."""
        return self._folder / "log"

    @property
    def running(self) -> bool:
        """Whether there is a server process."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the server and wait until it accepts connections. Raises RuntimeError with its log."""
        options = {"unix_socket_directories": str(self._folder), **self._settings}
        command = [str(self._programs / "postgres"), "-D", str(self._folder / "data")]
        command += ["-h", ",".join(self._hosts), "-p", str(self.port)]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        with self.log.open("ab") as output:
            process = self._starter.start(
                command, stdout=output, stderr=output, cwd=self._folder, **self._identity
            )
        self._process = process
        self._wait_until_up(process)

    def stop(self, how: Shutdown = Shutdown.FAST) -> None:
        """Stop the server and wait until it has ended; does nothing if it does not run."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how.value)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.send_signal(Shutdown.IMMEDIATE.value)
            process.wait()

    def restart_as_standby(self) -> None:
        """Crash, and start again as a hot standby that waits for its promotion: it answers reads only."""
        self.stop(Shutdown.IMMEDIATE)
        signal_file = self._folder / "data" / "standby.signal"
        signal_file.touch()
        if self._identity:
            os.chown(signal_file, self._identity["user"], self._identity["group"])
        self.start()

    def promote(self) -> None:
        """Make a standby the primary, and wait until it accepts writes."""
        with psycopg.connect(self.address(), autocommit=True) as connection:
            connection.execute("SELECT pg_promote(true, 60)")

    def set_read_only(self, *, on: bool) -> None:
        """Have the server reject or accept writes in the transactions that begin from now on."""
        with psycopg.connect(self.address(), autocommit=True) as connection:
            connection.execute("SET default_transaction_read_only = off")
            value = b"on" if on else b"off"
            connection.execute(b"ALTER SYSTEM SET default_transaction_read_only = " + value)
            connection.execute("SELECT pg_reload_conf()")

    def end_sessions(self) -> int:
        """End all sessions of clients; returns their number."""
        query = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        own = " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        with psycopg.connect(self.address(), autocommit=True) as connection:
            row = connection.execute(query + own).fetchone()
        return 0 if row is None else int(row[0])

    def create_database(self, name: str) -> str:
        """Create an empty database. Returns its URL."""
        with psycopg.connect(self.address(), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"'.encode())
        return self.address(name)

    def _create(self, networks: Sequence[str]) -> None:
        command = [str(self._programs / "initdb"), "-D", str(self._folder / "data"), "-U", "stms"]
        command += ["-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        made = subprocess.run(
            command, check=False, capture_output=True, text=True, cwd=self._folder, **self._identity
        )
        if made.returncode:
            raise RuntimeError(f"initdb failed: {made.stderr.strip()}")
        with (self._folder / "data" / "pg_hba.conf").open("a", encoding="ascii") as rules:
            rules.writelines(f"host all all {network} trust\n" for network in networks)

    def _wait_until_up(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                psycopg.connect(self.address(), connect_timeout=2).close()
            except psycopg.OperationalError as error:
                if process.poll() is not None or time.monotonic() > deadline:
                    log = self.log.read_text(errors="replace")
                    raise RuntimeError(f"PostgreSQL did not start:\n{log}") from error
                time.sleep(0.05)
            else:
                return


@contextmanager
def postgres(**options: Any) -> Iterator[Postgres]:
    """Context manager of a running server in a temporary folder. options: arguments of `Postgres`."""
    folder = Path(tempfile.mkdtemp(prefix="stms-pg-"))
    try:
        server = Postgres(folder, **options)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def programs() -> Path:
    """Folder of initdb and postgres: $STMS_PG_BIN, then PATH, then Debian's newest. Raises NoPostgres."""
    named, found = os.environ.get("STMS_PG_BIN"), shutil.which("initdb")
    candidates = [Path(named)] if named else []
    candidates += [Path(found).parent] if found else []
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in candidates:
        if all((folder / name).exists() for name in ("initdb", "postgres")):
            return folder
    raise NoPostgres("initdb and postgres are not installed. On Debian: apt-get install postgresql")


def _unprivileged() -> dict[str, Any]:
    """Arguments of Popen that drop root privileges; empty for other users."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise NoPostgres("PostgreSQL does not run as root, and there is neither a user postgres nor nobody.")
