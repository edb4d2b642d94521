"""Students of jobs as tests need them."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from app.store.tables import job_students
from app.store.unit_of_work import UnitOfWork


def change_student(uow: UnitOfWork, job_id: str, class_index: int, method: str, **values: Any) -> None:
    """Set columns of a student that has succeeded, which no program does."""
    table = job_students.c
    where = sa.and_(table.job_id == job_id, table.class_index == class_index, table.method == method)
    uow.connection.execute(sa.update(job_students).where(where).values(**values))
