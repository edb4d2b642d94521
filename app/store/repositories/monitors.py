"""Monitors of aliases, and the answers that they have chosen."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import ColumnElement

from app.domain.errors import NotFound
from app.domain.figures import HOUR
from app.domain.monitors import (
    MAX_SAMPLES,
    ActiveMonitor,
    Monitor,
    MonitorSettings,
    Sample,
    SampleView,
    Trials,
    settings_of,
)
from app.domain.names import split_qualified
from app.store.dialect import batched, upsert
from app.store.monitor_tables import feedback, monitor_hours, monitors, samples
from app.store.repositories.registry import Registry
from app.store.repositories.scoped import Scoped
from app.store.row_bytes import row_size, rows_size, set_row_bytes
from app.store.tables import aliases

_MONITOR: Final = [monitors.c[field.name] for field in dataclasses.fields(Monitor)]
_ROWS_PER_STATEMENT: Final = 500


class Monitors(Scoped):
    """Queries on the monitors of a tenant and their samples."""

    def count(self) -> int:
        """Number of monitors."""
        query = sa.select(sa.func.count()).select_from(monitors).where(self._owns(monitors))
        return int(self._connection.execute(query).scalar_one())

    def find(self, model: str, alias: str, *, lock: bool = False) -> Monitor | None:
        """The monitor of an alias; None if it has none. lock: whether to lock its row until the end."""
        query = sa.select(*_MONITOR).where(self._is(model, alias))
        row = self._connection.execute(query.with_for_update() if lock else query).first()
        return None if row is None else _monitor(row)

    def get(self, model: str, alias: str) -> Monitor:
        """The monitor of an alias. Raises NotFound."""
        found = self.find(model, alias)
        if found is None:
            raise NotFound(f"Alias {alias!r} of model {model!r} has no monitor.", code="monitor_not_found")
        return found

    def of_model(self, model: str) -> Sequence[Monitor]:
        """The monitors of all aliases of a model, by alias."""
        query = sa.select(*_MONITOR).where(self._owns(monitors), monitors.c.model == model)
        return [_monitor(row) for row in self._connection.execute(query.order_by(monitors.c.alias))]

    def add(self, monitor: Monitor) -> None:
        """Insert a monitor. Server processes follow it as a change of its model."""
        self._check_owner(monitor.tenant)
        values = dataclasses.asdict(monitor) | {"settings": monitor.settings.model_dump(mode="json")}
        self._connection.execute(sa.insert(monitors), values)
        set_row_bytes(self._connection, monitors, monitors.c.id == monitor.id)
        Registry(self._connection).model_changed(monitor.tenant, monitor.model)

    def change(self, monitor: Monitor, settings: MonitorSettings, now: float) -> None:
        """Change the settings of a monitor, which starts a new run."""
        where = self._is(monitor.model, monitor.alias)
        values: dict[str, Any] = {
            "settings": settings.model_dump(mode="json"),
            "revision": monitor.revision + 1,
            "run": monitor.run + 1,
            "started_at": now,
            "updated_at": now,
        }
        self._connection.execute(sa.update(monitors).where(where).values(values))
        set_row_bytes(self._connection, monitors, where)
        Registry(self._connection).model_changed(monitor.tenant, monitor.model)

    def delete(self, monitor: Monitor) -> None:
        """Delete a monitor with its samples and their feedback."""
        self._connection.execute(sa.delete(monitors).where(monitors.c.id == monitor.id))
        Registry(self._connection).model_changed(monitor.tenant, monitor.model)

    def active(self, models: Collection[str] | None) -> list[ActiveMonitor]:
        """The fields of monitors that processes need, by qualified name of the model; None for all models."""
        columns = [monitors.c[name] for name in ("id", "run", "tenant", "model", "settings", "slope")]
        same_alias = [monitors.c[name] == aliases.c[name] for name in ("tenant", "model", "alias")]
        query = sa.select(*columns, aliases.c.version).join(aliases, sa.and_(*same_alias))
        if models is None:
            return [_active(row) for row in self._connection.execute(query)]
        found: list[ActiveMonitor] = []
        for some in batched([split_qualified(name) for name in models]):
            names = sa.tuple_(monitors.c.tenant, monitors.c.model)
            found += map(_active, self._connection.execute(query.where(names.in_(some))))
        return found

    def add_samples(
        self, monitor_id: str, new: Sequence[Sample], trials: Sequence[Trials], hour: int, dropped: int
    ) -> int:
        """Store the samples and counts of a process for a monitor; returns the number of stored samples.

        None if the monitor was deleted. Samples beyond `MAX_SAMPLES` are not stored. dropped: number of
        chosen samples that the process could not keep. hour: of the trials.
        """
        query = sa.select(monitors.c.samples).where(monitors.c.id == monitor_id).with_for_update()
        kept = self._connection.execute(query).scalar()
        if kept is None:
            return 0
        room = max(MAX_SAMPLES - kept, 0)
        rows = [sample._asdict() for sample in new[:room]]
        for first in range(0, len(rows), _ROWS_PER_STATEMENT):
            insert = upsert(self._connection, samples).on_conflict_do_nothing()
            self._connection.execute(insert, rows[first : first + _ROWS_PER_STATEMENT])
        for one in trials:
            values = one._asdict() | {"hour": hour}
            insert = upsert(self._connection, monitor_hours).values(values)
            grown = {name: monitor_hours.c[name] + insert.excluded[name] for name in ("asked", "yes")}
            keys = ["monitor_id", "run", "label", "hour"]
            self._connection.execute(insert.on_conflict_do_update(index_elements=keys, set_=grown))
        counted = {
            "samples": monitors.c.samples + len(rows),
            "dropped": monitors.c.dropped + dropped + len(new) - len(rows),
            "sample_bytes": monitors.c.sample_bytes + rows_size(rows, samples),
        }
        self._connection.execute(sa.update(monitors).where(monitors.c.id == monitor_id).values(counted))
        return len(rows)

    def waiting(
        self, monitor: Monitor, label: str | None, *, limit: int, after: str | None = None
    ) -> tuple[list[SampleView], bool]:
        """Samples of the present run without feedback, oldest first, and whether more follow."""
        table = samples.c
        where = self._of_run(monitor) & table.correct.is_(None)
        if label is not None:
            where &= table.label == label
        if after is not None:
            where &= table.id > after
        rows = self._connection.execute(sa.select(samples).where(where).order_by(table.id).limit(limit + 1))
        page = [view_of(row, monitor.alias) for row in rows]
        return page[:limit], len(page) > limit

    def labelled(
        self, monitor: Monitor, label: str, since: float
    ) -> list[tuple[bool, bool | None, float, float | None]]:
        """(answer, correct, q, probability) of the samples of a class in the present run from a time on."""
        table = samples.c
        where = self._of_run(monitor) & (table.label == label) & (table.at >= since)
        query = sa.select(table.answer, table.correct, table.q, table.probability).where(where)
        return [tuple(row) for row in self._connection.execute(query.order_by(table.id))]

    def trials(self, monitor: Monitor, hour: int, label: str | None = None) -> dict[str, tuple[int, int]]:
        """(asked, yes) in the present run from an hour on, by class."""
        table = monitor_hours.c
        where = (table.monitor_id == monitor.id) & (table.run == monitor.run) & (table.hour >= hour)
        if label is not None:
            where &= table.label == label
        sums = sa.select(table.label, sa.func.sum(table.asked), sa.func.sum(table.yes)).where(where)
        rows = self._connection.execute(sums.group_by(table.label).order_by(table.label))
        return {name: (int(asked), int(yes)) for name, asked, yes in rows}

    def set_slope(self, monitor_id: str, slope: float, now: float) -> None:
        """Change which no answers are sampled. Server processes read it as a change of the model."""
        of_one = monitors.c.id == monitor_id
        row = self._connection.execute(sa.select(monitors.c.tenant, monitors.c.model).where(of_one)).first()
        if row is not None:
            values = {"slope": slope, "slope_at": now}
            self._connection.execute(sa.update(monitors).where(of_one).values(values))
            Registry(self._connection).model_changed(row.tenant, row.model)

    def due_for_slope(self, before: float) -> list[Monitor]:
        """The monitors whose slope was last looked at before a time."""
        query = sa.select(*_MONITOR).where(monitors.c.slope_at < before).order_by(monitors.c.id)
        return [_monitor(row) for row in self._connection.execute(query)]

    def looked_at_slope(self, monitor_id: str, now: float) -> None:
        """Note that the slope of a monitor was looked at and stays."""
        where = monitors.c.id == monitor_id
        self._connection.execute(sa.update(monitors).where(where).values(slope_at=now))

    def all_keys(self) -> Sequence[tuple[str, str, str]]:
        """(tenant, model, alias) of all monitors."""
        columns = [monitors.c[name] for name in ("tenant", "model", "alias")]
        return [tuple(row) for row in self._connection.execute(sa.select(*columns).order_by(*columns))]

    def delete_before(self, monitor_id: str, hour: int, limit: int) -> int:
        """Delete at most ``limit`` samples of a monitor from before an hour, with their feedback.

        It also deletes counts of these hours, and reports about other answers. Returns the number of samples.
        """
        table = samples.c
        old = sa.select(table.id).where(table.monitor_id == monitor_id, table.hour < hour)
        ids = list(self._connection.execute(old.order_by(table.id).limit(limit)).scalars())
        reports = feedback.c.sample_id.is_(None) & (feedback.c.at < hour * HOUR)
        gone = [
            *(feedback.c.sample_id.in_(some) for some in batched(ids)),
            reports & (feedback.c.monitor_id == monitor_id),
        ]
        size = sum(self._delete(feedback, where) for where in gone)
        size += sum(self._delete(samples, table.id.in_(some)) for some in batched(ids))
        hours = (monitor_hours.c.monitor_id == monitor_id) & (monitor_hours.c.hour < hour)
        self._connection.execute(sa.delete(monitor_hours).where(hours))
        counted = {
            "samples": monitors.c.samples - len(ids),
            "sample_bytes": monitors.c.sample_bytes - size,
        }
        self._connection.execute(sa.update(monitors).where(monitors.c.id == monitor_id).values(counted))
        return len(ids)

    def _delete(self, table: sa.Table, where: ColumnElement[bool]) -> int:
        """Delete rows; returns their bytes."""
        total = sa.select(sa.func.coalesce(sa.func.sum(row_size(table)), 0)).where(where)
        size = int(self._connection.execute(total).scalar_one())
        self._connection.execute(sa.delete(table).where(where))
        return size

    def count_old(self, now: float, most_days: float) -> int:
        """How many samples are older than their monitors keep them. most_days: that any does; 0: no limit."""
        count = 0
        for row in self._connection.execute(sa.select(monitors.c.id, monitors.c.settings)).all():
            days = settings_of(row.settings).retain_days
            before = now - 86_400.0 * (min(days, most_days) if most_days else days)
            old = sa.select(sa.func.count()).where(
                samples.c.monitor_id == row.id, samples.c.hour < int(before // HOUR)
            )
            count += int(self._connection.execute(old).scalar_one())
        return count

    def _is(self, model: str, alias: str) -> ColumnElement[bool]:
        return sa.and_(self._owns(monitors), monitors.c.model == model, monitors.c.alias == alias)

    @staticmethod
    def _of_run(monitor: Monitor) -> ColumnElement[bool]:
        return (samples.c.monitor_id == monitor.id) & (samples.c.run == monitor.run)


def _monitor(row: Any) -> Monitor:
    return Monitor(**{**row._mapping, "settings": settings_of(row.settings)})


def _active(row: Any) -> ActiveMonitor:
    from core.monitoring.sampling import SamplingPlan

    settings = settings_of(row.settings)
    plan = SamplingPlan(settings.ask.yes, settings.ask.floor, row.slope)
    return ActiveMonitor(
        row.id,
        row.run,
        row.tenant,
        row.model,
        row.version,
        plan,
        frozenset(settings.classes),
        settings.store == "rows",
    )


def view_of(row: Any, alias: str) -> SampleView:
    names = [field.name for field in dataclasses.fields(SampleView) if field.name != "alias"]
    return SampleView(alias=alias, **{name: getattr(row, name) for name in names})
