from __future__ import annotations

import json

SERVER = {
    "id": "srv_1",
    "host": "north",
    "pid": 7,
    "version": "0.1.0",
    "started_at": "2026-01-02T03:04:05Z",
    "beat_at": "2026-01-02T03:04:05Z",
    "alive": True,
    "processes": 2,
    "target_processes": 3,
    "queries": 120.0,
    "rows": 120.0,
    "failed_queries": 4.0,
    "requests": 9.0,
    "errors": 1.0,
    "queries_per_second": 12.34,
    "errors_per_second": 0.0,
    "latency": {"p50": 0.0012, "p95": None, "p99": None},
    "history": [],
}


def test_servers_are_shown_with_their_figures(run, written):
    written.on("GET", "/v1/servers", {"data": [SERVER], "has_more": False})
    shown = run("servers", STMS_URL=written.address)
    assert shown.exit_code == 0, shown.output
    text = " ".join(shown.stdout.split())
    assert "north 7 0.1.0 yes" in text
    assert "2/3 12.3 1.2" in text
    assert json.loads(run("servers", "--json", STMS_URL=written.address).stdout) == [SERVER]


def test_a_key_is_shown_with_what_it_may_do(run, written):
    found = {"id": "key_1", "name": "camera", "tenant": "acme", "scopes": ["query"], "models": []}
    found |= {"expires_at": None, "server": "north", "version": "0.1.0"}
    written.on("GET", "/v1/whoami", found)
    text = " ".join(run("whoami", STMS_URL=written.address).stdout.split())
    assert "camera (key_1)" in text
    assert "models all" in text
    assert json.loads(run("whoami", "--json", STMS_URL=written.address).stdout) == found


def test_the_history_of_an_alias_is_a_table(run, written):
    move = {"id": "mov_1", "alias": "production", "at": "2026-01-02T03:04:05Z", "version": 2, "previous": 1}
    move |= {"actor": "key_1", "actor_name": "Ada"}
    path = "/v1/models/pets/aliases/production/history"
    written.on("GET", path, {"data": [move], "has_more": False})
    text = run("models", "history", "pets", "production", STMS_URL=written.address).stdout
    assert "Ada" in text
    assert json.loads(
        run("models", "history", "pets", "production", "--json", STMS_URL=written.address).stdout
    )
