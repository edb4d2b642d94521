"""The chaos benchmark at small size; its audit must find each kind of damage that is planted."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psycopg
import pytest
import sqlalchemy as sa

from app.domain.entities import JobState
from app.store.engine import open_engine
from stms_client import Client
from tests.system.postgres import NoPostgres, Postgres, Shutdown, postgres
from tests.system.processes import command_line, descendants, is_alive, wait_for
from verification.chaos import __main__ as program
from verification.chaos import orphans as orphans_module
from verification.chaos.audit import Audit
from verification.chaos.clients import AcceptedJob
from verification.chaos.event_log import EventLog, Intervals
from verification.chaos.faults import LONG_OUTAGE, SHARED, Faults, Kind
from verification.chaos.isolation import Clock, Disk, Network, NotSupported
from verification.chaos.orphans import Orphans
from verification.chaos.plan import carry_out, plan
from verification.chaos.power import PowerRecorder
from verification.chaos.power_states import Loss
from verification.chaos.programs import (
    MARK,
    Program,
    Supervisor,
    marked,
)
from verification.chaos.proxy import Proxy
from verification.chaos.readiness import Probe, Readiness
from verification.chaos.service import FaultyService, Instance
from verification.chaos.stages import Outcome, quantile
from verification.chaos.takeovers import Takeovers
from verification.chaos.workloads import Reference, Workload

OWN_MARK = f"tests-{os.getpid()}"
"""Other runs of the tests on this machine have other marks."""


def deployment_of(event_log: EventLog, *programs: Program, **more: Any) -> FaultyService:
    """A deployment whose workers are the given programs."""
    instances = [Instance(each, Intervals(event_log)) for each in programs]
    made = FaultyService(
        event_log, OWN_MARK, "", [], instances, {}, Intervals(event_log), Intervals(event_log)
    )
    made.programs = list(programs)
    for name, value in more.items():
        setattr(made, name, value)
    return made


@pytest.fixture
def event_log(tmp_path: Path) -> Iterator[EventLog]:
    with (tmp_path / "progress").open("w") as progress:
        made = EventLog(tmp_path / "timeline.jsonl", progress=progress)
        yield made
        made.close()


@pytest.fixture
def sleeper(event_log: EventLog, tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Starts programs that only sleep."""
    made = []

    def make(name: str, code: str = "import time; time.sleep(600)") -> Program:
        program = Program(
            name, [sys.executable, "-c", code], os.environ | {MARK: OWN_MARK}, tmp_path, event_log
        )
        made.append(program)
        program.start()
        return program

    yield make
    for each in made:
        each.stop()


# The whole benchmark


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_dozen_faults_lose_nothing(tmp_path: Path):
    timeline = tmp_path / "timeline.jsonl"
    command = [sys.executable, "-m", "verification.chaos", "shared", "--quick", "--faults", "12"]
    command += ["--minutes", "0.5", "--jobs", "4", "--timeline", str(timeline)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=850)
    if done.returncode == 2:
        pytest.skip(done.stderr)
    result = json.loads(done.stdout.splitlines()[-1])
    stage = result["stages"]["shared"]
    assert done.returncode == 0, done.stderr
    assert (result["lost"], result["duplicated"], result["corrupt"], result["orphans"]) == (0, 0, 0, 0)
    assert result["faults"] >= 10
    assert result["kinds"] >= 6
    assert result["jobs"] >= 4
    assert stage["queries"] > 100
    assert stage["query_failures_of_warm_servers"] == {}
    assert stage["students_identical"] == stage["students_compared"] > 0
    assert sum(json.loads(line)["what"] == "fault" for line in timeline.read_text().splitlines()) >= 10


