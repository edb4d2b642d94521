"""The manager: restarts, rolling restarts and signals; and the real service under load."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner

from app.cli import build
from app.processes import manager as module
from app.processes.command import Command, RestartPolicy
from app.processes.listener import CannotListen, require_free
from app.processes.manager import Child, Manager
from app.processes.scoreboard import Scoreboard, State
from app.store.unit_of_work import Store
from stms_client import Client
from tests.system.published import linear_student, linear_teacher, publish

PROGRAM = """
import os, signal, sys, time
from app.processes.scoreboard import Scoreboard, State
scoreboard, index, stage = Scoreboard.inherited(int(sys.argv[1])), int(sys.argv[2]), sys.argv[3]
if stage == "broken":
    sys.exit(3)
slot = scoreboard.slots[index]
slot.claim(State.STARTING)
if stage == "ignores_sigterm":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if stage != "slow":
    slot.state = State.SERVING
print(os.getpid(), flush=True)
while True:
    time.sleep(0.02)
    if stage != "hangs":
        slot.heartbeat()
"""


WORKERS = {
    "ends": "import sys; sys.exit(4)",
    "ignores_sigterm": "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(500)",
}


class Program(Command):
    """A process without a server: it claims its slot and waits. `stage` selects the behaviour of new ones."""

    stage = "well"

    def __init__(self, command: str, environment: object, *arguments: str, **_options: object) -> None:
        super().__init__(command, {})
        if command == "worker":
            return
        _, self.scoreboard, self.slot = arguments[-1].split(":")
        self.control_socket = arguments[1] if arguments[0] == "--control-socket" else None

    def start(self) -> None:
        if self.command == "worker":
            self.starts = getattr(self, "starts", 0) + 1
            self.started_as = self.stage
            self._started = time.monotonic()
            code = WORKERS.get(self.stage, "import time; time.sleep(500)")
            self._process = subprocess.Popen([sys.executable, "-c", code], process_group=0)
            return
        command = [sys.executable, "-c", PROGRAM, self.scoreboard, self.slot, type(self).stage]
        self._process = subprocess.Popen(
            command, process_group=0, pass_fds=[int(self.scoreboard)], stdout=subprocess.DEVNULL
        )
        self._started = time.monotonic()


@pytest.fixture(autouse=True)
def _programs(monkeypatch):
    """Late signals are ignored; children are short programs unless a test starts the real command."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.signal(number, lambda *_: None) for number in numbers}
    monkeypatch.setattr(module, "Command", Program)
    monkeypatch.setattr(Program, "stage", "well")
    monkeypatch.setattr(module, "_FIRST_PAUSE", 0.05)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Parent:
    """A manager of two query processes, and a thread that runs the test's story against it."""

    def __init__(self, environment: dict[str, str] | None = None, **options: Any) -> None:
        self.lines: list[str] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        report = self.lines.append
        self.manager = Manager(self.listener, environment or {}, report, size=2, grace=1.0, **options)
        self.failure: BaseException | None = None

    def run(self, story: Callable[[], None]) -> int:
        def run_story() -> None:
            try:
                story()
            except BaseException as error:  # noqa: BLE001 - raised again below
                self.failure = error
                self.manager._stop_signals = 1

        thread = threading.Thread(target=run_story, daemon=True)
        thread.start()
        code = self.manager.run()
        thread.join(120)
        if self.failure is not None:
            raise self.failure
        return code

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < deadline, self.lines
            time.sleep(0.01)

    def reported(self, text: str, times: int = 1) -> Callable[[], bool]:
        return lambda: sum(text in line for line in self.lines) >= times

    def pids(self) -> list[int | None]:
        return [child.command.pid for child in self.manager._children]


@pytest.fixture
def parent() -> Parent:
    return Parent()


