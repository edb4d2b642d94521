"""The outbox of webhooks: events become deliveries in the transaction that causes the event.

A transaction that is rolled back leaves no delivery; a committed one has a delivery for each webhook that
wants it.
"""

from __future__ import annotations

import time
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from app.domain.entities import Json, new_id
from app.domain.webhook import JOB_EVENTS, MAX_ERROR, MAX_TEXT, MAX_WAITING, WebhookEvent, wants
from app.store.dialect import insert_once
from app.store.repositories.webhooks import Webhooks
from app.store.row_bytes import rows_size
from app.store.tables import jobs, webhook_deliveries, webhooks


class Outbox:
    """Stores deliveries. Deliveries are read and changed in `app.store.repositories.webhooks`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def job_ended(self, job_id: str, event_type: str, data: Json) -> None:
        """Add deliveries for a job's final state. event_type: one of `JOB_EVENTS`. data: of its event."""
        columns = (jobs.c.tenant, jobs.c.model, jobs.c.state, jobs.c.attempt, jobs.c.version)
        errors = (jobs.c.error_code, jobs.c.error_message)
        job = self._connection.execute(sa.select(*columns, *errors).where(jobs.c.id == job_id)).one()
        links = {"job": f"/v1/training-jobs/{job_id}"}
        if job.version is not None:
            links["version"] = f"/v1/models/{job.model}/versions/{job.version}"
        error = {"code": job.error_code, "message": (job.error_message or "")[:MAX_TEXT]}
        counts: Json = {name: data[name] for name in ("students", "failed") if name in data}
        self.announce(
            JOB_EVENTS[event_type],
            job.tenant,
            job_id,
            {
                "job_id": job_id,
                "model": job.model,
                "state": job.state,
                "attempt": job.attempt,
                "version": job.version,
                **counts,
                "error": None if job.error_code is None else error,
                "links": links,
            },
            model=job.model,
        )

    def version_published(self, tenant: str, model: str, version: int, facts: Json) -> None:
        """Add deliveries for a new version of a model. facts: further data."""
        links = {"version": f"/v1/models/{model}/versions/{version}"}
        data = {"model": model, "version": version, **facts, "links": links}
        self.announce("version.published", tenant, f"{model}@{version}", data, model=model)

    def alias_moved(
        self, tenant: str, model: str, alias: str, version: int | None, previous: int | None
    ) -> None:
        """An alias was moved, made (previous is None) or deleted (version is None)."""
        links = {"alias": f"/v1/models/{model}/aliases/{alias}"}
        data = {"model": model, "alias": alias, "version": version, "previous": previous, "links": links}
        self.announce("alias.moved", tenant, f"{model}@{alias}", data, model=model)

    def announce(
        self,
        event_type: str,
        tenant: str,
        subject: str,
        data: Json,
        *,
        model: str | None = None,
        event_id: str | None = None,
    ) -> int:
        """Store a delivery for every webhook of a tenant that wants the event; returns their number.

        event_id: by default a new one. A webhook that has a delivery of the event already gets no other one.
        """
        event = WebhookEvent(event_id or new_id("evt"), event_type, tenant, subject, time.time(), data, model)
        # Otherwise the deletion of a webhook would make this transaction fail. Only the webhook's
        # key is locked.
        listed = sa.select(webhooks.c.id, webhooks.c.events, webhooks.c.models).where(
            webhooks.c.tenant == tenant, webhooks.c.disabled_reason.is_(None)
        )
        locked = listed.order_by(webhooks.c.id).with_for_update(read=True, key_share=True)
        found = [row.id for row in self._connection.execute(locked) if wants(row.events, row.models, event)]
        return sum(self.add(webhook_id, event) is not None for webhook_id in found)

    def add(self, webhook_id: str, event: WebhookEvent) -> str | None:
        """Store a delivery that is due at once; returns its id, or None if the webhook has one of the event.

        It is stored as dead if `MAX_WAITING` others already wait.
        """
        is_full = self.count_waiting(webhook_id) >= MAX_WAITING
        if is_full:
            Webhooks(self._connection, event.tenant).forget_ended(webhook_id)
        error = f"{MAX_WAITING} other deliveries of the webhook waited, which is the most."
        row: dict[str, Any] = {
            "id": new_id("del"),
            "tenant": event.tenant,
            "webhook_id": webhook_id,
            "event_id": event.id,
            "type": event.type,
            "subject": event.subject,
            "at": event.at,
            "data": event.data,
            "state": "dead" if is_full else "waiting",
            "attempts": 0,
            "due_at": None if is_full else event.at,
            "error": error if is_full else None,
            "ended_at": event.at if is_full else None,
        }
        row["row_bytes"] = rows_size([row], webhook_deliveries) + MAX_ERROR
        return row["id"] if insert_once(self._connection, webhook_deliveries, row) else None

    def count_waiting(self, webhook_id: str) -> int:
        """Number of deliveries of a webhook that wait."""
        is_one = (webhook_deliveries.c.webhook_id == webhook_id, webhook_deliveries.c.state == "waiting")
        return int(self._connection.execute(sa.select(sa.func.count()).where(*is_one)).scalar_one())
