"""Fixtures of all tests. Databases are SQLite files, and a PostgreSQL server of our own where installed."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from fastapi import APIRouter, FastAPI
from hypothesis import HealthCheck, settings
from obstore.store import MemoryStore
from starlette.routing import BaseRoute

from app.domain.object_address import ObjectAddress
from app.processes.file_reader import FileReader
from app.settings import Settings
from app.store import object_bodies
from app.store.bodies import BlobBodies
from app.store.engine import open_engine
from app.store.migrate import upgrade
from app.store.opening import open_objects
from app.store.unit_of_work import Store
from tests.system.environments import Offline
from tests.system.object_store import ObjectStore, object_store
from tests.system.postgres import NoPostgres, postgres, programs
from tests.written_server import csv_file, written

__all__ = ["csv_file", "written"]

HEAVY = (
    "tests/hostile",
    "tests/e2e",
    "tests/clients",
    "tests/system",
    "tests/app/jobs",
    "tests/app/processes",
    "tests/app/commands",
    "tests/stms_client",
    "tests/app/serving/test_security_live.py",
    "tests/app/serving/test_two_servers.py",
    "tests/app/api/test_process.py",
    "tests/core/estimators",
    "tests/core/training",
    "tests/test_house.py",
)
"""Folders and files that take longest. They start first, so that no process works alone on one at the end."""
ON_BOTH_DATABASES = ("tests/app/store/",)
"""What `make test` runs on both: the SQL itself."""

ON_ONE_SERVER = (
    (
        "tests/e2e/test_main_job.py",
        "tests/e2e/test_tuned_job.py",
        "tests/e2e/test_bad_input.py",
        "tests/e2e/test_repeatability.py",
        "tests/e2e/test_remote_teacher.py",
        "tests/e2e/test_pages.py",
    ),
    ("tests/e2e/test_learners.py", "tests/e2e/test_outside_scores.py", "tests/e2e/test_labelling.py"),
    (
        "tests/app/commands/test_live.py",
        "tests/app/commands/test_heads_live.py",
        "tests/app/commands/test_bundles_live.py",
        "tests/app/commands/test_records_live.py",
        "tests/app/commands/test_traces.py",
    ),
)
"""Files whose tests use the same server. They run in one process, so that it is started once."""

SHARED_MEMORY = Path("/dev/shm")
_MEMORY_NEEDED = 4 * 1024**3


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Restore SIGINT, set up hypothesis, and put temporary folders into memory if there is room.

    A shell ignores SIGINT in jobs that it starts in the background, and an ignored signal is inherited:
    programs that tests start could not be interrupted by it. Every commit of SQLite waits for the disk, which
    takes a third of the time of the tests of the service. Hypothesis tries the same examples in each run,
    without a deadline: on a busy machine, an example of a millisecond may take half a second. Processes that
    share the cores compute products with one thread each. Modules and tests stay: the garbage collector
    rests while they are collected, as it would search them again and again.
    """
    gc.disable()
    settings.register_profile(
        "tests",
        deadline=None,
        derandomize=True,
        max_examples=30 if config.option.markexpr == "not long" else 100,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("tests")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    is_worker = hasattr(config, "workerinput")
    if not is_worker and config.option.dist != "no":
        # Inherited by the processes that run the tests, which have not loaded NumPy yet.
        for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            os.environ.setdefault(variable, "1")
    if not is_worker and config.option.basetemp is None and _free_bytes(SHARED_MEMORY) >= _MEMORY_NEEDED:
        folder = tempfile.mkdtemp(prefix="stms-tests-", dir=SHARED_MEMORY)
        config.option.basetemp = folder
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``--dist loadfile``, all tests of a file run in one process, and so do files on one server."""
    if config.option.dist != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    group_of = {file: files[0] for files in ON_ONE_SERVER for file in files}

    class ByServer(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return group_of.get(file, file)

    return ByServer(config, log)


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free if os.access(folder, os.W_OK) else 0


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the heavy folders first, and mark as long what need not run on PostgreSQL each time."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        values = () if callspec is None else callspec.params.values()
        on_postgresql = any(isinstance(value, str) and value == "postgresql" for value in values)
        if on_postgresql and not item.nodeid.startswith(ON_BOTH_DATABASES):
            item.add_marker(pytest.mark.long)
    items.sort(key=lambda item: not item.nodeid.startswith(HEAVY))


def pytest_collection_finish() -> None:
    """Keep the garbage collector from searching modules and tests, which stay, again and again."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _common_settings() -> Iterator[None]:
    """Servers of tests have no spare solver, which costs seconds of a core, and need no API keys.

    Tests of keys ask for them: ``Settings(require_keys=True)``, ``STMS_REQUIRE_KEYS=true``.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STMS_SPARE_SOLVER", "false")
        patch.setenv("STMS_REQUIRE_KEYS", "false")
        yield


@pytest.fixture(scope="session", autouse=True)
def _routes_prepared_once() -> Iterator[None]:
    """Applications within the test process share the routes that FastAPI has prepared.

    It prepares those of a router at the first request, which takes a fifth of a second for each application.
    """
    include = FastAPI.include_router
    prepared: dict[tuple[int, int | None], list[BaseRoute]] = {}

    def include_prepared(app: FastAPI, router: APIRouter, *, max_body_size: int | None = None) -> None:
        key = id(router), max_body_size
        if key in prepared:
            app.router.routes.extend(prepared[key])
        else:
            before = len(app.router.routes)
            include(app, router, max_body_size=max_body_size)
            prepared[key] = app.router.routes[before:]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FastAPI, "include_router", include_prepared)
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_file_reader() -> Iterator[None]:
    """Applications within the test process share the process that reads files; its start takes half a second.

    An application with limits of its own has its own.
    """
    default, new = Settings(), FileReader.of
    shared = new(default)
    limits = ("reader_memory_bytes", "reader_seconds", "max_waiting_files")

    def of(settings: Settings) -> FileReader:
        same = all(getattr(settings, name) == getattr(default, name) for name in limits)
        return _SharedReader(shared) if same else new(settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileReader, "of", of)
        yield
    shared.close()


class _SharedReader(FileReader):
    """A reader whose `close` leaves the shared one open."""

    def __init__(self, shared: FileReader) -> None:
        self.__dict__ = shared.__dict__

    def close(self) -> None:
        """The session closes it."""


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Tests that are coroutines run on uvloop, as the program does."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(autouse=True)
def _same_umask() -> Iterator[None]:
    """Restore the umask after each test: commands of the program set it, also in the process of a test."""
    before = os.umask(0o022)
    os.umask(before)
    yield
    os.umask(before)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """Address ``postgresql://…/`` of a private server (append a database); ends with the test session."""
    try:
        # Nothing here outlives a fall of the machine: no need to wait for the disk.
        with postgres(settings={"fsync": "off", "max_connections": "200"}) as server:
            yield server.address("")
    except NoPostgres as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def postgres_tools(postgres_server: str) -> Path:
    """Folder of pg_dump and pg_restore, of the version of `postgres_server`."""
    folder = (programs() / "initdb").resolve().parent
    if not (folder / "pg_dump").exists():
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


@pytest.fixture(scope="session")
def object_store_server() -> Iterator[ObjectStore]:
    """An object store of our own; ends with the test session."""
    try:
        with object_store() as server:
            yield server
    except Offline as missing:
        pytest.skip(str(missing))


@pytest.fixture
def s3_address(object_store_server: ObjectStore) -> ObjectAddress:
    """An empty part of the bucket of `object_store_server`."""
    return object_store_server.address(uuid.uuid4().hex)


@pytest.fixture(params=["memory", pytest.param("s3", marks=pytest.mark.long)])
def object_address(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ObjectAddress:
    """An empty object store: the one in memory of the library itself, and `s3_address`."""
    if request.param == "s3":
        address: ObjectAddress = request.getfixturevalue("s3_address")
        return address
    memory = MemoryStore()
    monkeypatch.setattr(object_bodies, "_open", lambda *_: memory)
    return ObjectAddress("memory", "stms", "http://127.0.0.1:1", key_id="key", secret="secret")


@pytest.fixture
def objects(object_address: ObjectAddress) -> BlobBodies:
    """The object store at `object_address`."""
    opened = open_objects(object_address)
    assert opened is not None
    return opened


@pytest.fixture
def object_backed(store: Store, objects: BlobBodies) -> Store:
    """As `store`, with an object store for large blobs."""
    return Store(store.engine, objects=objects)


@pytest.fixture
def sqlite_store(sqlite_address: str) -> Iterator[Store]:
    """The program's store on SQLite alone, for tests in which the database plays no part."""
    opened = Store(open_engine(sqlite_address))
    yield opened
    opened.dispose()
