"""Counts of monitors by the hour, and the evidence against promises that is computed from them."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection

from app.domain.entities import Json
from app.domain.monitors import Monitor
from app.store.dialect import insert_once
from app.store.monitor_tables import monitor_hours, monitors, promise_evidence, samples


@dataclass(frozen=True, slots=True)
class EvidenceRow:
    """A row of `app.store.monitor_tables.promise_evidence`."""

    monitor_id: str
    run: int
    label: str
    promise: str
    number: int
    since_hour: int
    evidence: Json | None
    hour: int
    alarm_at: float | None
    note: str | None


class SampledAnswer(NamedTuple):
    """The fields of a sample that the evidence needs. correct: None without feedback."""

    hour: int
    answer: bool
    correct: bool | None
    q: float


_KEYS: Final = ("monitor_id", "run", "label", "promise")
_COLUMNS: Final = [promise_evidence.c[field.name] for field in dataclasses.fields(EvidenceRow)]


class Evidences:
    """Queries on evidence."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def of_monitor(self, monitor: Monitor, *, lock: bool = False) -> dict[tuple[str, str], EvidenceRow]:
        """The rows of the present run by (class, promise)."""
        query = sa.select(*_COLUMNS).where(self._of_run(promise_evidence, monitor))
        rows = self._connection.execute(query.with_for_update() if lock else query)
        return {(row.label, row.promise): EvidenceRow(*row) for row in rows}

    def save(self, row: EvidenceRow) -> None:
        """Insert or replace a row."""
        values = dataclasses.asdict(row)
        if not insert_once(self._connection, promise_evidence, values):
            where = [promise_evidence.c[name] == values[name] for name in _KEYS]
            changed = {name: value for name, value in values.items() if name not in _KEYS}
            self._connection.execute(sa.update(promise_evidence).where(*where).values(changed))

    def asked_by_hour(
        self, monitor: Monitor, label: str, since: int, until: int | None = None
    ) -> Sequence[tuple[int, int]]:
        """(hour, answers that could have been sampled) of a class, in order. until: the hour after all."""
        table = monitor_hours.c
        where = self._of_run(monitor_hours, monitor) & (table.label == label) & (table.hour >= since)
        if until is not None:
            where &= table.hour < until
        query = sa.select(table.hour, table.asked).where(where).order_by(table.hour)
        return [(hour, int(asked)) for hour, asked in self._connection.execute(query)]

    def sampled_by_hour(
        self, monitor: Monitor, label: str, since: int, until: int | None = None
    ) -> dict[int, list[SampledAnswer]]:
        """The samples of a class by their hours."""
        table = samples.c
        where = self._of_run(samples, monitor) & (table.label == label) & (table.hour >= since)
        if until is not None:
            where &= table.hour < until
        query = sa.select(table.hour, table.answer, table.correct, table.q).where(where).order_by(table.id)
        found: defaultdict[int, list[SampledAnswer]] = defaultdict(list)
        for row in self._connection.execute(query):
            found[row.hour].append(SampledAnswer(*row))
        return found

    def wrong_labels(self, monitor: Monitor) -> Sequence[str]:
        """The classes with a sampled answer that was wrong: no others can give an alarm."""
        where = self._of_run(samples, monitor) & samples.c.correct.is_(False)
        query = sa.select(samples.c.label).where(where).distinct().order_by(samples.c.label)
        return list(self._connection.execute(query).scalars())

    def counted_labels(self, monitor: Monitor) -> Sequence[str]:
        """The classes that were asked in the present run."""
        query = sa.select(monitor_hours.c.label).where(self._of_run(monitor_hours, monitor)).distinct()
        return list(self._connection.execute(query.order_by(monitor_hours.c.label)).scalars())

    def unjudged(self) -> Sequence[tuple[str, str, str]]:
        """(tenant, model, alias) of the monitors with feedback that no evidence has yet."""
        query = sa.select(monitors.c.tenant, monitors.c.model, monitors.c.alias)
        rows = self._connection.execute(query.where(monitors.c.feedback_at > monitors.c.judged_at))
        return [tuple(row) for row in rows]

    def judged(self, monitor_id: str, until: float) -> None:
        """Note until when the evidence of a monitor has all feedback."""
        where = monitors.c.id == monitor_id
        self._connection.execute(sa.update(monitors).where(where).values(judged_at=until))

    def feedback_at(self, monitor_id: str) -> float:
        """When a monitor got feedback last; 0 if never."""
        query = sa.select(monitors.c.feedback_at).where(monitors.c.id == monitor_id)
        return float(self._connection.execute(query).scalar() or 0.0)

    def count_alarms(self) -> int:
        """Number of alarms of the present runs of all monitors that nobody has acknowledged."""
        same = (promise_evidence.c.monitor_id == monitors.c.id) & (promise_evidence.c.run == monitors.c.run)
        query = sa.select(sa.func.count()).select_from(promise_evidence.join(monitors, same))
        query = query.where(promise_evidence.c.alarm_at.is_not(None))
        return int(self._connection.execute(query).scalar_one())

    def had_alarm(self, monitor: Monitor) -> bool:
        """Whether an earlier run of a monitor, of which something is kept, has given an alarm."""
        table = promise_evidence.c
        where = (table.monitor_id == monitor.id) & (table.run < monitor.run) & table.alarm_at.is_not(None)
        return self._connection.execute(sa.select(table.run).where(where).limit(1)).first() is not None

    def forget_runs(self, monitor: Monitor) -> None:
        """Delete the evidence of earlier runs. Alarms of the last one stay: a rollback asks for them."""
        table = promise_evidence
        is_needed = (table.c.run == monitor.run - 1) & table.c.alarm_at.is_not(None)
        old = (table.c.monitor_id == monitor.id) & (table.c.run < monitor.run) & sa.not_(is_needed)
        self._connection.execute(sa.delete(table).where(old))

    @staticmethod
    def _of_run(table: sa.Table, monitor: Monitor) -> ColumnElement[bool]:
        return (table.c.monitor_id == monitor.id) & (table.c.run == monitor.run)
