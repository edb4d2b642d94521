from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from app.domain.errors import NotFound, Unavailable
from app.store.engine import database_url, open_engine
from app.store.tables import registry_clock
from app.store.unit_of_work import Store


def test_a_plain_postgresql_address_means_psycopg_3() -> None:
    for scheme in ("postgresql", "postgres", "postgresql+psycopg"):
        assert database_url(f"{scheme}://u@h/d").drivername == "postgresql+psycopg"
    assert database_url("sqlite:///x").drivername == "sqlite"


@pytest.mark.parametrize("address", ["sqlite://", "sqlite:///:memory:"])
def test_an_sqlite_database_in_memory_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="must be a file"):
        open_engine(address)


def test_the_folder_of_an_sqlite_file_is_made(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path / 'a' / 'b' / 'c.sqlite'}")
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == 30_000
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2, "FULL: commits are synced"
    engine.dispose()


def test_a_read_is_refused_to_write(store: Store) -> None:
    with pytest.raises((sa.exc.InternalError, Unavailable)), store.read() as uow:
        uow.registry.model_changed("default", "pets")
    with store.begin() as uow:
        # The pooled connection that was read-only writes again.
        uow.registry.model_changed("default", "pets")
    with store.read() as uow:
        assert uow.registry.revision() == 1


def test_a_peek_sees_what_is_committed_and_leaves_its_connection_as_it_was(store: Store) -> None:
    for number in range(3):
        with store.peek() as uow:
            assert uow.registry.revision() == number
        with store.begin() as uow:
            uow.registry.model_changed("default", "pets")
    statements: list[str] = []
    sa.event.listen(store.engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    with store.peek() as uow:
        uow.registry.revision()
    assert len(statements) == 1, "on SQLite without BEGIN, which the service sends itself"


def test_an_error_in_the_block_leaves_no_trace(store: Store) -> None:
    def tick_and_break() -> None:
        with store.begin() as uow:
            uow.registry.model_changed("default", "pets")
            uow.jobs.get("job_none")

    with pytest.raises(NotFound):
        tick_and_break()
    with store.read() as uow:
        assert uow.registry.revision() == 0


def test_writers_of_many_threads_wait_for_each_other(store: Store) -> None:
    def tick() -> None:
        for _ in range(10):
            with store.begin() as uow:
                seen = uow.connection.execute(
                    sa.select(registry_clock.c.revision).with_for_update()
                ).scalar_one()
                uow.connection.execute(sa.update(registry_clock).values(revision=seen + 1))

    threads = [threading.Thread(target=tick) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with store.read() as uow:
        assert uow.registry.revision() == 40


def test_on_sqlite_a_read_does_not_wait_for_a_writer(sqlite_store: Store) -> None:
    with sqlite_store.begin() as writing:
        writing.registry.model_changed("default", "pets")
        with sqlite_store.read() as uow:
            assert uow.registry.revision() == 0


def test_a_database_that_cannot_be_reached_is_unavailable() -> None:
    store = Store(open_engine("postgresql://nobody@127.0.0.1:1/none"))
    with pytest.raises(Unavailable, match="not available") as caught, store.read():
        pass
    assert caught.value.reason == "database_unavailable"
    store.dispose()


def test_not_a_number_is_refused_in_json(store: Store, add_dataset: Any) -> None:
    with pytest.raises((sa.exc.StatementError, ValueError), match="JSON compliant"), store.begin() as uow:
        add_dataset(uow, summary={"f1": float("nan")})
