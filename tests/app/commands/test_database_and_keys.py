"""`stms db` and `stms keys`, directly on a database."""

from __future__ import annotations

import json
import threading
import time
from types import SimpleNamespace

import pytest

from app.commands import database
from app.services.first_key import FIRST_KEY_ID
from app.services.keys import KeyRing, all_keys, digest_of
from app.store.engine import open_engine
from app.store.migrate import upgrade
from app.store.unit_of_work import Store


@pytest.fixture
def data_dir(run, tmp_path):
    assert run("db", "upgrade", "--data-dir", str(tmp_path)).exit_code == 0
    return str(tmp_path)


def test_a_database_is_out_of_date_until_it_is_upgraded(run, tmp_path):
    data_dir = str(tmp_path)
    before = run("db", "current", "--data-dir", data_dir)
    assert before.exit_code == 1
    assert "Run `stms db upgrade`" in before.stderr
    assert run("db", "upgrade", "--data-dir", data_dir).exit_code == 0
    assert run("db", "upgrade", "--data-dir", data_dir).exit_code == 0
    assert run("db", "current", "--data-dir", data_dir).exit_code == 0


@pytest.mark.parametrize("command", [["db", "upgrade", "--wait", "0.6"], ["db", "current"], ["keys", "list"]])
def test_a_database_out_of_reach_is_a_sentence(run, command):
    result = run(*command, STMS_DATABASE_URL="postgresql://nobody:secret@127.0.0.1:1/none")
    assert result.exit_code == 1
    assert "The database cannot be reached" in result.stderr
    assert "secret" not in result.output


def test_the_schema_is_waited_for_with_progress_on_standard_error(
    run, tmp_path, empty_database_address, monkeypatch
):
    """As init containers do: another container runs the migration meanwhile."""
    folder, address = ("--data-dir", str(tmp_path)), {"STMS_DATABASE_URL": empty_database_address}
    short = run("db", "current", "--wait", "0.3", *folder, **address)
    assert short.exit_code == 1
    assert short.stdout == ""
    assert short.stderr.count("Waiting for up to 0 s: The database has no schema, or an older one.") == 1
    assert "Error: The database has no schema" in short.stderr
    migration = threading.Thread(target=upgrade, args=[empty_database_address])

    def sleep(seconds: float) -> None:
        if migration.ident is None:
            migration.start()
        time.sleep(seconds)

    clock = SimpleNamespace(monotonic=time.monotonic, sleep=sleep)
    monkeypatch.setattr(database, "time", clock)
    waited = run("db", "current", "--wait", "60", *folder, **address)
    migration.join()
    assert waited.exit_code == 0
    assert waited.stdout == "The database is up to date.\n"
    assert waited.stderr.count("Waiting for up to 60 s") == 1
    quiet = run("db", "current", "--wait", "60", *folder, **address)
    assert (quiet.exit_code, quiet.stderr) == (0, "")


def test_what_waiting_cannot_mend_is_said_at_once(run, data_dir):
    began = time.monotonic()
    invalid = run("db", "current", "--wait", "60", "--data-dir", data_dir, STMS_PORT="none")
    assert invalid.exit_code == 1
    assert "STMS_PORT: Input should be a valid integer" in invalid.stderr
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("revision", "message"),
    [("future", "the schema of a newer release"), ("0027", "the schema 0027, of a release before 1.0.0")],
)
@pytest.mark.parametrize("command", ["current", "upgrade"])
def test_the_schema_of_another_release_is_not_waited_for(run, data_dir, command, revision, message):
    engine = open_engine(f"sqlite:///{data_dir}/stms.sqlite")
    with engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{revision}'")
    engine.dispose()
    began = time.monotonic()
    refused = run("db", command, "--wait", "60", "--data-dir", data_dir)
    assert refused.exit_code == 1
    assert f"The database has {message}." in refused.stderr
    assert time.monotonic() - began < 30


def test_settings_that_are_not_valid_are_named_without_their_values(run, tmp_path):
    secret = tmp_path / "STMS_REMOTE_TEACHER_TOKENS"
    secret.write_text('{"https://a.example": "hidden')
    secret.chmod(0o600)
    result = run("db", "current", STMS_SECRETS_DIR=str(tmp_path))
    assert result.exit_code == 1
    assert "remote_teacher_tokens" in result.stderr
    secret.write_text('{"https://a.example": "hidden one"}')
    result = run("db", "current", STMS_SECRETS_DIR=str(tmp_path))
    assert "STMS_REMOTE_TEACHER_TOKENS: Value error, the token of https://a.example" in result.stderr
    assert "hidden" not in result.output
    secret.chmod(0o644)
    result = run("api", STMS_SECRETS_DIR=str(tmp_path))
    assert result.exit_code == 1
    assert "chmod 600" in result.stderr


