"""Webhooks and their deliveries. New deliveries are stored by `app.store.repositories.outbox`."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any, Final

import sqlalchemy as sa

from app.domain.errors import NotFound
from app.domain.webhook import KEPT_ENDED, Delivery, Webhook
from app.store.paging import bounded_page
from app.store.repositories.scoped import Scoped
from app.store.row_bytes import set_row_bytes
from app.store.tables import webhook_deliveries, webhooks

_WEBHOOK: Final = [webhooks.c[field.name] for field in dataclasses.fields(Webhook)]
_DELIVERY: Final = [webhook_deliveries.c[field.name] for field in dataclasses.fields(Delivery)]


class Webhooks(Scoped):
    """Queries on the webhooks of a tenant and their deliveries."""

    def add(self, webhook: Webhook) -> None:
        """Insert a webhook."""
        self._check_owner(webhook.tenant)
        self._connection.execute(sa.insert(webhooks), _row(webhook))
        set_row_bytes(self._connection, webhooks, webhooks.c.id == webhook.id)

    def count(self) -> int:
        """Number of webhooks."""
        query = sa.select(sa.func.count()).select_from(webhooks).where(self._owns(webhooks))
        return int(self._connection.execute(query).scalar_one())

    def page(self, *, limit: int, after: str | None = None) -> tuple[Sequence[Webhook], bool]:
        """Webhooks newer than id ``after``, oldest first, and whether more follow. Bounded in bytes, too."""
        condition = self._owns(webhooks)
        if after is not None:
            condition &= webhooks.c.id > after
        query = sa.select(*_WEBHOOK).where(condition).order_by(webhooks.c.id)
        rows, has_more = bounded_page(self._connection, query, webhooks.c.row_bytes, limit)
        return [_webhook(row) for row in rows], has_more

    def get(self, webhook_id: str, *, lock: bool = False) -> Webhook:
        """One webhook. lock: lock its row, but not its key, until the end. Raises NotFound."""
        query = sa.select(*_WEBHOOK).where(self._is(webhook_id))
        row = self._connection.execute(query.with_for_update(key_share=True) if lock else query).first()
        if row is None:
            raise NotFound(f"There is no webhook {webhook_id!r}.", code="webhook_not_found")
        return _webhook(row)

    def change(self, webhook_id: str, **columns: Any) -> Webhook:
        """Set columns of a webhook; returns it. Raises NotFound."""
        self._connection.execute(sa.update(webhooks).where(self._is(webhook_id)).values(**columns))
        set_row_bytes(self._connection, webhooks, self._is(webhook_id))
        return self.get(webhook_id)

    def delete(self, webhook_id: str) -> None:
        """Delete a webhook with its deliveries."""
        self._connection.execute(sa.delete(webhooks).where(self._is(webhook_id)))

    def set_due(self, webhook_id: str, due_at: float | None) -> None:
        """Make all waiting deliveries of a webhook due at a time; None while it is disabled."""
        is_waiting = (webhook_deliveries.c.webhook_id == webhook_id, webhook_deliveries.c.state == "waiting")
        self._connection.execute(sa.update(webhook_deliveries).where(*is_waiting).values(due_at=due_at))

    def deliveries(
        self, webhook_id: str, *, limit: int, after: str | None = None
    ) -> tuple[Sequence[Delivery], bool]:
        """Deliveries older than id ``after``, newest first, and whether more follow."""
        condition = self._owns(webhook_deliveries) & (webhook_deliveries.c.webhook_id == webhook_id)
        if after is not None:
            condition &= webhook_deliveries.c.id < after
        query = sa.select(*_DELIVERY).where(condition).order_by(webhook_deliveries.c.id.desc())
        rows, has_more = bounded_page(self._connection, query, webhook_deliveries.c.row_bytes, limit)
        return [Delivery(**row._mapping) for row in rows], has_more

    def delivery(self, webhook_id: str, delivery_id: str, *, lock: bool = False) -> Delivery:
        """One delivery of a webhook. lock: lock its row until the end. Raises NotFound."""
        is_one = self._owns(webhook_deliveries) & (webhook_deliveries.c.id == delivery_id)
        query = sa.select(*_DELIVERY).where(is_one, webhook_deliveries.c.webhook_id == webhook_id)
        row = self._connection.execute(query.with_for_update() if lock else query).first()
        if row is None:
            raise NotFound(f"The webhook has no delivery {delivery_id!r}.", code="delivery_not_found")
        return Delivery(**row._mapping)

    def change_delivery(self, delivery_id: str, **columns: Any) -> None:
        """Set columns of a delivery."""
        is_one = self._owns(webhook_deliveries) & (webhook_deliveries.c.id == delivery_id)
        self._connection.execute(sa.update(webhook_deliveries).where(is_one).values(**columns))

    def first_due(self) -> float | None:
        """When the next delivery of all is due; None without one."""
        query = sa.select(sa.func.min(webhook_deliveries.c.due_at))
        return self._connection.execute(query.where(webhook_deliveries.c.due_at.is_not(None))).scalar()

    def count_due(self) -> int:
        """Number of deliveries of all webhooks that are due, or will be."""
        is_due = webhook_deliveries.c.due_at.is_not(None)
        query = sa.select(sa.func.count()).select_from(webhook_deliveries).where(is_due)
        return int(self._connection.execute(query).scalar_one())

    def tenants_due(self, now: float, *, after: str, limit: int) -> Sequence[str]:
        """Tenants with due deliveries, in turns: by name, starting with the one after ``after``, at most
        ``limit``.
        """
        table = webhooks.c
        query = sa.select(table.tenant).where(_is_due(now)).group_by(table.tenant).order_by(table.tenant)
        tenants: list[str] = []
        for turn in (table.tenant > after, table.tenant <= after):
            # Both statements read webhooks by an index on tenants, and stop at the limit.
            tenants += self._connection.execute(query.where(turn).limit(limit - len(tenants))).scalars()
        return tenants

    def with_due(self, now: float) -> Sequence[Webhook]:
        """The enabled webhooks with deliveries that are due."""
        query = sa.select(*_WEBHOOK).where(self._owns(webhooks), _is_due(now))
        return [_webhook(row) for row in self._connection.execute(query)]

    def due_of(self, webhook_id: str, now: float, *, limit: int, but: Collection[str]) -> Sequence[Delivery]:
        """The deliveries of a webhook that have been due the longest, without those with ids in ``but``."""
        is_due = sa.and_(webhook_deliveries.c.webhook_id == webhook_id, webhook_deliveries.c.due_at <= now)
        query = sa.select(*_DELIVERY).where(is_due, webhook_deliveries.c.id.not_in(sorted(but)))
        query = query.order_by(webhook_deliveries.c.due_at, webhook_deliveries.c.id).limit(limit)
        return [Delivery(**row._mapping) for row in self._connection.execute(query)]

    def forget_ended(self, webhook_id: str) -> None:
        """Delete all but the newest `KEPT_ENDED` deliveries of a webhook that have ended."""
        ended = (webhook_deliveries.c.webhook_id == webhook_id, webhook_deliveries.c.state != "waiting")
        ids = sa.select(webhook_deliveries.c.id).where(*ended).order_by(webhook_deliveries.c.id.desc())
        last_kept = ids.offset(KEPT_ENDED - 1).limit(1).scalar_subquery()
        old = sa.delete(webhook_deliveries).where(*ended, webhook_deliveries.c.id < last_kept)
        self._connection.execute(old)

    def delete_before(self, moment: float) -> int:
        """Delete deliveries of events from before a time that are not due; returns how many were deleted."""
        return self._connection.execute(sa.delete(webhook_deliveries).where(_is_old(moment))).rowcount

    def count_before(self, moment: float) -> int:
        """Number of deliveries that `delete_before` would delete."""
        query = sa.select(sa.func.count()).select_from(webhook_deliveries).where(_is_old(moment))
        return int(self._connection.execute(query).scalar_one())

    def tenants_of(self, event_type: str) -> set[str]:
        """The tenants with an enabled webhook for a type of events."""
        query = sa.select(webhooks.c.tenant, webhooks.c.events).where(webhooks.c.disabled_reason.is_(None))
        return {row.tenant for row in self._connection.execute(query) if event_type in row.events}

    def _is(self, webhook_id: str) -> sa.ColumnElement[bool]:
        return sa.and_(webhooks.c.id == webhook_id, self._owns(webhooks))


def _is_due(now: float) -> sa.ColumnElement[bool]:
    """Whether a webhook is enabled and has deliveries that are due."""
    due = sa.exists().where(
        webhook_deliveries.c.webhook_id == webhooks.c.id, webhook_deliveries.c.due_at <= now
    )
    return sa.and_(webhooks.c.disabled_reason.is_(None), due)


def _is_old(moment: float) -> sa.ColumnElement[bool]:
    return sa.and_(webhook_deliveries.c.due_at.is_(None), webhook_deliveries.c.at < moment)


def _row(webhook: Webhook) -> dict[str, Any]:
    return dataclasses.asdict(webhook) | {"events": list(webhook.events), "models": list(webhook.models)}


def _webhook(row: sa.Row[Any]) -> Webhook:
    values = dict(row._mapping)
    return Webhook(**values | {name: tuple(values[name]) for name in ("events", "models")})
