"""Use cases of webhooks, and what the outcomes of attempts lead to, with a clock of the test."""

from __future__ import annotations

import stat
import time
from pathlib import Path
from typing import Any

import pytest

from app.domain.errors import Conflict, InvalidRequest, NotFound, Overloaded, TooLarge, Unavailable
from app.domain.figures import WEBHOOK_ATTEMPTS
from app.domain.webhook import DELAYS, EVENTS, KEPT_DAYS, Delivery, Outcome
from app.services import webhooks
from app.services.keys import create_key
from app.services.quotas import get_usage
from app.services.retention import clean, what_to_clean
from app.settings import Settings
from app.store.engine import open_engine
from app.store.unit_of_work import Store
from tests.app.webhook_rows import ROOT, add_webhook, deliveries
from tests.refusals import refused_as

FIELDS: dict[str, Any] = {
    "name": "ours",
    "url": "https://hooks.example.com/secret-path",
    "events": ["job.failed"],
    "models": [],
    "form": "cloudevents",
    "created_by": "key_1",
}
REFUSED = Outcome(500, "The receiver answered with status 500.")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path / "data", webhooks="https://hooks.example.com")


def a_delivery(store: Store, webhook_id: str) -> Delivery:
    return webhooks.test_webhook(store, webhook_id)


def record(store: Store, webhook_id: str, outcome: Outcome, now: float = 1000.0) -> Delivery:
    """Record the outcome of an attempt of the newest delivery; returns it as it is then."""
    delivery = deliveries(store, webhook_id)[-1]
    webhooks.record_outcome(store.of_all_tenants(), delivery, outcome, now)
    return deliveries(store, webhook_id)[-1]


def actions(store: Store) -> list[str]:
    with store.read() as uow:
        return [row.action for row in uow.audit.page(limit=100)[0]][::-1]


def test_a_secret_is_made_from_a_file_that_only_the_server_reads(sqlite_store: Store, settings: Settings):
    webhook, secret = webhooks.create_webhook(sqlite_store, settings, **FIELDS)
    other, other_secret = webhooks.create_webhook(sqlite_store, settings, **FIELDS)
    assert secret.startswith("whsec_")
    assert secret != other_secret
    assert webhook.secret_check == other.secret_check
    file = settings.data_dir / "webhooks.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(file.read_bytes()) == 32
    assert webhooks.root_secret(settings) == file.read_bytes(), "another process has the same"
    with sqlite_store.read() as uow:
        record = uow.audit.page(limit=1)[0][0]
    assert (record.action, record.details["origin"]) == ("webhook.create", "https://hooks.example.com")
    assert "secret-path" not in str(record)


def test_a_file_that_others_may_read_is_refused(settings: Settings):
    webhooks.root_secret(settings)
    (settings.data_dir / "webhooks.key").chmod(0o644)
    with refused_as(webhooks.Unavailable, "webhook_secret_missing"):
        webhooks.root_secret(settings)


def test_several_machines_need_a_secret_of_the_settings(postgres_address: str, tmp_path: Path):
    store = Store(open_engine(postgres_address))
    shared = {"database_url": postgres_address, "webhooks": "https://hooks.example.com", "data_dir": tmp_path}
    with refused_as(Conflict, "webhook_secret_missing") as refused:
        webhooks.create_webhook(store, Settings(**shared), **FIELDS)
    assert "STMS_WEBHOOK_SECRET" in refused.value.message
    webhook, _ = webhooks.create_webhook(store, Settings(**shared, webhook_secret=ROOT), **FIELDS)
    assert webhooks.list_webhooks(store, limit=9) == ([webhook], False)
    store.dispose()


def test_the_secret_may_be_a_file_of_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "stms_webhook_secret").write_text(f"{ROOT}\n")
    (tmp_path / "stms_webhook_secret").chmod(0o600)
    monkeypatch.setenv("STMS_SECRETS_DIR", str(tmp_path))
    settings = Settings()
    assert webhooks.root_secret(settings) == ROOT.encode()
    assert ROOT not in repr(settings)
    with pytest.raises(ValueError, match="at least 32 characters"):
        Settings(webhook_secret="short")
    assert Settings(webhook_secret="").webhook_secret is None


