"""Scores that remote teachers gave for rows of jobs that have not succeeded yet, one row for each batch."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy import Connection

from app.store.dialect import upsert
from app.store.tables import remote_scores


class RemoteScoreBatches:
    """Queries on batches of scores. A part is a data set of the job: 0 for training, 1 for testing."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def save(self, job_id: str, part: int, first: int, data: bytes) -> None:
        """Insert or replace a batch. first: number of its first row."""
        content = {"size": len(data), "data": data}
        statement = upsert(self._connection, remote_scores)
        statement = statement.values(job_id=job_id, part=part, first=first, **content)
        keys = ["job_id", "part", "first"]
        self._connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=content))

    def of_part(self, job_id: str, part: int) -> Iterator[tuple[int, bytes]]:
        """Number of the first row, and the data, of each batch of a part; one batch in memory at a time."""
        where = (remote_scores.c.job_id == job_id, remote_scores.c.part == part)
        numbers = self._connection.execute(
            sa.select(remote_scores.c.first).where(*where).order_by(remote_scores.c.first)
        ).scalars()
        for first in numbers.all():
            one = sa.select(remote_scores.c.data).where(*where, remote_scores.c.first == first)
            yield first, bytes(self._connection.execute(one).scalar_one())

    def forget(self, job_id: str) -> None:
        """Delete all batches of a job."""
        self._connection.execute(sa.delete(remote_scores).where(remote_scores.c.job_id == job_id))