def stop(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_all_processes_and_restores_the_handlers(parent, number):
    before = signal.getsignal(number)

    def story() -> None:
        parent.wait_for(parent.reported("2 query processes serve."))
        stop(number)

    assert parent.run(story) == 0
    # SIGTERM alone lets them go on listening for a while.
    sent = signal.SIGTERM if number == signal.SIGTERM else signal.SIGHUP
    codes = [child.command.exit_code for child in parent.manager._children]
    assert codes == [-signal.SIGHUP, -sent, -sent], "the control process ends after the others"
    assert not Path(parent.manager._folder.name).exists()
    assert signal.getsignal(number) is before
    assert parent.listener.fileno() == -1


def test_a_dead_process_is_restarted_and_counted(parent):
    def story() -> None:
        parent.wait_for(parent.reported("2 query processes serve."))
        [control, victim, survivor] = parent.pids()
        os.kill(victim, signal.SIGKILL)
        parent.wait_for(parent.reported("ended with exit code -9; next start in 0.05 s"))
        parent.wait_for(lambda: len(parent.manager._scoreboard.serving()) == 2)
        assert parent.pids()[::2] == [control, survivor]
        assert parent.pids()[1] != victim
        assert parent.manager._scoreboard.crash_count == 1
        stop()

    assert parent.run(story) == 0


def test_the_control_process_is_restarted_while_the_others_go_on(parent):
    def story() -> None:
        parent.wait_for(parent.reported("2 query processes serve."))
        [control, *others] = parent.pids()
        slots = [child.slot.is_control for child in parent.manager._children]
        assert slots == [True, False, False]
        assert [child.command.control_socket for child in parent.manager._children] == [
            None,
            *[str(parent.manager._control)] * 2,
        ]
        os.kill(control, signal.SIGKILL)
        parent.wait_for(parent.reported("ended with exit code -9; next start in 0.05 s"))
        parent.wait_for(lambda: parent.manager._children[0].slot.state is State.SERVING)
        assert parent.pids()[1:] == others
        assert parent.pids()[0] != control
        stop()

    assert parent.run(story) == 0


def test_a_hung_process_is_killed_and_restarted(parent, monkeypatch):
    monkeypatch.setattr(module, "_HANG_SECONDS", 1.0)
    monkeypatch.setattr(Program, "stage", "hangs")

    def story() -> None:
        parent.wait_for(parent.reported("2 query processes serve."))
        monkeypatch.setattr(Program, "stage", "well")
        parent.wait_for(parent.reported("hangs and is killed", 3))
        parent.wait_for(lambda: len(parent.manager._scoreboard.serving()) == 2)
        stop()

    assert parent.run(story) == 0


def test_a_failed_first_start_ends_the_service(parent, monkeypatch):
    monkeypatch.setattr(Program, "stage", "broken")
    assert parent.run(lambda: None) == 1
    assert "could not start: exit code 3" in parent.lines[-1]


def test_sighup_replaces_the_processes_one_by_one(parent):
    def story() -> None:
        parent.wait_for(parent.reported("2 query processes serve."))
        before = parent.pids()
        stop(signal.SIGHUP)
        least = 2
        while not parent.reported("has replaced process", 3)():
            least = min(least, len(parent.manager._scoreboard.serving()))
            time.sleep(0.001)
        assert least == 2
        assert not set(before) & set(parent.pids())
        parent.wait_for(lambda: not parent.manager._stopping)
        assert parent.manager._scoreboard.crash_count == 0
        stop()

    assert parent.run(story) == 0


@pytest.mark.parametrize("stage", ["broken", "slow"])
def test_a_rolling_restart_is_abandoned_when_a_successor_does_not_start(parent, monkeypatch, stage):
    def story() -> None:
        parent.wait_for(parent.reported("2 query processes serve."))
        before = parent.pids()
        monkeypatch.setattr(module, "_START_SECONDS", -1.0 if stage == "slow" else 60.0)
        monkeypatch.setattr(Program, "stage", stage)
        stop(signal.SIGHUP)
        parent.wait_for(parent.reported("did not get ready; the remaining old processes continue"))
        assert parent.pids() == before
        monkeypatch.setattr(Program, "stage", "well")
        monkeypatch.setattr(module, "_START_SECONDS", 60.0)
        stop(signal.SIGHUP)
        parent.wait_for(parent.reported("has replaced process", 3))
        stop()

    assert parent.run(story) == 0


def test_a_process_that_ignores_sigterm_is_killed_after_the_grace_period(parent, monkeypatch):
    monkeypatch.setattr(Program, "stage", "ignores_sigterm")
    parent.manager._grace = 0.3

    def story() -> None:
        parent.wait_for(parent.reported("2 query processes serve."))
        stop()

    assert parent.run(story) == 0
    assert [child.command.exit_code for child in parent.manager._children] == [-signal.SIGHUP, -9, -9]


def test_a_second_signal_kills_without_delay(parent, monkeypatch):
    monkeypatch.setattr(Program, "stage", "ignores_sigterm")
    parent.manager._grace = 60.0

    def story() -> None:
        parent.wait_for(parent.reported("2 query processes serve."))
        stop()
        time.sleep(0.3)
        stop()

    started = time.monotonic()
    assert parent.run(story) == 0
    assert time.monotonic() - started < 30


def test_a_process_that_dies_during_a_rolling_restart_is_replaced(parent):
    def story() -> None:
        parent.wait_for(parent.reported("2 query processes serve."))
        os.kill(parent.pids()[1], signal.SIGKILL)
        stop(signal.SIGHUP)
        parent.wait_for(parent.reported("has replaced process", 3))
        parent.wait_for(lambda: not parent.manager._stopping)
        assert len(parent.manager._scoreboard.serving()) == 2
        stop()

    assert parent.run(story) == 0


def test_a_child_that_never_ran_has_ended():
    scoreboard = Scoreboard.shared(1)
    child = Child(Command("api", {}), scoreboard.slots[0], RestartPolicy(), is_control=False)
    assert child.has_ended()
    assert not child.is_hung()
    assert scoreboard.slots[0].state is State.FREE
    scoreboard.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_runs_beside_the_others_and_ends_with_them(number):
    parent = Parent(worker=True, address="http://127.0.0.1:8000")
    worker = parent.manager._worker

    def story() -> None:
        parent.wait_for(parent.reported("STMS listens at http://127.0.0.1:8000 "))
        parent.wait_for(lambda: worker.running)
        stop(number)

    assert parent.run(story) == 0
    assert worker.exit_code == -signal.SIGTERM


def test_a_dead_worker_is_restarted_after_a_pause(monkeypatch):
    parent = Parent(worker=True)
    parent.manager._worker_policy = RestartPolicy(0.05)
    worker = parent.manager._worker

    def story() -> None:
        monkeypatch.setattr(Program, "stage", "ends")
        parent.wait_for(parent.reported("The worker ended with exit code 4; next start in 0.05 s."))
        monkeypatch.setattr(Program, "stage", "well")
        parent.wait_for(parent.reported("2 query processes serve."))
        parent.wait_for(lambda: worker.running and worker.started_as == "well")
        starts = worker.starts
        os.kill(worker.pid, signal.SIGKILL)
        parent.wait_for(parent.reported("The worker ended with exit code -9"))
        parent.wait_for(lambda: worker.starts > starts and worker.running)
        stop()

    monkeypatch.setattr(Program, "stage", "well")
    assert parent.run(story) == 0


def test_a_worker_that_ignores_sigterm_is_killed(monkeypatch):
    monkeypatch.setattr(module, "_WORKER_SECONDS", 0.3)
    monkeypatch.setattr(Program, "stage", "ignores_sigterm")
    parent = Parent(worker=True)
    parent.manager._grace = 0.3

    def story() -> None:
        parent.wait_for(parent.reported("2 query processes serve."))
        time.sleep(0.5)
        stop()

    assert parent.run(story) == 0
    assert parent.manager._worker.exit_code == -signal.SIGKILL


def test_a_second_signal_kills_the_worker_without_delay(monkeypatch):
    monkeypatch.setattr(Program, "stage", "ignores_sigterm")
    parent = Parent(worker=True)
    parent.manager._grace = 60.0

    def story() -> None:
        parent.wait_for(parent.reported("2 query processes serve."))
        time.sleep(0.5)
        stop()
        time.sleep(0.3)
        stop()

    started = time.monotonic()
    assert parent.run(story) == 0
    assert time.monotonic() - started < 30


def test_pauses_double_up_to_a_limit_and_are_reset_by_a_healthy_minute():
    policy = RestartPolicy()
    assert [policy.pause_after(0.1) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert policy.pause_after(60.0) == 1


def test_a_command_that_was_never_started_can_be_stopped():
    child = Command("api", {})
    child.send(signal.SIGTERM)
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


class Forks:
    """Processes as forks: they serve, and say so in a file each, with what they have of their parent."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.loaded = False

    def load(self) -> None:
        self.loaded = True

    def serve(self, context: str, control: Path | None) -> int:
        listener, scoreboard, slot = map(int, context.split(":"))
        kind = "control" if control is None else "query"
        own = Scoreboard.inherited(scoreboard).slots[slot]
        own.claim(State.SERVING)
        what = [os.fstat(listener).st_ino, self.loaded, os.environ["GREETING"]]
        return self._say(kind, what, own.heartbeat)

    def work(self) -> int:
        return self._say("worker", [self.loaded, os.environ["GREETING"]], lambda: None)

    def _say(self, kind: str, what: list[Any], beat: Callable[[], None]) -> int:
        files = [int(each.name) for each in Path("/proc/self/fd").iterdir()]
        sockets = [os.fstat(each).st_ino for each in files if _is_socket(each)]
        says = {"kind": kind, "what": what, "sockets": sockets, "group": os.getpgid(0)}
        says["handlers"] = [str(signal.getsignal(each)) for each in (signal.SIGTERM, signal.SIGHUP)]
        (self.folder / str(os.getpid())).write_text(json.dumps(says))
        while True:
            time.sleep(0.02)
            beat()


def _is_socket(descriptor: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    except OSError:
        return False


def test_processes_are_forks_until_sighup_and_then_new_programs(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "Command", Command)
    started = []

    def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        started.append(command[4:])
        *_, context = command
        _, scoreboard, slot = context.split(":")
        program = [sys.executable, "-c", PROGRAM, scoreboard, slot, "well"]
        return Popen(program, stdout=subprocess.DEVNULL, **options)

    Popen = subprocess.Popen
    monkeypatch.setattr("app.processes.command.subprocess.Popen", start)
    parent = Parent(worker=True, forks=Forks(tmp_path), environment={**os.environ, "GREETING": "hello"})
    inodes = [os.fstat(each.fileno()).st_ino for each in (parent.listener, parent.manager._control_listener)]

    def said() -> list[dict[str, Any]]:
        # A fork may be about to write.
        return [json.loads(each.read_text() or "{}") for each in tmp_path.iterdir()]

    def story() -> None:
        parent.wait_for(parent.reported("2 query processes serve."))
        parent.wait_for(lambda: len(said()) == 4)
        victim = parent.pids()[1]
        os.kill(victim, signal.SIGKILL)
        parent.wait_for(lambda: len(said()) == 5)
        parent.wait_for(lambda: len(parent.manager._scoreboard.serving()) == 2)
        assert not started
        stop(signal.SIGHUP)
        parent.wait_for(parent.reported("has replaced process", 3))
        assert [line[0] for line in started] == ["api"] * 3
        assert parent.manager._worker.running
        stop()

    assert parent.run(story) == 0
    kinds = Counter(each["kind"] for each in said())
    assert kinds == {"control": 1, "query": 3, "worker": 1}
    for each in said():
        assert each["what"][-1] == "hello"
        if each["kind"] != "query":
            assert each["what"][-2], "what both need is loaded before"
        assert each["handlers"] == [str(signal.SIG_DFL)] * 2
        # No process keeps a socket open that another one serves.
        own = {"query": inodes[0], "control": inodes[1]}.get(each["kind"])
        assert set(inodes) & set(each["sockets"]) == ({own} if own else set())
    assert {each["group"] for each in said()} == {int(file.name) for file in tmp_path.iterdir()}


def test_a_fork_ends_with_the_code_of_what_it_does_or_by_an_error(capfd):
    def fail() -> int:
        raise ZeroDivisionError

    codes = []
    for run in (lambda: 0, lambda: 7, fail):
        command = Command("worker", os.environ, fork=run)
        command.start()
        assert command.pid
        while command.running:
            time.sleep(0.01)
        codes.append(command.exit_code)
    assert codes == [0, 7, 1]
    assert "ZeroDivisionError" in capfd.readouterr().err


# The real command


KEYLESS = {"STMS_REQUIRE_KEYS": "false"}


class Service:
    """`stms api --api-processes 2` in a process of its own."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.log = folder / "log"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("STMS_")}
        command = [
            sys.executable,
            "-P",
            "-m",
            "app.cli",
            "api",
            "--api-processes",
            "2",
            "--data-dir",
            str(folder),
        ]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--port", str(self.port)],
                env=inherited | KEYLESS | settings,
                stdout=log,
                stderr=log,
            )

    def wait(self) -> None:
        deadline = time.monotonic() + 300
        while "2 query processes serve." not in self.log_text():
            assert self.process.poll() is None, self.log_text()
            assert time.monotonic() < deadline, self.log_text()
            time.sleep(0.05)

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for_log(self, text: str, times: int) -> None:
        deadline = time.monotonic() + 300
        while self.log_text().count(text) < times:
            assert self.process.poll() is None, self.log_text()
            assert time.monotonic() < deadline, self.log_text()
            time.sleep(0.05)

    def children(self) -> list[int]:
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in path.read_text().split()]

    def metrics(self) -> dict[str, float]:
        text = httpx.get(f"{self.url}/metrics", trust_env=False).text
        lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in lines}