def test_only_listed_origins_and_a_bounded_number_are_stored(
    sqlite_store: Store, settings: Settings, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(InvalidRequest) as refused:
        webhooks.create_webhook(sqlite_store, settings, **FIELDS | {"url": "https://10.0.0.1/"})
    assert [fault.code for fault in refused.value.faults] == ["webhook_not_allowed"]
    monkeypatch.setattr(webhooks, "MAX_WEBHOOKS", 1)
    webhook, _ = webhooks.create_webhook(sqlite_store, settings, **FIELDS)
    with refused_as(Conflict, "too_many_webhooks"):
        webhooks.create_webhook(sqlite_store, settings, **FIELDS)
    for fields in ({"url": "https://10.0.0.1/"}, {"events": ["x"]}, {"name": ""}, {"models": ["/"]}):
        with pytest.raises(InvalidRequest):
            webhooks.change_webhook(sqlite_store, settings, webhook.id, **fields)
    assert webhooks.get_webhook(sqlite_store, webhook.id) == webhook
    webhooks.delete_webhook(sqlite_store, webhook.id)
    with pytest.raises(TooLarge):
        webhooks.create_webhook(sqlite_store, settings.model_copy(update={"quota_stored_bytes": 0}), **FIELDS)


def test_a_webhook_is_changed_disabled_and_enabled(sqlite_store: Store, settings: Settings):
    webhook, _ = webhooks.create_webhook(sqlite_store, settings, **FIELDS)
    waiting = a_delivery(sqlite_store, webhook.id)
    changed = webhooks.change_webhook(sqlite_store, settings, webhook.id, events=["alias.moved"], name="new")
    assert (changed.events, changed.name, changed.url) == (("alias.moved",), "new", webhook.url)
    assert webhooks.change_webhook(sqlite_store, settings, webhook.id, enabled=True) == changed
    # A webhook whose origin is not listed any more can still be disabled.
    none = settings.model_copy(update={"webhooks": ""})
    stopped = webhooks.change_webhook(sqlite_store, none, webhook.id, enabled=False)
    assert (stopped.enabled, stopped.disabled_reason) == (False, "request")
    assert deliveries(sqlite_store, webhook.id)[0].due_at is None
    with pytest.raises(InvalidRequest):
        webhooks.change_webhook(sqlite_store, none, webhook.id, enabled=True)
    with refused_as(Conflict, "webhook_disabled"):
        webhooks.test_webhook(sqlite_store, webhook.id)
    assert webhooks.change_webhook(sqlite_store, settings, webhook.id, enabled=True).enabled
    due = deliveries(sqlite_store, webhook.id)[0].due_at
    assert due is not None
    assert due >= waiting.at
    webhooks.delete_webhook(sqlite_store, webhook.id)
    with pytest.raises(NotFound):
        webhooks.list_deliveries(sqlite_store, webhook.id, limit=9)
    assert actions(sqlite_store) == [
        *("webhook.create", "webhook.test", "webhook.change", "webhook.change", "webhook.change"),
        "webhook.delete",
    ]


def test_attempts_are_made_at_growing_intervals_until_the_delivery_is_dead(store: Store):
    webhook_id = add_webhook(store)
    a_delivery(store, webhook_id)
    now, waits = 1000.0, []
    for attempt in range(1, len(DELAYS)):
        found = record(store, webhook_id, REFUSED, now)
        assert (found.state, found.attempts, found.status) == ("waiting", attempt, 500)
        waits.append(float(found.due_at or 0) - now)
        now = float(found.due_at or 0)
    assert waits == list(DELAYS[1:])
    found = record(store, webhook_id, REFUSED, now)
    assert (found.state, found.due_at, found.ended_at, found.attempts) == ("dead", None, now, 7)
    assert found.error == REFUSED.error
    with store.read() as uow:
        assert uow.webhooks.get(webhook_id).dead_in_row == 1
        tallies = uow.tallies.all()
    assert (tallies[WEBHOOK_ATTEMPTS, "failed"], tallies[WEBHOOK_ATTEMPTS, "dead"]) == (6, 1)


def test_a_delivered_event_is_not_due_again_and_may_be_repeated(store: Store):
    webhook_id = add_webhook(store, dead_in_row=7)
    first = a_delivery(store, webhook_id)
    with refused_as(Conflict, "delivery_waiting"):
        webhooks.repeat_delivery(store, webhook_id, first.id)
    found = record(store, webhook_id, Outcome(202))
    assert (found.state, found.due_at, found.error, found.status) == ("delivered", None, None, 202)
    with store.read() as uow:
        assert uow.webhooks.get(webhook_id).dead_in_row == 0
    again = webhooks.repeat_delivery(store, webhook_id, first.id)
    assert (again.id, again.event_id, again.state, again.attempts) == (first.id, first.event_id, "waiting", 0)
    with pytest.raises(NotFound):
        webhooks.repeat_delivery(store, add_webhook(store), first.id)


def test_an_outcome_that_comes_late_changes_nothing(store: Store):
    webhook_id = add_webhook(store)
    delivery = a_delivery(store, webhook_id)
    everything = store.of_all_tenants()
    webhooks.record_outcome(everything, delivery, Outcome(204), 1000.0)
    webhooks.record_outcome(everything, delivery, REFUSED, 1001.0)
    [found] = deliveries(store, webhook_id)
    assert (found.state, found.attempts) == ("delivered", 1)
    with store.begin() as uow:
        uow.webhooks.delete(webhook_id)
    webhooks.record_outcome(everything, delivery, Outcome(204), 1002.0)


def test_a_receiver_that_is_gone_is_not_asked_again(store: Store):
    webhook_id = add_webhook(store)
    a_delivery(store, webhook_id)
    a_delivery(store, webhook_id)
    assert record(store, webhook_id, Outcome(410, "The receiver answered with status 410.")).state == "dead"
    with store.read() as uow:
        webhook = uow.webhooks.get(webhook_id)
        assert uow.webhooks.first_due() is None, "the other delivery waits until the webhook is enabled"
    assert webhook.disabled_reason == "gone"
    assert actions(store)[-1] == "webhook.disable"


def test_twenty_dead_deliveries_in_a_row_disable_a_webhook(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("app.domain.webhook.DELAYS", (0.0,))
    webhook_id = add_webhook(store)
    for number in range(20):
        with store.read() as uow:
            assert uow.webhooks.get(webhook_id).dead_in_row == number
        a_delivery(store, webhook_id)
        assert record(store, webhook_id, REFUSED).state == "dead"
    with store.read() as uow:
        webhook, last = uow.webhooks.get(webhook_id), uow.audit.page(limit=1)[0][0]
    assert (webhook.disabled_reason, webhook.dead_in_row) == ("dead", 20)
    assert (last.action, last.object, last.actor) == ("webhook.disable", webhook_id, "system")
    assert last.details["reason"] == "dead"


def test_an_outcome_after_the_webhook_was_disabled_leaves_the_delivery_waiting(store: Store):
    webhook_id = add_webhook(store)
    delivery = a_delivery(store, webhook_id)
    webhooks.change_webhook(store, Settings(), webhook_id, enabled=False)
    webhooks.record_outcome(store.of_all_tenants(), delivery, REFUSED, 1000.0)
    [found] = deliveries(store, webhook_id)
    assert (found.state, found.attempts, found.due_at) == ("waiting", 1, None)


def test_tests_and_repetitions_are_refused_when_too_many_wait(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(webhooks, "MAX_WAITING", 2)
    webhook_id = add_webhook(sqlite_store)
    for _ in range(2):
        a_delivery(sqlite_store, webhook_id)
    with refused_as(Overloaded, "too_many_deliveries"):
        a_delivery(sqlite_store, webhook_id)


def test_a_key_that_expires_is_announced_once(store: Store):
    now = time.time()
    webhook_id, day = add_webhook(store, events=("key.expiring",)), 86400.0
    add_webhook(store.of_tenant("acme"), events=("key.expiring",))
    soon, _ = create_key(store, "soon", {"query"}, expires_at=now + 30 * day)
    create_key(store, "never", {"query"})
    create_key(store, "of an hour", {"query"}, expires_at=now + 3600)
    everything, settings = store.of_all_tenants(), Settings()
    webhooks.announce_limits(everything, settings, now + 22 * day)
    assert deliveries(store, webhook_id) == []
    for later in (23.5, 24.0, 29.0, 31.0):
        webhooks.announce_limits(everything, settings, now + later * day)
    [found] = deliveries(store, webhook_id)
    assert (found.type, found.subject, found.data["name"]) == ("key.expiring", soon.id, "soon")


def test_a_quota_that_is_nearly_used_is_announced_once_a_day(store: Store):
    webhook_id = add_webhook(store, events=("quota.nearly_used",))
    everything = store.of_all_tenants()
    for _ in range(9):
        create_key(store, "k", {"query"})
    webhooks.announce_limits(everything, Settings(quota_keys=11, quota_datasets=0), 86400.0 * 5)
    assert deliveries(store, webhook_id) == []
    for moment in (86400.0 * 5, 86400.0 * 5 + 4000, 86400.0 * 6):
        webhooks.announce_limits(everything, Settings(quota_keys=10), moment)
    found = deliveries(store, webhook_id)
    assert [one.subject for one in found] == ["keys", "keys"]
    assert found[0].data | {"links": {}} == {"quota": "keys", "used": 9, "allowed": 10, "links": {}}


def test_a_tenant_whose_use_cannot_be_read_keeps_no_event_from_others(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    ids = {name: add_webhook(store.of_tenant(name)) for name in ("a", "b", "c")}
    for name in ids:
        create_key(store.of_tenant(name), "k", {"query"})

    def broken(of: Store, settings: Settings, tenant: str) -> Any:
        if tenant == "a":
            raise Unavailable("What a uses takes too long to add up.")
        return get_usage(of, settings, tenant)

    monkeypatch.setattr(webhooks, "get_usage", broken)
    with pytest.raises(Unavailable, match="What a uses"):
        webhooks.announce_limits(store.of_all_tenants(), Settings(quota_keys=1), 86400.0 * 5)
    found = {name: len(deliveries(store.of_tenant(name), webhook_id)) for name, webhook_id in ids.items()}
    assert found == {"a": 0, "b": 1, "c": 1}


def test_old_deliveries_are_deleted_and_waiting_ones_stay(store: Store):
    webhook_id = add_webhook(store, events=EVENTS)
    old, new, due = (a_delivery(store, webhook_id) for _ in range(3))
    long_ago = time.time() - (KEPT_DAYS + 1) * 86400
    with store.begin() as uow:
        uow.webhooks.change_delivery(old.id, state="delivered", due_at=None, at=long_ago)
        uow.webhooks.change_delivery(new.id, state="delivered", due_at=None)
        uow.webhooks.change_delivery(due.id, at=long_ago)
    assert what_to_clean(store, Settings()).deliveries == 1
    assert clean(store, Settings()).deliveries == 1
    assert [one.id for one in deliveries(store, webhook_id)] == [new.id, due.id]
