"""The worker's side of the pipe, and what it does when the other side dies."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from app.jobs.errors import SolverDied, SolverFailed
from app.jobs.solver import retry
from app.jobs.solver.messages import SolverSettings, StudentResult
from app.jobs.solver.process import Solver, _signal_name
from tests.app.jobs.conftest import is_alive, wait_for

SETTINGS = SolverSettings(
    dataset_id="ds_1", spec={}, threads=1, log_level="INFO", database_url="sqlite:///secret"
)
STUDENTS = [(index, "gsvm") for index in range(4)]


class Stop(BaseException):
    pass


def never_stop() -> None:
    return None


def ignore(_progress: dict) -> None:
    return None


def label_of(index: int) -> str:
    return f"c{index}"


def flat(batches: Iterable[list[StudentResult]]) -> list[StudentResult]:
    return [result for batch in batches for result in batch]


def script(code: str) -> list[str]:
    """A solver process that runs ``code`` after reading and answering ``open``."""
    start = (
        "import os, sys, time\n"
        "from app.jobs.solver.messages import read_message, write_message\n"
        "def send(header, *blobs): write_message(sys.stdout.buffer, header, blobs)\n"
        "def read(): return read_message(sys.stdin.buffer)\n"
    )
    return [sys.executable, "-c", start + code]


OPENED = "read(); send({'type': 'opened'}); read()\n"


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


def test_no_process_is_started_that_is_not_needed(solver):
    with Solver(SETTINGS, never_stop, solver.command):
        pass
    assert solver.done() == []


def test_what_the_watch_raises_ends_the_process(solver):
    solver.plan(prepare_seconds=60)
    started = time.monotonic()

    def watch() -> None:
        if solver.done():
            raise Stop

    with pytest.raises(Stop), Solver(SETTINGS, watch, solver.command) as process:
        process.prepare([0], ignore)
    assert time.monotonic() - started < 20.0
    assert not is_alive(*solver.pids())


def test_a_solver_may_say_that_it_cannot(solver):
    solver.plan(fail_prepare=["class_too_small", "No."])
    with pytest.raises(SolverFailed) as failed, Solver(SETTINGS, never_stop, solver.command) as process:
        process.prepare([0], ignore)
    assert (failed.value.code, failed.value.message) == ("class_too_small", "No.")


def test_a_killed_solver_is_told_by_its_signal_and_what_it_was_doing(solver):
    solver.plan(die={"2": 1})
    with Solver(SETTINGS, never_stop, solver.command) as process:
        with pytest.raises(SolverDied) as died:
            list(process.train(STUDENTS, "digest", ignore))
        assert died.value.in_flight == {(2, "gsvm")}
        assert "SIGSEGV" in str(died.value)
        # the next call starts another one
        assert len(flat(process.train(STUDENTS, "digest", ignore))) == 4


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (OPENED + "sys.exit(3)", "ended with status 3"),
        ("sys.exit(0)", "ended with status 0"),
        (OPENED + "sys.stdout.buffer.write(b'x' * 100); sys.stdout.flush(); time.sleep(0.2)", "status 0"),
    ],
)
def test_a_process_that_ends_or_babbles_counts_as_dead(code, words):
    with pytest.raises(SolverDied) as died, Solver(SETTINGS, never_stop, script(code)) as process:
        process.prepare([0], ignore)
    assert words in str(died.value)


def test_a_process_that_closes_its_pipe_and_stays_is_ended(monkeypatch):
    monkeypatch.setattr("app.jobs.solver.process._EXIT_SECONDS", 0.2)
    code = OPENED + "os.close(1); time.sleep(60)"
    with pytest.raises(SolverDied) as died, Solver(SETTINGS, never_stop, script(code)) as process:
        process.prepare([0], ignore)
    assert "without ending" in str(died.value)


def test_a_solver_that_does_not_read_any_more_is_dead():
    code = "read(); send({'type': 'opened'}); os.close(0); time.sleep(0.3)"

    def talk_on(process: Solver) -> None:
        process._send("nothing", {})
        while True:
            process._write("more", {"bytes": "x" * 100_000})

    with Solver(SETTINGS, never_stop, script(code)) as process, pytest.raises(SolverDied):
        talk_on(process)


def test_an_answer_to_another_question_is_an_error():
    code = OPENED + "send({'type': 'trained'}); read()"
    with pytest.raises(SolverFailed) as failed, Solver(SETTINGS, never_stop, script(code)) as process:
        process.prepare([0], ignore)
    assert failed.value.code == "internal_error"


def test_the_database_address_is_not_shown():
    assert "secret" not in repr(SETTINGS)


def test_a_solver_dies_with_the_worker_that_started_it(solver):
    solver.plan(prepare_seconds=60)
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
    wait_for(lambda: not is_alive(pid), 2.0)


def test_signals_have_names():
    assert "memory" in _signal_name(9)
    assert _signal_name(11) == "SIGSEGV"
    assert _signal_name(250) == "signal 250"


class ScriptedSolver(Solver):
    """Dies while training the classes it is told to, each as often as told; ``idle`` deaths come first."""

    def __init__(self, deadly: dict[int, int], idle: int = 0) -> None:
        super().__init__(SETTINGS, never_stop)
        self.deadly = deadly
        self.idle = idle
        self.batches: list[list[int]] = []

    def train(self, pairs, preparation_digest, report):
        self.batches.append([index for index, _ in pairs])
        if self.idle:
            self.idle -= 1
            raise SolverDied("was ended by SIGKILL", frozenset())
        for pair in pairs:
            if self.deadly.get(pair[0], 0):
                self.deadly[pair[0]] -= 1
                also = pair[0] + 1
                in_flight = {pair, (also, "gsvm")} & set(pairs)
                raise SolverDied("was ended by SIGSEGV", frozenset(in_flight))
            yield [StudentResult(pair, label_of(pair[0]), {}, b"student")]


def train_all(solver: Solver) -> dict[int, bool]:
    results = flat(retry.train(solver, STUDENTS, "digest", ignore, label_of))
    assert len(results) == len({result.key for result in results})
    assert {result.label for result in results} == {"c0", "c1", "c2", "c3"}
    return {result.key[0]: result.packed is not None for result in results}


def test_after_a_death_the_suspects_are_tried_alone():
    solver = ScriptedSolver({1: 2})
    assert train_all(solver) == {0: True, 1: False, 2: True, 3: True}
    assert solver.batches == [[0, 1, 2, 3], [1], [2], [3]]


def test_who_dies_once_is_trained_in_the_end():
    assert train_all(ScriptedSolver({0: 1, 3: 1})) == dict.fromkeys(range(4), True)


def test_a_solver_that_dies_idle_twice_fails_all_that_remain():
    assert train_all(ScriptedSolver({}, idle=1)) == dict.fromkeys(range(4), True)
    solver = ScriptedSolver({}, idle=2)
    results = flat(retry.train(solver, STUDENTS, "digest", ignore, label_of))
    assert [result.packed for result in results] == [None] * 4
    assert "SIGKILL" in results[0].row["message"]


BLOCKED = """
def is_blocked():
    state = pathlib.Path(sys.argv[1])
    seen = int(state.read_text()) if state.exists() else 0
    state.write_text(str(seen + 1))
    return seen < 2
