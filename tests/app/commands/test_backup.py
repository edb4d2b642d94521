"""Backup and restore by the commands an operator types; the service answers the same questions after it."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

from app.domain.caller_rules import TokenIssuer
from app.domain.errors import Conflict, InvalidRequest
from app.domain.ports import JobQueue
from app.main import create_app
from app.services.first_key import FILE_NAME, ensure_first_key
from app.services.keys import create_key, revoke_key, rotate_key
from app.services.sessions import begin_session
from app.services.token_revocations import list_revocations, revoke_tokens
from app.settings import Settings
from app.store import backup
from app.store.backup import MANIFEST, back_up, restore
from app.store.bodies import BlobBodies
from app.store.engine import open_engine
from app.store.unit_of_work import Store
from tests.app.started import Client
from tests.lanes import first_short
from tests.refusals import refused_as
from tests.system.published import linear_student, linear_teacher, publish
from tests.system.token_issuer import issuer_setting

CLASSES = ("cat", "größe/1:x", "日本")
WEIGHTS = np.eye(3)
QUESTIONS = [[0.5, -1.0, 2.0], [-3.0, 0.25, 0.0]]


class NoQueue(JobQueue):
    """Jobs are not submitted here."""

    def ping(self) -> None:
        """It answers."""


def fill(address: str) -> None:
    store = Store(open_engine(address))
    students = {label: linear_student(label, row) for label, row in zip(CLASSES, WEIGHTS, strict=True)}
    publish(store, "pets", students, linear_teacher(CLASSES, WEIGHTS))
    store.dispose()


def answers(settings: Settings) -> list[Any]:
    """What a service over the database says."""
    client = Client(create_app(settings, queue=NoQueue()))
    try:
        found = [client.get("/v1/models/pets").json()]
        for label in ("cat", "gr%C3%B6%C3%9Fe%2F1%3Ax", "%E6%97%A5%E6%9C%AC"):
            for x in QUESTIONS:
                found.append(client.post(f"/v1/models/pets/classes/{label}:query", json={"x": x}).json())
        assert all("score" in answer for answer in found[1:]), found
        return found
    finally:
        client.close()


@pytest.fixture
def settings(tmp_path: Path, sqlite_address: str) -> Settings:
    """Of a service with one model, and a file of the job engine."""
    fill(sqlite_address)
    with closing(sqlite3.connect(tmp_path / "jobs.sqlite")) as connection:
        connection.execute("CREATE TABLE counter (n INTEGER)")
        connection.execute("INSERT INTO counter VALUES (0)")
        connection.commit()
    return Settings(data_dir=tmp_path)


def test_what_was_backed_up_answers_the_same(run: Callable[..., Any], settings: Settings, tmp_path: Path):
    before = answers(settings)
    folder, elsewhere = tmp_path / "backup", tmp_path / "elsewhere"
    made = run("db", "backup", str(folder), "--data-dir", str(tmp_path))
    assert made.exit_code == 0, made.output
    assert "stms.sqlite, jobs.sqlite" in made.output
    assert sorted(path.name for path in folder.iterdir()) == ["jobs.sqlite", MANIFEST, "stms.sqlite"]
    back = run("db", "restore", str(folder), "--data-dir", str(elsewhere))
    assert back.exit_code == 0, back.output
    assert answers(Settings(data_dir=elsewhere)) == before
    assert sorted(path.name for path in elsewhere.glob("*.sqlite")) == ["jobs.sqlite", "stms.sqlite"]


def test_a_restore_names_the_objects_that_are_missing(
    run: Callable[..., Any],
    settings: Settings,
    tmp_path: Path,
    objects: BlobBodies,
    object_address,
    monkeypatch,
):
    with closing(sqlite3.connect(tmp_path / "stms.sqlite")) as connection:
        rows = [(digit * 64, size, 1.0, 1, "objects") for digit, size in (("a", 4), ("b", 4), ("c", 5))]
        columns = "digest, size, created_at, complete, place"
        connection.executemany(f"INSERT INTO blobs ({columns}) VALUES (?, ?, ?, ?, ?)", rows)
        connection.commit()
    for digit in "ac":
        objects.put(digit * 64, 4, [b"1234"])
    folder = tmp_path / "backup"
    back_up(settings, folder)
    with refused_as(InvalidRequest, "backup_needs_objects", match="set STMS_BLOBS|Set STMS_BLOBS"):
        restore(settings, folder, overwrite=True)
    named = {
        "STMS_BLOBS": f"s3://{object_address.bucket}/{object_address.prefix}",
        "STMS_BLOBS_ENDPOINT": object_address.endpoint,
        "STMS_BLOBS_KEY_ID": object_address.key_id,
        "STMS_BLOBS_SECRET": object_address.secret,
    }
    for name, value in named.items():
        monkeypatch.setenv(name, value)
    back = run("db", "restore", str(folder), "--overwrite", "--data-dir", str(tmp_path))
    assert back.exit_code == 0, back.output
    assert "2 objects are missing" in back.output
    checked = run("db", "check-blobs", "--data-dir", str(tmp_path))
    assert checked.exit_code == 1
    assert "2 of 3 objects are missing or cut off" in checked.output
    objects.delete(["c" * 64])
    objects.put("c" * 64, 5, [b"12345"])
    objects.put("b" * 64, 4, [b"1234"])
    checked = run("db", "check-blobs", "--data-dir", str(tmp_path))
    assert checked.exit_code == 0, checked.output
    assert "has all 3 blobs" in checked.output


def test_blobs_are_moved_by_command(
    run: Callable[..., Any],
    settings: Settings,
    tmp_path: Path,
    objects: BlobBodies,
    object_address,
    monkeypatch,
):
    content = bytes(300_000)
    store = Store(open_engine(settings.app_database_url))
    with store.begin() as uow:
        digest, _ = uow.blobs.put([content])
    refused = run("db", "move-blobs", "--to", "objects", "--data-dir", str(tmp_path))
    assert refused.exit_code == 1
    assert "There is no object store" in refused.output
    monkeypatch.setenv("STMS_BLOBS", f"s3://{object_address.bucket}/{object_address.prefix}")
    monkeypatch.setenv("STMS_BLOBS_ENDPOINT", object_address.endpoint)
    monkeypatch.setenv("STMS_BLOBS_KEY_ID", object_address.key_id)
    monkeypatch.setenv("STMS_BLOBS_SECRET", object_address.secret)
    moved = run("db", "move-blobs", "--to", "objects", "--data-dir", str(tmp_path))
    assert moved.exit_code == 0, moved.output
    assert "Moved 1 blobs of 0.3 MB to the object store" in moved.output
    assert objects.size(digest) == len(content)
    back = run("db", "move-blobs", "--to", "database", "--data-dir", str(tmp_path))
    assert back.exit_code == 0, back.output
    with store.read() as uow:
        assert uow.blobs.read(digest) == content
    store.dispose()


def test_databases_and_backups_are_private(run: Callable[..., Any], tmp_path: Path):
    data, folder = tmp_path / "data", tmp_path / "backup"
    os.umask(0o022)
    assert run("db", "upgrade", "--data-dir", str(data)).exit_code == 0
    made = run("db", "backup", str(folder), "--data-dir", str(data))
    assert made.exit_code == 0, made.output
    modes = {path: path.stat().st_mode & 0o777 for place in (data, folder) for path in place.rglob("*")}
    assert folder / "stms.sqlite" in modes
    for place in (data, folder):
        assert place.stat().st_mode & 0o777 == 0o700
    assert {path.name: oct(mode) for path, mode in modes.items() if mode & 0o077} == {}


def test_a_restore_replaces_databases_only_when_told(
    run: Callable[..., Any], settings: Settings, tmp_path: Path
):
    folder = tmp_path / "backup"
    back_up(settings, folder)
    store = Store(open_engine(settings.app_database_url))
    with store.begin() as uow:
        uow.models.delete_alias("pets", "latest", expected_revision=1)
    refused = run("db", "restore", str(folder), "--data-dir", str(tmp_path))
    assert refused.exit_code == 1
    assert "use --overwrite" in refused.output
    for overwrite, code in ((False, "database_exists"), (True, "database_in_use")):
        with refused_as(Conflict, code):
            restore(settings, folder, overwrite=overwrite)
    in_use = run("db", "restore", str(folder), "--overwrite", "--data-dir", str(tmp_path))
    assert in_use.exit_code == 1
    assert "stop the service first" in in_use.output
    with store.read() as uow:
        assert uow.models.aliases_of("pets") == [], "nothing was changed"
    store.dispose()
    back = run("db", "restore", str(folder), "--overwrite", "--data-dir", str(tmp_path))
    assert back.exit_code == 0, back.output
    with store.read() as uow:
        assert uow.models.alias("pets", "latest").version == 1
    store.dispose()


@pytest.fixture
def keys(settings: Settings, tmp_path: Path) -> dict[str, str]:
    """Texts of keys, of which two are ended after the backup, and of a session."""
    store = Store(open_engine(settings.app_database_url))
    ensure_first_key(store, tmp_path)
    made = {name: create_key(store, name, {"admin"}) for name in ("kept", "stolen", "rotated", "changed")}
    session = begin_session(store, made["kept"][0])[1]
    rotate_key(store, made["changed"][0].id)
    back_up(settings, tmp_path / "backup")
    revoke_key(store, made["stolen"][0].id)
    new = rotate_key(store, made["rotated"][0].id, 3600.0)[1]
    store.dispose()
    first = (tmp_path / FILE_NAME).read_text(encoding="ascii").strip()
    return {name: text for name, (_, text) in made.items()} | {"new": new, "session": session, "first": first}


def accepted(settings: Settings, keys: dict[str, str]) -> set[str]:
    """Which texts a service over the database accepts."""
    client = Client(create_app(settings.model_copy(update={"require_keys": True}), queue=NoQueue()))
    try:
        answers = {
            name: client.get("/v1/models", headers={"authorization": f"Bearer {text}"}).status_code
            for name, text in keys.items()
        }
        page = client.get("/ui/models", headers={"cookie": f"stms_session={keys['session']}"})
        return {name for name, code in answers.items() if code == 200} | (
            {"session"} if page.status_code == 200 else set()
        )
    finally:
        client.close()


def test_a_restore_brings_no_ended_key_and_no_session_back(
    run: Callable[..., Any], settings: Settings, tmp_path: Path, keys: dict[str, str]
):
    assert accepted(settings, keys) == {"first", "kept", "rotated", "new", "session"}, "during the overlap"
    back = run("db", "restore", str(tmp_path / "backup"), "--overwrite", "--data-dir", str(tmp_path))
    assert back.exit_code == 0, back.output
    assert "All sessions have ended" in back.output
    assert "2 keys that were revoked or rotated after the backup stay so" in back.output
    assert back.output.count("Valid: ") == 4
    assert "'kept' (admin), never used before the backup" in back.output
    assert accepted(settings, keys) == {"first", "kept", "rotated", "new"}


def test_a_restore_keeps_the_revocations_of_tokens(settings: Settings, tmp_path: Path):
    entry = TokenIssuer.model_validate(issuer_setting("https://issuer.example.com/keys"))
    store = Store(open_engine(settings.app_database_url))
    made = [revoke_tokens(store, [entry], entry.issuer, sub="before")]
    back_up(settings, tmp_path / "backup")
    made.append(revoke_tokens(store, [entry], entry.issuer, jti="after"))
    with store.engine.begin() as connection:
        for table in ("token_revocations", "api_keys"):
            connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN of_the_next_release INTEGER")
    store.dispose()
    restore(settings, tmp_path / "backup", overwrite=True)
    store = Store(open_engine(settings.app_database_url))
    assert list_revocations(store, limit=9) == (made, False)
    store.dispose()


def test_without_the_replaced_database_a_restore_warns_and_lists_the_valid_keys(
    run: Callable[..., Any], settings: Settings, tmp_path: Path, keys: dict[str, str]
):
    elsewhere = tmp_path / "elsewhere"
    back = run("db", "restore", str(tmp_path / "backup"), "--data-dir", str(elsewhere))
    assert back.exit_code == 0, back.output
    assert "valid again with their old texts" in back.output
    assert "'stolen' (admin)" in back.output
    assert accepted(Settings(data_dir=elsewhere), keys) == {"first", "kept", "stolen", "rotated"}


def test_a_restore_can_revoke_all_keys_and_make_a_new_first_one(
    run: Callable[..., Any], settings: Settings, tmp_path: Path, keys: dict[str, str]
):
    elsewhere = tmp_path / "elsewhere"
    back = run("db", "restore", str(tmp_path / "backup"), "--revoke-keys", "--data-dir", str(elsewhere))
    assert back.exit_code == 0, back.output
    file = elsewhere / FILE_NAME
    assert file.stat().st_mode & 0o777 == 0o600
    new = {"renewed": file.read_text(encoding="ascii").strip()}
    assert accepted(Settings(data_dir=elsewhere), keys | new) == {"renewed"}
    again = run("keys", "revoke-all", "--data-dir", str(elsewhere))
    assert again.exit_code == 0, again.output
    latest = {"latest": file.read_text(encoding="ascii").strip()}
    assert accepted(Settings(data_dir=elsewhere), keys | new | latest) == {"latest"}


def test_a_damaged_database_is_replaced(settings: Settings, tmp_path: Path):
    back_up(settings, tmp_path / "backup")
    for path in tmp_path.glob("stms.sqlite*"):
        path.write_bytes(b"no database" * 1000)
    restore(settings, tmp_path / "backup", overwrite=True)
    assert answers(settings)


def test_a_restore_that_is_interrupted_leaves_a_database(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    back_up(settings, tmp_path / "backup")

    def crash(_path: Path, _target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", crash)
        with pytest.raises(KeyboardInterrupt):
            restore(settings, tmp_path / "backup", overwrite=True)
    assert answers(settings), "the old databases are still there"
    restore(settings, tmp_path / "backup", overwrite=True)
    assert answers(settings)


@contextmanager
def writing(settings: Settings) -> Iterator[list[int]]:
    """A writer that increments a counter in both databases continuously, first in that of the jobs."""
    stop, written = threading.Event(), [0]

    def write() -> None:
        store = Store(open_engine(settings.app_database_url))
        with closing(sqlite3.connect(settings.data_dir / "jobs.sqlite", timeout=30)) as jobs:
            while not stop.is_set():
                jobs.execute("UPDATE counter SET n = n + 1")
                jobs.commit()
                with store.begin() as uow:
                    uow.registry.model_changed("default", "pets")
                written[0] += 1
        store.dispose()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield written
    finally:
        stop.set()
        thread.join()


def test_both_files_are_of_one_moment_while_the_service_writes(settings: Settings, tmp_path: Path):
    with writing(settings) as written:
        for number in range(5):
            seen = written[0]
            while written[0] < seen + 3:
                pass
            back_up(settings, tmp_path / f"backup {number}")
    assert written[0] > 15
    for number in range(5):
        found = []
        for name, query in (
            ("jobs", "SELECT n FROM counter"),
            ("stms", "SELECT revision FROM registry_clock"),
        ):
            with closing(sqlite3.connect(tmp_path / f"backup {number}" / f"{name}.sqlite")) as connection:
                assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
                found.append(connection.execute(query).fetchone()[0])
        # The model that `fill` published ticked the clock, too.
        assert found[0] - (found[1] - clock_at_first(tmp_path)) in {0, 1}


def clock_at_first(folder: Path) -> int:
    """The registry's revision before the counters start: increments by the model."""
    with closing(sqlite3.connect(folder / "stms.sqlite")) as connection:
        now = connection.execute("SELECT revision FROM registry_clock").fetchone()[0]
    with closing(sqlite3.connect(folder / "jobs.sqlite")) as connection:
        return int(now - connection.execute("SELECT n FROM counter").fetchone()[0])


