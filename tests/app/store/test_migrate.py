from __future__ import annotations

import threading

import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from app.store.engine import open_engine
from app.store.migrate import downgrade, schema_is_current, upgrade
from app.store.tables import metadata


def test_the_migrations_make_exactly_the_tables_of_the_program(database_address: str) -> None:
    engine = open_engine(database_address)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        checks = sa.inspect(connection).get_check_constraints("registry_clock")
    assert [check["name"] for check in checks] == ["ck_registry_clock_one_row"]
    engine.dispose()


def test_a_database_is_current_only_after_the_upgrade(empty_database_address: str) -> None:
    engine = open_engine(empty_database_address)
    assert not schema_is_current(engine)
    upgrade(empty_database_address)
    assert schema_is_current(engine)
    engine.dispose()


def test_processes_that_start_together_upgrade_once(empty_database_address: str) -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            upgrade(empty_database_address)
        except BaseException as error:  # noqa: BLE001 - reported below
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    engine = open_engine(empty_database_address)
    assert errors == []
    assert schema_is_current(engine)
    engine.dispose()


def test_a_downgrade_to_base_drops_every_table(database_address: str) -> None:
    downgrade(database_address, "base")
    engine = open_engine(database_address)
    assert set(sa.inspect(engine).get_table_names()) <= {"alembic_version"}
    engine.dispose()
