"""`stms webhooks` on a real server: from the creation to an event that a receiver verifies."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook as Verifier

from app.commands.demo.temporary_server import temporary_server
from tests.app.jobs.conftest import wait_for
from tests.receiver import Receiver, receiver

pytestmark = pytest.mark.long
Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def found() -> Iterator[Receiver]:
    with receiver(lambda number: 500 if number == 1 else 200) as started:
        yield started


@pytest.fixture(scope="module")
def address(found: Receiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    quick = {"STMS_SPARE_SOLVER": "false", "STMS_WEBHOOKS": found.url}
    with temporary_server(tmp_path_factory.mktemp("webhooks"), "--no-keys", **quick) as server:
        yield server.address


def test_a_webhook_is_made_tested_changed_repeated_and_deleted(
    run: Ask, address: str, found: Receiver, tmp_path: Path
):
    def ask(*arguments: str, code: int = 0) -> str:
        result = run("webhooks", *arguments, STMS_URL=address)
        assert result.exit_code == code, result.output
        return str(result.stdout + result.stderr)

    assert "There are no webhooks." in ask("list")
    assert "STMS_WEBHOOKS" in ask("create", "ours", "https://elsewhere.example.com/", code=1)
    secret = ask("create", "ours", f"{found.url}/stms").split()[-1]
    [webhook] = json.loads(ask("list", "--json"))
    assert len(webhook["events"]) == 14
    assert "with status 200" in ask("test", webhook["id"])
    headers, body = found.requests[0]
    assert Verifier(secret).verify(body, headers)["type"] == "webhook.test"
    assert "answered with status 500" in ask("test", webhook["id"], code=1)
    wait_for(lambda: len(found.requests) == 3, 60)
    wait_for(lambda: "waiting" not in ask("deliveries", webhook["id"]), 60)
    delivery = json.loads(ask("deliveries", webhook["id"], "--json"))[0]
    assert (delivery["state"], delivery["attempts"]) == ("delivered", 2)
    ask("repeat", webhook["id"], delivery["id"])
    wait_for(lambda: len(found.requests) == 4, 60)
    assert found.requests[3][0]["webhook-id"] == delivery["event_id"]
    ask("change", webhook["id"], "--event", "version.published", "--model", "heads", "--disable")
    [changed] = json.loads(ask("list", "--json"))
    assert (changed["events"], changed["models"]) == (["version.published"], ["heads"])
    assert "disabled: request" in ask("list")
    ask("change", webhook["id"], "--enable")
    rows = tmp_path / "rows.csv"
    rows.write_text("a,b,kind\n" + "".join(f"{i},{i * i % 7},{'xy'[i % 2]}\n" for i in range(40)))
    train = ("train", str(rows), "--label-column", "kind", "--set", "automatic=false", "--model", "heads")
    assert run(*train, STMS_URL=address).exit_code == 0
    wait_for(lambda: found.events[-1]["type"] == "version.published", 60)
    assert found.events[-1]["data"]["links"] == {"version": "/v1/models/heads/versions/1"}
    assert len(found.requests) == 5, "it wants neither the end of the job nor the alias"
    ask("delete", webhook["id"])
    assert "There is no webhook" in ask("deliveries", webhook["id"], code=1)
