"""Real database errors, provoked on purpose, and the errors that callers of the store get."""

from __future__ import annotations

import select
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import (
    DatabaseError,
    DBAPIError,
    IntegrityError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
)

from app.domain.errors import InvalidRequest, NotFound, OutcomeUnknown, Unavailable
from app.settings import Settings
from app.store.db_errors import translate_errors, unavailable_of
from app.store.engine import Timeouts, database_url, open_database, open_engine
from app.store.tables import registry_clock
from app.store.unit_of_work import Store
from tests.refusals import refused_as

Open = Callable[..., Store]


@pytest.fixture
def impatient(postgres_address: str) -> Iterator[Open]:
    """Stores on PostgreSQL with limits of their own."""
    opened: list[Store] = []

    def start(**seconds: float) -> Store:
        opened.append(Store(open_engine(postgres_address, timeouts=Timeouts(**seconds), part="test")))
        return opened[-1]

    yield start
    for store in opened:
        store.dispose()


@contextmanager
def cut_after_commit(address: str) -> Iterator[str]:
    """The address of a proxy that passes COMMIT on, and breaks the connection before PostgreSQL's answer."""
    url = database_url(address)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        client, _ = listener.accept()
        with client, socket.create_connection((url.host, url.port)) as server:
            while True:
                ready, _, _ = select.select([client, server], [], [])
                data = ready[0].recv(1 << 16)
                if not data:
                    return
                (server if ready[0] is client else client).sendall(data)
                if ready[0] is client and b"COMMIT" in data:
                    # It has committed when it answers.
                    assert server.recv(1 << 16)
                    return

    thread = threading.Thread(target=serve)
    thread.start()
    with listener:
        yield url.set(host="127.0.0.1", port=listener.getsockname()[1]).render_as_string(hide_password=False)
        thread.join(30)
        assert not thread.is_alive()


def reason(store: Store, statement: str) -> str:
    with pytest.raises(Unavailable) as caught, store.begin() as uow:
        uow.connection.execute(sa.text(statement))
    assert caught.value.retry_after > 0
    return caught.value.reason


def lock(store: Store, until: threading.Event, locked: threading.Event) -> None:
    with store.begin() as uow:
        uow.connection.execute(sa.select(registry_clock.c.revision).with_for_update())
        locked.set()
        until.wait(120)


def test_a_statement_that_takes_too_long_is_stopped(impatient: Open):
    store = impatient(statement=0.2)
    assert reason(store, "SELECT pg_sleep(20)") == "database_slow"
    with store.begin() as uow:
        uow.registry.model_changed("default", "pets")


def test_a_lock_is_not_waited_for_without_end(impatient: Open):
    store, until, locked = impatient(lock=0.2), threading.Event(), threading.Event()
    holder = threading.Thread(target=lock, args=(store, until, locked))
    holder.start()
    assert locked.wait(120)
    try:
        assert reason(store, "UPDATE registry_clock SET revision = 5") == "database_busy"
    finally:
        until.set()
        holder.join()


