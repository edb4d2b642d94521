"""`stms audit` and what `stms keys` leaves in the log."""

from __future__ import annotations

import getpass
import json
import time
from urllib.parse import parse_qs, urlsplit

import pytest

from app.commands.options import operator
from app.services.audit import list_records
from app.services.keys import KeyRing, all_keys
from app.store.engine import open_engine
from app.store.unit_of_work import Store

RECORD = {
    "id": "aud_1",
    "at": "2026-01-02T03:04:05.000Z",
    "actor": "key_1",
    "actor_name": "root",
    "scope": "admin",
    "action": "alias.move",
    "object": "pets@live",
    "outcome": "done",
    "request_id": "r-1",
    "address": "192.0.2.1",
    "details": {"version": 3},
}


@pytest.fixture
def data_dir(run, tmp_path):
    assert run("db", "upgrade", "--data-dir", str(tmp_path)).exit_code == 0
    return str(tmp_path)


@pytest.fixture
def store(data_dir):
    opened = Store(open_engine(f"sqlite:///{data_dir}/stms.sqlite"))
    yield opened
    opened.dispose()


def test_records_are_shown_as_a_table_or_as_they_are(run, written):
    written.on(
        "GET", "/v1/audit", {"data": [RECORD, RECORD | {"actor_name": "", "actor": "cli"}], "has_more": False}
    )
    shown = run("audit", "--server", written.address).stdout
    for text in ("root (key_1)", "cli", "alias.move", "pets@live", "192.0.2.1", "version=3"):
        assert text in shown
    assert json.loads(run("audit", "--json", "-n", "1", "--server", written.address).stdout) == [RECORD]


def test_filters_are_passed_on(run, written):
    written.on("GET", "/v1/audit", {"data": [], "has_more": False})
    filters = ["--actor", "key_1", "--action", "a.b", "--object", "x", "--since", "2026-01-01T00:00Z"]
    result = run("audit", *filters, "--until", "2026-01-01T10:00:00+09:00", "--server", written.address)
    assert "taken as" not in result.stderr
    assert "There are no matching records." in result.stdout
    asked = written.requests[-1].path
    for part in ("actor=key_1", "action=a.b", "object=x", "since=1767225600", "until=1767229200"):
        assert part in asked


@pytest.mark.parametrize("as_json", [True, False])
def test_the_log_is_followed_line_by_line_until_it_may_not_be_read(run, written, as_json: bool):
    written.on("GET", "/v1/audit", {"data": [RECORD, RECORD | {"id": "aud_2"}], "has_more": False})
    written.on("GET", "/v1/audit", {"data": [RECORD | {"id": "aud_3", "address": None}], "has_more": False})
    written.on("GET", "/v1/audit", {"detail": "The key was revoked.", "code": "key_invalid"}, status=401)
    options = ["--follow", "--after", "aud_0", "--action", "alias.move", *(["--json"] if as_json else [])]
    result = run("audit", *options, "--server", written.address)
    assert result.exit_code == 1
    assert "revoked" in result.stderr
    lines = result.stdout.splitlines()
    if as_json:
        assert [json.loads(line)["id"] for line in lines] == ["aud_1", "aud_2", "aud_3"]
        assert json.loads(lines[0]) == RECORD
    else:
        assert lines[0].endswith("root (key_1)  aud_1  alias.move  pets@live  done  192.0.2.1  version=3")
        assert lines[2].endswith("aud_3  alias.move  pets@live  done  –  version=3")
    asked = [parse_qs(urlsplit(request.path).query) for request in written.requests]
    assert [query["after"] for query in asked] == [["aud_0"], ["aud_2"], ["aud_3"]]
    assert all((query["order"], query["action"]) == (["asc"], ["alias.move"]) for query in asked)


@pytest.fixture
def in_tokyo(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("in_tokyo")
@pytest.mark.parametrize("command", [["audit"], ["jobs", "list"]])
def test_a_time_is_of_the_zone_in_which_tables_show_times(run, written, command):
    """The time that a table shows selects the row that it is of."""
    written.on("GET", "/v1/audit", {"data": [RECORD], "has_more": False})
    written.on("GET", "/v1/training-jobs", {"data": [], "has_more": False})
    shown = "2026-01-02 12:04:05"
    assert shown in run("audit", "--server", written.address).stdout
    result = run(*command, "--since", shown, "--json", "--server", written.address)
    assert "since=1767323045" in written.requests[-1].path
    taken = (
        "--since 2026-01-02 12:04:05 is taken as 2026-01-02 12:04:05 +0900 (JST), the zone of this machine."
    )
    assert result.stderr == f"{taken}\n"
    assert isinstance(json.loads(result.stdout), list)
    now = time.time()
    assert run(*command, "--since", "2h", "--server", written.address).stderr == ""
    [since] = parse_qs(urlsplit(written.requests[-1].path).query)["since"]
    assert float(since) == pytest.approx(now - 7200, abs=60)


@pytest.mark.parametrize(
    ("command", "option"), [(["audit"], "--since"), (["audit"], "--until"), (["jobs", "list"], "--since")]
)
def test_what_is_no_time_is_told_the_forms(run, command, option):
    for text, why in (
        ("yesterday", "or a duration before now (30m, 2h, 7d)."),
        ("2026-02-30", "no such day"),
    ):
        result = run(*command, option, text, NO_COLOR="1")
        assert result.exit_code == 2
        assert why in " ".join(result.stderr.split())
        assert option in result.stderr
    assert "time zone of this machine" in " ".join(run(*command, "--help").stdout.replace("│", " ").split())


def test_keys_are_made_with_limits_rotated_and_it_is_known_who_did_it(run, data_dir, store):
    options = ["--expires-in-days", "2", "--rate-limit", "5", "--rate-burst", "7", "--data-dir", data_dir]
    first = run("keys", "create", "camera", *options).stdout.splitlines()[-1]
    [key] = all_keys(store)
    assert (key.rate_limit, key.rate_burst) == (5.0, 7)
    assert key.expires_at == pytest.approx(key.created_at + 2 * 86400, abs=60)
    made = run("keys", "rotate", key.id, "--data-dir", data_dir)
    assert made.exit_code == 0, made.output
    second = made.stdout.splitlines()[-1]
    ring = KeyRing(all_keys(store))
    assert ring.authenticate(second).id == key.id
    assert first != second
    assert run("keys", "rotate", key.id, "--overlap", "60", "--data-dir", data_dir).exit_code == 0
    assert all_keys(store)[0].previous_until is not None
    assert run("keys", "revoke", key.id, "--data-dir", data_dir).exit_code == 0
    refused = run("keys", "rotate", key.id, "--data-dir", data_dir)
    assert refused.exit_code == 1
    assert "revoked or has expired" in refused.stderr
    rows = list_records(store, limit=10)[0]
    assert [row.action for row in rows] == ["key.revoke", "key.rotate", "key.rotate", "key.create"]
    assert {(row.actor, row.actor_name) for row in rows} == {("cli", getpass.getuser())}
    listed = json.loads(run("keys", "list", "--json", "--data-dir", data_dir).stdout)
    assert listed[0]["expires_at"] > listed[0]["created_at"]
    assert "digest" not in str(listed)
    assert "camera" in run("keys", "list", "--data-dir", data_dir).stdout


def test_a_user_without_a_name_has_a_number(monkeypatch):
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 10001")

    monkeypatch.setattr(getpass, "getuser", nobody)
    assert operator().id == "cli"
    assert operator().name.isdigit()
