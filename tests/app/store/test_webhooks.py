"""Deliveries are stored in the transaction of their event, or not at all; on both databases."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa

from app.domain.entities import JobState
from app.domain.errors import NotFound
from app.domain.webhook import WebhookEvent
from app.services import models
from app.settings import Settings
from app.store.repositories import outbox, webhooks
from app.store.row_bytes import row_size
from app.store.tables import webhook_deliveries
from app.store.unit_of_work import Store, UnitOfWork
from tests.app.webhook_rows import add_webhook, deliveries, publish_version

AddJob = Callable[..., Any]


def types(store: Store, webhook_id: str) -> list[str]:
    return [delivery.type for delivery in deliveries(store, webhook_id)]


def end_job(uow: UnitOfWork, add_job: AddJob, state: JobState, **columns: Any) -> str:
    error = {"error_code": "boom", "error_message": "x" * 5000} if state is JobState.FAILED else {}
    job_id = str(add_job(uow, state=JobState.RUNNING, **columns).id)
    uow.jobs.move(job_id, JobState.CANCELLING) if state is JobState.CANCELLED else None
    uow.jobs.move(job_id, state, **error)
    uow.events.append(job_id, f"job_{state.value}", {"students": 3, "failed": 1})
    return job_id


def event(event_id: str, at: float = 1.0) -> WebhookEvent:
    return WebhookEvent(event_id, "webhook.test", "default", "wh", at, {})


def add(store: Store, webhook_id: str, *event_ids: str) -> list[str | None]:
    with store.begin() as uow:
        return [uow.outbox.add(webhook_id, event(event_id)) for event_id in event_ids]


ENDS = [JobState.SUCCEEDED, JobState.PARTIALLY_SUCCEEDED, JobState.FAILED, JobState.CANCELLED]


@pytest.mark.parametrize("state", ENDS)
def test_the_end_of_a_job_is_stored_for_each_webhook_that_wants_it(store: Store, add_job: AddJob, state):
    wanted = add_webhook(store, events=(f"job.{state.value}",), models=("digits",))
    everything = add_webhook(store)
    others = [
        add_webhook(store, events=("alias.moved",)),
        add_webhook(store, models=("letters",)),
        add_webhook(store, disabled_reason="request"),
        add_webhook(store.of_tenant("acme")),
    ]
    with store.begin() as uow:
        job_id = end_job(uow, add_job, state)
    [one], [two] = deliveries(store, wanted), deliveries(store, everything)
    assert one.event_id == two.event_id
    assert one.id != two.id
    assert (one.type, one.subject, one.state, one.attempts) == (f"job.{state.value}", job_id, "waiting", 0)
    assert one.due_at == one.at
    assert (one.data["model"], one.data["state"], one.data["students"]) == ("digits", state.value, 3)
    assert one.data["links"] == {"job": f"/v1/training-jobs/{job_id}"}
    if state is JobState.FAILED:
        assert one.data["error"] == {"code": "boom", "message": "x" * 1000}
    assert [deliveries(of, name) for of in (store, store.of_tenant("acme")) for name in others[:3]] == [
        []
    ] * 6
    assert deliveries(store.of_tenant("acme"), others[3]) == []


def test_what_is_rolled_back_leaves_no_delivery(store: Store, add_job: AddJob):
    webhook_id = add_webhook(store)
    with suppress(ZeroDivisionError), store.begin() as uow:
        end_job(uow, add_job, JobState.SUCCEEDED)
        assert len(uow.webhooks.deliveries(webhook_id, limit=9)[0]) == 1
        raise ZeroDivisionError
    assert deliveries(store, webhook_id) == []
    with store.begin() as uow:
        end_job(uow, add_job, JobState.SUCCEEDED)
    assert types(store, webhook_id) == ["job.succeeded"]


def test_published_versions_and_moved_aliases_are_events(store: Store):
    webhook_id = add_webhook(store, models=("letters",))
    publish_version(store, "letters")
    publish_version(store, "digits")
    models.point_alias(store, Settings(), "letters", "live", 1)
    revision = models.alias_revision(store, "letters", "live")
    models.delete_alias(store, "letters", "live", revision)
    with pytest.raises(NotFound):
        models.point_alias(store, Settings(), "letters", "live", 7)
    published, *moves = deliveries(store, webhook_id)
    assert (published.type, published.subject) == ("version.published", "letters@1")
    assert published.data["links"] == {"version": "/v1/models/letters/versions/1"}
    assert (published.data["class_count"], published.data["job_id"][:4]) == (1, "job_")
    assert [(move.subject, move.data["version"], move.data["previous"]) for move in moves] == [
        ("letters@latest", 1, None),
        ("letters@live", 1, None),
        ("letters@live", None, 1),
    ]


def test_an_event_is_stored_once_for_a_webhook(store: Store):
    webhook_id = add_webhook(store)
    first, again = add(store, webhook_id, "evt_1", "evt_1")
    assert first is not None
    assert again is None
    with store.begin() as uow:
        assert uow.outbox.announce("key.expiring", "default", "key_1", {}, event_id="evt_2") == 1
        assert uow.outbox.announce("key.expiring", "default", "key_1", {}, event_id="evt_2") == 0
        assert uow.outbox.announce("key.expiring", "acme", "key_1", {}, event_id="evt_3") == 0


def test_waiting_and_ended_deliveries_are_bounded(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outbox, "MAX_WAITING", 3)
    monkeypatch.setattr(webhooks, "KEPT_ENDED", 2)
    webhook_id = add_webhook(store)
    add(store, webhook_id, *(f"evt_{number}" for number in range(9)))
    found = deliveries(store, webhook_id)
    assert [one.event_id for one in found if one.state == "waiting"] == ["evt_0", "evt_1", "evt_2"]
    dead = [one for one in found if one.state == "dead"]
    assert [one.event_id for one in dead] == ["evt_6", "evt_7", "evt_8"], "the newest two, and one more"
    assert all(one.due_at is None and "3 other deliveries" in str(one.error) for one in dead)


def test_rows_count_in_the_quota_until_they_are_deleted(store: Store):
    def used() -> int:
        with store.read() as uow:
            return uow.quotas.used("default").stored_bytes

    before = used()
    webhook_id = add_webhook(store, url="https://hooks.example.com/" + "a" * 1500)
    with_webhook = used()
    assert with_webhook - before > 1500
    add(store, webhook_id, "evt_1", "evt_2")
    with store.read() as uow:
        sizes = uow.connection.execute(sa.select(row_size(webhook_deliveries))).scalars().all()
    assert used() - with_webhook >= sum(sizes), "room for an error is counted from the start"
    with store.begin() as uow:
        uow.webhooks.change(webhook_id, url="https://hooks.example.com/")
    assert used() < with_webhook + sum(sizes)
    with store.begin() as uow:
        uow.webhooks.delete(webhook_id)
    assert used() == before


def test_rows_of_another_tenant_do_not_exist(store: Store):
    webhook_id = add_webhook(store)
    [delivery_id] = add(store, webhook_id, "evt_1")
    with store.of_tenant("acme").begin() as uow:
        assert uow.webhooks.page(limit=9) == ([], False)
        assert uow.webhooks.count() == 0
        for ask in (
            lambda: uow.webhooks.get(webhook_id),
            lambda: uow.webhooks.change(webhook_id, name="mine"),
            lambda: uow.webhooks.delivery(webhook_id, str(delivery_id)),
        ):
            with pytest.raises(NotFound):
                ask()
        uow.webhooks.delete(webhook_id)
        uow.webhooks.change_delivery(str(delivery_id), state="dead")
        assert uow.webhooks.deliveries(webhook_id, limit=9) == ([], False)
    with store.read() as uow:
        assert uow.webhooks.get(webhook_id).name == "ours"
    assert [one.state for one in deliveries(store, webhook_id)] == ["waiting"]


def test_what_is_due_is_found_by_webhook(store: Store):
    first, second = add_webhook(store), add_webhook(store, disabled_reason="gone")
    ids = add(store, first, "evt_1", "evt_2", "evt_3")
    add(store, second, "evt_4")
    with store.begin() as uow:
        uow.webhooks.change_delivery(str(ids[1]), due_at=0.5)
        uow.webhooks.change_delivery(str(ids[2]), due_at=9.0)
        assert uow.webhooks.first_due() == 0.5
        assert uow.webhooks.count_due() == 4
        assert [webhook.id for webhook in uow.webhooks.with_due(2.0)] == [first]
        assert [one.id for one in uow.webhooks.due_of(first, 2.0, limit=9, but=[])] == [ids[1], ids[0]]
        assert [one.id for one in uow.webhooks.due_of(first, 2.0, limit=9, but={str(ids[1])})] == [ids[0]]
        assert uow.webhooks.with_due(0.4) == []
        assert uow.webhooks.tenants_due(0.4, after="", limit=9) == []
        uow.webhooks.set_due(first, None)
        uow.webhooks.set_due(second, None)
        assert uow.webhooks.first_due() is None
        assert uow.webhooks.tenants_of("key.expiring") == {"default"}
        assert uow.webhooks.count_before(2.0) == 4
        assert uow.webhooks.delete_before(0.5) == 0
        assert uow.webhooks.delete_before(2.0) == 4


def test_tenants_with_due_deliveries_have_turns_by_name(store: Store):
    for name in ("a", "b", "c", "none", "off"):
        tenant = store.of_tenant(name)
        ids = [add_webhook(tenant, disabled_reason="gone" if name == "off" else None) for _ in range(3)]
        if name != "none":
            add(tenant, ids[0], *(f"evt_{number}" for number in range(50)))
            add(tenant, ids[1], "evt_0")
    with store.of_all_tenants().read() as uow:

        def turns(after: str, limit: int) -> list[str]:
            return list(uow.webhooks.tenants_due(2.0, after=after, limit=limit))

        assert [turns(after, 9) for after in ("", "a", "bb", "c")] == [
            ["a", "b", "c"],
            ["b", "c", "a"],
            ["c", "a", "b"],
            ["a", "b", "c"],
        ]
        assert [turns("b", limit) for limit in (1, 2)] == [["c"], ["c", "a"]]
        assert len(uow.webhooks.of_tenant("b").with_due(2.0)) == 2


def test_a_webhook_that_is_deleted_meanwhile_does_not_undo_the_end_of_a_job(postgres_address: str, add_job):
    from app.store.engine import open_engine

    store = Store(open_engine(postgres_address))
    webhook_id = add_webhook(store)
    listed, deleted = threading.Event(), threading.Event()

    def delete() -> None:
        listed.wait(30)
        with store.begin() as uow:
            uow.webhooks.delete(webhook_id)
        deleted.set()

    thread = threading.Thread(target=delete)
    thread.start()
    with store.begin() as uow:
        end_job(uow, add_job, JobState.SUCCEEDED)
        listed.set()
        assert not deleted.wait(0.5), "the deletion waits for the delivery"
    thread.join(30)
    assert deleted.is_set()
    with store.read() as uow, pytest.raises(NotFound):
        uow.webhooks.get(webhook_id)
    store.dispose()
