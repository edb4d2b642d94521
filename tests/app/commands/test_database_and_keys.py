"""`stms db` and `stms keys`, directly on a database."""

from __future__ import annotations

import json

import pytest

from app.services.keys import KeyRing, all_keys
from app.store.engine import open_engine
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
        assert uow.blobs.unused(2e12, limit=10) == []
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