def test_the_exit_code_reports_every_kind_of_failure():
    good = Outcome(faults=Counter(kill_worker=2, kill_solver=1), jobs=3, takeovers=[5.0, 6.0])
    result = program.result_of({"shared": good})
    assert (result["faults"], result["kinds"], result["jobs"], result["takeover_p95_s"]) == (3, 2, 3, 5.95)
    assert not program.failed(result)
    for name in ("lost", "duplicated", "corrupt", "orphans", "broken"):
        assert program.failed(program.result_of({"shared": good, "embedded": Outcome(**{name: ["x"]})})), name
    assert program.failed(program.result_of({"shared": Outcome(takeovers=[11.0])}))


def test_without_postgres_the_exit_code_is_2(monkeypatch, capsys):
    def missing(*_: object) -> Outcome:
        raise NoPostgres("initdb is not installed")

    monkeypatch.setitem(program.STAGES, "shared", missing)
    assert program.main(["shared"]) == 2
    assert "initdb is not installed" in capsys.readouterr().err


def test_faults_and_jobs_are_distributed_over_the_stages(capsys):
    found = program.sizes(program.parser().parse_args(["--faults", "200", "--jobs", "30"]))
    assert found["shared"].faults + found["embedded"].faults == 200
    assert found["shared"].jobs + found["embedded"].jobs == 30
    assert program.sizes(program.parser().parse_args(["embedded", "--faults", "9"]))["embedded"].faults == 9
    with pytest.raises(SystemExit):
        program.main(["upstairs"])
    assert "there is no stage upstairs" in capsys.readouterr().err


def test_a_quantile_of_nothing_is_none():
    assert quantile([], 0.5) is None
    assert quantile([1.0, 2.0, 3.0], 0.5) == 2.0


# The plan


def test_a_plan_has_every_kind_and_is_the_same_again():
    planned = plan(SHARED, 60, 180.0, seed=3)
    assert planned == plan(SHARED, 60, 180.0, seed=3)
    assert planned != plan(SHARED, 60, 180.0, seed=4)
    counts = Counter(each.kind for each in planned)
    assert set(counts) == {kind.name for kind in SHARED}
    assert counts[LONG_OUTAGE] == 1
    assert [each.at for each in planned] == sorted(each.at for each in planned)
    assert 0 <= planned[0].at <= planned[-1].at < 180.0
    (place,) = [n for n, each in enumerate(planned) if each.kind == LONG_OUTAGE]
    assert 14 <= place <= 45


@pytest.mark.long
def test_a_fault_without_a_target_is_replaced_by_another_kind(event_log: EventLog):
    class Some(Faults):
        def inject(self, kind: str, rng: random.Random) -> bool:
            if kind == "works":
                self.done[kind] += 1
            if kind == "breaks":
                raise RuntimeError("no such file")
            return kind == "works"

    faults = Some(deployment_of(event_log))
    kinds = [Kind("never", 1), Kind("works", 1000)]
    carry_out(faults, plan(kinds, 3, 0.2, 0), kinds, event_log)
    assert faults.done == {"works": 3}
    carry_out(faults, plan([Kind("breaks", 1)], 1, 0.1, 0), [Kind("breaks", 1)], event_log)
    assert faults.broken == ["breaks: RuntimeError('no such file')"]


# Programs, faults, orphans


def test_a_program_that_dies_is_restarted_and_its_downtime_recorded(event_log: EventLog, sleeper):
    program = sleeper("one")
    supervisor = Supervisor([program], 0)
    deployment = deployment_of(event_log, program)
    before = program.pid
    faults = Faults(deployment)
    assert faults.inject("kill_worker", random.Random(0))
    wait_for(lambda: program.pid not in {before, None})
    supervisor.stop()
    assert program.starts == 2
    assert faults.done == {"kill_worker": 1}
    assert program.downtime.overlapping(0.0, event_log.now)
    assert not program.downtime.overlapping(event_log.now + 1, event_log.now + 2)


