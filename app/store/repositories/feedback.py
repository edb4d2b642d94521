"""People's feedback about answers: about samples, and reports about answers that were not sampled."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import sqlalchemy as sa

from app.domain.monitors import Given, Sample
from app.store.dialect import batched
from app.store.monitor_tables import feedback, monitors, samples
from app.store.repositories.scoped import Scoped
from app.store.row_bytes import rows_size

_SAMPLE: Final = [samples.c[name] for name in Sample._fields if name != "content"]
"""The columns of a sample without its row."""


class Feedback(Scoped):
    """Queries on the feedback of a tenant."""

    def samples(self, ids: Collection[str]) -> dict[str, Sample]:
        """The samples with these ids, locked until the end; missing ones are left out."""
        found: dict[str, Sample] = {}
        for some in batched(ids):
            query = sa.select(*_SAMPLE).where(self._owns(samples), samples.c.id.in_(some))
            # In one order, so that no two requests wait for each other.
            rows = self._connection.execute(query.order_by(samples.c.id).with_for_update())
            found |= {row.id: Sample(*row) for row in rows}
        return found

    def samples_of_request(self, request_id: str, row: int) -> Sequence[Sample]:
        """The samples of a row of a request, of all classes, by their ids; locked until the end."""
        of_row = (samples.c.request_id == request_id, samples.c.row == row)
        query = sa.select(*_SAMPLE).where(self._owns(samples), *of_row).order_by(samples.c.id)
        return [Sample(*one) for one in self._connection.execute(query.with_for_update())]

    def report(self, monitor_id: str, request_id: str, row: int, label: str) -> str | None:
        """The id of the report about an answer that was not sampled, which no other has replaced."""
        table = feedback.c
        query = sa.select(table.id).where(
            table.monitor_id == monitor_id,
            table.request_id == request_id,
            table.row == row,
            table.label == label,
            table.sample_id.is_(None),
            table.superseded_by.is_(None),
        )
        return self._connection.execute(query).scalar()

    def of_sample(self, sample_id: str) -> Any:
        """(id, correct, truth) of the newest feedback on a sample; None without any."""
        table = feedback.c
        query = sa.select(table.id, table.correct, table.truth)
        query = query.where(table.sample_id == sample_id, table.superseded_by.is_(None))
        return self._connection.execute(query).first()

    def count_reports(self, monitor_id: str) -> int:
        """Number of reports about answers that were not sampled."""
        query = sa.select(sa.func.count()).where(
            feedback.c.monitor_id == monitor_id, feedback.c.sample_id.is_(None)
        )
        return int(self._connection.execute(query).scalar_one())

    def add(self, given: Given, replaces: str | None) -> None:
        """Store feedback. replaces: the id of an earlier one, which stays."""
        values = given._asdict()
        self._connection.execute(sa.insert(feedback), values)
        if replaces is not None:
            old = sa.update(feedback).where(feedback.c.id == replaces)
            self._connection.execute(old.values(superseded_by=given.id))
        if given.sample_id is not None:
            answered = sa.update(samples).where(samples.c.id == given.sample_id)
            about = {} if given.subject is None else {"subject": given.subject}
            self._connection.execute(answered.values(correct=given.correct, **about))
        counted = {
            "feedback_at": given.at,
            "sample_bytes": monitors.c.sample_bytes + rows_size([values], feedback),
        }
        self._connection.execute(sa.update(monitors).where(monitors.c.id == given.monitor_id).values(counted))

    def reports(self, monitor_id: str, label: str, since: float) -> tuple[int, int]:
        """Numbers of reports about unsampled yes answers of a class, in total and that they were wrong."""
        table = feedback.c
        wrong = sa.func.sum(sa.case((table.correct, 0), else_=1))
        query = sa.select(sa.func.count(), wrong).where(
            table.monitor_id == monitor_id,
            table.label == label,
            table.at >= since,
            table.sample_id.is_(None),
            table.superseded_by.is_(None),
            table.answer,
        )
        count, wrongs = self._connection.execute(query).one()
        return int(count), int(wrongs or 0)
