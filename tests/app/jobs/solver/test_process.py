"""The worker's side of the solver process: messages, stops and deaths."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys

import pytest

from app.jobs.errors import SolverDied, SolverFailed
from app.jobs.solver.process import Solver, _environment, _signal_name
from tests.app.jobs.conftest import (
    OPENED,
    SETTINGS,
    STUDENTS,
    flat,
    ignore,
    is_alive,
    never_stop,
    script,
    wait_for,
)


class Stop(BaseException):
    pass


def test_a_solver_prepares_and_trains_in_one_process(solver):
    progress_seen: list[dict] = []
    with Solver(SETTINGS, never_stop, solver.command) as process:
        prepared = process.prepare([0, 1], progress_seen.append)
        results = flat(process.train(STUDENTS, "digest", progress_seen.append))
        again = flat(process.train(STUDENTS[:1], "digest", progress_seen.append))
    assert (prepared.preparation.data, prepared.teacher.data) == (b"preparation", b"teacher")
    assert [row["class_index"] for row in prepared.report["metrics"]] == [0, 1]
    assert [(result.key, result.packed) for result in results] == [
        (pair, f"{pair[0]}-gsvm".encode()) for pair in STUDENTS
    ]
    assert [result.key for result in again] == STUDENTS[:1]
    assert {progress["stage"] for progress in progress_seen} == {"teacher", "student"}
    assert solver.done().count("start") == 1
    assert "restore" not in solver.done()


def test_training_without_a_preparation_in_memory_restores_it(solver):
    with Solver(SETTINGS, never_stop, solver.command) as process:
        assert len(flat(process.train(STUDENTS, "digest", ignore))) == 4
    assert solver.done()[:2] == ["start", "restore"]


def test_a_process_starts_only_when_needed(solver):
    with Solver(SETTINGS, never_stop, solver.command):
        pass
    assert solver.done() == []


def test_a_stop_check_that_raises_ends_the_process(solver):
    solver.plan(prepare_seconds=500)

    def check() -> None:
        if solver.done():
            raise Stop

    with pytest.raises(Stop), Solver(SETTINGS, check, solver.command) as process:
        process.prepare([0], ignore)
    assert not is_alive(*solver.pids())


def test_a_solver_may_report_failure(solver):
    solver.plan(fail_prepare=["class_too_small", "No."])
    with pytest.raises(SolverFailed) as failed, Solver(SETTINGS, never_stop, solver.command) as process:
        process.prepare([0], ignore)
    assert (failed.value.code, failed.value.message) == ("class_too_small", "No.")


def test_a_death_reports_the_signal_and_the_students_in_flight(solver):
    solver.plan(die={"2": 1})
    with Solver(SETTINGS, never_stop, solver.command) as process:
        with pytest.raises(SolverDied) as died:
            list(process.train(STUDENTS, "digest", ignore))
        assert died.value.in_flight == {(2, "gsvm")}
        assert "SIGSEGV" in str(died.value)
        # The next call starts another process.
        assert len(flat(process.train(STUDENTS, "digest", ignore))) == 4


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (OPENED + "sys.exit(3)", "ended with status 3"),
        ("sys.exit(0)", "ended with status 0"),
        (OPENED + "sys.stdout.buffer.write(b'x' * 100); sys.stdout.flush(); time.sleep(0.2)", "status 0"),
    ],
)
def test_a_process_that_ends_or_writes_garbage_counts_as_dead(code, words):
    with pytest.raises(SolverDied) as died, Solver(SETTINGS, never_stop, script(code)) as process:
        process.prepare([0], ignore)
    assert words in str(died.value)


def test_a_process_that_closes_its_pipe_and_stays_is_killed(monkeypatch):
    monkeypatch.setattr("app.jobs.solver.process._EXIT_SECONDS", 0.2)
    code = OPENED + "os.close(1); time.sleep(60)"
    with pytest.raises(SolverDied) as died, Solver(SETTINGS, never_stop, script(code)) as process:
        process.prepare([0], ignore)
    assert "without ending" in str(died.value)


def test_a_solver_that_stops_reading_counts_as_dead():
    code = "read(); send({'type': 'opened'}); os.close(0); time.sleep(0.3)"

    def talk_on(process: Solver) -> None:
        process._send("nothing", {})
        while True:
            process._write("more", {"bytes": "x" * 100_000})

    with Solver(SETTINGS, never_stop, script(code)) as process, pytest.raises(SolverDied):
        talk_on(process)


def test_an_unexpected_answer_is_an_error():
    code = OPENED + "send({'type': 'trained'}); read()"
    with pytest.raises(SolverFailed) as failed, Solver(SETTINGS, never_stop, script(code)) as process:
        process.prepare([0], ignore)
    assert failed.value.code == "internal_error"


def test_the_database_address_is_not_shown():
    assert "secret" not in repr(SETTINGS)


def test_a_solver_dies_with_the_worker_that_started_it(solver):
    solver.plan(prepare_seconds=500)
    code = (
        "import sys\n"
        "from app.jobs.solver.messages import SolverSettings\n"
        "from app.jobs.solver.process import Solver\n"
        "settings = SolverSettings(dataset_id='d', spec={}, threads=1, log_level='INFO', database_url='')\n"
        f"Solver(settings, lambda: None, {solver.command!r}).prepare([0], lambda progress: None)\n"
    )
    worker = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-c", code])
    wait_for(solver.done)
    (pid,) = solver.pids()
    assert is_alive(pid)
    os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)
    wait_for(lambda: not is_alive(pid))


def test_signals_have_names():
    assert "memory" in _signal_name(9)
    assert _signal_name(11) == "SIGSEGV"
    assert _signal_name(250) == "signal 250"


def test_a_solver_does_not_inherit_the_password_of_the_database(monkeypatch):
    monkeypatch.setenv("STMS_DATABASE_URL", "postgresql://stms:hunter2@db/stms")
    monkeypatch.setenv("STMS_API_KEY", "stms_hunter2")
    environment = _environment(threads=2)
    assert "hunter2" not in str(environment)
    assert environment["OMP_NUM_THREADS"] == "2"
    assert environment["PATH"]


def test_a_solver_that_hangs_is_killed_and_counts_as_dead():
    settings = dataclasses.replace(SETTINGS, stall_seconds=0.6)
    started = "send({'type': 'started', 'class_index': 1, 'method': 'gsvm'})"
    hangs = f"{OPENED}send({{'type': 'restored'}}); read()\n{started}\ntime.sleep(600)"
    with Solver(settings, never_stop, script(hangs)) as process:
        with pytest.raises(SolverDied, match="hung") as death:
            list(process.train([(1, "gsvm")], "digest", ignore))
        assert death.value.in_flight == {(1, "gsvm")}
        assert process.pid is None


@pytest.mark.long
def test_a_solver_that_computes_without_a_word_does_not_hang():
    settings = dataclasses.replace(SETTINGS, stall_seconds=0.4)
    busy = "until = time.monotonic() + 1.5\nwhile time.monotonic() < until: pass\n"
    answer = "send({'type': 'prepared', **TWO}, b'preparation', b'teacher'); read()"
    with Solver(settings, never_stop, script(OPENED + busy + answer)) as process:
        assert process.prepare([0], ignore).teacher.data == b"teacher"


def test_metrics_of_many_classes_come_in_several_messages():
    code = (
        "send({'type': 'measured', 'metrics': [3, 4]}); send({'type': 'measured', 'metrics': [5]})\n"
        "send({'type': 'prepared', 'metrics': [1, 2], **TWO}, b'preparation', b'teacher'); read()"
    )
    with Solver(SETTINGS, never_stop, script(OPENED + code)) as process:
        assert process.prepare([0], ignore).report["metrics"] == [1, 2, 3, 4, 5]


def test_memory_beyond_the_limit_is_an_error_in_the_process_alone():
    code = (
        "import numpy\n"
        "from app.processes.os_process import limit_memory\n"
        "limit_memory(512 * 2**20)\n"
        "numpy.ones(2**20)\n"
        "try: numpy.ones(2**28)\n"
        "except MemoryError: print('refused')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr
