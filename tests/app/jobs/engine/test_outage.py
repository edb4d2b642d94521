"""Outages of the database and full disks."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from app.domain.entities import JobState
from app.jobs.engine import patches as module
from app.jobs.engine.patches import cap_reconnect_backoff, retry_when_disk_full
from app.settings import Settings
from app.store.engine import open_engine
from app.store.migrate import upgrade
from app.store.unit_of_work import Store
from benchmarks.postgres import NoPostgres, postgres
from tests.app.jobs.conftest import FakeSolver, open_service, wait_for


def test_pauses_between_reconnects_are_short(monkeypatch: pytest.MonkeyPatch):
    slept: list[float] = []
    monkeypatch.setattr(module.time, "sleep", slept.append)
    cap_reconnect_backoff()
    dbos_time = vars(module._sys_db)["time"]
    for seconds in (0.5, 60.0):
        dbos_time.sleep(seconds)
    assert slept == [0.5, 2.0]
    assert dbos_time.time() == pytest.approx(time.time(), abs=5.0)


def test_writes_that_met_a_full_disk_are_retried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(module.time, "sleep", lambda _seconds: None)
    cap_reconnect_backoff()
    retry_when_disk_full()
    store = open_engine(f"sqlite:///{tmp_path / 'small.sqlite'}")
    tries: list[int] = []

    @module._sys_db.db_retry()
    def write() -> str:
        with store.begin() as connection:
            tries.append(len(tries))
            # SQLite raises the same error for a file that may not grow as for a full disk.
            pages = 2 if len(tries) < 3 else 1000
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
            connection.exec_driver_sql("CREATE TABLE large (data BLOB)")
            connection.exec_driver_sql("INSERT INTO large VALUES (zeroblob(100000))")
        return "written"

    assert write() == "written"
    assert len(tries) == 3

    @module._sys_db.db_retry()
    def mistaken() -> None:
        with store.begin() as connection:
            connection.exec_driver_sql("SELECT * FROM nowhere")

    with pytest.raises(OperationalError, match="nowhere"):
        mistaken()
    store.dispose()


@pytest.mark.long
def test_a_worker_survives_thirty_seconds_without_its_database(solver: FakeSolver, tmp_path: Path):
    try:
        with postgres() as server:
            address = server.create_database("stms")
            upgrade(address)
            settings = Settings(data_dir=tmp_path, database_url=address, classes_per_chunk=2)
            store = Store(open_engine(address))
            service = open_service(store, settings)
            solver.plan(student_seconds=0.4)
            with service.worker(solver) as worker:
                job = service.submit()
                wait_for(lambda: service.events(job, "student_finished"))
                server.stop()
                time.sleep(30.0)
                server.start()
                began = time.monotonic()
                store.dispose()
                assert service.ended(job, 60.0).state is JobState.SUCCEEDED
                solver.plan()
                after = service.ended(service.submit(), 30.0)
                assert after.state is JobState.SUCCEEDED
                assert time.monotonic() - began < 60.0
                with store.read() as uow:
                    (row,) = uow.workers.all()
                assert (row.executor_id, row.lost_at) == (worker.executor_id, None)
            trained = Counter(data["class_index"] for _, data in service.events(job, "student_finished"))
            assert trained == dict.fromkeys(range(6), 1)
            assert solver.done().count("prepare") == 2
            service.queue.close()
            store.dispose()
    except NoPostgres as missing:
        pytest.skip(str(missing))
