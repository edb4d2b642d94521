"""Statements a second of many idle workers, counted by PostgreSQL.

Real worker processes, forked from one that has imported everything, so that a hundred fit on a small machine.
pg_stat_statements counts every statement of all their connections, BEGIN and COMMIT included.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import signal
import tempfile
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

import psycopg
import sqlalchemy as sa

from app.domain.entities import Job
from app.domain.training_spec import TrainingSpec
from app.jobs.engine.client import DbosQueue
from app.jobs.worker import Worker
from app.services.training import submit_job
from app.settings import Settings
from app.store.engine import open_engine
from app.store.migrate import upgrade
from app.store.tables import job_units
from app.store.unit_of_work import Store
from tests.system.postgres import postgres
from tests.system.stored_dataset import add_dataset

_START_SECONDS: Final = 180.0
_SETTLE_SECONDS: Final = 120.0
_WINDOW_SECONDS: Final = 5.0
_SERVER: Final = {
    "max_connections": "2500",
    "shared_buffers": "64MB",
    "shared_preload_libraries": "pg_stat_statements",
    "synchronous_commit": "off",
}


def measure(*, quick: bool) -> dict[str, float]:
    """``idle_statements_per_s`` of 100 idle workers (``quick``: 10), and the pick-up of a job in ms."""
    workers, seconds = (10, 5.0) if quick else (100, 20.0)
    with postgres(settings=_SERVER) as server, tempfile.TemporaryDirectory() as folder:
        address = server.create_database("stms")
        upgrade(address)
        settings = Settings(
            data_dir=Path(folder), database_url=address, spare_solver=False, idle_solvers=0, log_level="ERROR"
        )
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION pg_stat_statements")
            processes = _start(settings, workers, connection)
            try:
                _settle(connection)
                rate, frequent = _count(connection, seconds)
                print(*frequent, sep="\n")
                pickup = _pick_up_ms(settings, 3 if quick else 5)
            finally:
                _end(processes)
    print(f"{workers} idle workers: {rate:.0f} statements a second; median pick-up of a job {pickup:.0f} ms")
    return {"idle_statements_per_s": round(rate, 1), "pickup_ms": round(pickup, 1)}


def _start(settings: Settings, count: int, connection: psycopg.Connection[Any]) -> list[BaseProcess]:
    context = multiprocessing.get_context("fork")
    processes: list[BaseProcess] = []
    deadline = time.monotonic() + _START_SECONDS
    for number in range(count):
        process = context.Process(target=_work, args=(settings,), daemon=True)
        process.start()
        processes.append(process)
        # One after the other: a hundred that start at once would measure the machine's patience.
        while _listed(connection) < number - 3 and time.monotonic() < deadline:
            time.sleep(0.02)
    while (listed := _listed(connection)) < count:
        if time.monotonic() > deadline:
            _end(processes)
            raise RuntimeError(f"{listed} of {count} workers started")
        time.sleep(0.1)
    return processes


def _listed(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("SELECT count(*) FROM workers").fetchone()
    return 0 if row is None else int(row[0])


def _work(settings: Settings) -> None:
    """One worker process."""
    logging.disable(logging.ERROR)
    Worker(settings).start()
    signal.pause()


def _end(processes: list[BaseProcess]) -> None:
    for process in processes:
        if process.pid is not None:
            os.kill(process.pid, signal.SIGKILL)
    for process in processes:
        process.join()


def _settle(connection: psycopg.Connection[Any]) -> None:
    """Wait until the workers send as many statements in a window as in the one before, but for a tenth.

    A hundred workers that start on few cores are late with their heartbeats, and look after each other.
    """
    deadline = time.monotonic() + _SETTLE_SECONDS
    before, rate = math.inf, _count(connection, _WINDOW_SECONDS)[0]
    while rate < 0.9 * before and time.monotonic() < deadline:
        before, rate = rate, _count(connection, _WINDOW_SECONDS)[0]


def _count(connection: psycopg.Connection[Any], seconds: float) -> tuple[float, list[str]]:
    """Statements a second of all other sessions, and the most frequent ones as lines."""
    connection.execute("SELECT pg_stat_statements_reset()")
    began = time.monotonic()
    time.sleep(seconds)
    rows = connection.execute(
        "SELECT calls, query FROM pg_stat_statements WHERE query NOT LIKE '%pg_stat%' ORDER BY 1 DESC"
    ).fetchall()
    elapsed = time.monotonic() - began
    lines = [f"  {calls / elapsed:8.1f}/s  {' '.join(query.split())[:100]}" for calls, query in rows[:6]]
    return float(sum(calls for calls, _ in rows)) / elapsed, lines


def _pick_up_ms(settings: Settings, jobs: int) -> float:
    """Median time from the submission of a job to the first unit that a worker has put into the queue."""
    store = Store(open_engine(settings.app_database_url))
    queue = DbosQueue(settings)
    times = []
    for _ in range(jobs):
        job = _submit(store, queue, settings)
        began = time.monotonic()
        while not _is_planned(store, job):
            time.sleep(0.001)
        times.append(1000 * (time.monotonic() - began))
        time.sleep(0.5)
    queue.close()
    store.dispose()
    return sorted(times)[len(times) // 2]


def _submit(store: Store, queue: DbosQueue, settings: Settings) -> Job:
    """A job whose data set holds no rows: its workers only look at its plan before it fails."""
    with store.begin() as uow:
        dataset = add_dataset(uow, ("a", "b"), name="idle", test_rows=10)
    job, _ = submit_job(
        store,
        queue,
        dataset_id=dataset.id,
        model="idle",
        spec=TrainingSpec(),
        created_by="benchmark",
        idempotency_key=None,
        body_digest="",
        settings=settings,
    )
    return job


def _is_planned(store: Store, job: Job) -> bool:
    with store.read() as uow:
        units = sa.select(sa.func.count()).where(job_units.c.job_id == job.id)
        return bool(uow.connection.execute(units).scalar_one())
