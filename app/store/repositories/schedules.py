"""Schedules of training."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa

from app.domain.errors import NotFound, PreconditionFailed
from app.domain.schedules import Schedule, ScheduleSettings
from app.store.dialect import on_postgresql
from app.store.monitor_tables import monitors, promise_evidence
from app.store.repositories.scoped import Scoped
from app.store.row_bytes import rows_size
from app.store.schedule_tables import schedules

_COLUMNS: Final = [schedules.c[field.name] for field in dataclasses.fields(Schedule)]


class Schedules(Scoped):
    """Queries on the schedules of a tenant. A model has at most one."""

    def find(self, model: str, *, lock: bool = False) -> Schedule | None:
        """The schedule of a model, or None. lock: until the end of the transaction."""
        query = sa.select(*_COLUMNS).where(self._is(model))
        if lock and on_postgresql(self._connection):
            query = query.with_for_update()
        row = self._connection.execute(query).first()
        return None if row is None else _schedule(row)

    def get(self, model: str) -> Schedule:
        """The schedule of a model. Raises NotFound."""
        found = self.find(model)
        if found is None:
            raise NotFound(f"Model {model!r} has no schedule.", code="schedule_not_found")
        return found

    def count(self) -> int:
        """Number of schedules of the tenant."""
        query = sa.select(sa.func.count()).where(schedules.c.tenant == self.tenant)
        return int(self._connection.execute(query).scalar_one())

    def add(self, schedule: Schedule) -> None:
        """Store a new schedule."""
        self._check_owner(schedule.tenant)
        values = _values(schedule)
        values["row_bytes"] = rows_size([values], schedules)
        self._connection.execute(sa.insert(schedules), values)

    def replace(self, schedule: Schedule, *, expected_revision: int) -> None:
        """Store a schedule in place of the one with this revision. Raises PreconditionFailed."""
        values = _values(schedule)
        values["row_bytes"] = rows_size([values], schedules)
        where = (self._is(schedule.model), schedules.c.revision == expected_revision)
        if not self._connection.execute(sa.update(schedules).where(*where).values(values)).rowcount:
            text = f"The schedule of model {schedule.model!r} has changed since it was read."
            raise PreconditionFailed(text)

    def note(self, schedule_id: str, **values: Any) -> None:
        """Store what a schedule did."""
        where = schedules.c.id == schedule_id
        self._connection.execute(sa.update(schedules).where(where, self._owns(schedules)).values(values))

    def delete(self, model: str) -> None:
        """Delete the schedule of a model."""
        self._connection.execute(sa.delete(schedules).where(self._is(model)))

    def active(self) -> Sequence[tuple[str, str]]:
        """(tenant, model) of all schedules that have not stopped."""
        query = sa.select(schedules.c.tenant, schedules.c.model).where(
            self._owns(schedules), schedules.c.stopped.is_(False)
        )
        return [(row.tenant, row.model) for row in self._connection.execute(query.order_by(schedules.c.id))]

    def newest_alarm(self, model: str) -> float:
        """When a monitor of a model has given its newest alarm; 0 if none has."""
        same = (promise_evidence.c.monitor_id == monitors.c.id) & (promise_evidence.c.run == monitors.c.run)
        query = sa.select(sa.func.max(promise_evidence.c.alarm_at)).select_from(
            promise_evidence.join(monitors, same)
        )
        query = query.where(monitors.c.model == model, monitors.c.tenant == self.tenant)
        return float(self._connection.execute(query).scalar() or 0.0)

    def _is(self, model: str) -> sa.ColumnElement[bool]:
        return sa.and_(schedules.c.model == model, schedules.c.tenant == self.tenant)


def _values(schedule: Schedule) -> dict[str, Any]:
    values = {field.name: getattr(schedule, field.name) for field in dataclasses.fields(schedule)}
    return values | {"settings": schedule.settings.model_dump(mode="json")}


def _schedule(row: Any) -> Schedule:
    values = dict(row._mapping)
    return Schedule(**values | {"settings": ScheduleSettings.model_validate(values["settings"])})
