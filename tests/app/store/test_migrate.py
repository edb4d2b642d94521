from __future__ import annotations

import dataclasses
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from app.domain.entities import ModelVersion
from app.domain.errors import Unavailable
from app.domain.figures import InputRow
from app.store.engine import open_engine, use_wal
from app.store.migrate import downgrade, schema_is_current, upgrade
from app.store.repositories.models import ALIAS_BYTES
from app.store.schema import create_schema
from app.store.tables import aliases, blobs, metadata, model_versions
from app.store.unit_of_work import Store


def test_the_migrations_make_exactly_the_tables_of_the_program(database_address: str) -> None:
    engine = open_engine(database_address)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        checks = sa.inspect(connection).get_check_constraints("registry_clock")
    assert [check["name"] for check in checks] == ["ck_registry_clock_one_row"]
    engine.dispose()


def test_a_new_database_is_as_the_migrations_make_it(empty_database_address: str, tmp_path: Path) -> None:
    upgrade(empty_database_address)
    made = f"sqlite:///{tmp_path / 'new' / 'stms.sqlite'}"
    create_schema(made)
    states = []
    for address in (empty_database_address, made):
        engine = open_engine(address)
        assert schema_is_current(engine)
        with engine.connect() as connection:
            assert compare_metadata(MigrationContext.configure(connection), metadata) == []
            inspector = sa.inspect(connection)
            names = sorted(inspector.get_table_names())
            rows = {name: connection.execute(sa.text(f'SELECT * FROM "{name}"')).all() for name in names}
            checks = {
                name: sorted(one["name"] for one in inspector.get_check_constraints(name)) for name in names
            }
        states.append((rows, checks))
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


def test_a_downgrade_to_base_drops_every_table(database_address: str) -> None:
    downgrade(database_address, "base")
    engine = open_engine(database_address)
    assert set(sa.inspect(engine).get_table_names()) <= {"alembic_version"}
    engine.dispose()


@pytest.mark.long
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
        assert uow.models.numbers(limit=5) == [("old", 1)], "an older program knows no imported versions"
        assert uow.connection.execute(sa.select(blobs.c.digest)).scalars().all() == [teacher]
    store.dispose()


def test_an_older_program_knows_no_versions_without_teacher(database_address: str, add_job: Any) -> None:
    store = Store(open_engine(database_address))
    with store.begin() as uow:
        teacher, _ = uow.blobs.put([b"teacher"])
        version = {"method": "svm", "classes": ["a"], "columns": 2, "metrics": {}, "created_at": 1.0}
        for model, digest in (("whole", teacher), ("part", None)):
            named = {"model": model, "version": 1, "job_id": add_job(uow).id, "teacher_digest": digest}
            uow.connection.execute(sa.insert(model_versions), version | named | {"class_count": 1})
            alias = {"model": model, "alias": "latest", "version": 1, "revision": 3, "updated_at": 2.0}
            uow.connection.execute(sa.insert(aliases), alias | {"manual_revision": 2})
        uow.inputs.add("default", "whole", 1, InputRow(9, 2, 1, bytes(4)))
        used = uow.quotas.used("default").stored_bytes
    store.dispose()
    downgrade(database_address, "0026")
    with pytest.raises(sa.exc.IntegrityError), store.engine.begin() as connection:
        connection.execute(sa.update(model_versions).values(teacher_digest=None))
    store.dispose()
    upgrade(database_address)
    with store.read() as uow:
        assert uow.models.numbers(limit=5) == [("whole", 1)]
        found = uow.connection.execute(sa.select(aliases.c.model, aliases.c.manual_revision)).all()
        assert found == [("whole", 2)]
        assert len(uow.inputs.since("default", "whole", 1, 0)) == 1
        assert uow.quotas.used("default").stored_bytes == used - ALIAS_BYTES
        assert uow.models.aliases_of("part") == []
    store.dispose()


@pytest.mark.long
def test_a_filled_database_migrates_into_the_default_tenant(empty_database_address: str) -> None:
    upgrade(empty_database_address, "0006")
    engine = open_engine(empty_database_address)
    with engine.begin() as connection:
        for statement in _OLD_ROWS.split(";\n"):
            connection.exec_driver_sql(statement)
    upgrade(empty_database_address)
    store = Store(engine)
    with store.read() as uow:
        assert uow.datasets.by_digest("d1") == uow.datasets.get("ds_1")
        assert (uow.datasets.get("ds_1").class_count, uow.datasets.classes("ds_1")) == (1, ("a",))
        assert (uow.jobs.get("job_1").tenant, len(uow.events.after("job_1", 0, limit=9))) == ("default", 1)
        assert uow.models.alias("m", "latest").version == uow.models.version("m", 1).version == 1
        assert uow.models.next_number("gone") == 8
        assert uow.jobs.find_idempotency_key("key_1", "again") == ("d2", "job_1")
        assert {key.id: sorted(key.scopes) for key in uow.keys.all()} == {
            "key_1": ["admin", "operator"],
            "key_2": ["train"],
        }
        assert [record.action for record in uow.audit.page(limit=9)[0]] == ["job.submit"]
        assert uow.units.count_of_owner("default", "key_1") == 1
    _fill_second_tenant(store)
    downgrade(empty_database_address, "0006")
    with engine.connect() as connection:
        for name in ("datasets", "jobs", "job_events", "aliases", "model_versions"):
            assert connection.scalar(sa.select(sa.func.count()).select_from(sa.table(name))) == 1, name
        [scopes] = connection.scalars(sa.text("SELECT scopes FROM api_keys WHERE id = 'key_1'"))
        assert "operator" not in scopes
        assert connection.scalar(sa.text("SELECT tenant FROM job_units")) == "key_1"
    engine.dispose()


