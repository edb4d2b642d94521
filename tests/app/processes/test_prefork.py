"""Several server processes: kept and replaced by their parent, and together without a single lost request."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner

from app.cli import build
from app.client import Client
from app.processes import prefork as module
from app.processes.prefork import Fleet, Member
from app.processes.scoreboard import Board, State
from app.processes.supervisor import Child
from app.store.unit_of_work import Store
from benchmarks.published import linear_student, linear_teacher, publish

MEMBER = """
import os, signal, sys, time
from app.processes.scoreboard import Board, State
board, place, stage = Board.inherited(int(sys.argv[1])), int(sys.argv[2]), sys.argv[3]
if stage == "broken":
    sys.exit(3)
seat = board.seats[place]
seat.take(State.STARTING)
if stage == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if stage != "slow":
    seat.state = State.SERVING
print(os.getpid(), flush=True)
while True:
    time.sleep(0.02)
    if stage != "stuck":
        seat.beat()
"""


class Program(Child):
    """A member without a server: takes its seat and waits. The class says how those to come behave."""

    stage = "well"

    def __init__(
        self, command: str, environment: object, *arguments: str, files: tuple[int, ...] = ()
    ) -> None:
        super().__init__(command, {})
        _, self.board, self.place = arguments[-1].split(":")

    def start(self) -> None:
        command = [sys.executable, "-c", MEMBER, self.board, self.place, type(self).stage]
        self._process = subprocess.Popen(
            command, process_group=0, pass_fds=[int(self.board)], stdout=subprocess.DEVNULL
        )
        self._started = time.monotonic()


@pytest.fixture(autouse=True)
def _members(monkeypatch):
    """Late signals do no harm, and members are short programs unless a test starts the real command."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.signal(number, lambda *_: None) for number in numbers}
    monkeypatch.setattr(module, "Child", Program)
    monkeypatch.setattr(Program, "stage", "well")
    monkeypatch.setattr(module, "_FIRST_PAUSE", 0.05)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Parent:
    """A fleet of two, and a thread that does to it what the test says."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.fleet = Fleet(self.listener, {}, self.lines.append, size=2, grace=1.0)
        self.failure: BaseException | None = None

    def run(self, story: Callable[[], None]) -> int:
        def tell() -> None:
            try:
                story()
            except BaseException as error:  # noqa: BLE001 - raised again below
                self.failure = error
                self.fleet._stop_signals = 1

        thread = threading.Thread(target=tell, daemon=True)
        thread.start()
        code = self.fleet.run()
        thread.join(10)
        if self.failure is not None:
            raise self.failure
        return code

    def wait_for(self, what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 30
        while not what():
            assert time.monotonic() < deadline, self.lines
            time.sleep(0.01)

    def says(self, text: str, times: int = 1) -> Callable[[], bool]:
        return lambda: sum(text in line for line in self.lines) >= times

    def pids(self) -> list[int | None]:
        return [member.child.pid for member in self.fleet._members]


@pytest.fixture
def parent() -> Parent:
    return Parent()


def stop(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_and_the_handlers_are_put_back(parent, number):
    before = signal.getsignal(number)

    def story() -> None:
        parent.wait_for(parent.says("2 processes serve."))
        stop(number)

    assert parent.run(story) == 0
    assert not any(member.child.running for member in parent.fleet._members)
    assert signal.getsignal(number) is before
    assert parent.listener.fileno() == -1


def test_a_dead_process_is_started_again_and_counted(parent):
    def story() -> None:
        parent.wait_for(parent.says("2 processes serve."))
        [victim, survivor] = parent.pids()
        os.kill(victim, signal.SIGKILL)
        parent.wait_for(parent.says("ended with exit code -9; next start in 0.05 s"))
        parent.wait_for(lambda: len(parent.fleet._board.serving()) == 2)
        assert parent.pids()[1] == survivor
        assert parent.pids()[0] != victim
        assert parent.fleet._board.deaths == 1
        stop()

    assert parent.run(story) == 0


def test_a_process_that_stands_still_is_killed_and_started_again(parent, monkeypatch):
    monkeypatch.setattr(module, "_SILENT_SECONDS", 1.0)
    monkeypatch.setattr(Program, "stage", "stuck")

    def story() -> None:
        parent.wait_for(parent.says("2 processes serve."))
        monkeypatch.setattr(Program, "stage", "well")
        parent.wait_for(parent.says("stands still and is killed", 2))
        parent.wait_for(lambda: len(parent.fleet._board.serving()) == 2)
        stop()

    assert parent.run(story) == 0


def test_a_first_start_that_fails_is_the_end(parent, monkeypatch):
    monkeypatch.setattr(Program, "stage", "broken")
    assert parent.run(lambda: None) == 1
    assert "could not start: exit code 3" in parent.lines[-1]


def test_hanging_up_replaces_all_one_after_the_other(parent):
    def story() -> None:
        parent.wait_for(parent.says("2 processes serve."))
        before = parent.pids()
        stop(signal.SIGHUP)
        least = 2
        while not parent.says("has replaced process", 2)():
            least = min(least, len(parent.fleet._board.serving()))
            time.sleep(0.001)
        assert least == 2
        assert not set(before) & set(parent.pids())
        parent.wait_for(lambda: not parent.fleet._leaving)
        assert parent.fleet._board.deaths == 0
        stop()

    assert parent.run(story) == 0


@pytest.mark.parametrize("stage", ["broken", "slow"])
def test_a_successor_that_does_not_get_ready_leaves_the_old_ones_in_place(parent, monkeypatch, stage):
    def story() -> None:
        parent.wait_for(parent.says("2 processes serve."))
        before = parent.pids()
        monkeypatch.setattr(module, "_START_SECONDS", -1.0 if stage == "slow" else 60.0)
        monkeypatch.setattr(Program, "stage", stage)
        stop(signal.SIGHUP)
        parent.wait_for(parent.says("did not get ready; those that are left go on"))
        assert parent.pids() == before
        monkeypatch.setattr(Program, "stage", "well")
        monkeypatch.setattr(module, "_START_SECONDS", 60.0)
        stop(signal.SIGHUP)
        parent.wait_for(parent.says("has replaced process", 2))
        stop()

    assert parent.run(story) == 0


def test_who_does_not_end_in_time_is_killed(parent, monkeypatch):
    monkeypatch.setattr(Program, "stage", "deaf")
    parent.fleet._grace = 0.3

    def story() -> None:
        parent.wait_for(parent.says("2 processes serve."))
        stop()

    assert parent.run(story) == 0
    assert [member.child.exit_code for member in parent.fleet._members] == [-9, -9]


def test_a_second_signal_ends_all_at_once(parent, monkeypatch):
    monkeypatch.setattr(Program, "stage", "deaf")
    parent.fleet._grace = 60.0

    def story() -> None:
        parent.wait_for(parent.says("2 processes serve."))
        stop()
        time.sleep(0.3)
        stop()

    started = time.monotonic()
    assert parent.run(story) == 0
    assert time.monotonic() - started < 30


def test_a_process_dying_while_it_is_to_be_replaced_is_replaced_all_the_same(parent):
    def story() -> None:
        parent.wait_for(parent.says("2 processes serve."))
        os.kill(parent.pids()[1], signal.SIGKILL)
        stop(signal.SIGHUP)
        parent.wait_for(parent.says("has replaced process", 2))
        parent.wait_for(lambda: not parent.fleet._leaving)
        assert len(parent.fleet._board.serving()) == 2
        stop()

    assert parent.run(story) == 0


def test_a_member_that_never_ran_is_gone():
    board = Board.shared(1)
    member = Member(Child("api", {}), board.seats[0], module.RestartPolicy())
    assert member.is_gone()
    assert not member.is_stuck()
    assert board.seats[0].state is State.FREE
    board.close()


# The real thing


class Service:
    """`stms api --workers 2` in a process of its own."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.log = folder / "log"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("STMS_")}
        command = [sys.executable, "-m", "app.cli", "api", "--workers", "2", "--data-dir", str(folder)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--port", str(self.port)], env=inherited | settings, stdout=log, stderr=log
            )

    def wait(self) -> None:
        deadline = time.monotonic() + 60
        while "2 processes serve." not in self.said():
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.05)

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_until_said(self, text: str, times: int) -> None:
        deadline = time.monotonic() + 60
        while self.said().count(text) < times:
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
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
        started.process.wait(30)


