"""Moving from SQLite to PostgreSQL: every row arrives, and a service over the copy says the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import sqlalchemy as sa

from app.domain.errors import Conflict, InvalidRequest, Unavailable
from app.services.first_key import ensure_first_key
from app.settings import Settings
from app.store import database_copy
from app.store.database_copy import copy_database
from app.store.engine import open_engine
from app.store.tables import job_students, jobs, metadata
from app.store.unit_of_work import Store
from tests.app.commands.conftest import run as run
from tests.app.commands.test_backup import answers, fill
from tests.refusals import refused_as


@pytest.fixture
def settings(sqlite_address: str, tmp_path: Path) -> Settings:
    """Those of a service over SQLite with a model, its first key, and rows in every kind of table."""
    fill(sqlite_address)
    settings = Settings(data_dir=tmp_path)
    store = Store(open_engine(sqlite_address))
    ensure_first_key(store, tmp_path)
    store.dispose()
    return settings


def rows_of(address: str) -> dict[str, int]:
    engine = open_engine(address)
    with engine.connect() as connection:
        found = {
            name: connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
            for name, table in metadata.tables.items()
        }
    engine.dispose()
    return {name: count for name, count in found.items() if count}


def test_everything_arrives_and_the_service_answers_the_same(settings, sqlite_address, new_database):
    before = answers(settings)
    with new_database() as address:
        copied = copy_database(settings, address)
        assert {table.name for table in copied} == set(metadata.tables)
        assert {table.name: table.rows for table in copied if table.rows} == rows_of(sqlite_address)
        assert rows_of(address) == rows_of(sqlite_address)
        assert {"blob_chunks", "jobs", "model_versions", "aliases", "api_keys"} <= set(rows_of(address))
        assert answers(Settings(data_dir=settings.data_dir, database_url=address)) == before


def test_a_null_of_json_is_not_taken_for_a_missing_value(settings, sqlite_address, new_database):
    engine = open_engine(sqlite_address)
    with engine.begin() as connection:
        connection.execute(sa.update(job_students).values(metrics=sa.JSON.NULL, chosen=sa.null()))
    engine.dispose()
    with new_database() as address:
        copy_database(settings, address)
        engine = open_engine(address)
        with engine.connect() as connection:
            text = sa.cast(job_students.c.metrics, sa.Text)
            query = sa.select(text, job_students.c.chosen.is_(sa.null()))
            assert connection.execute(query).first() == ("null", True)
        engine.dispose()


def test_a_target_with_rows_or_other_tables_is_refused(settings, postgres_address, new_database):
    fill(postgres_address)
    with refused_as(Conflict, "database_exists", match="has rows in the table"):
        copy_database(settings, postgres_address)
    with new_database() as address:
        engine = open_engine(address)
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE wiki (page text)")
        engine.dispose()
        with refused_as(Conflict, "database_exists", match="another program 'wiki'"):
            copy_database(settings, address)


def test_only_a_whole_database_is_moved_to_another_system(
    settings, sqlite_address, postgres_address, tmp_path
):
    with refused_as(InvalidRequest, "no_database", match="must be a PostgreSQL database"):
        copy_database(settings, f"sqlite:///{tmp_path / 'other.sqlite'}")
    with refused_as(InvalidRequest, "not_embedded"):
        copy_database(Settings(data_dir=tmp_path, database_url=postgres_address), postgres_address)
    engine = open_engine(sqlite_address)
    with engine.connect(), refused_as(Conflict, "database_in_use"):
        copy_database(settings, postgres_address)
    with engine.begin() as connection:
        connection.execute(sa.update(jobs).values(state="running"))
    engine.dispose()
    with refused_as(Conflict, "unfinished_jobs", match="There are 1 unfinished jobs"):
        copy_database(settings, postgres_address)
    assert set(rows_of(postgres_address)) == {"registry_clock"}


def test_a_copy_that_differs_is_not_kept(settings, postgres_address, monkeypatch):
    batches = database_copy._batches

    def without_the_last(table, connection):
        for rows in batches(table, connection):
            is_written = connection.dialect.name == "postgresql" and table.name == "blob_chunks"
            yield rows[:-1] if is_written else rows

    monkeypatch.setattr(database_copy, "_batches", without_the_last)
    with refused_as(Unavailable, "copy_differs", match="Nothing was kept"):
        copy_database(settings, postgres_address)
    assert set(rows_of(postgres_address)) == {"registry_clock"}


def test_the_command_says_what_it_copied(run, settings, new_database):
    with new_database() as address:
        done = run("db", "copy", "--to", address, "--data-dir", str(settings.data_dir))
        assert done.exit_code == 0, done.output
        assert re.search(r"\nmodel_versions +1 +[0-9a-f]{16} *\n", done.stdout)
        again = run("db", "copy", "--to", address, "--data-dir", str(settings.data_dir))
        assert again.exit_code == 1
        assert "The target is not empty" in again.stderr