"""


def blocked_twice(tmp_path: Path, then: str) -> list[str]:
    """A solver whose database is away for its first two lives, and that answers then."""
    away = "{'type': 'failed', 'code': 'database_unavailable', 'message': 'Away.', 'retryable': True}"
    code = f"import pathlib{BLOCKED}\n{OPENED}\nif is_blocked(): send({away}); read()\nelse:\n  {then}"
    command = script(code)
    return [*command, str(tmp_path / "lives")]


def test_a_database_that_is_away_is_no_verdict_on_the_students(tmp_path, monkeypatch):
    monkeypatch.setattr("app.jobs.solver.process._BACK_OFF_SECONDS", 0.05)
    student = "{'type': 'student', 'class_index': k, 'method': 'gsvm', 'label': f'c{k}'}"
    answers = f"send({{'type': 'restored'}}); read(); [send({student}, b'x') for k in range(4)]"
    command = blocked_twice(tmp_path, answers + "; send({'type': 'trained'}); read()")
    with Solver(SETTINGS, never_stop, command) as process:
        results = flat(retry.train(process, STUDENTS, "digest", ignore, label_of))
    assert [result.packed for result in results] == [b"x"] * 4
    assert (tmp_path / "lives").read_text() == "3"


def test_a_database_that_is_away_is_no_verdict_on_the_job(tmp_path, monkeypatch):
    monkeypatch.setattr("app.jobs.solver.process._BACK_OFF_SECONDS", 0.05)
    answer = "send({'type': 'prepared'}, b'preparation', b'teacher'); read()"
    with Solver(SETTINGS, never_stop, blocked_twice(tmp_path, answer)) as process:
        prepared = retry.prepare(process, [0], ignore)
    assert prepared.teacher.data == b"teacher"


def test_whoever_waits_for_the_database_still_stops_when_told(tmp_path):
    looks = []

    def watch() -> None:
        looks.append(1)
        if (tmp_path / "lives").exists() and len(looks) > 100:
            raise InterruptedError

    with (
        pytest.raises(InterruptedError),
        Solver(SETTINGS, watch, blocked_twice(tmp_path, "read()")) as process,
    ):
        retry.prepare(process, [0], ignore)


def test_a_solver_that_cannot_restore_fails_every_student():
    code = OPENED + "send({'type': 'failed', 'code': 'other_data', 'message': 'Other data.'}); read()"
    with Solver(SETTINGS, never_stop, script(code)) as process:
        results = flat(retry.train(process, STUDENTS, "digest", ignore, label_of))
    assert [result.row for result in results] == [{"code": "other_data", "message": "Other data."}] * 4