def test_a_new_text_is_that_of_a_first_key_and_stored_nowhere(run, data_dir):
    texts = {run("keys", "new-text").stdout for _ in range(2)}
    assert len(texts) == 2
    assert all(digest_of(text.removesuffix("\n"))[0] == FIRST_KEY_ID for text in texts)
    assert "There are no keys." in run("keys", "list", "--data-dir", data_dir).stdout


def test_a_key_is_shown_once_and_recognised(run, data_dir):
    made = run("keys", "create", "camera", "--scope", "query", "--model", "faces", "--data-dir", data_dir)
    assert made.exit_code == 0
    secret = made.stdout.splitlines()[-1]
    store = Store(open_engine(f"sqlite:///{data_dir}/stms.sqlite"))
    try:
        key = KeyRing(all_keys(store)).authenticate(secret)
    finally:
        store.dispose()
    assert (key.name, key.scopes, key.models) == ("camera", {"query"}, {"faces"})
    listed = run("keys", "list", "--json", "--data-dir", data_dir)
    assert secret not in listed.stdout
    assert json.loads(listed.stdout)[0]["id"] == key.id
    assert "digest" not in json.loads(listed.stdout)[0]


def test_a_revoked_key_is_listed_as_such(run, data_dir):
    run("keys", "create", "old", "--scope", "admin", "--data-dir", data_dir)
    key = json.loads(run("keys", "list", "--json", "--data-dir", data_dir).stdout)[0]
    assert key["revoked_at"] is None
    assert run("keys", "revoke", key["id"], "--data-dir", data_dir).exit_code == 0
    assert json.loads(run("keys", "list", "--json", "--data-dir", data_dir).stdout)[0]["revoked_at"]
    assert "admin" in run("keys", "list", "--data-dir", data_dir).stdout


def test_no_keys_is_said(run, data_dir):
    assert "There are no keys." in run("keys", "list", "--data-dir", data_dir).stdout


@pytest.mark.long
def test_what_is_old_is_counted_before_it_is_deleted(run, data_dir):
    store = Store(open_engine(f"sqlite:///{data_dir}/stms.sqlite"))
    with store.begin() as uow:
        uow.blobs.put([bytes(2_000_000)])
        uow.jobs.add_idempotency_key("me", "key", "0" * 64, "job_1")
        for table in ("blobs", "idempotency_keys"):
            uow.connection.exec_driver_sql(f"UPDATE {table} SET created_at = 1.0")
    text = "0 old jobs, 1 idempotency keys, 0 audit records, 1 unused blobs of 2.0 MB."
    for _ in range(2):
        counted = run("db", "clean", "--dry-run", "--data-dir", data_dir)
        assert f"Would delete: {text}" in counted.stdout
        assert "Would delete: 0 API keys that have ended." in counted.stdout
    assert f"Deleted: {text}" in run("db", "clean", "--data-dir", data_dir).stdout
    with store.read() as uow:
        assert uow.blobs.unused(2e12) == []
    store.dispose()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["create", "x", "--scope", "everything"], "scopes: Scopes must be one or more of"),
        (["create", "x", "--scope", "admin", "--model", "m"], "models: Only a key"),
        (["revoke", "key_none"], "There is no API key"),
    ],
)
def test_a_wrong_wish_is_a_sentence(run, data_dir, arguments, message):
    result = run("keys", *arguments, "--data-dir", data_dir)
    assert result.exit_code == 1
    assert message in result.stderr


def test_keys_need_the_newest_schema(run, tmp_path):
    result = run("keys", "list", "--data-dir", str(tmp_path))
    assert result.exit_code == 1
    assert "stms db upgrade" in result.stderr


def test_keys_for_a_file_are_appended_to_it_and_stored_nowhere(run, tmp_path):
    path = tmp_path / "keys.jsonl"
    for options in ([], ["--model", "faces", "--expires-in-days", "3"]):
        made = run("keys", "create", "camera", "--offline", str(path), *options)
        assert made.exit_code == 0, made.stderr
        key_id, digest = digest_of(made.stdout.split()[-1]) or ("", "")
        line = json.loads(path.read_text().splitlines()[-1])
        assert (line["id"], line["digest"], line["scopes"]) == (key_id, digest, ["query"])
    assert line["models"] == ["faces"]
    assert 0 < line["expires_at"] - time.time() <= 3 * 86400
    for options in (["--scope", "train"], ["--tenant", "acme"], ["--scope", "nonsense"]):
        refused = run("keys", "create", "camera", "--offline", str(path), *options)
        assert refused.exit_code == 1
    assert len(path.read_text().splitlines()) == 2
    assert list(tmp_path.iterdir()) == [path]
