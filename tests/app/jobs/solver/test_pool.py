"""Solvers that stay with their jobs."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from app.jobs.solver.messages import SolverSettings
from app.jobs.solver.pool import SolverPool
from app.jobs.solver.process import SolverHandle
from app.processes.os_process import has_idle_core
from tests.app.jobs.conftest import FakeSolver, is_alive, wait_for

SETTINGS = SolverSettings(dataset_id="ds_1", spec={}, threads=1, log_level="INFO", database_url="")
IsActive = Callable[[str, int], bool]


class Pools:
    def __init__(self, solver: FakeSolver) -> None:
        self.solver = solver
        self.opened: list[SolverPool] = []

    def open(
        self,
        capacity: int = 2,
        idle: float = 60.0,
        is_active: IsActive = lambda _job, _attempt: True,
        spare: bool = False,
    ) -> SolverPool:
        start = partial(SolverHandle.start, self.solver.command, 1, 0)
        pool = SolverPool(capacity, idle, is_active, start, has_spare=spare)
        self.opened.append(pool)
        return pool


@pytest.fixture
def pools(solver: FakeSolver) -> Iterator[Pools]:
    made = Pools(solver)
    yield made
    for pool in made.opened:
        pool.close()
    wait_for(lambda: not any(map(is_alive, solver.pids())))


def never_stop(*_anything: object) -> None:
    return None


def prepare(pool: SolverPool, job: str) -> int:
    with pool.solver(job, 0, SETTINGS, never_stop) as solver:
        solver.prepare([0], never_stop)
        assert solver.pid is not None
        return solver.pid


def train(pool: SolverPool, job: str) -> int:
    with pool.solver(job, 0, SETTINGS, never_stop) as solver:
        assert list(solver.train([(0, "gsvm")], "digest", never_stop))
        assert solver.pid is not None
        return solver.pid


def test_the_next_unit_of_a_job_finds_its_preparation_in_memory(pools: Pools):
    pool = pools.open()
    assert prepare(pool, "job_1") == train(pool, "job_1") == train(pool, "job_1")
    assert "restore" not in pools.solver.done()


def test_jobs_and_attempts_have_solvers_of_their_own(pools: Pools):
    pool = pools.open(capacity=3)
    first = train(pool, "job_1")
    assert train(pool, "job_2") != first
    with pool.solver("job_1", 1, SETTINGS, never_stop) as solver:
        assert solver.pid != first


def test_concurrent_units_of_a_job_have_separate_solvers(pools: Pools):
    pool = pools.open()
    first = prepare(pool, "job_1")
    with (
        pool.solver("job_1", 0, SETTINGS, never_stop) as one,
        pool.solver("job_1", 0, SETTINGS, never_stop) as other,
    ):
        assert one.pid == first
        assert other.pid != first


def test_the_longest_idle_solver_is_ended_first(pools: Pools):
    pool = pools.open(capacity=2)
    first, second = train(pool, "job_1"), train(pool, "job_2")
    third = train(pool, "job_3")
    wait_for(lambda: not is_alive(first))
    assert is_alive(second)
    assert is_alive(third)


def test_a_unit_that_ends_in_an_error_ends_its_solver(pools: Pools):
    pool = pools.open()
    pid = prepare(pool, "job_1")
    with pytest.raises(ZeroDivisionError), pool.solver("job_1", 0, SETTINGS, never_stop):
        raise ZeroDivisionError
    assert not is_alive(pid)


def test_an_unused_solver_is_not_kept(pools: Pools):
    pool = pools.open()
    with pool.solver("job_1", 0, SETTINGS, never_stop) as solver:
        assert solver.pid is None
    assert pools.solver.done() == []


def test_an_idle_solver_ends_after_a_while(pools: Pools):
    pid = train(pools.open(idle=0.2), "job_1")
    wait_for(lambda: not is_alive(pid))


def test_an_idle_solver_ends_with_its_job_within_a_second(pools: Pools):
    over = threading.Event()
    pid = train(pools.open(is_active=lambda _job, _attempt: not over.is_set()), "job_1")
    assert is_alive(pid)
    over.set()
    wait_for(lambda: not is_alive(pid))


def test_a_solver_that_died_while_idle_is_replaced(pools: Pools):
    pool = pools.open()
    pid = train(pool, "job_1")
    with pool.solver("job_1", 0, SETTINGS, never_stop) as solver:
        solver._process.popen.kill()  # type: ignore[union-attr]
        solver._process.popen.wait()  # type: ignore[union-attr]
    assert train(pool, "job_1") != pid


def test_a_solver_outlives_the_thread_that_used_it_first(pools: Pools):
    pool = pools.open()
    pids: list[int] = []
    thread = threading.Thread(target=lambda: pids.append(prepare(pool, "job_1")))
    thread.start()
    thread.join()
    assert pids == [train(pool, "job_1")]


@pytest.mark.skipif(sys.platform != "linux", reason="a process ends with its parent's thread on Linux only")
def test_a_closed_pool_keeps_nothing(pools: Pools):
    pool = pools.open()
    with pool.solver("job_1", 0, SETTINGS, never_stop) as solver:
        solver.prepare([0], never_stop)
        pid = solver.pid
        pool.close()
        assert pid is not None
        wait_for(lambda: not is_alive(pid))


def test_a_job_takes_the_spare_solver_and_another_is_loaded_after_it(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("app.jobs.solver.pool._SPARE_DELAY_SECONDS", 0.1)
    monkeypatch.setattr("app.jobs.solver.pool.has_idle_core", lambda: False)
    over = threading.Event()
    pool = pools.open(spare=True, is_active=lambda _job, _attempt: not over.is_set())
    pool.expect_job()
    wait_for(lambda: pool._spare is not None and pool._spare.has_answered)
    (spare,) = pools.solver.pids()
    assert prepare(pool, "job_1") == spare
    time.sleep(0.6)
    assert pools.solver.done().count("spare") == 1
    over.set()
    wait_for(lambda: pools.solver.done().count("spare") == 2)
    assert "start" not in pools.solver.done()


def test_there_is_a_spare_solver_only_while_a_job_is_likely(pools: Pools, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("app.jobs.solver.pool._SPARE_SECONDS", 2.0)
    pool = pools.open(spare=True)
    time.sleep(0.5)
    assert pools.solver.done() == []
    pool.expect_job()
    wait_for(lambda: pool._spare is not None and pool._spare.has_answered)
    (spare,) = pools.solver.pids()
    wait_for(lambda: not is_alive(spare))
    time.sleep(0.5)
    assert pools.solver.done() == ["spare"]
    without = pools.open()
    without.expect_job()
    time.sleep(0.5)
    assert pools.solver.done() == ["spare"]


def test_a_job_takes_a_spare_solver_that_is_still_loading(pools: Pools):
    pool = pools.open(spare=True)
    pool.expect_job()
    wait_for(lambda: pool._spare is not None)
    assert prepare(pool, "job_1") == pools.solver.pids()[0]
    assert pools.solver.done()[:2] == ["spare", "prepare"]


@pytest.mark.long
def test_a_spare_solver_loads_beside_a_job_on_an_idle_core(pools: Pools, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("app.jobs.solver.pool._SPARE_DELAY_SECONDS", 0.1)
    monkeypatch.setattr("app.jobs.solver.pool.has_idle_core", lambda: True)
    pool = pools.open(spare=True)
    pool.expect_job()
    wait_for(lambda: pool._spare is not None and pool._spare.has_answered)
    with pool.solver("job_1", 0, SETTINGS, never_stop) as solver:
        solver.prepare([0], never_stop)
        wait_for(lambda: pools.solver.done().count("spare") == 2)


def test_a_core_is_idle_if_fewer_threads_run_than_there_are_cores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("app.processes.os_process.os.cpu_count", lambda: 10**6)
    assert has_idle_core() is (sys.platform == "linux")
    monkeypatch.setattr("app.processes.os_process.os.cpu_count", lambda: -1)
    assert not has_idle_core()


def test_a_job_does_not_wait_for_a_spare_solver(pools: Pools):
    pool = pools.open(spare=True)
    pool.expect_job()
    wait_for(lambda: pool._spare is not None and pool._spare.has_answered)
    pool._spare.popen.kill()  # type: ignore[union-attr]
    pool._spare.popen.wait()  # type: ignore[union-attr]
    prepare(pool, "job_1")
    assert pools.solver.done()[:3] == ["spare", "start", "prepare"]
