"""Retries after a solver process dies or is blocked."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from app.jobs.errors import SolverDied
from app.jobs.solver.messages import StudentResult
from app.jobs.solver.process import Solver
from app.jobs.solver.retry import train_with_retries, with_retries
from tests.app.jobs.conftest import OPENED, SETTINGS, STUDENTS, flat, ignore, never_stop, script


def label_of(index: int) -> str:
    return f"c{index}"


class ScriptedSolver(Solver):
    """Dies while training the given classes, each the given number of times, after ``idle`` deaths."""

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
    results = flat(train_with_retries(solver, STUDENTS, "digest", ignore, label_of))
    assert len(results) == len({result.key for result in results})
    assert {result.label for result in results} == {"c0", "c1", "c2", "c3"}
    return {result.key[0]: result.packed is not None for result in results}


def test_after_a_death_each_suspect_is_tried_alone():
    solver = ScriptedSolver({1: 2})
    assert train_all(solver) == {0: True, 1: False, 2: True, 3: True}
    assert solver.batches == [[0, 1, 2, 3], [1], [2], [3]]


def test_a_class_that_dies_once_is_trained():
    assert train_all(ScriptedSolver({0: 1, 3: 1})) == dict.fromkeys(range(4), True)


def test_two_deaths_without_training_fail_all_remaining_students():
    assert train_all(ScriptedSolver({}, idle=1)) == dict.fromkeys(range(4), True)
    solver = ScriptedSolver({}, idle=2)
    results = flat(train_with_retries(solver, STUDENTS, "digest", ignore, label_of))
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
    """A solver whose database is unavailable to its first two processes."""
    away = "{'type': 'failed', 'code': 'database_unavailable', 'message': 'Away.', 'retryable': True}"
    code = f"import pathlib{BLOCKED}\n{OPENED}\nif is_blocked(): send({away}); read()\nelse:\n  {then}"
    command = script(code)
    return [*command, str(tmp_path / "lives")]


def test_students_are_trained_after_an_outage(tmp_path, monkeypatch):
    monkeypatch.setattr("app.jobs.solver.process._BACK_OFF_SECONDS", 0.05)
    student = "{'type': 'student', 'class_index': k, 'method': 'gsvm', 'label': f'c{k}'}"
    answers = f"send({{'type': 'restored'}}); read(); [send({student}, b'x') for k in range(4)]"
    command = blocked_twice(tmp_path, answers + "; send({'type': 'trained'}); read()")
    with Solver(SETTINGS, never_stop, command) as process:
        results = flat(train_with_retries(process, STUDENTS, "digest", ignore, label_of))
    assert [result.packed for result in results] == [b"x"] * 4
    assert (tmp_path / "lives").read_text() == "3"


def test_a_job_is_prepared_after_an_outage(tmp_path, monkeypatch):
    monkeypatch.setattr("app.jobs.solver.process._BACK_OFF_SECONDS", 0.05)
    answer = "send({'type': 'prepared', **TWO}, b'preparation', b'teacher'); read()"
    with Solver(SETTINGS, never_stop, blocked_twice(tmp_path, answer)) as process:
        prepared = with_retries(process, partial(process.prepare, [0]), ignore)
    assert prepared.teacher.data == b"teacher"


@pytest.mark.long
def test_a_solver_that_waits_for_the_database_can_be_stopped(tmp_path):
    checks = []

    def check() -> None:
        checks.append(1)
        if (tmp_path / "lives").exists() and len(checks) > 100:
            raise InterruptedError

    with (
        pytest.raises(InterruptedError),
        Solver(SETTINGS, check, blocked_twice(tmp_path, "read()")) as process,
    ):
        with_retries(process, partial(process.prepare, [0]), ignore)


def test_a_solver_that_cannot_restore_fails_every_student():
    code = OPENED + "send({'type': 'failed', 'code': 'other_data', 'message': 'Other data.'}); read()"
    with Solver(SETTINGS, never_stop, script(code)) as process:
        results = flat(train_with_retries(process, STUDENTS, "digest", ignore, label_of))
    assert [result.row for result in results] == [{"code": "other_data", "message": "Other data."}] * 4
