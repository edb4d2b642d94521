"""Webhooks and their deliveries in the database of a test."""

from __future__ import annotations

from typing import Any

from app.domain.entities import new_id
from app.domain.webhook import EVENTS, Delivery, Webhook
from app.domain.webhook_message import check_of
from app.store.unit_of_work import Store
from tests.system.published import linear_student, linear_teacher, publish

ROOT = "root secret of the tests " * 2


def add_webhook(store: Store, **fields: Any) -> str:
    """Store a webhook that wants all events, with what a test wants different; returns its id."""
    values = {
        "id": new_id("wh"),
        "name": "ours",
        "url": "https://hooks.example.com/x",
        "events": EVENTS,
        "models": (),
        "form": "cloudevents",
        "created_at": 1.0,
        "created_by": "key_1",
        "secret_check": check_of(ROOT.encode()),
        "tenant": store.tenant,
    }
    webhook = Webhook(**values | fields)
    with store.begin() as uow:
        uow.webhooks.add(webhook)
    return webhook.id


def deliveries(store: Store, webhook_id: str) -> list[Delivery]:
    """Oldest first."""
    with store.read() as uow:
        return list(uow.webhooks.deliveries(webhook_id, limit=1000)[0])[::-1]


def publish_version(store: Store, model: str) -> int:
    """Publish a version of a model with one class, and move "latest" to it; returns its number."""
    student, teacher = linear_student("a", [1.0]), linear_teacher(("a",), [[1.0]])
    return publish(store, model, {"a": student}, teacher).version