def _fill_second_tenant(store: Store) -> None:
    """The same bytes, names and numbers as the rows of the first tenant."""
    with store.read() as uow:
        dataset, version = uow.datasets.get("ds_1"), uow.models.version("m", 1)
        job, key = uow.jobs.get("job_1"), uow.keys.get("key_1")
    with store.of_tenant("acme").begin() as uow:
        assert uow.datasets.add(dataclasses.replace(dataset, id="ds_2", tenant="acme"), ["a"])
        uow.jobs.add(dataclasses.replace(job, id="job_2", tenant="acme"))
        uow.events.append("job_2", "job_queued")
        uow.models.publish(dataclasses.replace(version, job_id="job_2", tenant="acme"))
        assert uow.models.point("m", "latest", 1).revision == 1
        uow.keys.add(dataclasses.replace(key, id="key_3", tenant="acme"))


_OLD_ROWS = """
INSERT INTO blobs (digest, size, created_at, complete) VALUES ('b', 1, 0, TRUE);
INSERT INTO datasets (id, digest, name, source_format, size_bytes, blob_digest, rows, test_rows, columns,
    classes, summary, created_at, created_by)
    VALUES ('ds_1', 'd1', 'old', 'csv', 1, 'b', 2, 0, 1, '["a"]', '{}', 0, 'key_1');
INSERT INTO jobs (id, dataset_id, model, spec, state, attempt, stage, progress_done, progress_total,
    created_at, created_by, provenance, revision)
    VALUES ('job_1', 'ds_1', 'm', '{}', 'running', 0, 'x', 0, 1, 0, 'key_1', '{}', 1);
INSERT INTO job_events (job_id, seq, at, type, data) VALUES ('job_1', 1, 0, 'job_queued', '{}');
INSERT INTO job_units (job_id, attempt, number, tenant, level, turn) VALUES ('job_1', 0, 0, 'key_1', 1, 1);
INSERT INTO idempotency_keys (owner, key, body_digest, job_id, created_at)
    VALUES ('key_1', 'again', 'd2', 'job_1', 0);
INSERT INTO model_versions (model, version, job_id, dataset_digest, method, classes, class_count, columns,
    teacher_digest, metrics, created_at)
    VALUES ('m', 1, 'job_1', 'd1', 'svm', '["a"]', 1, 1, 'b', '{}', 0);
INSERT INTO aliases (model, alias, version, revision, updated_at) VALUES ('m', 'latest', 1, 3, 0);
INSERT INTO retired_numbers (model, version, revision) VALUES ('gone', 7, 2);
INSERT INTO api_keys (id, name, digest, scopes, models, created_at)
    VALUES ('key_1', 'boss', 'd', '["admin"]', '[]', 0), ('key_2', 'trainer', 'd', '["train"]', '[]', 0);
INSERT INTO audit_log (id, at, actor, actor_name, scope, action, object, outcome, details)
    VALUES ('aud_1', 0, 'key_1', 'boss', 'admin', 'job.submit', 'job_1', 'done', '{}')
"""
"""Rows of a database of revision 0006."""


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
def test_readers_do_not_queue_behind_a_migration_that_waits(
    postgres_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.store.migrate._LOCK_SECONDS", 0.2)
    monkeypatch.setattr("app.store.migrate._PAUSE_SECONDS", 0.2)
    downgrade(postgres_address, "0005")
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


def test_a_migration_that_waits_in_vain_says_so(
    postgres_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.store.migrate._LOCK_SECONDS", 0.1)
    monkeypatch.setattr("app.store.migrate._GIVE_UP_SECONDS", -1.0)
    downgrade(postgres_address, "0005")
    engine = open_engine(postgres_address)
    with engine.connect() as dump:
        dump.exec_driver_sql("LOCK TABLE api_keys IN ACCESS SHARE MODE")
        with pytest.raises(Unavailable) as caught:
            upgrade(postgres_address)
    assert caught.value.reason == "database_busy"
    engine.dispose()


@pytest.mark.long
def test_a_job_and_a_version_survive_the_way_to_counted_inputs_and_back(
    database_address: str, add_job: Any
) -> None:
    store = Store(open_engine(database_address))
    with store.begin() as uow:
        job = add_job(uow)
        teacher, encoder, profile = (
            uow.blobs.put([text])[0] for text in (b"teacher", b"encoder", b"profile")
        )
        uow.jobs.change(job.id, encoder_digest=encoder, profile_digest=profile)
        version = ModelVersion(
            "m",
            1,
            job.id,
            "",
            "svm",
            ("a",),
            2,
            teacher,
            {},
            1.0,
            encoder_digest=encoder,
            profile_digest=profile,
        )
        uow.models.publish(version)
        uow.inputs.add("default", "m", 1, InputRow(9, 2, 1, bytes(4)))
    downgrade(database_address, "0023")
    with store.engine.connect() as connection:
        tables = sa.inspect(connection)
        assert "input_counts" not in tables.get_table_names()
        columns = {
            table: {c["name"] for c in tables.get_columns(table)} for table in ("jobs", "model_versions")
        }
        assert all("encoder_digest" in names and "profile_digest" not in names for names in columns.values())
        old = sa.text("SELECT encoder_digest FROM model_versions")
        assert connection.execute(old).scalar_one() == encoder
    upgrade(database_address)
    with store.begin() as uow:
        found = uow.models.version("m", 1)
        assert (found.encoder_digest, found.profile_digest) == (encoder, None), "the version is one of before"
        assert uow.jobs.get(job.id).encoder_digest == encoder
        assert uow.inputs.since("default", "m", 1, 0) == []
        uow.inputs.add("default", "m", 1, InputRow(9, 2, 1, bytes(4)))
        assert len(uow.inputs.since("default", "m", 1, 0)) == 1
    store.dispose()
