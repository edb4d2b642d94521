"""`stms ping`: the state of servers and workers, as health checks see it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from app.commands import ping
from app.commands.output import CommandFailed
from app.commands.ping import ServiceCommand
from app.domain.entities import Worker
from app.store.engine import open_engine
from app.store.migrate import upgrade
from app.store.unit_of_work import Store

HERE = socket.gethostname()[:255]
Beat = Callable[..., None]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STMS_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("STMS_DATABASE_URL", raising=False)
    monkeypatch.delenv("STMS_URL", raising=False)
    return tmp_path


@pytest.fixture
def beat(folder: Path) -> Beat:
    """Lets a worker be heard of so many seconds ago."""
    address = f"sqlite:///{folder / 'stms.sqlite'}"
    upgrade(address)

    def write(ago: float, host: str = HERE) -> None:
        at = time.time() - ago
        store = Store(open_engine(address))
        with store.begin() as uow:
            uow.workers.beat(Worker(f"w{ago}", host, 1, started_at=at, beat_at=at))
        store.dispose()

    return write


def run(*arguments: str) -> Result:
    from app import cli

    return CliRunner().invoke(cli.build(), ["ping", *arguments])


@pytest.mark.parametrize(
    ("line", "started"),
    [
        ("/opt/venv/bin/python /opt/venv/bin/stms serve", ServiceCommand("serve")),
        ("/init -- stms worker --data-dir /d", ServiceCommand("worker", data_dir=Path("/d"))),
        ("stms api --api-processes 4 --port=9000 --host 0.0.0.0", ServiceCommand("api", "0.0.0.0", 9000)),
        ("stms api --port", ServiceCommand("api")),
    ],
)
def test_what_a_container_runs_is_read_from_its_first_command_line(line, started):
    assert ServiceCommand.parse(line.split()) == started


def test_a_container_that_runs_something_else_has_no_health():
    with pytest.raises(CommandFailed, match="is not `stms serve`"):
        ServiceCommand.parse(["stms", "db", "upgrade"])


def test_a_worker_with_a_recent_heartbeat_is_running(beat):
    beat(0.0)
    result = run("--worker")
    assert (result.exit_code, "is running" in result.output) == (0, True)


def test_a_worker_with_an_old_heartbeat_is_not_running(beat):
    beat(60.0)
    result = run("--worker")
    assert result.exit_code == 1
    assert "the last heartbeat is 6" in result.output


def test_a_worker_of_another_machine_does_not_count(beat):
    beat(0.0, host="elsewhere")
    result = run("--worker")
    assert (result.exit_code, "there is no heartbeat" in result.output) == (1, True)


def test_a_database_without_tables_is_an_error(folder):
    result = run("--worker")
    assert (result.exit_code, "no schema, or an older one" in result.output) == (1, True)


def test_a_server_that_does_not_answer_is_not_ready(folder):
    result = run("--server", "http://127.0.0.1:9")
    assert (result.exit_code, "No server answers" in result.output) == (1, True)


def test_a_container_of_a_worker_is_as_healthy_as_the_worker(beat, monkeypatch):
    monkeypatch.setattr(ping, "first_command_line", lambda: ["stms", "worker"])
    assert run("--container").exit_code == 1
    beat(0.0)
    assert run("--container").exit_code == 0


def test_a_container_of_both_needs_both(beat, folder, monkeypatch):
    asked = []
    monkeypatch.setattr(ping, "first_command_line", lambda: ["stms", "serve", "--port", "9000"])
    monkeypatch.setattr(ping, "ping_server", lambda *arguments: asked.append(arguments))
    assert run("--container").exit_code == 1
    beat(0.0)
    assert run("--container").exit_code == 0
    assert asked == [("http://127.0.0.1:9000", "/readyz/queries", None)] * 2


def test_a_container_of_a_server_does_not_ask_after_workers(folder, monkeypatch):
    asked = []
    monkeypatch.setattr(ping, "first_command_line", lambda: ["stms", "api", "--host", "0.0.0.0"])
    monkeypatch.setattr(ping, "ping_server", lambda *arguments: asked.append(arguments))
    assert run("--container").exit_code == 0
    assert asked == [("http://127.0.0.1:8000", "/readyz/queries", None)]


def test_the_first_command_line_is_that_of_process_one():
    assert any(ping.first_command_line())