def test_a_stopped_worker_is_continued(event_log: EventLog, sleeper, monkeypatch):
    program = sleeper("one")
    states = []

    def state() -> str:
        return Path(f"/proc/{program.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def probe(_seconds: float) -> None:
        # The signal takes a moment to arrive.
        wait_for(lambda: state() == "T")
        states.append(state())

    monkeypatch.setattr("verification.chaos.faults.time", SimpleNamespace(sleep=probe))
    assert Faults(deployment_of(event_log, program)).inject("stop_worker", random.Random(0))
    assert states == ["T"]
    wait_for(lambda: state() != "T")


SERVER = """
import subprocess, sys, time
asleep = "import time; open('/proc/self/comm', 'w').write(%r); time.sleep(600)"
names = ("stms control", "stms query")
children = [subprocess.Popen([sys.executable, "-c", asleep % name]) for name in names]
try:
    time.sleep(600)
finally:
    for child in children:
        child.kill()
"""


@pytest.fixture
def api_server(event_log: EventLog, sleeper, monkeypatch) -> FaultyService:
    """A deployment of one server with a control process and a query process."""
    monkeypatch.setattr("verification.chaos.faults._until_answered", lambda _url: None)
    program = sleeper("api", f"import signal; signal.signal(15, lambda *_: exit())\n{SERVER}")
    deployment = deployment_of(event_log)
    deployment.apis = [Instance(program, Intervals(event_log))]
    of_server = deployment.apis[0].server_processes
    wait_for(lambda: of_server(control=True) and of_server(control=False))
    return deployment


@pytest.mark.parametrize("kind", ["kill_query_process", "kill_control"])
def test_one_process_of_a_server_is_killed(kind: str, api_server: FaultyService):
    [instance] = api_server.apis
    is_control = kind == "kill_control"
    ([control], [query]) = (instance.server_processes(control=which) for which in (True, False))
    assert Faults(api_server).inject(kind, random.Random(0))
    wait_for(lambda: not is_alive(control if is_control else query))
    assert is_alive(query if is_control else control)
    assert instance.program.starts == (1 if is_control else 2)
    down, control_down = instance.program.downtime, instance.program.control_downtime
    assert bool(down.overlapping(0.0, 1e9)) is not is_control
    assert bool(control_down.overlapping(0.0, 1e9)) is is_control


def test_a_control_process_is_stopped_for_a_while(api_server: FaultyService, monkeypatch):
    [control] = api_server.apis[0].server_processes(control=True)
    states = []

    def state() -> str:
        return Path(f"/proc/{control}/stat").read_text().rpartition(")")[2].split()[0]

    def look(_seconds: float) -> None:
        wait_for(lambda: state() == "T")
        states.append(state())

    monkeypatch.setattr("verification.chaos.faults.time", SimpleNamespace(sleep=look))
    assert Faults(api_server).inject("stop_control", random.Random(0))
    assert states == ["T"]
    wait_for(lambda: state() != "T")


def test_a_query_that_fails_without_a_control_process_is_a_failure():
    stages = {"shared": Outcome(details={"query_failures_without_control": {"timeout": 1}})}
    assert program.failed(program.result_of(stages))
    stages["shared"].details["query_failures_without_control"] = {}
    assert not program.failed(program.result_of(stages))


def test_a_fault_without_a_target_is_not_counted(event_log: EventLog):
    faults = Faults(deployment_of(event_log))
    kinds = ["kill_worker", "kill_server", "kill_solver", "cut_network", "reset_connections", "clock_step"]
    kinds += ["kill_query_process", "kill_control", "stop_control"]
    assert not any(faults.inject(kind, random.Random(0)) for kind in kinds)
    assert not faults.done


def test_a_child_that_outlives_its_program_is_an_orphan_unless_it_is_stopped(
    event_log: EventLog, sleeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(orphans_module, "_POLL_SECONDS", 0.05)
    monkeypatch.setattr(orphans_module, "_MISSES", 4)
    monkeypatch.setattr(orphans_module, "_LAST_SECONDS", 0.2)
    note = tmp_path / "child"
    code = (
        "import subprocess, sys, time, pathlib;"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
        f"pathlib.Path({str(note)!r}).write_text(str(child.pid)); time.sleep(600)"
    )
    program = sleeper("careless", code)
    child = int(wait_for(lambda: note.exists() and note.read_text()))
    deployment = deployment_of(event_log, program)
    orphans = Orphans(deployment)
    assert descendants(program.pid) == [child]
    assert set(marked(OWN_MARK)) == {program.pid, child}
    try:
        os.kill(child, signal.SIGSTOP)
        program.stop()
        time.sleep(1.0)
        assert not orphans.found
        os.kill(child, signal.SIGCONT)
        wait_for(lambda: child in orphans.found)
        orphans.stop()
        assert set(orphans.remaining()) == {child}
    finally:
        os.kill(child, 9)
    wait_for(lambda: not is_alive(child))
    assert not marked(OWN_MARK)


def test_programs_end_when_their_parent_is_killed(tmp_path: Path):
    note = tmp_path / "child"
    code = (
        "import sys, threading, pathlib, time; from tests.system.processes import Starter;"
        "starter = Starter();"
        "start = lambda: pathlib.Path(sys.argv[1]).write_text("
        "str(starter.start([sys.executable, '-c', 'import time; time.sleep(600)']).pid));"
        "thread = threading.Thread(target=start); thread.start(); thread.join(); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(note)])
    child = int(wait_for(lambda: note.exists() and note.read_text()))
    time.sleep(0.2)
    # The thread that requested the process has ended, but the process must live.
    assert is_alive(child)
    parent.kill()
    parent.wait()
    wait_for(lambda: not is_alive(child))


# Time


def test_overlap_and_coverage_of_intervals(event_log: EventLog):
    intervals = Intervals(event_log)
    first = intervals.begin("a")
    first.begin, first.end = 1.0, 3.0
    second = intervals.begin("b")
    second.begin, second.end = 2.0, 5.0
    assert intervals.seconds_within(0.0, 10.0) == 4.0
    assert intervals.seconds_within(2.5, 2.75) == 0.25
    assert [interval.reason for interval in intervals.overlapping(4.0, 9.0)] == ["b"]
    assert not intervals.overlapping(5.5, 6.0)
    assert intervals.overlapping(5.5, 6.0, after=1.0) == [second]
    intervals.begin("open").begin = 7.0
    assert intervals.seconds_within(6.0, 9.0) == 2.0


def test_readiness_is_compared_with_the_recorded_outages(event_log: EventLog, sleeper):
    program = sleeper("api")
    program.downtime = Intervals(event_log)
    deployment = deployment_of(event_log)
    deployment.apis = [Instance(program, Intervals(event_log), "http://127.0.0.1:1")]
    away = deployment.outages.begin("database")
    away.begin, away.end = 100.0, 130.0
    stopped = program.downtime.begin("stopped")
    stopped.begin, stopped.end = 200.0, 205.0
    readiness = Readiness(deployment)
    readiness.stop()
    readiness.probes = [
        Probe(50.0, 50.1, "api", 200, ()),
        Probe(101.0, 101.1, "api", 200, ()),
        Probe(110.0, 110.1, "api", 200, ()),
        Probe(111.0, 111.1, "api", 503, ("database: no",)),
        Probe(132.0, 132.1, "api", 503, ("database: no",)),
        Probe(150.0, 150.1, "api", 503, ("database: no",)),
        Probe(202.0, 217.0, "api", 0, ()),
        Probe(250.0, 265.0, "api", 0, ()),
    ]
    assert [probe.began for probe in readiness.ready_without_database()] == [110.0]
    assert [probe.began for probe in readiness.not_ready_with_database()] == [150.0, 250.0]
    assert readiness.correct() == 5


# Isolation


def test_a_fake_clock_changes_wall_time_but_not_monotonic_time(tmp_path: Path):
    try:
        library = Clock.build(tmp_path)
    except NotSupported as reason:
        pytest.skip(str(reason))
    clock = Clock(tmp_path / "clock", library)
    tell = "input(); print(time.time(), time.monotonic());"
    code = f"import time; {tell} {tell}"
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", code],
        env=os.environ | clock.environ(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def read() -> tuple[float, float]:
        process.stdin.write("\n")
        process.stdin.flush()
        wall, steady = map(float, process.stdout.readline().split())
        return wall - time.time(), steady - time.monotonic()

    first = read()
    clock.step(-3600.5)
    second = read()
    process.communicate()
    assert abs(first[0]) < 5
    assert abs(second[0] + 3600.5) < 5
    assert abs(second[1]) < 5


def test_writes_to_a_full_disk_fail_until_it_is_freed(tmp_path: Path):
    try:
        disk = Disk(tmp_path / "disk", 1)
    except NotSupported as reason:
        pytest.skip(str(reason))
    try:
        disk.fill()
        with pytest.raises(OSError, match="No space left"):
            (disk.folder / "file").write_bytes(bytes(4096))
        disk.free()
        (disk.folder / "file").write_bytes(bytes(4096))
    finally:
        disk.close()
    assert not (tmp_path / "disk" / "file").exists()


@pytest.mark.long
def test_a_disconnected_network_drops_connections_until_it_is_reconnected():
    try:
        network = Network()
    except NotSupported as reason:
        pytest.skip(str(reason))
    reach = [
        *network.enter(),
        sys.executable,
        "-c",
        "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 2)",
    ]
    with socket.create_server((network.host, 0)) as listener:
        command = [*reach, network.host, str(listener.getsockname()[1])]
        try:
            assert subprocess.run(command, capture_output=True).returncode == 0
            network.disconnect()
            assert subprocess.run(command, capture_output=True).returncode == 1
            network.reconnect()
            wait_for(lambda: subprocess.run(command, capture_output=True).returncode == 0)
        finally:
            network.close()


def test_a_proxy_forwards_stalls_and_resets():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def echo() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

        def serve(connection: socket.socket) -> None:
            with connection:
                try:
                    while data := connection.recv(100):
                        connection.sendall(data)
                except ConnectionError:
                    return

        threading.Thread(target=echo, daemon=True).start()
        proxy = Proxy(listener.getsockname()[1])
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=60) as client:
            client.sendall(b"one")
            assert client.recv(10) == b"one"
            proxy.stall()
            client.sendall(b"two")
            client.settimeout(0.3)
            with pytest.raises(TimeoutError):
                client.recv(10)
            proxy.resume()
            client.settimeout(5)
            assert client.recv(10) == b"two"
            assert proxy.reset() == 1
            with pytest.raises(ConnectionResetError):
                client.recv(10)
        proxy.close()
        listener.shutdown(socket.SHUT_RDWR)


def test_a_proxy_closes_one_side_when_the_other_is_reset():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = Proxy(listener.getsockname()[1])
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=60) as client:
            connection, _ = listener.accept()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(10) == b""
        proxy.close()


@pytest.fixture
def server() -> Iterator[Postgres]:
    try:
        with postgres() as running:
            yield running
    except NoPostgres as reason:
        pytest.skip(str(reason))


@pytest.mark.long
def test_postgres_keeps_committed_data_after_a_crash(server: Postgres):
    address = server.create_database("some")
    with psycopg.connect(address) as connection:
        connection.execute("CREATE TABLE kept (n int)")
    with psycopg.connect(address) as connection:
        connection.execute("INSERT INTO kept VALUES (7)")
    server.stop(Shutdown.IMMEDIATE)
    assert not server.running
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(address, connect_timeout=2)
    server.start()
    with psycopg.connect(address) as connection:
        assert connection.execute("SELECT n FROM kept").fetchall() == [(7,)]


@pytest.mark.long
def test_a_takeover_lasts_until_other_workers_own_all_units(server: Postgres, event_log: EventLog, sleeper):
    address = server.create_database("work")
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA dbos")
        connection.execute(
            "CREATE TABLE dbos.workflow_status (workflow_uuid text, executor_id text, status text)"
        )
        connection.execute("CREATE TABLE workers (pid int, executor_id text)")
        connection.execute("INSERT INTO workers VALUES (11, 'a'), (22, 'b'), (33, 'c')")
        connection.execute(
            "INSERT INTO dbos.workflow_status VALUES"
            " ('u1', 'a', 'PENDING'), ('u2', 'a', 'PENDING'), ('u3', 'b', 'PENDING')"
        )
        worker = sleeper("worker")
        connection.execute("INSERT INTO workers VALUES (%s, 'd')", [worker.pid])
        takeovers = Takeovers(deployment_of(event_log, worker, database=address))
        try:
            first = wait_for(lambda: takeovers.begin("kill_worker", "one", 11))
            second = takeovers.begin("stop_worker", "two", 22)
            assert takeovers.begin("kill_worker", "three", 33) is None
            assert takeovers.begin("kill_worker", "nobody", 44) is None
            assert takeovers.begin("stop_worker", "one", 11) is None
            connection.execute("UPDATE dbos.workflow_status SET executor_id = 'c' WHERE workflow_uuid = 'u1'")
            takeovers.came_back(second)
            wait_for(lambda: second.outcome)
            assert not first.outcome
            assert takeovers.never() == [first]
            connection.execute(
                "UPDATE dbos.workflow_status SET status = 'SUCCESS' WHERE workflow_uuid = 'u2'"
            )
            wait_for(lambda: first.outcome)
        finally:
            takeovers.stop()
    assert (first.outcome, second.outcome) == ("taken_over", "came_back")
    assert first.held == {"u1", "u2"}
    assert takeovers.seconds() == [first.seconds]
    assert 0 < first.seconds < event_log.now


# The audit


BLOBS = {name: name.encode() for name in ("one", "two")}


@pytest.fixture
def books(sqlite_address: str) -> Iterator[sa.Connection]:
    """A database with the right results of the reference job ``ref`` and of the accepted job ``job``."""
    from hashlib import sha256

    engine = open_engine(sqlite_address)
    with engine.connect() as connection:
        for data in BLOBS.values():
            digest = sha256(data).hexdigest()
            run(
                connection,
                "INSERT INTO blobs (digest, size, created_at, complete) VALUES (:d, :n, 0, 1)",
                d=digest,
                n=len(data),
            )
            run(
                connection,
                "INSERT INTO blob_chunks (digest, position, data) VALUES (:d, 0, :b)",
                d=digest,
                b=data,
            )
        for job in ("ref", "job"):
            add_job(connection, job)
            for index, data in enumerate(BLOBS.values()):
                digest = sha256(data).hexdigest()
                run(
                    connection,
                    "INSERT INTO job_students (job_id, class_index, method, label, state, metrics, digest)"
                    " VALUES (:j, :i, 'gsvm', :l, 'succeeded', '{}', :d)",
                    j=job,
                    i=index,
                    l=str(index),
                    d=digest,
                )
        connection.commit()
        yield connection
    engine.dispose()


def run(connection: sa.Connection, statement: str, **values: Any) -> None:
    connection.execute(sa.text(statement), values)


def add_job(connection: sa.Connection, job: str, state: str = "succeeded", model: str = "m") -> None:
    run(
        connection,
        "INSERT INTO jobs (id, dataset_id, model, spec, state, attempt, stage, progress_done, progress_total,"
        " created_at, created_by, provenance, revision)"
        " VALUES (:j, 'd', :m, '{}', :s, 0, 'x', 0, 1, 0, 'k', '{}', 0)",
        j=job,
        s=state,
        m=f"{model}-{job}",
    )
    events = [("job_queued", "{}"), ("student_finished", '{"class_index": 0, "method": "gsvm"}')]
    events += [("student_finished", '{"class_index": 1, "method": "gsvm"}'), ("job_succeeded", "{}")]
    for seq, (kind, data) in enumerate(events, 1):
        run(
            connection,
            "INSERT INTO job_events (job_id, seq, at, type, data) VALUES (:j, :n, 0, :t, :d)",
            j=job,
            n=seq,
            t=kind,
            d=data,
        )
    teacher = connection.execute(sa.text("SELECT digest FROM blobs LIMIT 1")).scalar()
    run(
        connection,
        "INSERT INTO model_versions (model, version, job_id, method, classes, class_count, columns,"
        " teacher_digest, metrics, created_at) VALUES (:m, 1, :j, 'gsvm', '[]', 2, 2, :t, '{}', 0)",
        m=f"{model}-{job}",
        j=job,
        t=teacher,
    )


SCORES = {"0": np.array([1.0, -1.0]), "1": np.array([0.5, 2.0])}


def audit(connection: sa.Connection, **job: Any) -> Audit:
    connection.commit()
    given = {
        "id": "job",
        "tenant": "n",
        "model": "m-job",
        "workload": "digits",
        "scenario": "plain",
        "key": "k",
    }
    accepted = AcceptedJob(**given | job)
    address = connection.engine.url.render_as_string(hide_password=False)
    return Audit(address, {accepted.id: accepted}, {"digits": "ref"})


def test_an_audit_of_right_results_finds_nothing(books: sa.Connection):
    found = audit(books).findings
    assert (found.lost, found.duplicated, found.corrupt) == ([], [], [])
    assert (found.identical, found.compared, found.blobs) == (2, 2, 2)


PLANTED = {
    "a job that still runs": ("UPDATE jobs SET state = 'running' WHERE id = 'job'", "lost"),
    "a student without an event": ("DELETE FROM job_events WHERE job_id = 'job' AND seq = 3", "lost"),
    "an event without a student": (
        "DELETE FROM job_students WHERE job_id = 'job' AND class_index = 1",
        "lost",
    ),
    "a student with two events": (
        "INSERT INTO job_events SELECT 'job', 5, 0, type, data FROM job_events WHERE seq = 2 LIMIT 1",
        "duplicated",
    ),
    "a second end": (
        "INSERT INTO job_events VALUES ('job', 5, 0, 'job_cancelled', '{}')",
        "duplicated",
    ),
    "a blob of other bytes": (
        "UPDATE blob_chunks SET data = X'78' WHERE data = CAST('two' AS BLOB)",
        "corrupt",
    ),
    "a blob without its chunk": ("DELETE FROM blob_chunks WHERE data = CAST('one' AS BLOB)", "corrupt"),
    "a job without its version": ("DELETE FROM model_versions WHERE job_id = 'job'", "corrupt"),
}


@pytest.mark.parametrize("what", PLANTED)
def test_an_audit_finds(books: sa.Connection, what: str):
    statement, kind = PLANTED[what]
    run(books, statement)
    assert getattr(audit(books).findings, kind)


def test_a_partially_failed_job_may_have_a_version_but_a_cancelled_one_not(books: sa.Connection):
    run(books, "UPDATE jobs SET state = 'partially_succeeded' WHERE id = 'job'")
    assert not audit(books).findings.corrupt
    run(books, "UPDATE jobs SET state = 'cancelled' WHERE id = 'job'")
    assert audit(books, expected_state="cancelled").findings.corrupt == ["job is cancelled with 1 versions"]


def test_a_job_that_no_client_submitted_is_a_duplicate(books: sa.Connection):
    add_job(books, "twin")
    assert audit(books).findings.duplicated == ["twin (m-twin) was accepted for no client"]


def test_a_cancelled_job_that_succeeded_is_lost(books: sa.Connection):
    assert audit(books, expected_state="cancelled").findings.lost == [
        "job (digits, plain) is succeeded, not cancelled; x"
    ]
    assert audit(books, id="gone").findings.lost[0] == "gone (plain) is missing"


def test_a_model_with_different_scores_is_corrupt(books: sa.Connection, monkeypatch):
    answers = {label: scores.copy() for label, scores in SCORES.items()}
    monkeypatch.setattr("verification.chaos.audit.query_all", lambda *_: (answers, {"0": 0.0, "1": 0.0}))
    workload = Workload("digits", "d", {}, np.zeros((2, 2)))
    references = {"digits": Reference(workload, "m-ref", 1, "ref", SCORES, {"0": 0.0, "1": 0.0})}
    with Client("http://127.0.0.1:1") as client:
        right = audit(books)
        right.ask(client, references)
        assert right.findings.corrupt == []
        answers["1"][1] += 1e-9
        wrong = audit(books)
        wrong.ask(client, references)
    assert wrong.findings.corrupt == ["m-job@1, class 1: differs by 1e-09"]


def test_the_final_states_of_the_clients_are_those_of_the_service():
    from verification.chaos.clients import ENDED

    assert {state.value for state in JobState if state.ended} == ENDED


# The kinds of faults that need a database server or a recorder of their own


@pytest.mark.long
def test_a_standby_answers_reads_only_until_it_is_promoted():
    try:
        with postgres() as server:
            address = server.create_database("stms")
            with psycopg.connect(address, autocommit=True) as connection:
                connection.execute("CREATE TABLE t (x int)")
            server.restart_as_standby()
            with (
                psycopg.connect(address, autocommit=True) as connection,
                pytest.raises(psycopg.errors.ReadOnlySqlTransaction),
            ):
                connection.execute("INSERT INTO t VALUES (1)")
            with pytest.raises(psycopg.OperationalError):
                psycopg.connect(f"{address}?target_session_attrs=read-write")
            server.promote()
            with psycopg.connect(f"{address}?target_session_attrs=read-write", autocommit=True) as connection:
                connection.execute("INSERT INTO t VALUES (1)")
                server.set_read_only(on=True)
                wait_for(lambda: _is_read_only(connection))
                server.set_read_only(on=False)
                wait_for(lambda: not _is_read_only(connection))
                assert server.end_sessions() == 1
    except NoPostgres as missing:
        pytest.skip(str(missing))


def _is_read_only(connection: psycopg.Connection[Any]) -> bool:
    row = connection.execute("SHOW transaction_read_only").fetchone()
    return row is not None and row[0] == "on"


WRITER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute(f"PRAGMA synchronous={sys.argv[2]}")
connection.execute("PRAGMA journal_mode=WAL")
connection.execute("CREATE TABLE IF NOT EXISTS t (x INTEGER)")
for x in range(20):
    connection.execute("INSERT INTO t VALUES (?)", (x,))
print("done", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(("synchronous", "kept"), [("FULL", 20), ("OFF", None)])
def test_a_power_cut_loses_what_was_not_synced_and_nothing_else(tmp_path: Path, synchronous: str, kept):
    data = tmp_path / "data"
    data.mkdir()
    try:
        recorder = PowerRecorder(tmp_path, data)
    except NotSupported as missing:
        pytest.skip(str(missing))
    recorder.begin()
    command = [sys.executable, "-c", WRITER, str(data / "stms.sqlite"), synchronous]
    environ = os.environ | recorder.environ()
    with subprocess.Popen(command, env=environ, stdin=-1, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
        process.kill()
    assert recorder.cut(random.Random(2)) is Loss.DROPPED
    if kept is None:
        assert list(data.iterdir()) == [], "without a single sync there is no file"
    else:
        with contextlib.closing(sqlite3.connect(data / "stms.sqlite")) as database:
            assert database.execute("SELECT count(*) FROM t").fetchone() == (kept,)


def test_a_worker_and_its_solvers_die_together(event_log: EventLog, sleeper: Callable[..., Program]):
    sleep = "[sys.executable, '-c', 'import time; time.sleep(600)', 'solver']"
    child = f"import subprocess, sys; subprocess.run({sleep})"
    program = sleeper("worker", child)
    faults = Faults(deployment_of(event_log, program))
    [solver] = wait_for(
        lambda: [pid for pid in descendants(program.pid or 0) if "solver" in command_line(pid)]
    )
    assert faults.inject("oom_group", random.Random(1))
    wait_for(lambda: program.pid is None and not is_alive(solver))
    assert faults.done == Counter(oom_group=1)
