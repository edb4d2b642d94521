from __future__ import annotations

import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from app.domain.errors import Unavailable
from app.store import migrate
from app.store.engine import open_engine, use_wal
from app.store.migrate import SchemaUnknown, require_current_schema, schema_is_current, upgrade
from app.store.schema import REVISIONS, create_schema, newest_revision
from app.store.tables import api_keys, metadata
from app.store.unit_of_work import Store

NEXT_REVISION = f"""
import sqlalchemy as sa
from alembic import op

revision = "9999"
down_revision = "{newest_revision()}"


def upgrade():
    op.add_column("api_keys", sa.Column("later", sa.Integer()))
"""


@pytest.fixture
def empty_database(request: pytest.FixtureRequest, database_address: str, tmp_path: Path) -> Iterator[str]:
    """Address of a database without tables, on the system of `database_address`."""
    if database_address.startswith("sqlite"):
        yield f"sqlite:///{tmp_path / 'new' / 'stms.sqlite'}"
    else:
        with request.getfixturevalue("new_database")() as address:
            yield address


@pytest.fixture
def next_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program is one with a further migration."""
    folder = tmp_path / "migrations"
    shutil.copytree(REVISIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "versions" / "9999_next.py").write_text(NEXT_REVISION, encoding="utf-8")
    monkeypatch.setattr(migrate, "REVISIONS", folder)
    monkeypatch.setattr(migrate, "newest_revision", lambda: "9999")


def schema_of(connection: sa.Connection) -> dict[str, list[list[str]]]:
    """Columns, constraints and indices of each table, in any order."""
    inspector = sa.inspect(connection)

    def described(table: str) -> Iterator[list[Any]]:
        yield [column | {"type": str(column["type"])} for column in inspector.get_columns(table)]
        yield [inspector.get_pk_constraint(table)]
        keys = inspector.get_foreign_keys(table)
        if connection.dialect.name == "sqlite":
            # SQLAlchemy does not read the names of those that a migration has added to a column of SQLite.
            keys = [key | {"name": None} for key in keys]
        yield keys
        yield inspector.get_unique_constraints(table)
        yield inspector.get_check_constraints(table)
        for index in inspector.get_indexes(table):
            options = {name: str(option) for name, option in index.pop("dialect_options", {}).items()}
            yield [index, options]

    return {
        table: [sorted(map(repr, part)) for part in described(table)] for table in inspector.get_table_names()
    }


def test_the_migrations_make_exactly_the_tables_of_the_program(database_address: str) -> None:
    engine = open_engine(database_address)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        checks = sa.inspect(connection).get_check_constraints("registry_clock")
    assert [check["name"] for check in checks] == ["ck_registry_clock_one_row"]
    engine.dispose()


def test_a_new_database_is_as_the_migrations_make_it(database_address: str, empty_database: str) -> None:
    create_schema(empty_database)
    states = []
    for address in (database_address, empty_database):
        engine = open_engine(address)
        assert schema_is_current(engine)
        with engine.connect() as connection:
            schema = schema_of(connection)
            rows = {name: connection.execute(sa.text(f'SELECT * FROM "{name}"')).all() for name in schema}
        states.append((schema, rows))
        engine.dispose()
    assert states[0] == states[1]


def test_a_database_is_current_only_after_the_upgrade(empty_database_address: str) -> None:
    engine = open_engine(empty_database_address)
    assert not schema_is_current(engine)
    upgrade(empty_database_address)
    assert schema_is_current(engine)
    engine.dispose()


@pytest.mark.long
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


@pytest.mark.parametrize(
    ("revision", "message"),
    [
        ("0027", "the schema 0027, of a release before 1.0.0. Run `stms db upgrade` of the last release"),
        ("9999", "has the schema of a newer release. Use the program of that release."),
    ],
)
def test_a_database_of_another_release_stays_as_it_is(
    database_address: str, revision: str, message: str
) -> None:
    engine = open_engine(database_address)
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = :it"), {"it": revision})
        connection.execute(sa.text("DROP TABLE webhook_deliveries"))
    for refused in (lambda: upgrade(database_address), lambda: require_current_schema(engine)):
        with pytest.raises(SchemaUnknown, match=message):
            refused()
    with engine.connect() as connection:
        assert "webhook_deliveries" not in sa.inspect(connection).get_table_names()
        assert connection.scalar(sa.text("SELECT version_num FROM alembic_version")) == revision
    engine.dispose()


@pytest.mark.usefixtures("next_release")
def test_an_upgrade_keeps_the_rows_and_is_in_the_audit_log(database_address: str, store: Store) -> None:
    with store.begin() as uow:
        row = {"id": "key_1", "name": "old", "digest": "0" * 64, "scopes": ["admin"], "models": []}
        uow.connection.execute(sa.insert(api_keys), row | {"created_at": 1.0, "rate_limit": 5.0})
    assert not schema_is_current(store.engine)
    for _ in range(2):
        upgrade(database_address)
    assert schema_is_current(store.engine)
    with store.read() as uow:
        [key] = uow.keys.all()
        assert (key.name, key.rate_limit, key.scopes) == ("old", 5.0, {"admin"})
        assert uow.connection.scalars(sa.text("SELECT later FROM api_keys")).all() == [None]
    with store.of_all_tenants().read() as uow:
        [record], _ = uow.audit.page(limit=10)
    assert (record.action, record.object, record.tenant) == ("database.upgrade", "9999", "")
    assert record.details == {"from": newest_revision()}


def test_a_file_that_somebody_writes_to_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("CREATE TABLE t (x)")
        other.execute("BEGIN EXCLUSIVE")
        end = threading.Timer(0.3, lambda: other.execute("COMMIT"))
        end.start()
        with closing(sqlite3.connect(path, timeout=0)) as connection:
            use_wal(connection)
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        end.join()


@pytest.mark.long
@pytest.mark.usefixtures("next_release")
def test_readers_do_not_queue_behind_a_migration_that_waits(
    postgres_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.store.migrate._LOCK_SECONDS", 0.2)
    monkeypatch.setattr("app.store.migrate._PAUSE_SECONDS", 0.2)
    engine = open_engine(postgres_address)
    migration = threading.Thread(target=upgrade, args=(postgres_address,))
    with engine.connect() as dump:
        dump.exec_driver_sql("LOCK TABLE api_keys IN ACCESS SHARE MODE")
        migration.start()
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            # Behind a migration that waits without a limit it would end with an error: the dump goes on.
            with engine.connect() as reader:
                reader.exec_driver_sql("SELECT count(*) FROM api_keys")
        assert migration.is_alive(), "the dump still holds the table"
    migration.join(120)
    assert schema_is_current(engine)
    engine.dispose()


@pytest.mark.usefixtures("next_release")
def test_a_migration_that_waits_in_vain_says_so(
    postgres_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.store.migrate._LOCK_SECONDS", 0.1)
    monkeypatch.setattr("app.store.migrate._GIVE_UP_SECONDS", -1.0)
    engine = open_engine(postgres_address)
    with engine.connect() as dump:
        dump.exec_driver_sql("LOCK TABLE api_keys IN ACCESS SHARE MODE")
        with pytest.raises(Unavailable) as caught:
            upgrade(postgres_address)
    assert caught.value.reason == "database_busy"
    engine.dispose()
