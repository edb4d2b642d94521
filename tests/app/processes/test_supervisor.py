"""The supervisor of `stms serve`, with short programs in place of API and worker."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from app.processes import supervisor
from app.processes.listener import CannotListen, require_free
from app.processes.supervisor import Command, RestartPolicy, Supervisor

SLEEP = "import time; time.sleep(500)"
IGNORE_SIGTERM = (
    "import signal, sys, time; signal.signal(15, signal.SIG_IGN); open(sys.argv[1], 'w'); time.sleep(500)"
)


@pytest.fixture(autouse=True)
def _ignore_late_signals():
    """Ignore signals that arrive after the supervisor has restored the handlers."""
    before = {
        number: signal.signal(number, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Program(Command):
    """A child process that runs ``code``; starts: how often it was started."""

    def __init__(self, code: str, *arguments: str) -> None:
        super().__init__("unused", os.environ)
        self.arguments = [code, *arguments]
        self.starts = 0

    def start(self) -> None:
        self.starts += 1
        self._process = subprocess.Popen([sys.executable, "-c", *self.arguments], process_group=0)
        self._started = time.monotonic()


def supervise(api: str, worker: str) -> tuple[Supervisor, list[str]]:
    lines: list[str] = []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    supervised = Supervisor(address, os.environ, lines.append)
    supervised._api, supervised._worker = Program(api), Program(worker)
    return supervised, lines


def send_later(seconds: float, *signals: int, once_exists: Path | None = None) -> threading.Thread:
    """Send signals to this process, with a pause of ``seconds`` before each, once a file exists."""

    def send() -> None:
        deadline = time.monotonic() + 120
        while once_exists is not None and not once_exists.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        for number in signals:
            time.sleep(seconds)
            os.kill(os.getpid(), number)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


def test_the_service_ends_when_the_api_ends():
    supervised, lines = supervise("import sys; sys.exit(3)", SLEEP)
    assert supervised.run() == 1
    assert "exit code 3" in lines[-1]
    assert not supervised._worker.running


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_both_and_the_handlers_are_restored(number):
    before = signal.getsignal(number)
    supervised, _ = supervise(SLEEP, SLEEP)
    sender = send_later(0.5, number)
    assert supervised.run() == 0
    sender.join()
    # SIGTERM alone lets the API go on listening for a while.
    assert supervised._api.exit_code == -(signal.SIGTERM if number == signal.SIGTERM else signal.SIGHUP)
    assert supervised._worker.exit_code == -signal.SIGTERM
    assert signal.getsignal(number) is before


def test_a_child_that_ignores_the_signal_is_killed_after_the_grace_period(monkeypatch, tmp_path):
    monkeypatch.setattr(supervisor, "_GRACE_SECONDS", 0.3)
    supervised, _ = supervise(SLEEP, SLEEP)
    supervised._worker = Program(IGNORE_SIGTERM, str(tmp_path / "up"))
    sender = send_later(0.1, signal.SIGTERM, once_exists=tmp_path / "up")
    assert supervised.run() == 0
    sender.join()
    assert supervised._worker.exit_code == -signal.SIGKILL


def test_a_second_signal_kills_without_delay(tmp_path):
    supervised, _ = supervise(SLEEP, SLEEP)
    supervised._worker = Program(IGNORE_SIGTERM, str(tmp_path / "up"))
    sender = send_later(0.3, signal.SIGINT, signal.SIGINT, once_exists=tmp_path / "up")
    started = time.monotonic()
    assert supervised.run() == 0
    assert time.monotonic() - started < supervisor._GRACE_SECONDS
    sender.join()
    assert supervised._worker.exit_code == -signal.SIGKILL


def test_a_dead_worker_is_restarted(monkeypatch, tmp_path):
    monkeypatch.setattr(supervisor, "_FIRST_PAUSE", 0.05)
    monkeypatch.setattr(supervisor, "is_alive", lambda address: True)
    supervised, lines = supervise(SLEEP, SLEEP)
    first_dies = "import os, sys, time; os.path.exists(sys.argv[1]) or sys.exit(4); open(sys.argv[2], 'w')"
    first_dies += "; time.sleep(500)"
    supervised._worker = worker = Program(first_dies, str(tmp_path / "again"), str(tmp_path / "up"))
    start = worker.start

    def start_and_mark() -> None:
        start()
        if worker.starts == 1:
            worker._process.wait()
            (tmp_path / "again").touch()

    worker.start = start_and_mark
    sender = send_later(0.1, signal.SIGTERM, once_exists=tmp_path / "up")
    assert supervised.run() == 0
    sender.join()
    assert worker.starts == 2
    assert "listens at" in lines[0]
    assert lines[1] == "The worker ended with exit code 4; next start in 0.05 s."


def test_a_slow_start_is_reported_once(monkeypatch):
    monkeypatch.setattr(supervisor, "_READY_SECONDS", 0.1)
    supervised, lines = supervise(SLEEP, SLEEP)
    sender = send_later(1.0, signal.SIGTERM)
    supervised.run()
    sender.join()
    assert len(lines) == 1
    assert "does not answer" in lines[0]


def test_pauses_double_up_to_a_limit_and_are_reset_by_a_healthy_minute():
    policy = RestartPolicy()
    assert [policy.pause_after(0.1) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert policy.pause_after(60.0) == 1


def test_a_command_that_was_never_started_can_be_stopped():
    child = Command("api", {})
    child.terminate()
    child.kill()
    assert child.exit_code is None
    assert not child.running


def test_a_port_in_use_is_reported():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen, match=f"port {port}: Address already in use"):
            require_free("127.0.0.1", port)


def test_port_0_selects_a_free_port():
    assert require_free("127.0.0.1", 0) > 1024
    assert require_free("::1", 0) > 1024


@pytest.mark.parametrize("can_roll", [True, False])
def test_sighup_is_forwarded_to_an_api_that_can_replace_its_processes(tmp_path, monkeypatch, can_roll):
    monkeypatch.setattr(supervisor, "is_alive", lambda address: True)
    received = "import signal, sys, time; signal.signal(1, lambda *_: open(sys.argv[1], 'w'));"
    received += "open(sys.argv[2], 'w'); time.sleep(500)"
    supervised, lines = supervise(SLEEP, SLEEP)
    supervised._can_roll = can_roll
    supervised._api = Program(received, str(tmp_path / "received"), str(tmp_path / "up"))

    def send_signals() -> None:
        send_later(0.1, signal.SIGHUP, once_exists=tmp_path / "up").join()
        deadline = time.monotonic() + 120
        while not ((tmp_path / "received").exists() or len(lines) > 1) and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=send_signals)
    thread.start()
    assert supervised.run() == 0
    thread.join()
    assert (tmp_path / "received").exists() is can_roll
    assert any("--api-processes 2" in line for line in lines) is not can_roll
