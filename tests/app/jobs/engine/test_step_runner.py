"""Steps that meet the database's time limits."""

from __future__ import annotations

import time

import pytest
from dbos import SQLAlchemyDatasource
from sqlalchemy import event

from app.jobs.engine.config import SCHEMA, serializer
from app.jobs.engine.step_runner import StepRunner, durable_step
from app.jobs.errors import JobError
from app.store.engine import Timeouts, open_engine
from app.store.migrate import upgrade
from app.store.unit_of_work import Store, UnitOfWork
from tests.system.postgres import NoPostgres, postgres

TRIES: list[str] = []


@durable_step("slow")
def slow(uow: UnitOfWork, statement: str, slow_tries: int):
    TRIES.append(statement)
    if len(TRIES) <= slow_tries:
        uow.connection.exec_driver_sql(statement)
    uow.connection.exec_driver_sql("SELECT 1")
    return {"tries": len(TRIES)}


@pytest.mark.long
def test_a_step_that_is_always_too_slow_ends_its_job_and_one_that_was_frozen_does_not():
    try:
        with postgres() as server:
            address = server.create_database("stms")
            upgrade(address)
            limits = Timeouts(statement=0.05, lock=1.0, idle=0.05)
            store = Store(open_engine(address, timeouts=limits))
            datasource = SQLAlchemyDatasource.create(
                address, engine=store.engine, schema=SCHEMA, serializer=serializer()
            )
            runner = StepRunner(store, datasource, lambda: None)
            statement = "SELECT pg_sleep(1)"
            for _ in range(2):
                TRIES.clear()
                with pytest.raises(JobError) as caught:
                    runner.run(slow, statement, 1000)
                assert caught.value.code == "step_too_slow"
                assert len(TRIES) == 10
                TRIES.clear()
                assert runner.run(slow, statement, 3) == {"tries": 4}
            TRIES.clear()
            # The server ends a session that is idle in its transaction; the next statement finds out.
            idle = "DO $$ BEGIN PERFORM 1; END $$"
            event.listen(store.engine, "after_cursor_execute", _pause_after(idle))
            with pytest.raises(JobError):
                runner.run(slow, idle, 1000)
            assert len(TRIES) == 10
            store.dispose()
    except NoPostgres as missing:
        pytest.skip(str(missing))


def _pause_after(text: str):
    def pause(_connection, _cursor, statement, *_rest):
        if statement == text:
            time.sleep(0.2)

    return pause
