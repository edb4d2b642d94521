"""Use cases of webhooks: create, change, list, delete and test them, and the outcomes of attempts to send."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Sequence
from typing import Any, Final

from app.domain.entities import Json, new_id
from app.domain.errors import Conflict, InvalidRequest, NotFound, Overloaded, Unavailable
from app.domain.figures import WEBHOOK_ATTEMPTS
from app.domain.origins import AllowedServers
from app.domain.webhook import (
    MAX_DEAD,
    MAX_ERROR,
    MAX_WAITING,
    MAX_WEBHOOKS,
    TEST_EVENT,
    Delivery,
    Form,
    Outcome,
    Target,
    Webhook,
    WebhookEvent,
    due_after,
    faults_of,
)
from app.domain.webhook_message import check_of, secret_of, secret_text
from app.services.quotas import get_usage, require_bytes
from app.settings import Settings
from app.store.private_files import random_secret
from app.store.unit_of_work import Store, UnitOfWork

_ROOT_FILE: Final = "webhooks.key"
_SOON: Final = 7 * 86400.0
"""How long before its expiry a key is announced, if it lives longer than that."""
_NEARLY: Final = 0.9
_QUOTAS: Final = ("stored_bytes", "datasets", "versions", "keys")


def root_secret(settings: Settings) -> bytes:
    """The secret from which the secrets of all webhooks are derived.

    Raises Conflict on PostgreSQL without ``STMS_WEBHOOK_SECRET``, and Unavailable if no file can be made.
    """
    if settings.webhook_secret is not None:
        return settings.webhook_secret.get_secret_value().encode("utf-8")
    if not settings.embedded:
        message = (
            "Webhooks need STMS_WEBHOOK_SECRET, the same text for all API processes and workers: several"
            " machines may share the database."
        )
        raise Conflict(message, code="webhook_secret_missing")
    try:
        return random_secret(settings.data_dir, _ROOT_FILE)
    except OSError as error:
        message = (
            f"The secret of webhooks cannot be kept in {settings.data_dir / _ROOT_FILE}: {error.strerror}."
        )
        raise Unavailable(message, code="webhook_secret_missing") from error


def create_webhook(
    store: Store,
    settings: Settings,
    *,
    name: str,
    url: str,
    events: Sequence[str],
    models: Sequence[str],
    form: Form,
    created_by: str,
) -> tuple[Webhook, str]:
    """Create a webhook; returns it and its secret, ``whsec_…``, which is not shown again.

    Raises InvalidRequest, Conflict beyond `MAX_WEBHOOKS` and as `root_secret`, and TooLarge beyond the
    tenant's quota of bytes.
    """
    _check(settings, name=name, url=url, events=events, models=models, form=form)
    root = root_secret(settings)
    webhook = Webhook(
        id=new_id("wh"),
        name=name,
        url=url,
        events=tuple(dict.fromkeys(events)),
        models=tuple(dict.fromkeys(models)),
        form=form,
        created_at=time.time(),
        created_by=created_by,
        secret_check=check_of(root),
        tenant=store.tenant,
    )
    with store.begin() as uow:
        require_bytes(uow, settings, store.tenant)
        if uow.webhooks.count() >= MAX_WEBHOOKS:
            message = f"The tenant has {MAX_WEBHOOKS} webhooks, which is the most. Delete one first."
            raise Conflict(message, code="too_many_webhooks")
        uow.webhooks.add(webhook)
        uow.audit.append("webhook.create", webhook.id, details=_shown(webhook))
    return webhook, secret_text(secret_of(root, webhook.id))


def list_webhooks(store: Store, *, limit: int, after: str | None = None) -> tuple[Sequence[Webhook], bool]:
    """Webhooks newer than id ``after``, oldest first; and whether more follow."""
    with store.read() as uow:
        return uow.webhooks.page(limit=limit, after=after)


def get_webhook(store: Store, webhook_id: str) -> Webhook:
    """One webhook. Raises NotFound."""
    with store.read() as uow:
        return uow.webhooks.get(webhook_id)


def change_webhook(
    store: Store, settings: Settings, webhook_id: str, *, enabled: bool | None = None, **fields: Any
) -> Webhook:
    """Change fields of a webhook: name, url, events, models, form. Its secret stays.

    enabled: false makes it store and send nothing; true sends waiting deliveries at once. Raises NotFound and
    InvalidRequest.
    """
    with store.begin() as uow:
        before = uow.webhooks.get(webhook_id, lock=True)
        after = dataclasses.replace(before, **fields)
        if fields or enabled:
            given = {name: getattr(after, name) for name in ("name", "url", "events", "models", "form")}
            _check(settings, **given)
        changes: dict[str, Any] = {
            name: list(value) if name in {"events", "models"} else value for name, value in fields.items()
        }
        if enabled is not None and enabled != before.enabled:
            changes |= {"disabled_reason": None if enabled else "request", "dead_in_row": 0}
            uow.webhooks.set_due(webhook_id, time.time() if enabled else None)
        if not changes:
            return before
        changed = uow.webhooks.change(webhook_id, **changes)
        details = {"changed": sorted(changes), **_shown(changed)}
        uow.audit.append("webhook.change", webhook_id, details=details, tenant=changed.tenant)
        return changed


def delete_webhook(store: Store, webhook_id: str) -> None:
    """Delete a webhook with its deliveries; running requests still arrive. Raises NotFound."""
    with store.begin() as uow:
        webhook = uow.webhooks.get(webhook_id)
        uow.webhooks.delete(webhook_id)
        uow.audit.append("webhook.delete", webhook_id, details=_shown(webhook), tenant=webhook.tenant)


def test_webhook(store: Store, webhook_id: str) -> Delivery:
    """Store a delivery of the event `TEST_EVENT`, which a worker sends. Raises as `repeat_delivery`."""
    with store.begin() as uow:
        webhook = _enabled(uow, webhook_id)
        links = {"webhook": f"/v1/webhooks/{webhook_id}"}
        data: Json = {"webhook_id": webhook_id, "name": webhook.name, "links": links}
        event = WebhookEvent(new_id("evt"), TEST_EVENT, webhook.tenant, webhook_id, time.time(), data)
        delivery_id = uow.outbox.add(webhook_id, event)
        uow.audit.append("webhook.test", webhook_id, details={"event": event.id}, tenant=webhook.tenant)
        return uow.webhooks.delivery(webhook_id, str(delivery_id))


def list_deliveries(
    store: Store, webhook_id: str, *, limit: int, after: str | None = None
) -> tuple[Sequence[Delivery], bool]:
    """Deliveries older than id ``after``, newest first; and whether more follow. Raises NotFound."""
    with store.read() as uow:
        uow.webhooks.get(webhook_id)
        return uow.webhooks.deliveries(webhook_id, limit=limit, after=after)


def repeat_delivery(store: Store, webhook_id: str, delivery_id: str) -> Delivery:
    """Send a delivery that has ended again, with the same event id and all attempts.

    Raises NotFound, Conflict if it waits or its webhook is disabled, and Overloaded if `MAX_WAITING` wait.
    """
    with store.begin() as uow:
        webhook = _enabled(uow, webhook_id)
        before = uow.webhooks.delivery(webhook_id, delivery_id, lock=True)
        if before.state == "waiting":
            raise Conflict(f"Delivery {delivery_id} has not ended yet.", code="delivery_waiting")
        again = {"state": "waiting", "attempts": 0, "due_at": time.time(), "ended_at": None}
        uow.webhooks.change_delivery(delivery_id, **again, status=None, error=None)
        details = {"webhook": webhook_id, "event": before.event_id}
        uow.audit.append("webhook.repeat", delivery_id, details=details, tenant=webhook.tenant)
        return uow.webhooks.delivery(webhook_id, delivery_id)


def record_outcome(store: Store, delivery: Delivery, outcome: Outcome, now: float) -> None:
    """Store the outcome of an attempt. Anything changed since the attempt began stays.

    store: of all tenants. now: when the attempt ended, in seconds since the epoch.
    """
    with store.begin() as uow:
        try:
            webhook = uow.webhooks.get(delivery.webhook_id, lock=True)
            current = uow.webhooks.delivery(delivery.webhook_id, delivery.id, lock=True)
        except NotFound:
            return
        if (current.state, current.attempts) != ("waiting", delivery.attempts):
            return
        attempts = current.attempts + 1
        due = None if outcome.ok or outcome.gone else due_after(attempts, now, outcome.wait)
        state = "delivered" if outcome.ok else "dead" if due is None else "waiting"
        uow.webhooks.change_delivery(
            delivery.id,
            state=state,
            attempts=attempts,
            due_at=due if webhook.enabled else None,
            status=outcome.status,
            error=None if outcome.error is None else outcome.error[:MAX_ERROR],
            ended_at=None if state == "waiting" else now,
        )
        if state != "waiting":
            uow.webhooks.forget_ended(webhook.id)
            _note_end(uow, webhook, outcome)
        uow.tallies.add(WEBHOOK_ATTEMPTS, "failed" if state == "waiting" else state)


def announce_limits(store: Store, settings: Settings, now: float) -> None:
    """Store events about keys that expire soon, and about quotas that are nearly used.

    An event is stored once for each key and expiry, and at most once a day for each quota, however often this
    is called. store: of all tenants. now: seconds since the epoch. Raises Unavailable after the events of all
    other tenants were stored.
    """
    with store.read() as uow:
        expiring = uow.webhooks.tenants_of("key.expiring")
        nearly = uow.webhooks.tenants_of("quota.nearly_used")
    failure: Unavailable | None = None
    for tenant in sorted(expiring | nearly):
        try:
            if tenant in expiring:
                _announce_keys(store, tenant, now)
            if tenant in nearly:
                _announce_quotas(store, settings, tenant, now)
        except Unavailable as error:
            failure = error
    if failure is not None:
        raise failure


def _announce_keys(store: Store, tenant: str, now: float) -> None:
    with store.read() as uow:
        keys = uow.keys.of_tenant(tenant).expiring(now, now + _SOON, _SOON)
    for key in keys:
        data: Json = {"key_id": key.id, "name": key.name, "expires_at": key.expires_at}
        data["links"] = {"keys": "/v1/keys"}
        _announce(store, "key.expiring", tenant, key.id, data, (key.id, key.expires_at))


def _announce_quotas(store: Store, settings: Settings, tenant: str, now: float) -> None:
    _, used, allowed = get_usage(store, settings, tenant)
    for name in _QUOTAS:
        amount, most = getattr(used, name), getattr(allowed, name)
        if most and amount >= _NEARLY * most:
            data = {"quota": name, "used": amount, "allowed": most, "links": {"usage": "/v1/usage"}}
            day = int(now // 86400)
            _announce(store, "quota.nearly_used", tenant, name, data, (tenant, name, day))


def _announce(
    store: Store, event_type: str, tenant: str, subject: str, data: Json, again: tuple[object, ...]
) -> None:
    """Store an event once. again: identifies the event when it is announced again."""
    digest = hashlib.sha256(" ".join(map(str, (event_type, *again))).encode()).hexdigest()
    with store.begin() as uow:
        uow.outbox.announce(event_type, tenant, subject, data, event_id=f"evt_{digest[:24]}")


def _check(settings: Settings, **fields: Any) -> None:
    faults = faults_of(**fields, allowed=AllowedServers.of(settings.webhooks))
    if faults:
        raise InvalidRequest("The webhook cannot be stored.", faults=faults)


def _enabled(uow: UnitOfWork, webhook_id: str) -> Webhook:
    """An enabled webhook that may have one more waiting delivery, locked."""
    webhook = uow.webhooks.get(webhook_id, lock=True)
    if not webhook.enabled:
        message = f"Webhook {webhook_id} is disabled ({webhook.disabled_reason}). Enable it first."
        raise Conflict(message, code="webhook_disabled")
    if uow.outbox.count_waiting(webhook_id) >= MAX_WAITING:
        message = f"{MAX_WAITING} deliveries of webhook {webhook_id} wait, which is the most."
        raise Overloaded(message, code="too_many_deliveries", retry_after=60.0)
    return webhook


def _note_end(uow: UnitOfWork, webhook: Webhook, outcome: Outcome) -> None:
    """Count a delivery that has ended, and disable its webhook if it is gone or many were dead in a row."""
    dead = 0 if outcome.ok else webhook.dead_in_row + 1
    reason = "gone" if outcome.gone else "dead" if dead >= MAX_DEAD else None
    if webhook.enabled and reason is not None:
        uow.webhooks.change(webhook.id, disabled_reason=reason, dead_in_row=dead)
        uow.webhooks.set_due(webhook.id, None)
        details = {"reason": reason, **_shown(webhook)}
        uow.audit.append("webhook.disable", webhook.id, details=details, tenant=webhook.tenant)
    elif dead != webhook.dead_in_row:
        uow.webhooks.change(webhook.id, dead_in_row=dead)


def _shown(webhook: Webhook) -> Json:
    """The data of a webhook for the audit log. Paths of addresses are often secrets."""
    return {
        "name": webhook.name,
        "origin": str(Target.of(webhook.url).origin),
        "events": list(webhook.events),
        "models": len(webhook.models),
    }