def test_a_deadlock_is_told_to_one_of_the_two(impatient: Open):
    store, barrier, told = impatient(), threading.Barrier(2), []
    with store.begin() as uow:
        for digest in ("a", "b"):
            uow.blobs.begin_large(digest * 64, 1)

    def cross(first: str, second: str) -> None:
        try:
            with store.begin() as uow:
                uow.blobs.begin_large(first * 64, 1)
                barrier.wait(120)
                uow.blobs.begin_large(second * 64, 1)
        except Unavailable as error:
            told.append(error.reason)

    threads = [threading.Thread(target=cross, args=pair) for pair in ("ab", "ba")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == ["database_busy"]


def test_a_transaction_that_does_nothing_is_ended(impatient: Open):
    store = impatient(idle=0.2)

    def dawdle() -> None:
        with store.begin() as uow:
            uow.registry.model_changed("default", "pets")
            time.sleep(1.0)
            uow.registry.model_changed("default", "pets")

    with refused_as(Unavailable, "database_unavailable"):
        dawdle()
    with store.read() as uow:
        assert uow.registry.revision() == 0


def test_a_server_that_ends_its_sessions_is_unavailable_for_a_moment(impatient: Open):
    store = impatient()

    def be_ended() -> None:
        with store.begin() as uow:
            mine = uow.connection.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
            with store.begin() as other:
                other.connection.execute(sa.text("SELECT pg_terminate_backend(:pid)"), {"pid": mine})
            uow.registry.model_changed("default", "pets")

    with refused_as(Unavailable, "database_unavailable"):
        be_ended()
    with store.read() as uow:
        assert uow.registry.revision() == 0


def test_a_session_that_ends_while_it_commits_leaves_open_whether_it_has(impatient: Open):
    store = impatient()

    def be_ended() -> None:
        with store.begin() as uow:
            uow.registry.model_changed("default", "pets")
            mine = uow.connection.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
            with store.begin() as other:
                other.connection.execute(sa.text("SELECT pg_terminate_backend(:pid)"), {"pid": mine})

    with refused_as(OutcomeUnknown, "outcome_unknown"):
        be_ended()


def test_a_commit_whose_answer_is_lost_is_not_said_to_have_had_no_effect(postgres_address: str):
    """A proxy passes COMMIT on, and breaks the connection before the answer."""
    with cut_after_commit(postgres_address) as address:
        store = Store(open_engine(address))
        with refused_as(OutcomeUnknown, "outcome_unknown"), store.begin() as uow:
            uow.registry.model_changed("default", "pets")
        store.dispose()
    direct = Store(open_engine(postgres_address))
    with direct.read() as uow:
        assert uow.registry.revision() == 1
    direct.dispose()


def test_a_commit_that_the_database_refuses_had_no_effect(impatient: Open):
    """A constraint that is checked at the end of the transaction."""
    store = impatient()

    def write_twice() -> None:
        with store.begin() as uow:
            uow.connection.execute(
                sa.text("CREATE TEMPORARY TABLE once (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
            )
            uow.connection.execute(sa.text("INSERT INTO once VALUES (1), (1)"))

    with pytest.raises(IntegrityError):
        write_twice()


def test_a_write_on_a_server_that_became_a_standby_is_unavailable_and_then_connects_anew(impatient: Open):
    store = impatient()
    with store.engine.connect() as connection:
        connection.exec_driver_sql("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY")
        connection.commit()
    assert reason(store, "UPDATE registry_clock SET revision = 7") == "database_read_only"
    with store.begin() as uow:
        uow.registry.model_changed("default", "pets")
        assert uow.registry.revision() == 1


@pytest.mark.parametrize(("more", "accepted"), [("", False), ("&target_session_attrs=any", True)])
def test_a_read_only_server_is_no_database_unless_the_address_says_so(
    postgres_address: str, more: str, accepted: bool
):
    read_only = "options=-c%20default_transaction_read_only%3Don"
    store = Store(open_engine(f"{postgres_address}?{read_only}{more}"))
    try:
        if accepted:
            assert reason(store, "UPDATE registry_clock SET revision = 7") == "database_read_only"
        else:
            with pytest.raises(Unavailable) as caught, store.read():
                pass
            assert caught.value.reason == "database_unavailable"
    finally:
        store.dispose()


def test_a_pool_without_a_free_connection_is_unavailable(
    postgres_address: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("app.store.engine._POOL_SECONDS", 0.1)
    store = Store(open_engine(postgres_address, pool_size=1))

    def take_all() -> None:
        with store.read(), store.read(), store.read():
            pass

    with refused_as(Unavailable, "database_unavailable"):
        take_all()
    store.dispose()


def test_the_limits_and_the_name_of_a_process_are_known_to_the_server(postgres_address: str):
    settings = Settings(
        database_url=postgres_address,
        database_statement_seconds=31,
        database_lock_seconds=0,
        database_idle_seconds=1.5,
        database_pool_size=3,
    )
    engine = open_database(settings, "api")
    with engine.connect() as connection:
        names = (
            "statement_timeout",
            "lock_timeout",
            "idle_in_transaction_session_timeout",
            "application_name",
        )
        shown = [connection.execute(sa.text(f"SHOW {name}")).scalar() for name in names]
    assert shown == ["31s", "0", "1500ms", "stms api"]
    assert engine.pool.size() == 3  # type: ignore[attr-defined]
    engine.dispose()


@pytest.mark.parametrize(
    "query",
    [
        "application_name=mine&options=-c%20statement_timeout%3D7s",
        "application_name=mine&options=-c%20lock_timeout%3D1s&options=-c%20statement_timeout%3D7s",
    ],
)
def test_what_the_address_says_itself_stays(postgres_address: str, query: str):
    engine = open_engine(f"{postgres_address}?{query}", part="api")
    with engine.connect() as connection:
        assert connection.execute(sa.text("SHOW application_name")).scalar() == "mine"
        assert connection.execute(sa.text("SHOW statement_timeout")).scalar() == "7s"
    engine.dispose()


def test_an_sqlite_disk_without_room_is_told(sqlite_store: Store):
    def fill() -> None:
        with sqlite_store.begin() as uow:
            pages = uow.connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            uow.connection.exec_driver_sql(f"PRAGMA max_page_count={pages + 10}")
            uow.blobs.put([bytes(10**6)])

    with refused_as(Unavailable, "storage_full") as caught:
        fill()
    assert caught.value.retry_after >= 10
    with sqlite_store.read() as uow:
        assert uow.registry.revision() == 0


def test_an_sqlite_file_that_stays_locked_is_busy(
    sqlite_address: str, sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("app.store.engine._BUSY_SECONDS", 0)
    hasty = Store(open_engine(sqlite_address))
    with sqlite_store.begin() as uow:
        uow.registry.model_changed("default", "pets")
        assert reason(hasty, "SELECT 1") == "database_busy"
    hasty.dispose()


def test_an_sqlite_file_that_is_damaged_is_told(sqlite_address: str, tmp_path: Path):
    (tmp_path / "stms.sqlite").write_bytes(b"no database" * 1000)
    store = Store(open_engine(sqlite_address))
    with pytest.raises(Unavailable) as caught, store.read():
        pass
    assert caught.value.reason == "database_damaged"
    store.dispose()


@pytest.mark.parametrize(
    ("kind", "cause", "code"),
    [
        (OperationalError, psycopg.errors.DiskFull(), "storage_full"),
        (OperationalError, psycopg.errors.SerializationFailure(), "database_busy"),
        (OperationalError, psycopg.errors.TooManyConnections(), "database_unavailable"),
        (InternalError, psycopg.errors.ReadOnlySqlTransaction(), "database_read_only"),
        (NotSupportedError, psycopg.errors.FeatureNotSupported(), "database_read_only"),
        (OperationalError, sqlite3.OperationalError("made up, without a code"), "database_unavailable"),
        (DatabaseError, psycopg.errors.DataCorrupted(), None),
        (ProgrammingError, psycopg.errors.UndefinedTable(), "schema_outdated"),
        (ProgrammingError, psycopg.errors.SyntaxError(), None),
    ],
)
def test_what_cannot_be_made_here_is_told_by_its_code(
    kind: type[DBAPIError], cause: Exception, code: str | None
):
    found = unavailable_of(kind("SELECT 1", None, cause))
    assert (None if found is None else found.reason) == code


def test_a_fault_of_the_program_stays_what_it_is(store: Store):
    def ask_wrongly(uow: Any) -> None:
        uow.connection.execute(sa.text("INSERT INTO registry_clock (id, revision) VALUES (2, 0)"))

    with pytest.raises(sa.exc.IntegrityError), store.begin() as uow:
        ask_wrongly(uow)


def test_going_on_after_a_lost_connection_is_unavailable():
    with pytest.raises(Unavailable), translate_errors():
        raise sa.exc.PendingRollbackError


def test_text_that_the_database_cannot_store_is_an_invalid_request(store: Store):
    with pytest.raises((InvalidRequest, NotFound)), store.read() as uow:
        uow.jobs.get("a\0b")