def test_a_service_without_jobs_has_one_file(settings: Settings, tmp_path: Path):
    (tmp_path / "jobs.sqlite").unlink()
    assert set(back_up(settings, tmp_path / "backup").files) == {"stms.sqlite"}
    (tmp_path / "jobs.sqlite").write_bytes(b"")
    restore(settings, tmp_path / "backup", overwrite=True)
    assert not (tmp_path / "jobs.sqlite").exists(), "it would not fit"


def test_a_backup_goes_into_an_empty_folder_only(settings: Settings, tmp_path: Path):
    folder = tmp_path / "backup"
    back_up(settings, folder)
    with refused_as(Conflict, "backup_exists", match="not empty"):
        back_up(settings, folder)


def test_what_has_no_database_cannot_be_backed_up(tmp_path: Path):
    with refused_as(InvalidRequest, "no_database", match="There is no database"):
        back_up(Settings(data_dir=tmp_path), tmp_path / "backup")
    with closing(sqlite3.connect(tmp_path / "stms.sqlite")) as connection:
        connection.execute("CREATE TABLE other (n INTEGER)")
    with pytest.raises(InvalidRequest, match="not a database of the service"):
        back_up(Settings(data_dir=tmp_path), tmp_path / "backup")


def test_postgresql_is_left_to_its_own_tools(tmp_path: Path):
    settings = Settings(data_dir=tmp_path, database_url="postgresql://nobody@127.0.0.1:1/none")
    for work in (back_up, restore):
        with refused_as(InvalidRequest, "not_embedded", match="pg_dump"):
            work(settings, tmp_path)