class Hammer:
    """Keep-alive connections over which one query follows the other; every answer is looked at."""

    def __init__(self, port: int, connections: int) -> None:
        self.port = port
        self.connections = connections
        self.seen: Counter[str] = Counter()
        self.stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Hammer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._thread.join(30)

    async def _run(self) -> None:
        await asyncio.gather(*(self._ask(number) for number in range(self.connections)))

    async def _ask(self, number: int) -> None:
        body = json.dumps({"x": [2.0, 0.0, 0.0]}).encode()
        head = (
            f"POST /v1/models/pets/classes/a:query HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
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
                self.seen[f"lost: {error!r}"] += 1
                writer = None
                continue
            right = answer.get("score") == {1: 2.0, 2: -2.0}.get(answer.get("version"))
            self.seen["right" if right else str(answer)] += 1
            if b"connection: close" in answered:
                self.seen["sent away"] += 1
                writer.close()
                await writer.wait_closed()
                writer = None
            # Some are busy all the time, some now and then.
            await asyncio.sleep(0.05 * (number % 3))
        if writer is not None:
            writer.close()
            await writer.wait_closed()


@pytest.mark.long
def test_no_request_is_lost_while_processes_are_replaced_ended_and_aliases_move(service: Service):
    first = set(service.children())
    with Hammer(service.port, 24) as hammer, Client(service.url) as stms:
        time.sleep(0.5)
        stms.point_alias("pets", "latest", 1)
        service.process.send_signal(signal.SIGHUP)
        service.wait_until_said("has replaced process", 1)
        stms.point_alias("pets", "latest", 2)
        service.wait_until_said("has replaced process", 2)
        stms.point_alias("pets", "latest", 1)
        second = set(service.children())
        os.kill(max(second - first), signal.SIGTERM)
        service.wait_until_said("ended with exit code 0; next start in", 1)
        time.sleep(1.0)
    assert set(hammer.seen) == {"right", "sent away"}, hammer.seen
    assert hammer.seen["right"] > 1000
    deadline = time.monotonic() + 30
    while first & set(service.children()):
        assert time.monotonic() < deadline, "a process that was replaced is still there"
        time.sleep(0.05)
    time.sleep(0.6)
    counted = service.metrics()
    assert counted['stms_queries_total{model="pets",status="200"}'] == hammer.seen["right"]
    assert counted["stms_process_deaths_total"] == 1
    assert "Traceback" not in service.said()


def test_a_killed_process_is_told_and_replaced_while_the_other_answers(service: Service):
    victim, _ = service.children()
    os.kill(victim, signal.SIGKILL)
    service.wait_until_said("ended with exit code -9", 1)
    deadline = time.monotonic() + 60
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


def test_a_killed_parent_takes_its_children_with_it(service: Service):
    children = service.children()
    service.process.kill()
    service.process.wait()
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_several_processes_do_not_start_without_tables(tmp_path: Path):
    started = Service(tmp_path)
    assert started.process.wait(60) == 1
    assert "Run `stms db upgrade` first" in started.said()


def test_a_taken_address_is_reported(service: Service):
    for count in ("1", "2"):
        arguments = ["api", "--workers", count, "--port", str(service.port)]
        result = CliRunner().invoke(build(), [*arguments, "--data-dir", str(service.log.parent)])
        assert result.exit_code == 1
        assert "Address already in use" in result.stderr
