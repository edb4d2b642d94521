"""`stms db` and `stms keys`, directly on a database."""

from __future__ import annotations

import json

import pytest

from app.services.keys import KeyRing, list_keys
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
        key = KeyRing(list_keys(store)).authenticate(secret)
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["create", "x", "--scope", "everything"], "scopes: Scopes are one or more of"),
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