@pytest.mark.parametrize(
    "harmed",
    first_short(
        [
            (lambda folder: (folder / MANIFEST).unlink(), "not a complete backup", "no_backup"),
            (lambda folder: (folder / MANIFEST).write_text("{"), "cannot be read", "backup_damaged"),
            (lambda folder: edit(folder, format="other"), "not of format", "backup_damaged"),
            (lambda folder: edit(folder, files={}), "not of format", "backup_damaged"),
            (lambda folder: edit(folder, schema="9999"), "newer program", "backup_too_new"),
            (lambda folder: edit(folder, schema="0027"), "before 1.0.0", "backup_too_old"),
            (lambda folder: (folder / "stms.sqlite").unlink(), "missing or cut off", "backup_damaged"),
            (
                lambda folder: (folder / "stms.sqlite").write_bytes(b"cut"),
                "missing or cut off",
                "backup_damaged",
            ),
            (lambda folder: flip(folder / "stms.sqlite"), "damaged", "backup_damaged"),
        ],
        2,
    ),
)
def test_what_is_no_whole_backup_is_refused_before_anything_is_changed(
    settings: Settings, tmp_path: Path, harmed: tuple[Callable[[Path], object], str, str]
):
    harm, message, code = harmed
    folder = tmp_path / "backup"
    back_up(settings, folder)
    harm(folder)
    before = answers(settings)
    with refused_as(InvalidRequest, code, match=message):
        restore(settings, folder, overwrite=True)
    assert answers(settings) == before
    assert not list(tmp_path.glob("*.restoring"))