@pytest.fixture
def service(tmp_path: Path, sqlite_address: str, sqlite_store: Store) -> Iterator[Service]:
    for sign in (1.0, -1.0):
        weights = sign * np.eye(3)
        students = {label: linear_student(label, row) for label, row in zip("abc", weights, strict=True)}
        publish(sqlite_store, "pets", students, linear_teacher(list("abc"), weights), alias="latest")
    started = Service(tmp_path)
    try:
        started.wait()
        yield started
    finally:
        started.process.terminate()
        started.process.wait(120)


class LoadGenerator:
    """Keep-alive connections that send one query after the other and check every answer."""

    def __init__(self, port: int, connections: int) -> None:
        self.port = port
        self.connections = connections
        self.results: Counter[str] = Counter()
        self.stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> LoadGenerator:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._thread.join(120)

    async def _run(self) -> None:
        await asyncio.gather(*(self._ask(number) for number in range(self.connections)))

    async def _ask(self, number: int) -> None:
        body = json.dumps({"x": [2.0, 0.0, 0.0]}).encode()
        head = (
            "POST /v1/models/pets/classes/a:query HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        writer = None
        while not self.stop.is_set():
            try:
                if writer is None:
                    reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.write(head.encode() + body)
                answered = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(answered.split(b"content-length: ")[1].split(b"\r\n")[0])
                answer = json.loads(await reader.readexactly(length))
            except (OSError, asyncio.IncompleteReadError) as error:
                self.results[f"lost: {error!r}"] += 1
                writer = None
                continue
            right = answer.get("score") == {1: 2.0, 2: -2.0}.get(answer.get("version"))
            self.results["right" if right else str(answer)] += 1
            if b"connection: close" in answered:
                self.results["closed"] += 1
                writer.close()
                await writer.wait_closed()
                writer = None
            # Some connections are always busy, others pause between requests.
            await asyncio.sleep(0.05 * (number % 3))
        if writer is not None:
            writer.close()
            await writer.wait_closed()


@pytest.mark.long
def test_no_request_is_lost_during_rolling_restarts_and_moves_of_an_alias(service: Service):
    first = set(service.children())
    with LoadGenerator(service.port, 24) as load, Client(service.url) as stms:
        time.sleep(0.5)
        stms.point_alias("pets", "latest", 1)
        service.process.send_signal(signal.SIGHUP)
        service.wait_for_log("has replaced process", 1)
        stms.point_alias("pets", "latest", 2)
        service.wait_for_log("has replaced process", 3)
        stms.point_alias("pets", "latest", 1)
        second = set(service.children())
        os.kill(max(second - first), signal.SIGTERM)
        service.wait_for_log("ended with exit code 0; next start in", 1)
        time.sleep(1.0)
    assert set(load.results) == {"right", "closed"}, load.results
    assert load.results["right"] > 1000
    deadline = time.monotonic() + 120
    while first & set(service.children()):
        assert time.monotonic() < deadline, "a process that was replaced is still there"
        time.sleep(0.05)
    time.sleep(0.6)
    counted = service.metrics()
    assert counted['stms_queries_total{model="pets",status="200"}'] == load.results["right"]
    assert counted["stms_process_deaths_total"] == 1
    assert "Traceback" not in service.log_text()


@pytest.mark.long
def test_a_killed_process_is_reported_and_replaced_while_the_other_serves(service: Service):
    _control, victim, _ = service.children()
    os.kill(victim, signal.SIGKILL)
    service.wait_for_log("ended with exit code -9", 1)
    deadline = time.monotonic() + 300
    while True:
        answer = httpx.get(f"{service.url}/readyz?verbose", trust_env=False)
        assert answer.status_code == 200
        checks = {check["name"]: check for check in answer.json()["checks"]}
        if checks["processes"]["ok"]:
            break
        assert checks["processes"]["detail"] == "1 of 2 serve; the others are being started"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert victim not in service.children()
    counted = service.metrics()
    assert (counted["stms_processes"], counted["stms_process_deaths_total"]) == (2, 1)


@pytest.mark.long
def test_the_children_end_with_a_killed_parent(service: Service):
    children = service.children()
    service.process.kill()
    service.process.wait()
    deadline = time.monotonic() + 120
    while any(Path(f"/proc/{pid}").exists() for pid in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_service_does_not_start_without_tables(tmp_path: Path):
    started = Service(tmp_path)
    assert started.process.wait(300) == 1
    assert "Run `stms db upgrade` first" in started.log_text()


@pytest.mark.long
def test_an_address_in_use_is_reported(service: Service):
    for count in ("1", "2"):
        arguments = ["api", "--api-processes", count, "--port", str(service.port)]
        result = CliRunner().invoke(build(), [*arguments, "--data-dir", str(service.log.parent)])
        assert result.exit_code == 1
        assert "Address already in use" in result.stderr
