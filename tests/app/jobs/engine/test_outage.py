"""Outages of the database and full disks."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from dbos import _sys_db
from sqlalchemy.exc import OperationalError

from app.domain.entities import JobState
from app.jobs.engine.database import open_jobs_database
from app.settings import Settings
from app.store.engine import open_engine
from app.store.migrate import upgrade
from app.store.unit_of_work import Store
from tests.app.jobs.conftest import FakeSolver, open_service, wait_for
from tests.system.postgres import NoPostgres, postgres


def test_a_worker_waits_for_a_database_that_cannot_be_reached_until_it_stops(
    caplog: pytest.LogCaptureFixture,
):
    away = Settings(database_url="postgresql://127.0.0.1:1/none")
    stopping = threading.Event()
    patient, impatient = open_jobs_database(away, 1, stopping), open_jobs_database(away, 1)
    with pytest.raises(OperationalError):
        impatient.connect()
    with ThreadPoolExecutor(1) as pool:
        connected = pool.submit(patient.connect)
        wait_for(lambda: "waiting for the database of the jobs" in caplog.text)
        assert not connected.done()
        stopping.set()
        with pytest.raises(OperationalError):
            connected.result(30)
    assert caplog.text.count("waiting for the database of the jobs") == 1


def test_writes_that_met_a_full_disk_are_retried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(_sys_db.time, "sleep", lambda _seconds: None)
    store = open_jobs_database(Settings(data_dir=tmp_path), 1)
    with store.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE large (data BLOB)")
    tries: list[int] = []

    @_sys_db.db_retry()
    def write() -> str:
        with store.begin() as connection:
            tries.append(len(tries))
            # SQLite raises the same error for a file that may not grow as for a full disk.
            pages = 2 if len(tries) < 3 else 1000
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
            connection.exec_driver_sql("INSERT INTO large VALUES (zeroblob(100000))")
        return "written"

    assert write() == "written"
    assert len(tries) == 3

    @_sys_db.db_retry()
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