def edit(folder: Path, **changed: Any) -> None:
    document = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(document | changed))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-10] ^= 1
    path.write_bytes(content)


def test_a_database_that_cannot_be_looked_at_is_told(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    back_up(settings, tmp_path / "backup")

    class Broken:
        def execute(self, _statement: str) -> None:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorname = "SQLITE_IOERR"
            raise error

        def close(self) -> None:
            """Nothing is open."""

    monkeypatch.setattr(backup.sqlite3, "connect", lambda *_, **__: Broken())
    with pytest.raises(sqlite3.OperationalError, match="I/O"):
        restore(settings, tmp_path / "backup", overwrite=True)


@pytest.mark.long
def test_postgresql_restored_by_its_own_tools_answers_the_same(
    postgres_server: str, postgres_tools: Path, postgres_address: str, tmp_path: Path
):
    fill(postgres_address)
    before = answers(Settings(data_dir=tmp_path / "a", database_url=postgres_address))
    dump = tmp_path / "stms.dump"
    subprocess.run(
        [postgres_tools / "pg_dump", "--format=custom", f"--file={dump}", postgres_address], check=True
    )
    with psycopg.connect(postgres_server + "postgres", autocommit=True) as connection:
        connection.execute("CREATE DATABASE restored")
        command = ["pg_restore", "--exit-on-error", "--single-transaction"]
        subprocess.run(
            [postgres_tools / command[0], *command[1:], f"--dbname={postgres_server}restored", dump],
            check=True,
        )
        settings = Settings(data_dir=tmp_path / "b", database_url=f"{postgres_server}restored")
        assert answers(settings) == before
        connection.execute("DROP DATABASE restored WITH (FORCE)")
