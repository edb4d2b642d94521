"""`stms usage`."""

from __future__ import annotations

AMOUNT = {"used": 1234, "allowed": 1_000_000}
USAGE = {
    "tenant": "acme",
    "stored_bytes": AMOUNT,
    "datasets": {"used": 1, "allowed": 2},
    "versions": {"used": 3, "allowed": 4},
    "unfinished_jobs": {"used": 0, "allowed": 5},
    "keys": {"used": 6, "allowed": 7},
    "key": None,
}


def test_use_is_shown(run, written):
    written.on("GET", "/v1/usage", {"data": [USAGE], "has_more": False})
    result = run("usage", STMS_URL=written.address)
    assert result.exit_code == 0, result.output
    assert "1,234 of 1,000,000" in result.stdout
    assert "1 of 2" in result.stdout


def test_quotas_are_set(run, written):
    written.on("GET", "/v1/usage", {"data": [USAGE], "has_more": False})
    written.on("PATCH", "/v1/quotas", USAGE)
    arguments = ("--tenant", "acme", "--datasets", "7", "--json")
    assert run("usage", *arguments, STMS_URL=written.address).exit_code == 0
    changed, shown = written.requests
    assert (changed.path, changed.json) == ("/v1/quotas?tenant=acme", {"datasets": 7})
    assert shown.path == "/v1/usage?tenant=acme"
    run("usage", "--tenant", "acme", "--defaults", STMS_URL=written.address)
    names = ("stored_bytes", "datasets", "versions", "unfinished_jobs", "keys")
    assert written.requests[2].json == dict.fromkeys(names)


def test_quotas_need_a_tenant(run):
    result = run("usage", "--datasets", "7")
    assert result.exit_code == 1
    assert "--tenant" in result.output
