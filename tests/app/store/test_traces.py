"""Traces of searches in the tables, and their migration."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from app.domain.entities import Job, JobState, StudentRow, StudentState
from app.store.engine import open_engine
from app.store.migrate import downgrade, upgrade
from app.store.unit_of_work import Store


@pytest.mark.long
def test_traces_come_and_go_without_the_students(database_address: str, add_dataset: Any) -> None:
    engine = open_engine(database_address)
    store = Store(engine)
    with store.begin() as uow:
        dataset = add_dataset(uow)
        uow.jobs.add(
            Job("job_1", dataset.id, "m", {}, JobState.SUCCEEDED, 0, "finished", 1, 1, 0.0, "me", 0.0, 1.0)
        )
        uow.students.save(
            StudentRow("job_1", 0, "a", "gsvm", StudentState.SUCCEEDED, objective=1.5, chosen={"C": 1.0})
        )
        uow.students.keep_trace("job_1", 0, "gsvm", b"trace")
    store.dispose()
    downgrade(database_address, "0001")
    engine = open_engine(database_address)
    assert "student_traces" not in sa.inspect(engine).get_table_names()
    engine.dispose()
    upgrade(database_address)
    store = Store(open_engine(database_address))
    with store.read() as uow:
        (row,) = uow.students.of_job("job_1")
        assert (row.objective, row.chosen) == (1.5, None)
        assert uow.students.trace("job_1", 0, "gsvm") is None
    store.dispose()
