"""Databases for tests: SQLite files, and a PostgreSQL server of our own when its binaries are installed."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from app.store.engine import open_engine
from app.store.migrate import upgrade
from app.store.unit_of_work import Store
from benchmarks.processes import free_port

_START_SECONDS = 60.0


def _postgres_binaries() -> Path | None:
    """Folder of initdb and postgres: $STMS_PG_BIN, then PATH, then Debian's newest."""
    candidates = [
        os.environ.get("STMS_PG_BIN"),
        shutil.which("initdb") and Path(str(shutil.which("initdb"))).parent,
    ]
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in candidates:
        if folder and all((Path(folder) / name).exists() for name in ("initdb", "postgres")):
            return Path(folder)
    return None


def _unprivileged_user() -> dict[str, Any]:
    """Popen arguments that leave root, as PostgreSQL demands; nothing for other users."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    pytest.skip("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")


def _wait_until_up(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            psycopg.connect(address).close()
        except psycopg.OperationalError:
            if server.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"PostgreSQL did not start:\n{log.read_text(errors='replace')}")
            time.sleep(0.05)
        else:
            return


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """Address ``postgresql://…/`` of a private server (append a database); ends with the test session."""
    binaries = _postgres_binaries()
    if binaries is None:
        pytest.skip("PostgreSQL's initdb and postgres were not found (set STMS_PG_BIN to their folder)")
    user = _unprivileged_user()
    home = Path(tempfile.mkdtemp(prefix="stms-pg-"))
    if user:
        os.chown(home, user["user"], user["group"])
    data, log, port = home / "data", home / "log", free_port()
    subprocess.run(
        [
            binaries / "initdb",
            "-D",
            data,
            "-U",
            "stms",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
        ],
        check=True,
        capture_output=True,
        cwd=home,
        **user,
    )
    options = ["-F", "-c", "max_connections=200", "-c", f"unix_socket_directories={home}"]
    with log.open("wb") as output:
        server = subprocess.Popen(
            [binaries / "postgres", "-D", data, "-h", "127.0.0.1", "-p", str(port), *options],
            stdout=output,
            stderr=output,
            cwd=home,
            **user,
        )
    address = f"postgresql://stms@127.0.0.1:{port}/"
    try:
        _wait_until_up(address + "postgres", server, log)
        yield address
    finally:
        server.send_signal(signal.SIGINT)  # its "fast" shutdown
        server.wait(30)
        shutil.rmtree(home)


@pytest.fixture(scope="session")
def postgres_tools() -> Path:
    """Folder of pg_dump and pg_restore, of the version of `postgres_server`."""
    found = _postgres_binaries()
    folder = None if found is None else (found / "initdb").resolve().parent
    if folder is None or not (folder / "pg_dump").exists():
        pytest.skip("PostgreSQL's pg_dump was not found beside initdb")
    return folder


@pytest.fixture(scope="session")
def _postgres_template(postgres_server: str) -> str:
    """Name of a migrated database that others are copied from."""
    with psycopg.connect(postgres_server + "postgres", autocommit=True) as connection:
        connection.execute("CREATE DATABASE stms_template")
    upgrade(postgres_server + "stms_template")
    return "stms_template"


@pytest.fixture(scope="session")
def _sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated file that others are copied from."""
    path = tmp_path_factory.mktemp("sqlite") / "template.sqlite"
    upgrade(f"sqlite:///{path}")
    return path


def _copied_database(server: str, template: str) -> Iterator[str]:
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(server + "postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        yield server + name
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def sqlite_address(_sqlite_template: Path, tmp_path: Path) -> str:
    """Address of a fresh, migrated SQLite database."""
    path = tmp_path / "stms.sqlite"
    shutil.copy(_sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture
def postgres_address(postgres_server: str, _postgres_template: str) -> Iterator[str]:
    """Address of a fresh, migrated PostgreSQL database."""
    yield from _copied_database(postgres_server, _postgres_template)


@pytest.fixture(scope="session")
def new_database(postgres_server: str) -> Callable[[], AbstractContextManager[str]]:
    """Gives the address of an empty PostgreSQL database, which is gone after the block."""
    return lambda: contextmanager(_copied_database)(postgres_server, "template0")


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database_address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Address of a database without tables, on both systems."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.sqlite'}"
    else:
        yield from _copied_database(request.getfixturevalue("postgres_server"), "template0")


@pytest.fixture(params=["sqlite", "postgresql"])
def database_address(request: pytest.FixtureRequest) -> str:
    """Address of a fresh, migrated database; a test that asks for it runs on both systems."""
    fixture = "sqlite_address" if request.param == "sqlite" else "postgres_address"
    return str(request.getfixturevalue(fixture))


@pytest.fixture
def store(database_address: str) -> Iterator[Store]:
    """The program's store over `database_address`."""
    opened = Store(open_engine(database_address))
    yield opened
    opened.dispose()


@pytest.fixture
def sqlite_store(sqlite_address: str) -> Iterator[Store]:
    """The program's store on SQLite alone, for tests in which the database plays no part."""
    opened = Store(open_engine(sqlite_address))
    yield opened
    opened.dispose()
