from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from app.store.engine import open_engine, use_wal
from app.store.migrate import downgrade, schema_is_current, upgrade
from app.store.tables import aliases, blobs, metadata, model_versions
from app.store.unit_of_work import Store


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


def test_versions_and_aliases_survive_the_way_to_imported_heads_and_back(
    database_address: str, add_job: Any
) -> None:
    store = Store(open_engine(database_address))
    with store.begin() as uow:
        teacher, _ = uow.blobs.put([b"teacher"])
        version = {
            "method": "svm",
            "classes": ["a", "b"],
            "columns": 2,
            "teacher_digest": teacher,
            "metrics": {},
            "created_at": 1.0,
            "class_count": 2,
        }
        trained = version | {"model": "old", "job_id": add_job(uow).id, "dataset_digest": "0" * 64}
        imported = version | {"model": "new", "job_id": None, "dataset_digest": None, "class_table": teacher}
        for row in (trained, imported):
            uow.connection.execute(sa.insert(model_versions), {"version": 1, **row})
            alias = {"model": row["model"], "alias": "latest", "version": 1, "revision": 3, "updated_at": 2.0}
            uow.connection.execute(sa.insert(aliases), alias)
        uow.blobs.begin_large("f" * 64, 10)
    store.dispose()
    downgrade(database_address, "0002")
    upgrade(database_address)
    with store.read() as uow:
        assert [(found.model, found.revision) for found in uow.models.aliases_of("old")] == [("old", 3)]
        found = uow.models.version("old", 1)
        assert (found.classes, found.class_count, found.class_table) == (("a", "b"), 2, None)
        assert uow.models.names(limit=5) == (["old"], False), "an older program knows no imported versions"
        assert uow.connection.execute(sa.select(blobs.c.digest)).scalars().all() == [teacher]
    store.dispose()


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
